"""Memory limits that cgroups impose on this process, in containers, batch jobs and services.

These limits are not visible to free(1) or psutil, but the kernel kills processes that exceed them, so predictions must
take them into account. Versions 1 and 2 of cgroups are supported; see cgroups(7), "memory.txt" and "cgroup-v2.rst" of
the Linux kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import psutil

FileSystem = Literal["cgroup2", "cgroup"]
"""Type of the cgroup file system, in version 2 and in version 1."""


def directories(filesystem: FileSystem, controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the directory of this process's cgroup for a controller, then the directories of all groups above it."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    group = _own_group(filesystem, controller, memberships)
    mount = _mount(filesystem, controller, mounts)
    if group is None or mount is None:
        return
    mounted, mount_point = mount
    top = root / mount_point.relative_to("/")
    # In a cgroup namespace, the root of the mount is the container's own group, and paths start there.
    below = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
    yield from (top / below, *(top / parent for parent in below.parents))


def _own_group(filesystem: FileSystem, controller: str, memberships: list[str]) -> PurePosixPath | None:
    """Return this process's cgroup, from lines such as `4:memory:/user.slice` (version 1) or `0::/user.slice`."""
    for line in memberships:
        hierarchy, controllers, path = (line.split(":", 2) + [""] * 3)[:3]
        if (controller in controllers.split(",")) if filesystem == "cgroup" else hierarchy == "0":
            return PurePosixPath(path)
    return None


def _mount(filesystem: FileSystem, controller: str, mounts: list[str]) -> tuple[PurePosixPath, PurePosixPath] | None:
    """Return the mounted part of the cgroup hierarchy and its mount point, from lines of mountinfo; see proc(5)."""
    for line in mounts:
        where, _, what = line.partition(" - ")
        if not what.startswith(filesystem + " "):
            continue
        if filesystem == "cgroup" and controller not in what.split()[-1].split(","):
            continue
        mounted, mount_point = (PurePosixPath(path) for path in where.split()[3:5])
        return mounted, mount_point
    return None


@dataclass(frozen=True)
class _Version:
    filesystem: FileSystem
    limit: str
    usage: str
    page_cache: tuple[str, ...]
    """Lines of memory.stat that count file pages, which the kernel reclaims before it kills any process."""


_VERSIONS = (
    _Version("cgroup2", "memory.max", "memory.current", ("inactive_file", "active_file")),
    _Version("cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


@dataclass(frozen=True)
class MemoryLimit:
    """One memory limit that applies to this process."""

    limit_bytes: int
    directory: Path
    version: _Version

    def available_bytes(self) -> int | None:
        """Return how much of the limit is still available; None if it cannot be read."""
        try:
            used = int((self.directory / self.version.usage).read_text())
            statistics = (self.directory / "memory.stat").read_text()
        except (OSError, ValueError):
            return None
        counts = dict(line.split() for line in statistics.splitlines() if line.count(" ") == 1)
        reclaimable = sum(int(counts.get(name, 0)) for name in self.version.page_cache)
        return min(self.limit_bytes, max(0, self.limit_bytes - used + reclaimable))


def memory_limits(physical_bytes: int, root: Path = Path("/")) -> tuple[MemoryLimit, ...]:
    """Return the memory limits that cgroups impose on this process, except limits of `physical_bytes` or more."""
    found = (limit for version in _VERSIONS for limit in _limits_of(version, root))
    # Version 1 expresses "unlimited" as a number near 2^63, version 2 as the word max.
    return tuple(limit for limit in found if limit.limit_bytes < physical_bytes)


def host_available_bytes(limits: Iterable[MemoryLimit] | None = None) -> int:
    """Return the host memory still available to this process; pass `limits` if they are already known."""
    memory = psutil.virtual_memory()
    found = memory_limits(int(memory.total)) if limits is None else limits
    allowed = (limit.available_bytes() for limit in found)
    return min([int(memory.available), *(size for size in allowed if size is not None)])


def _limits_of(version: _Version, root: Path) -> Iterator[MemoryLimit]:
    for directory in directories(version.filesystem, "memory", root):
        try:
            yield MemoryLimit(int((directory / version.limit).read_text()), directory, version)
        except (OSError, ValueError):
            continue

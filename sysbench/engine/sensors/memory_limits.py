"""Memory limits that cgroups impose on this process, in containers, batch jobs and services.

psutil does not see them, but the kernel kills processes that exceed them. See cgroups(7), and "memory.txt" (version 1)
and "cgroup-v2.rst" of the Linux kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

import psutil

FileSystem = Literal["cgroup2", "cgroup"]
"""Type of the cgroup file system, in version 2 and in version 1."""


def directories(filesystem: FileSystem, controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the directory of this process's cgroup for a controller, then the directories of all groups above it.

    /proc and /sys are read under `root`. In a container without a cgroup namespace, whose paths are the host's, only
    the last one exists: the group of the container.
    """
    top = root / "sys/fs/cgroup" / ("" if filesystem == "cgroup2" else controller)
    try:
        memberships = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return
    # Lines are such as `4:memory:/user.slice` in version 1, and `0::/user.slice` in version 2.
    for hierarchy, controllers, path in (line.split(":", 2) for line in memberships if line.count(":") >= 2):
        if (controller in controllers.split(",")) if filesystem == "cgroup" else hierarchy == "0":
            group = top / path.strip("/")
            yield from takewhile(lambda each: each.is_relative_to(top), (group, *group.parents))


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

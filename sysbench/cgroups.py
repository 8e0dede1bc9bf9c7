"""Where the control groups of this process are mounted, in versions 1 and 2 of the interface; see cgroups(7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

FileSystem = Literal["cgroup2", "cgroup"]
"""Version 2, and version 1."""


def directories(filesystem: FileSystem, controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """This process's group in the hierarchy that has `controller`, then every group above it.

    `root` is where /proc and the cgroup file systems are looked for. Nothing where there is no such hierarchy.
    """
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
    # With a cgroup namespace the mount shows the container's own group as its root, and paths start there.
    below = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
    yield from (top / below, *(top / parent for parent in below.parents))


def _own_group(filesystem: FileSystem, controller: str, memberships: list[str]) -> PurePosixPath | None:
    """This process's group, from lines such as `4:memory:/user.slice` (version 1) and `0::/user.slice`."""
    for line in memberships:
        hierarchy, controllers, path = (line.split(":", 2) + [""] * 3)[:3]
        if (controller in controllers.split(",")) if filesystem == "cgroup" else hierarchy == "0":
            return PurePosixPath(path)
    return None


def _mount(filesystem: FileSystem, controller: str, mounts: list[str]) -> tuple[PurePosixPath, PurePosixPath] | None:
    """The part of the hierarchy that is mounted, and where; lines as described in proc(5) under mountinfo."""
    for line in mounts:
        where, _, what = line.partition(" - ")
        if not what.startswith(filesystem + " "):
            continue
        if filesystem == "cgroup" and controller not in what.split()[-1].split(","):
            continue
        mounted, mount_point = (PurePosixPath(path) for path in where.split()[3:5])
        return mounted, mount_point
    return None

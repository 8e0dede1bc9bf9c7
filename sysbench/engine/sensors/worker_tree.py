"""Memory and CPU time of the workers and their descendants, and the CPU load of all other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psutil

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class WorkerTree:
    """Processes and their descendants, as of the last listing."""

    def __init__(self, *pids: int) -> None:
        self._members: list[psutil.Process] = []
        self._roots = [root for pid in pids if (root := _query(psutil.Process, pid)) is not None]
        self.list_members()

    @property
    def pids(self) -> frozenset[int]:
        """Process ids of the members."""
        return frozenset(member.pid for member in self._members)

    def list_members(self) -> None:
        """Update the list of members, as processes may have started or exited."""
        alive = [root for root in self._roots if root.is_running()]
        self._members = [member for root in alive for member in _with_descendants(root)]

    def rss_bytes(self) -> int | None:
        """Return the resident set size of all members together; None if no member is left."""
        # A process that has ended but has not been waited for reports 0.
        sizes = [_query(lambda process: int(process.memory_info().rss), member) or 0 for member in self._members]
        return sum(sizes) or None

    def cpu_s(self) -> float | None:
        """Return the CPU time of the tree so far, including ended children; None if no member is left."""
        times = [time_s for member in self._members if (time_s := _query(_cpu_s, member)) is not None]
        return sum(times) if times else None


class ForeignLoad:
    """CPU load of all processes except this one and the worker's tree."""

    def __init__(self) -> None:
        self._self = psutil.Process()
        self._before: tuple[float, float, float] | None = None

    def restart(self) -> None:
        """Discard the previous reading; call this before switching to another tree."""
        self._before = None

    def share(self, tree: WorkerTree) -> float | None:
        """Return the fraction of all CPU time that other processes used since the previous call; None if unknown.

        Call this right after listing the members of the tree: processes that started since the last listing are then
        included, and the time of ended processes is part of their parent's time. The first call returns None.
        """
        busy_s, total_s = machine_s()
        tree_s = tree.cpu_s()
        before, self._before = self._before, (busy_s, total_s, _cpu_s(self._self) + (tree_s or 0.0))
        if before is None:
            return None
        busy_s, total_s, own_s = (now - then for now, then in zip(self._before, before, strict=True))
        # The CPU time of a tree that has ended is no longer counted, which makes the difference meaningless.
        if total_s <= 0 or own_s < 0:
            return None
        return min(1.0, max(0.0, (busy_s - own_s) / total_s))


def descendants_of(pid: int) -> frozenset[int]:
    """Return the process ids of a process and all its descendants."""
    return WorkerTree(pid).pids


def _query(question: Callable[[Question], Answer], about: Question) -> Answer | None:
    try:
        return question(about)
    except psutil.Error:
        return None


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def machine_s() -> tuple[float, float]:
    """Return the busy and the total time of all cores so far; time taken by a hypervisor ("steal") counts as busy."""
    times = psutil.cpu_times()._asdict()
    # Linux includes guests' time in user and nice; waiting for a disk does not occupy a core.
    total_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return total_s - times["idle"] - times.get("iowait", 0.0), total_s


def _with_descendants(root: psutil.Process) -> list[psutil.Process]:
    return [root, *(_query(lambda process: process.children(recursive=True), root) or ())]

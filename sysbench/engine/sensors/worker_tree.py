"""A worker and its descendants as the operating system sees them: memory, processor time, and who else is busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class WorkerTree:
    """A process and its descendants, as they were when they were last listed.

    Every question about a process that is gone is answered with what is left of the tree, or None.
    """

    def __init__(self, pid: int | None) -> None:
        self._members: list[psutil.Process] = []
        self._root = _ask(psutil.Process, pid) if pid is not None else None
        self.list_members()

    @property
    def pids(self) -> frozenset[int]:
        """The members' process ids."""
        return frozenset(member.pid for member in self._members)

    def list_members(self) -> None:
        """Look again who belongs to the tree."""
        root = self._root
        alive = root is not None and root.is_running()
        self._members = [root, *_descendants(root)] if root is not None and alive else []

    def rss_bytes(self) -> int | None:
        """Resident memory of all members; None when none is left."""
        # A process that has ended and has not been waited for reports 0.
        sizes = [size for member in self._members if (size := _ask(_rss_bytes, member))]
        return sum(sizes) if sizes else None

    def cpu_s(self) -> float | None:
        """Processor time that the tree has taken so far, children that ended included; None when none is left."""
        times = [time_s for member in self._members if (time_s := _ask(_cpu_s, member)) is not None]
        return sum(times) if times else None


class ForeignLoad:
    """How busy processes other than a worker's tree and this one keep the machine."""

    def __init__(self) -> None:
        self._self = psutil.Process()
        self._before: tuple[float, float, float] | None = None

    def restart(self) -> None:
        """Begin anew, with another tree."""
        self._before = None

    def share(self, tree: WorkerTree) -> float | None:
        """Share of all cores, 0 to 1, since the call before; None at first and when it cannot be known.

        To be called just after the tree's members were listed: processes that were born since are then counted
        among them, and time of those that ended has gone to their parent.
        """
        busy_s, total_s = _machine_s()
        tree_s = tree.cpu_s()
        before, self._before = self._before, (busy_s, total_s, _cpu_s(self._self) + (tree_s or 0.0))
        if before is None:
            return None
        busy_s, total_s, own_s = (now - then for now, then in zip(self._before, before, strict=True))
        # A tree that has vanished takes its time along, and the difference means nothing.
        if total_s <= 0 or own_s < 0:
            return None
        return min(1.0, max(0.0, (busy_s - own_s) / total_s))


def descendants_of(pid: int) -> frozenset[int]:
    """Process ids of a process and everything below it."""
    return WorkerTree(pid).pids


def _ask(question: Callable[[Question], Answer], about: Question) -> Answer | None:
    """The answer, or None when the process that is asked about is gone or not ours to ask."""
    try:
        return question(about)
    except psutil.Error:
        return None


def _rss_bytes(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _machine_s() -> tuple[float, float]:
    """Busy and total time of all cores so far. Time that a hypervisor took for others ("steal") is busy."""
    times = psutil.cpu_times()._asdict()
    # Linux counts guests' time under user and nice already; waiting for a disk keeps no core.
    total_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return total_s - times["idle"] - times.get("iowait", 0.0), total_s


def _descendants(root: psutil.Process) -> Iterator[psutil.Process]:
    """Everything below `root`.

    Linux lists the children of each thread (CONFIG_PROC_CHILDREN): 20 µs for a small process, where psutil has to
    read the parent of every process there is, 30 µs each.
    """
    if not Path(f"/proc/{root.pid}/task/{root.pid}/children").exists():
        yield from _ask(_scanned_descendants, root) or ()
        return
    seen, waiting = {root.pid}, [root.pid]
    while waiting:
        for pid in _children(waiting.pop()) - seen:
            seen.add(pid)
            waiting.append(pid)
            child = _ask(psutil.Process, pid)
            if child is not None:
                yield child


def _scanned_descendants(root: psutil.Process) -> list[psutil.Process]:
    return root.children(recursive=True)


def _children(pid: int) -> set[int]:
    children: set[int] = set()
    # A process or a thread may end while it is being read: what is gone has no children.
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children.update(map(int, (thread / "children").read_bytes().split()))
    return children

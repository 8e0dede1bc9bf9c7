"""Timelines from sequences of events, as an independent account of what a snapshot tells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from sysbench.snapshot import CATEGORIES
from sysbench.snapshot.layout import NONE, Frame, Stacks
from sysbench.snapshot.timeline import Allocations, Phase, Timeline


class Allocated(NamedTuple):
    """Memory is allocated; `key` identifies it until its release."""

    key: int
    size_bytes: int
    category: str
    module: str = ""
    """Path of the module that allocates: `layers.3.attn`."""
    stack: tuple[Frame, ...] = ()
    requested_bytes: int | None = None
    time_us: int = 0


class Released(NamedTuple):
    """The memory allocated under `key` is released."""

    key: int
    time_us: int = 0


class ReservedChanged(NamedTuple):
    """The reserved memory changes to this size."""

    total_bytes: int
    time_us: int = 0


class PhaseBegan(NamedTuple):
    """A phase begins, and the previous one ends. An empty name only ends the previous phase."""

    name: str


MemoryEvent: TypeAlias = Allocated | Released | ReservedChanged | PhaseBegan


class _Ledger:
    """Collects the allocations of a sequence of events."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        """(size, requested, born, category, module, stack)"""
        self._died: list[int] = []
        self._live: dict[int, int] = {}
        self._modules: dict[str, int] = {"": NONE}
        self._stacks: dict[tuple[Frame, ...], int] = {(): NONE}

    def allocate(self, event: Allocated, born: int) -> None:
        """Record an allocation. Raises ValueError for an unknown category, and for a key that is live."""
        if event.category not in CATEGORIES:
            raise ValueError(f"{event.category!r} is not a category of memory")
        if event.key in self._live:
            raise ValueError(f"{event.key} is allocated twice")
        self._live[event.key] = len(self._rows)
        requested = event.size_bytes if event.requested_bytes is None else event.requested_bytes
        module = self._modules.setdefault(event.module, len(self._modules) - 1)
        stack = self._stacks.setdefault(event.stack, len(self._stacks) - 1)
        self._rows.append((event.size_bytes, requested, born, CATEGORIES.index(event.category), module, stack))
        self._died.append(NONE)

    def release(self, event: Released, died: int) -> None:
        """Record a release. Raises ValueError for a key that is not live."""
        if event.key not in self._live:
            raise ValueError(f"{event.key} is released and was not allocated")
        self._died[self._live.pop(event.key)] = died

    def allocations(self, states: int) -> Allocations:
        """Return all allocations, for a timeline with this number of states."""
        size, requested, born, category, module, stack = np.array(self._rows, np.int64).reshape(-1, 6).T
        died = np.array(self._died, np.int64)
        return Allocations(
            size_bytes=size,
            requested_bytes=requested,
            born=born,
            died=np.where(died == NONE, states, died),
            category=category.astype(np.uint8),
            module=module.astype(np.int32),
            stack=stack.astype(np.int32),
            freed_stack=np.full(len(size), NONE, np.int32),
            address=np.zeros(len(size), np.uint64),
        )

    def modules(self) -> tuple[tuple[str, ...], ...]:
        """Module paths in parts; allocations hold positions in this tuple."""
        return tuple(tuple(module.split(".")) for module in list(self._modules)[1:])

    def stacks(self) -> Stacks:
        """Distinct stacks; allocations hold positions in this table."""
        stacks = list(self._stacks)[1:]
        frames: dict[Frame, int] = {}
        places: list[Any] = [frames.setdefault(frame, len(frames)) for stack in stacks for frame in stack]
        start = np.concatenate([[0], np.cumsum([len(stack) for stack in stacks])]).astype(np.int64)
        return Stacks(tuple(frames), np.array(places, np.uint32), start)


def from_events(
    events: Iterable[MemoryEvent],
    source: Literal["measured", "simulated"],
    before: Iterable[Allocated] = (),
    device_name: str | None = None,
) -> Timeline:
    """Build a timeline from events in order; `before` lists what was live before the first event.

    Raises ValueError for a category that is not in CATEGORIES, and for a release of something that is not live.
    """
    ledger = _Ledger()
    times_us, reserved_bytes = [0], [0]
    marks: list[tuple[str, int]] = []
    for allocated in before:
        ledger.allocate(allocated, born=0)
    for event in events:
        state = len(times_us)
        if isinstance(event, PhaseBegan):
            marks.append((event.name, state - 1))
            continue
        if isinstance(event, Allocated):
            ledger.allocate(event, born=state)
        elif isinstance(event, Released):
            ledger.release(event, died=state)
        times_us.append(event.time_us)
        reserved_bytes.append(event.total_bytes if isinstance(event, ReservedChanged) else reserved_bytes[-1])
    states = len(times_us)
    # Allocations that predate the first event get its time.
    times_us[0] = times_us[min(1, states - 1)]
    marks.append(("", states - 1))
    return Timeline(
        allocations=ledger.allocations(states),
        states=states,
        phases=tuple(Phase(name, first, end + 1) for (name, first), (_, end) in itertools.pairwise(marks) if name),
        modules=ledger.modules(),
        stacks=ledger.stacks(),
        reserved_bytes=np.array(reserved_bytes, np.int64) if any(reserved_bytes) else None,
        time_us=np.array(times_us, np.int64) if any(times_us) else None,
        source=source,
        inferred=False,
        device_name=device_name,
    )

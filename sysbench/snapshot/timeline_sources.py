"""Timelines from snapshots, of sysbench or other programs, and from sequences of events."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sysbench.errors import UsageError
from sysbench.snapshot.categories import Inference, infer
from sysbench.snapshot.layout import NONE, Annotation, Column, Frame, Snapshot, Stacks
from sysbench.snapshot.lifetimes import ROUNDING_BYTES, Lifetimes, lifetimes
from sysbench.snapshot.reserved import Reserved
from sysbench.snapshot.timeline import CATEGORIES, PHASES, UNKNOWN, Allocations, Phase, Timeline

_CODE: Final[Mapping[str, int]] = {
    **{name: code for code, name in enumerate(CATEGORIES)},
    # torch.profiler's names (torch/profiler/_memory_profiler.py, `Category`), as _memory_viz writes them.
    "parameter": CATEGORIES.index("parameters"),
    "gradient": CATEGORIES.index("gradients"),
    "optimizer_state": CATEGORIES.index("optimizer state"),
    "activation": CATEGORIES.index("activations"),
    "input": CATEGORIES.index("inputs"),
    "temporary": CATEGORIES.index("temporaries"),
    "autograd_detail": CATEGORIES.index("temporaries"),
}


# --- from a snapshot


def from_snapshot(snapshot: Snapshot, device: int | None = None) -> Timeline:
    """Build the timeline of one device, by default the one with the most activity.

    Categories that the snapshot records are used as they are; otherwise they are inferred, and the timeline is marked
    accordingly. Raises UsageError for a device that the snapshot does not contain.
    """
    if device is None:
        device = max(snapshot.devices, key=lambda device: _activity(snapshot, device), default=0)
    if device not in snapshot.devices:
        held = ", ".join(map(str, snapshot.devices)) or "none"
        raise UsageError(f"the snapshot has nothing about device {device} (it has: {held})")
    lives = lifetimes(snapshot, device)
    trace, blocks = snapshot.trace, snapshot.blocks
    requested = _picked(lives, trace.size_bytes, blocks.requested_bytes)
    rounded = -(-np.maximum(requested, 1) // ROUNDING_BYTES) * ROUNDING_BYTES
    size = np.where(lives.block == NONE, rounded, np.append(blocks.size_bytes, 0)[lives.block])
    stack = _picked_or_none(lives, trace.stack, blocks.stack).astype(np.int32)
    freed_stack = np.append(trace.stack, NONE)[lives.freed_row].astype(np.int32)
    found = _recorded(snapshot, lives) or infer(snapshot, lives, stack, freed_stack, rounded)
    name = snapshot.metadata.get("device_name")
    return Timeline(
        allocations=Allocations(
            size_bytes=size,
            requested_bytes=requested,
            born=lives.born,
            died=lives.died,
            category=found.category,
            module=found.module,
            stack=stack,
            freed_stack=freed_stack,
            address=_picked(lives, trace.address, blocks.address).astype(np.uint64),
            stream=_picked(lives, trace.stream, snapshot.segments.stream[blocks.segment]),
        ),
        states=lives.states,
        phases=found.phases,
        modules=found.modules,
        stacks=snapshot.stacks,
        reserved=lives.reserved if snapshot.has_allocator else None,
        time_us=lives.time_us if snapshot.has_allocator else None,
        source=snapshot.source,
        inferred=isinstance(found, Inference),
        device=device,
        device_name=name if isinstance(name, str) else None,
        failures=lives.failures,
    )


def _activity(snapshot: Snapshot, device: int) -> tuple[int, int]:
    """Number of trace entries of a device, and the bytes that it holds."""
    held = snapshot.segments.total_bytes[snapshot.segments.device == device]
    return int((snapshot.trace.device == device).sum()), int(held.sum())


def _picked(lives: Lifetimes, of_trace: Column, of_blocks: Column) -> Column:
    """A value for each allocation: from its trace entry, or from its block if it predates the trace.

    Allocations that predate the trace and were released in it have only the value of the release.
    """
    row = np.where(lives.row == NONE, lives.freed_row, lives.row)
    from_block = np.append(of_blocks, of_blocks.dtype.type(0))[lives.block]
    from_trace = np.append(of_trace, of_trace.dtype.type(0))[row]
    return np.where(row == NONE, from_block, from_trace)


class _Recorded(NamedTuple):
    """Categories, modules and phases that the snapshot records; the counterpart of an Inference."""

    category: npt.NDArray[np.uint8]
    module: npt.NDArray[np.int32]
    modules: tuple[tuple[str, ...], ...]
    phases: tuple[Phase, ...]


def _recorded(snapshot: Snapshot, lives: Lifetimes) -> _Recorded | None:
    """Return recorded categories, modules and phases; None for a snapshot without categories."""
    codes = np.array([*(_CODE.get(name, UNKNOWN) for name in snapshot.categories), UNKNOWN], np.uint8)
    named = _picked_or_none(lives, snapshot.trace.category, snapshot.blocks.category)
    category = codes[named]
    if (category == UNKNOWN).all():
        return None
    module = _picked_or_none(lives, snapshot.trace.label, snapshot.blocks.label).astype(np.int32)
    modules = tuple(tuple(part for part in label.split(".") if part) for label in snapshot.labels)
    return _Recorded(category, module, modules, tuple(_marked_phases(snapshot.annotations, lives)))


def _picked_or_none(lives: Lifetimes, of_trace: Column, of_blocks: Column) -> npt.NDArray[np.int64]:
    """Like `_picked`, for positions, but ignores releases, which tell nothing about where and for what it was made."""
    from_block = np.append(of_blocks, NONE)[lives.block]
    return np.where(lives.row == NONE, from_block, np.append(of_trace, NONE)[lives.row])


def _marked_phases(annotations: Iterable[Annotation], lives: Lifetimes) -> Iterator[Phase]:
    """Phases between a START and the next END of the same name; names of other ranges are ignored."""
    if lives.time_us is None:
        return
    # State 0 precedes the first event, and has no time of its own.
    times = lives.time_us[1:]
    started: dict[str, int] = {}
    for mark in sorted(annotations, key=lambda mark: mark.time_us):
        if mark.name not in PHASES:
            continue
        state = int(np.searchsorted(times, mark.time_us, side="left"))
        if mark.stage == "START":
            started[mark.name] = state
        elif mark.name in started:
            yield Phase(mark.name, started.pop(mark.name), state + 1)
    for name, state in started.items():
        # Out of memory in the middle of a phase.
        yield Phase(name, state, lives.states)


# --- from events


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
            stream=np.zeros(len(size), np.int64),
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
        reserved=Reserved(np.array(reserved_bytes, np.int64)) if any(reserved_bytes) else None,
        time_us=np.array(times_us, np.int64) if any(times_us) else None,
        source=source,
        inferred=False,
        device_name=device_name,
    )

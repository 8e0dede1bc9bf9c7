"""Timelines from memory snapshots, written by sysbench or by other programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sysbench.errors import UsageError
from sysbench.snapshot import CATEGORIES
from sysbench.snapshot.categories import Inference, infer
from sysbench.snapshot.layout import NONE, Annotation, Column, Snapshot
from sysbench.snapshot.lifetimes import ROUNDING_BYTES, Lifetimes, lifetimes
from sysbench.snapshot.timeline import PHASES, UNKNOWN, Allocations, Phase, Timeline

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

"""Lifetimes of the allocations in a trace, including allocations that predate or outlive the trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysbench.snapshot.layout import ACTION_CODE, NONE, STATES, Column, Snapshot
from sysbench.snapshot.timeline import OutOfMemory

_ALLOC = ACTION_CODE["alloc"]
_GROWS = (ACTION_CODE["segment_alloc"], ACTION_CODE["segment_map"])
_SHRINKS = (ACTION_CODE["segment_free"], ACTION_CODE["segment_unmap"])
_ACTIVE = STATES.index("active_allocated")


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Lifetimes of all allocations on one device; columns have one row per allocation."""

    states: int
    born: Column
    died: Column
    row: Column  # position of the allocation in the trace, or NONE if it predates the trace
    freed_row: Column  # position of the release in the trace, or NONE
    block: Column  # position among the blocks that exist at the end of the trace, or NONE
    time_us: Column | None
    reserved_bytes: Column
    failures: tuple[OutOfMemory, ...]


def lifetimes(snapshot: Snapshot, device: int) -> Lifetimes:
    """Return the lifetimes of all allocations on one device.

    An allocation is live until its release is requested, as in `torch.cuda.memory_allocated`. If the trace has no such
    requests, an allocation is live until its release completes. If a release or a block has no allocation in the trace,
    the allocation predates the trace.
    """
    trace = snapshot.trace
    rows = np.flatnonzero(trace.device == device)
    action = trace.action[rows]
    requested = action == ACTION_CODE["free_requested"]
    freed = requested if requested.any() else action == ACTION_CODE["free_completed"]
    changes = np.isin(action, [*_GROWS, *_SHRINKS])
    failed = action == ACTION_CODE["oom"]
    counted = (action == _ALLOC) | freed | changes | failed
    # The state after each event; state 0 precedes the first event.
    state = np.cumsum(counted)
    states = int(state[-1]) + 1 if len(state) else 1

    allocation_events = np.flatnonzero((action == _ALLOC) | freed)
    born, died, row, freed_row = _match_releases(
        rows[allocation_events], state[allocation_events], freed[allocation_events], snapshot, states
    )
    blocks = snapshot.blocks
    block = np.flatnonzero((blocks.state == _ACTIVE) & (snapshot.segments.device[blocks.segment] == device))
    found = _match_blocks(snapshot, block, row, died == states)
    unmatched = block[~np.isin(block, found)]
    padding = np.full(len(unmatched), NONE, np.int64)
    time_us = trace.time_us[rows][counted]
    return Lifetimes(
        states=states,
        born=np.concatenate([born, np.zeros(len(unmatched), np.int64)]),
        died=np.concatenate([died, np.full(len(unmatched), states, np.int64)]),
        row=np.concatenate([row, padding]),
        freed_row=np.concatenate([freed_row, padding]),
        block=np.concatenate([found, unmatched]),
        # Allocations that predate the trace get the time of its first event.
        time_us=np.concatenate([time_us[:1], time_us]) if trace.time_us[rows].any() and len(time_us) else None,
        reserved_bytes=_reserved_bytes(snapshot, device, rows[changes], state[changes], states),
        failures=tuple(
            OutOfMemory(int(state[index]), int(trace.size_bytes[rows[index]]), int(trace.address[rows[index]]))
            for index in np.flatnonzero(failed)
        ),
    )


def _match_releases(
    rows: Column, state: Column, freed: Column, snapshot: Snapshot, states: int
) -> tuple[Column, Column, Column, Column]:
    """Match each allocation with its release: at each address, allocations and releases alternate."""
    address = snapshot.trace.address[rows]
    order = np.argsort(address, kind="stable")
    sorted_address, is_free, state_at, position = address[order], freed[order], state[order], rows[order]
    count = len(order)
    same = np.zeros(count + 1, bool)
    same[1:count] = sorted_address[1:] == sorted_address[:-1]
    allocated = np.flatnonzero(~is_free)
    # An allocation ends at the next event at its address: its release, or another allocation if the release is missing.
    has_next = same[allocated + 1]
    following = np.minimum(allocated + 1, max(count - 1, 0))
    died = np.where(has_next, state_at[following], states)
    freed_row = np.where(has_next & is_free[following], position[following], NONE)
    # A release without an earlier event at its address belongs to an allocation that predates the trace.
    unmatched = np.flatnonzero(is_free & ~same[:count])
    born = np.concatenate([state_at[allocated], np.zeros(len(unmatched), np.int64)])
    return (
        born,
        np.concatenate([died, state_at[unmatched]]),
        np.concatenate([position[allocated], np.full(len(unmatched), NONE, np.int64)]),
        np.concatenate([freed_row, position[unmatched]]),
    )


def _match_blocks(snapshot: Snapshot, block: Column, row: Column, lives: Column) -> Column:
    """Return the block of each allocation that is live at the end; NONE for all others."""
    found = np.full(len(row), NONE, np.int64)
    if not len(block):
        return found
    living = np.flatnonzero(lives)
    address = snapshot.trace.address[row[living]]
    order = block[np.argsort(snapshot.blocks.address[block])]
    sorted_address = snapshot.blocks.address[order]
    place = np.minimum(np.searchsorted(sorted_address, address), len(order) - 1)
    found[living] = np.where(sorted_address[place] == address, order[place], NONE)
    return found


def _reserved_bytes(snapshot: Snapshot, device: int, rows: Column, state: Column, states: int) -> Column:
    """Compute reserved memory backwards from the end of the trace; the initial amount may not have been recorded."""
    segments, trace = snapshot.segments, snapshot.trace
    size = trace.size_bytes[rows]
    change = np.zeros(states, np.int64)
    np.add.at(change, state, np.where(np.isin(trace.action[rows], _GROWS), size, -size))
    after = np.cumsum(change)
    reserved: Column = after - after[-1] + segments.total_bytes[segments.device == device].sum()
    return reserved

"""Block sizes that are inferred from a trace are those that the allocator gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sysbench.simulate.allocator import CachingAllocator, SimulatedOutOfMemoryError
from sysbench.simulate.allocator.blocks import Block
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.snapshot import snapshot
from sysbench.snapshot.categories import from_snapshot
from tests.simulate.allocator_calls import MIB, SETTINGS, Call, random_calls, training_calls
from tests.simulate.compiled_allocator.record import RECORDINGS
from tests.simulate.test_recordings import load, replayed


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_peak_of_a_recorded_trace_is_max_memory_allocated(name: str) -> None:
    """PyTorch's compiled allocator wrote these traces; the model that reproduces them counts what is allocated."""
    allocator, _ = replayed(name)
    timeline = from_snapshot(snapshot.of(load(f"{name}.pickle.gz")))
    assert timeline.peak.allocated_bytes == allocator.statistics.allocated_peak_bytes
    assert int(timeline.allocated_bytes[-1]) == allocator.statistics.allocated_bytes


def _play(calls: list[Call], settings: str) -> tuple[CachingAllocator, list[int], list[int]]:
    """Make the calls. Returns the allocator, the size of each block, and the allocated bytes after each change."""
    allocator = CachingAllocator(600 * MIB, AllocatorSettings.parse(settings), record=True)
    held: dict[object, Block] = {}
    sizes, totals = [], []
    for kind, *values in calls:
        if kind == "a":
            try:
                held[values[0]] = allocator.allocate(int(values[1]), int(values[2]))
            except SimulatedOutOfMemoryError:
                continue
            sizes.append(held[values[0]].size)
        elif kind == "f" and values[0] in held:
            allocator.free(held.pop(values[0]))
        elif kind == "e":
            allocator.empty_cache()
        totals.append(allocator.statistics.allocated_bytes)
    return allocator, sizes, totals


def _inferred(raw: dict[str, Any]) -> list[int]:
    """The sizes of the blocks allocated in a trace, in the order of the trace."""
    allocations = from_snapshot(snapshot.of(raw)).allocations
    in_trace = np.flatnonzero(allocations.born > 0)
    return [int(size) for size in allocations.size_bytes[in_trace[np.argsort(allocations.born[in_trace])]]]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_every_block_has_the_size_that_the_allocator_gave_it(settings: str, seed: int) -> None:
    allocator, sizes, totals = _play(random_calls(seed, 600), settings)
    raw = allocator.snapshot()
    assert _inferred(raw) == sizes
    assert from_snapshot(snapshot.of(raw)).peak.allocated_bytes == max(totals)


@pytest.mark.parametrize(
    "settings", ["", "max_split_size_mb:32,max_non_split_rounding_mb:24", "expandable_segments:True"]
)
def test_a_trace_that_begins_in_the_middle_of_a_run_has_the_same_block_sizes(settings: str) -> None:
    """Of blocks that predate the trace and are freed in it, only a lower bound of the size is known."""
    allocator, sizes, _ = _play(random_calls(7, 900), settings)
    raw = allocator.snapshot()
    entries = raw["device_traces"][0]
    for first in (1, len(entries) // 4, len(entries) // 2):
        allocated_before = sum(entry["action"] == "alloc" for entry in entries[:first])
        late = {**raw, "device_traces": [entries[first:]]}
        assert _inferred(late) == sizes[allocated_before:]


def test_a_steady_training_step_recorded_alone_has_the_peak_of_the_allocator() -> None:
    setup, *steps = training_calls(3)
    earlier = [*setup, *steps[0], *steps[1]]
    before, _, totals_before = _play(earlier, "")
    allocator, _, totals = _play([*earlier, *steps[2]], "")
    raw = allocator.snapshot()
    late = {**raw, "device_traces": [raw["device_traces"][0][len(before.events) :]]}
    assert from_snapshot(snapshot.of(late)).peak.allocated_bytes == max(totals[len(totals_before) :])

"""What the model of the CUDA caching allocator says of itself. What it does, test_recordings.py compares."""

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.simulate.allocator import CachingAllocator, SimulatedOutOfMemoryError
from sysbench.simulate.allocator.blocks import Block
from sysbench.simulate.allocator.device_memory import DeviceMemory
from sysbench.simulate.allocator.settings import MIB, AllocatorSettings
from tests.simulate.allocator_calls import BORDERLINE_SIZES, SETTINGS, Call, play

GIB = 1024 * MIB


def allocator(text: str = "", capacity: int = 64 * GIB) -> CachingAllocator:
    return CachingAllocator(capacity, AllocatorSettings.parse(text), record=True)


def segment_events(made: CachingAllocator) -> list[tuple[str, int]]:
    return [(event.action, event.size) for event in made.events if event.action.startswith("segment_")]


@pytest.mark.parametrize(("prefers_oldest", "expected"), [(False, 0), (True, 10 * MIB)])
def test_of_equal_blocks_pytorch_2_12_takes_the_one_that_was_made_first(prefers_oldest: bool, expected: int) -> None:
    """The addresses are those that the compiled allocators of PyTorch 2.11 and 2.12.1 gave."""
    device = DeviceMemory(64 * GIB, ascending=True)
    made = CachingAllocator(64 * GIB, AllocatorSettings(prefers_oldest=prefers_oldest), device=device)
    first = made.allocate(10 * MIB).address
    made.free(first)
    small, other = made.allocate(3 * MIB), made.allocate(10 * MIB)
    made.free(other)
    made.free(small)
    made.free(made.allocate(5 * MIB))  # which is made anew, at the lowest address
    assert made.allocate(10 * MIB).address - first == expected


def test_a_block_above_the_split_limit_serves_only_requests_a_little_smaller_and_whole() -> None:
    """get_free_block: max_non_split_rounding_size; should_split."""
    made = allocator("max_split_size_mb:20")
    made.free(made.allocate(64 * MIB))
    assert made.allocate(44 * MIB).size == 44 * MIB
    assert made.allocate(44 * MIB + 512).size == 64 * MIB


def test_cached_segments_are_given_back_before_a_request_fails() -> None:
    """malloc: release_cached_blocks, then one retry."""
    made = allocator(capacity=100 * MIB)
    kept = made.allocate(5 * MIB)
    for block in [made.allocate(30 * MIB), made.allocate(MIB), made.allocate(24 * MIB)]:
        made.free(block)
    made.allocate(70 * MIB)
    assert segment_events(made)[4:] == [
        ("segment_free", 24 * MIB),
        ("segment_free", 30 * MIB),
        ("segment_free", 2 * MIB),
        ("segment_alloc", 70 * MIB),
    ]
    assert made.statistics.alloc_retries == 1
    assert kept.address in made._in_use


def test_out_of_memory_says_what_was_wanted_and_where_the_memory_is() -> None:
    made = CachingAllocator(1000 * MIB, outside_bytes=400 * MIB, record=True)
    made.allocate(501 * MIB)
    with pytest.raises(SimulatedOutOfMemoryError) as failed:
        made.allocate(200 * MIB - 5)
    assert str(failed.value) == (
        "CUDA out of memory (simulated). Tried to allocate 200.0 MiB. The GPU has a total capacity of 1,000 MiB of "
        "which 98.0 MiB is free. Of the allocated memory 502.0 MiB is allocated by PyTorch, and 0 B is reserved by "
        "PyTorch but unallocated."
    )
    assert made.events[-1][:3] == ("oom", 98 * MIB, 200 * MIB)


def test_a_memory_fraction_limits_what_is_reserved() -> None:
    """setMemoryFraction, alloc_block."""
    made = allocator(capacity=100 * MIB)
    made.set_memory_fraction(0.5)
    made.allocate(30 * MIB)
    with pytest.raises(SimulatedOutOfMemoryError) as failed:
        made.allocate(21 * MIB)
    assert "50.0 MiB allowed" in str(failed.value)
    made.set_memory_fraction(1.0)
    made.allocate(21 * MIB)


def test_the_device_loses_whole_pages_of_2_mib() -> None:
    made = allocator("large_segment_size_mb:21", capacity=43 * MIB)
    made.allocate(5 * MIB)
    with pytest.raises(SimulatedOutOfMemoryError) as failed:
        made.allocate(20 * MIB + 1)
    assert "of which 21.0 MiB is free" in str(failed.value)


# --- counters, events, snapshots ---


def test_peaks_hold_until_they_are_reset() -> None:
    made = allocator()
    made.free(made.allocate(30 * MIB))
    made.empty_cache()
    assert made.statistics.allocated_peak_bytes == made.statistics.reserved_peak_bytes == 30 * MIB
    made.reset_peaks()
    made.allocate(10 * MIB)
    statistics = made.statistics
    assert statistics.allocated_peak_bytes == statistics.allocated_bytes == 10 * MIB
    assert statistics.reserved_peak_bytes == 10 * MIB


def test_blocks_can_be_freed_by_address_and_only_once() -> None:
    made = allocator()
    address = made.allocate(100).address
    made.free(address)
    with pytest.raises(ValueError, match="no used block begins at"):
        made.free(address)


@pytest.mark.parametrize("size", [0, -1])
def test_an_empty_request_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        allocator().allocate(size)


def test_nothing_is_recorded_unless_asked() -> None:
    made = CachingAllocator(GIB)
    made.free(made.allocate(5))
    assert made.events == []
    assert made.snapshot()["device_traces"] == [[]]


def test_frames_are_found_again_in_blocks_segments_and_trace() -> None:
    made = allocator()
    frames = [{"filename": "model.py", "line": 7, "name": "forward"}]
    block = made.allocate(100, frames=frames)
    snapshot = made.snapshot()
    assert snapshot["segments"][0]["frames"] == frames
    assert [block["frames"] for block in snapshot["segments"][0]["blocks"]] == [frames, []]
    made.free(block)
    assert [entry["frames"] for entry in made.snapshot()["device_traces"][0]] == [frames] * 4


def test_an_expandable_segment_keeps_the_frames_of_the_request_that_made_it() -> None:
    made = allocator("expandable_segments:True")
    first, later = ([{"filename": "model.py", "line": line, "name": "forward"}] for line in (7, 8))
    made.allocate(30 * MIB, frames=first)
    made.allocate(30 * MIB, frames=later)
    (segment,) = made.snapshot()["segments"]
    assert segment["frames"] == first


def test_a_snapshot_has_the_keys_that_pytorch_writes() -> None:
    """THCPModule_memorySnapshot, torch/csrc/cuda/Module.cpp."""
    made = allocator(capacity=30 * MIB)
    made.annotate("forward", "START")
    made.allocate(1)
    with pytest.raises(SimulatedOutOfMemoryError):
        made.allocate(GIB)
    snapshot = made.snapshot()
    assert set(snapshot) == {"segments", "device_traces", "allocator_settings", "external_annotations"}
    (segment,) = snapshot["segments"]
    assert set(segment) == {
        *("device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"),
        *("segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"),
    }
    assert set(segment["blocks"][0]) == {"address", "size", "requested_size", "state", "frames"}
    *others, out_of_memory = snapshot["device_traces"][0]
    keys = {"action", "size", "stream", "time_us", "compile_context", "user_metadata", "pool_id", "frames"}
    assert all(set(entry) == keys | {"addr"} for entry in others)
    assert set(out_of_memory) == keys | {"device_free"}
    assert snapshot["external_annotations"] == [{"name": "forward", "stage": "START", "device": 0, "time_us": 0}]


def test_the_allocator_needs_no_torch() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import sysbench.simulate.allocator, sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "False"


# --- invariants ---


@st.composite
def call_lists(draw: st.DrawFn) -> list[Call]:
    """Calls that hypothesis can shorten: allocations of borderline and of any sizes, frees of any live block."""
    sizes = st.one_of(st.sampled_from(BORDERLINE_SIZES), st.integers(1, 48 * MIB), st.integers(1, 2 * MIB))
    steps = st.tuples(st.integers(0, 99), sizes, st.sampled_from((0, 0, 7)), st.integers(0, 10**6))
    calls: list[Call] = []
    live: list[int] = []
    for key, (kind, size, stream, pick) in enumerate(draw(st.lists(steps, max_size=60))):
        if kind < 2:
            calls.append((("e",), ("p",))[kind])
        elif kind < 55 or not live:
            calls.append(("a", key, size, stream))
            live.append(key)
        else:
            calls.append(("f", live.pop(pick % len(live))))
    return calls


def assert_consistent(made: CachingAllocator, live: dict[int, Block]) -> None:
    """What must hold of any state, told from the snapshot alone, and that the counters say the same."""
    segments: list[dict[str, Any]] = made.snapshot()["segments"]
    ends = [(segment["address"], segment["address"] + segment["total_size"]) for segment in segments]
    assert all(end <= start for (_, end), (start, _) in pairwise(ends)), "segments overlap"
    used: dict[int, int] = {}
    for segment in segments:
        blocks = segment["blocks"]
        assert sum(block["size"] for block in blocks) == segment["total_size"]
        assert all(block["size"] % 512 == 0 for block in blocks)
        states = [block["state"] for block in blocks]
        assert ("inactive", "inactive") not in set(pairwise(states)), "free neighbours"
        used |= {block["address"]: block["size"] for block in blocks if block["state"] == "active_allocated"}
    assert used == {block.address: block.size for block in live.values()}
    statistics = made.statistics
    assert statistics.allocated_bytes == sum(used.values()) <= statistics.allocated_peak_bytes
    assert statistics.reserved_bytes == sum(segment["total_size"] for segment in segments)
    assert statistics.reserved_bytes <= statistics.reserved_peak_bytes


@pytest.mark.parametrize("text", SETTINGS)
@given(calls=call_lists(), capacity_mib=st.sampled_from((64, 400, 100_000)))
@settings(max_examples=40, deadline=None)
def test_blocks_never_overlap_and_nothing_is_lost(text: str, calls: list[Call], capacity_mib: int) -> None:
    made = allocator(text, capacity_mib * MIB)
    live: dict[int, Block] = {}
    for call in calls:
        play([call], made, live)
        assert_consistent(made, live)
    for block in list(live.values()):
        made.free(block)
    made.empty_cache()
    assert made.statistics.reserved_bytes == 0
    assert made.allocate(capacity_mib * MIB // 4).size >= capacity_mib * MIB // 4

"""A recorded trace fed to the model comes out as it was recorded, and other settings can be tried on it."""

import copy
import gzip
import io
import pickle
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.simulate.allocator import CachingAllocator, SimulatedOutOfMemoryError
from sysbench.simulate.allocator.blocks import Block
from sysbench.simulate.allocator.settings import MIB, AllocatorSettings
from tests.simulate.allocator_calls import Call, play, random_calls, training_calls
from tests.simulate.allocator_replay import replay, reproduce, segment_events
from tests.simulate.allocator_rewind import segments_before

GIB = 1024 * MIB
DIRECTORY = Path(__file__).parents[1] / "fixtures" / "snapshots"
RECORDINGS = sorted([*DIRECTORY.glob("*.pickle"), *DIRECTORY.glob("*.pickle.gz")])


class PlainUnpickler(pickle.Unpickler):
    """A snapshot is made of plain containers and values; anything else in a file is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a snapshot")


def load(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    plain = gzip.decompress(content) if path.suffix == ".gz" else content
    snapshot: dict[str, Any] = PlainUnpickler(io.BytesIO(plain)).load()
    return snapshot


def layout(snapshot: dict[str, Any]) -> list[tuple[int, int, str, list[tuple[int, int, str]]]]:
    return [
        (
            segment["address"],
            segment["stream"],
            segment["segment_type"],
            [(block["address"], block["size"], block["state"]) for block in segment["blocks"]],
        )
        for segment in snapshot["segments"]
    ]


def reserved_peak(snapshot: dict[str, Any]) -> int:
    """From the segment events alone, counted back from what is held in the end."""
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes: list[int] = [signs.get(entry["action"], 0) * entry["size"] for entry in snapshot["device_traces"][0]]
    before: int = sum(segment["total_size"] for segment in snapshot["segments"]) - sum(changes)
    return max(accumulate(changes, initial=before))


@pytest.mark.skipif(not RECORDINGS, reason=f"no recorded snapshots in {DIRECTORY}")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_recorded_trace_is_reproduced_to_the_byte(path: Path) -> None:
    snapshot = load(path)
    recording = snapshot.get("recording", {})
    fraction = recording.get("memory_fraction", 1.0)
    reproduced = reproduce(
        snapshot,
        capacity_bytes=recording.get("capacity_bytes"),
        memory_fraction=fraction if fraction < 1.0 else None,
    )
    assert reproduced.divergence is None
    assert layout(reproduced.allocator.snapshot()) == layout(snapshot)
    assert reproduced.statistics.reserved_peak_bytes == reserved_peak(snapshot)
    recorded = [entry for entry in snapshot["device_traces"][0] if entry["action"].startswith("segment_")]
    assert [(e.action, e.address, e.size) for e in segment_events(reproduced.events) if e.action != "oom"] == [
        (entry["action"], entry["addr"], entry["size"]) for entry in recorded
    ]


@pytest.mark.skipif(not RECORDINGS, reason=f"no recorded snapshots in {DIRECTORY}")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_trace_that_no_allocator_could_have_made_is_told_from_a_true_one(path: Path) -> None:
    snapshot = load(path)
    recording = snapshot.get("recording", {})
    trace = snapshot["device_traces"][0]
    allocations = [index for index, entry in enumerate(trace) if entry["action"] == "alloc"]
    entry = trace[allocations[len(allocations) // 2]]
    entry["addr"] += 512
    assert tells(snapshot, recording.get("capacity_bytes"))


def tells(snapshot: dict[str, Any], capacity_bytes: int | None) -> bool:
    """Whether a false trace is noticed: it contradicts the segments that it ends with, or the model departs from it."""
    try:
        return reproduce(snapshot, capacity_bytes=capacity_bytes).divergence is not None
    except ValueError as refused:
        return "contradicts" in str(refused)


def simulated(
    calls: list[Call], text: str, capacity: int, recorded_from: int = 0
) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """A snapshot of the model's own with the trace from one call on; the reserved peak in it; a snapshot before it."""
    made = CachingAllocator(capacity, AllocatorSettings.parse(text), record=True)
    held: dict[int, Block] = {}
    play(calls[:recorded_from], made, held)
    before = made.snapshot()
    made.reset_peaks()
    play(calls[recorded_from:], made, held)
    snapshot = made.snapshot()
    del snapshot["device_traces"][0][: len(before["device_traces"][0])]
    return snapshot, made.statistics.reserved_peak_bytes, before


STEADY = ("", "roundup_power2_divisions:4", "max_split_size_mb:20", "per_process_memory_fraction:0.5")


@pytest.mark.parametrize("text", STEADY)
@given(seed=st.integers(0, 10**6), capacity_mib=st.sampled_from((200, 100_000)))
@settings(max_examples=25, deadline=None)
def test_a_trace_recorded_in_mid_life_is_reproduced(text: str, seed: int, capacity_mib: int) -> None:
    calls = [call for call in random_calls(seed, 200) if call[0] != "p"]
    snapshot, peak, before = simulated(calls, text, capacity_mib * MIB, recorded_from=80)
    reproduced = reproduce(snapshot, capacity_bytes=capacity_mib * MIB)
    if reproduced.divergence is None:
        assert layout(reproduced.allocator.snapshot()) == layout(snapshot)
        assert reproduced.statistics.reserved_peak_bytes == peak
    else:
        # The one thing a trace may leave open: how much larger than its request a block was that it did not see made.
        parsed = AllocatorSettings.parse(text)
        blocks = [block for segment in before["segments"] for block in segment["blocks"]]
        assert any(
            block["size"] > parsed.block_bytes(block["requested_size"])
            for block in blocks
            if block["state"] == "active_allocated"
        )


def test_a_job_that_was_running_already_is_reproduced() -> None:
    setup, *steps = training_calls(4)
    calls = [*setup, *(call for step in steps for call in step)]
    snapshot, peak, _ = simulated(calls, "", 16 * GIB, recorded_from=len(setup) + len(steps[0]) + len(steps[1]))
    assert not segment_events_of(snapshot)
    reproduced = reproduce(snapshot)
    assert reproduced.divergence is None
    assert reproduced.statistics.reserved_peak_bytes == peak
    assert layout(reproduced.allocator.snapshot()) == layout(snapshot)


def segment_events_of(snapshot: dict[str, Any]) -> list[str]:
    return [e["action"] for e in snapshot["device_traces"][0] if e["action"].startswith("segment_")]


def test_winding_back_gives_the_segments_from_before_the_trace() -> None:
    made = CachingAllocator(64 * GIB, record=True)
    blocks = [made.allocate(size) for size in (3 * MIB, 700, 5 * MIB, 12 * MIB, 9 * MIB)]
    made.free(blocks[2])
    before, start = made.snapshot(), len(made.events)
    for index in (0, 3):
        made.free(blocks[index])
    made.empty_cache()
    made.allocate(20 * MIB)
    made.allocate(2 * MIB)
    made.free(blocks[4])
    after = made.snapshot()
    rewound = segments_before(after["segments"], after["device_traces"][0][start:], AllocatorSettings())
    assert layout({"segments": rewound}) == layout(before)


def test_a_block_larger_than_its_request_is_told_from_what_happened_behind_it() -> None:
    made = CachingAllocator(64 * GIB, record=True)
    first, behind = made.allocate(6 * MIB), made.allocate(6 * MIB)
    made.free(first)
    whole = made.allocate(5 * MIB + MIB // 2)
    before, start = made.snapshot(), len(made.events)
    assert whole.size == 6 * MIB
    made.free(behind)
    made.free(made.allocate(13 * MIB))
    made.free(whole)
    snapshot = made.snapshot()
    del snapshot["device_traces"][0][:start]
    rewound = segments_before(snapshot["segments"], snapshot["device_traces"][0], AllocatorSettings())
    assert layout({"segments": rewound}) == layout(before)
    assert reproduce(snapshot).divergence is None


def test_a_block_that_may_not_be_split_is_wound_back_whole() -> None:
    settings = AllocatorSettings.parse("max_split_size_mb:20")
    made = CachingAllocator(64 * GIB, settings, record=True)
    made.free(made.allocate(64 * MIB))
    block = made.allocate(50 * MIB)
    before, start = made.snapshot(), len(made.events)
    made.free(block)
    after = made.snapshot()
    rewound = segments_before(after["segments"], after["device_traces"][0][start:], settings)
    assert layout({"segments": rewound}) == layout(before)


def test_a_trace_of_another_run_is_refused() -> None:
    one, *_ = simulated(random_calls(1, 60), "", GIB, recorded_from=30)
    other, *_ = simulated(random_calls(2, 60), "", GIB, recorded_from=30)
    with pytest.raises(ValueError, match="contradicts what came after it"):
        reproduce({**one, "device_traces": other["device_traces"]})


def test_what_the_model_leaves_out_is_refused_rather_than_guessed() -> None:
    snapshot, *_ = simulated(random_calls(1, 60), "", GIB)
    private = copy.deepcopy(snapshot)
    private["device_traces"][0][3]["pool_id"] = (0, 1)
    with pytest.raises(ValueError, match="private memory pools"):
        reproduce(private)
    calls: list[Call] = [("a", 0, 20 * MIB, 0), ("a", 1, 20 * MIB, 0), ("f", 0), ("e",)]
    shrinking, *_ = simulated(calls, "expandable_segments:True", GIB, recorded_from=1)
    with pytest.raises(ValueError, match="cannot be wound back"):
        reproduce(shrinking)


def test_blocks_held_for_another_stream_stay_in_use_until_their_free_completes() -> None:
    """A trace with record_stream: free_requested, other entries, free_completed."""
    made = CachingAllocator(GIB, record=True)
    first = made.allocate(5 * MIB)
    second = made.allocate(5 * MIB)
    made.free(first)
    made.free(second)
    snapshot = made.snapshot()
    entries = snapshot["device_traces"][0]
    delayed = next(entry for entry in entries if entry["action"] == "free_requested")
    entries.remove(delayed)
    entries.insert(2, delayed)
    assert reproduce(snapshot).divergence is None


def test_other_settings_can_be_tried_on_a_recorded_program() -> None:
    setup, *steps = training_calls(3)
    snapshot, peak, _ = simulated([*setup, *(call for step in steps for call in step)], "", 16 * GIB)
    expandable = CachingAllocator(16 * GIB, AllocatorSettings(expandable_segments=True), record=True)
    events = replay(snapshot["device_traces"][0], expandable)
    assert {event.action for event in events} == {"segment_map"}
    same = CachingAllocator(16 * GIB, record=True)
    assert [(e.action, e.size) for e in replay(snapshot["device_traces"][0], same)] == [
        (entry["action"], entry["size"])
        for entry in snapshot["device_traces"][0]
        if entry["action"].startswith("segment_")
    ]
    assert same.statistics.reserved_peak_bytes == peak
    assert expandable.statistics.allocated_peak_bytes <= same.statistics.allocated_peak_bytes
    with pytest.raises(SimulatedOutOfMemoryError):
        replay(snapshot["device_traces"][0], CachingAllocator(512 * MIB, record=True))


def test_requests_that_failed_when_recorded_are_tried_and_not_kept() -> None:
    snapshot, *_ = simulated([("a", 0, 40 * MIB, 0), ("a", 1, 90 * MIB, 0)], "", 100 * MIB)
    larger = CachingAllocator(GIB, record=True)
    replay(snapshot["device_traces"][0], larger)
    assert larger.statistics.allocated_bytes == 40 * MIB
    assert larger.statistics.reserved_bytes == 130 * MIB


def test_pytorchs_own_viewer_reads_a_simulated_snapshot() -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    snapshot, *_ = simulated(random_calls(3, 100), "", 200 * MIB)
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    assert f"total_reserved: {viewer.Bytes(reserved)}" in viewer.segsum(snapshot)
    assert viewer.trace(snapshot).count(" = cudaMalloc(") == segment_events_of(snapshot).count("segment_alloc")
    assert "<html" in viewer.trace_plot(snapshot).lower()

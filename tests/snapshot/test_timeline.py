"""Live bytes over time are exact, in every state and by every division of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sysbench.commands.memory import snapshot_tables
from sysbench.errors import UsageError
from sysbench.snapshot import CATEGORIES, snapshot
from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.layout import Frame
from sysbench.snapshot.timeline import Timeline
from tests.snapshot.event_timelines import Allocated, MemoryEvent, PhaseBegan, Released, ReservedChanged, from_events
from tests.snapshot.synthetic_snapshots import MIB, Model, frame, training_snapshot

MODEL = Model(layers=3, d_model=128, d_ff=512, heads=4, vocab=1000, ctx=64)


def timeline_of(raw: dict[str, Any]) -> Timeline:
    return from_snapshot(snapshot.of(raw))


def rounded(size: int) -> int:
    return max(512, -(-size // 512) * 512)


# --- a slow model of the same thing


class Walk:
    """Follows a trace entry by entry with a dict, and counts."""

    def __init__(self, raw: dict[str, Any], device: int = 0) -> None:
        self.raw, self.device = raw, device
        self.trace = raw["device_traces"][device] if raw["device_traces"] else []
        self.blocks = {
            block["address"]: block
            for segment in raw["segments"]
            if segment["device"] == device
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }

    def size(self, index: int) -> int:
        """Of the allocation that entry `index` makes: its block's, if it is there until the end."""
        entry = self.trace[index]
        later = [e["addr"] for e in self.trace[index + 1 :] if e["action"] in ("alloc", "free_requested")]
        lasts = entry["addr"] not in later and entry["addr"] in self.blocks
        return int(self.blocks[entry["addr"]]["size"]) if lasts else rounded(entry["size"])

    def before(self) -> int:
        """Final allocated less the net of the trace."""
        final = sum(int(block["size"]) for block in self.blocks.values())
        net = sum(self.size(i) for i, e in enumerate(self.trace) if e["action"] == "alloc")
        net -= sum(self.freed_size(i) for i, e in enumerate(self.trace) if e["action"] == "free_requested")
        return final - net

    def freed_size(self, index: int) -> int:
        return rounded(int(self.trace[index]["size"]))

    def live(self) -> list[int]:
        """Live bytes in every state."""
        counted = ("alloc", "free_requested", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom")
        live = [self.before()]
        for index, entry in enumerate(self.trace):
            if entry["action"] not in counted:
                continue
            change = 0
            if entry["action"] == "alloc":
                change = self.size(index)
            elif entry["action"] == "free_requested":
                change = -self.freed_size(index)
            live.append(live[-1] + change)
        return live


@pytest.mark.parametrize("record_from_step", [0, 1, 2])
def test_live_bytes_are_those_of_a_walk_through_the_trace(record_from_step: int) -> None:
    raw = training_snapshot(MODEL, steps=3, record_from_step=record_from_step)
    assert timeline_of(raw).allocated_bytes.tolist() == Walk(raw).live()


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 5000), st.booleans()), max_size=60),
    st.integers(0, 60),
)
@settings(max_examples=100, deadline=None)
def test_whatever_part_of_a_history_was_recorded_the_bytes_add_up(
    moves: list[tuple[int, int, bool]], recorded_from: int
) -> None:
    """Addresses are used again and again, and the ring buffer may have lost the beginning."""
    live: dict[int, int] = {}
    trace = []
    for place, size, completed in moves:
        address = 4096 * (place + 1)
        if address in live:
            freed = {"addr": address, "size": live.pop(address), "stream": 0}
            trace.append({"action": "free_requested", **freed})
            if completed:
                trace.append({"action": "free_completed", **freed})
        else:
            live[address] = size
            trace.append({"action": "alloc", "addr": address, "size": size, "stream": 0})
    recorded = {entry["action"] for entry in trace[recorded_from:]}
    # Completions alone are what a trace without requests looks like, which another test is about.
    assume("free_requested" in recorded or "free_completed" not in recorded)
    blocks = [
        {"address": address, "size": rounded(size), "requested_size": size, "state": "active_allocated"}
        for address, size in live.items()
    ]
    segment = {"device": 0, "address": 4096, "total_size": 1 << 20, "stream": 0, "blocks": blocks}
    raw = {"segments": [segment], "device_traces": [trace[recorded_from:]]}
    timeline = timeline_of(raw)
    assert timeline.allocated_bytes.tolist() == Walk(raw).live()
    assert (timeline.by_category.sum(axis=0) == timeline.allocated_bytes).all()
    assert (timeline.allocated_bytes >= 0).all()


def test_the_end_of_the_timeline_is_what_the_segments_say() -> None:
    raw = training_snapshot(MODEL, steps=2)
    timeline = timeline_of(raw)
    assert timeline.allocated_bytes[-1] == sum(segment["allocated_size"] for segment in raw["segments"])
    assert timeline.reserved_bytes is not None
    assert timeline.reserved_bytes[-1] == sum(segment["total_size"] for segment in raw["segments"])


def test_reserved_bytes_are_those_of_the_segments_so_far() -> None:
    raw = training_snapshot(MODEL, steps=2)
    timeline, expected = timeline_of(raw), [0]
    for entry in raw["device_traces"][0]:
        if entry["action"] != "free_completed":
            expected.append(expected[-1] + (entry["size"] if entry["action"] == "segment_alloc" else 0))
    assert timeline.reserved_bytes is not None
    assert timeline.reserved_bytes.tolist() == expected


def test_a_steady_trace_starts_with_what_was_reserved_before_it() -> None:
    raw = training_snapshot(MODEL, steps=3, record_from_step=2)
    timeline = timeline_of(raw)
    assert timeline.reserved_bytes is not None
    assert timeline.reserved_bytes[0] == sum(segment["total_size"] for segment in raw["segments"])


def test_a_trace_without_release_requests_counts_their_completion() -> None:
    raw = training_snapshot(MODEL, steps=1)
    whole = timeline_of(raw).allocated_bytes
    raw["device_traces"][0] = [entry for entry in raw["device_traces"][0] if entry["action"] != "free_requested"]
    assert timeline_of(raw).allocated_bytes.tolist() == whole.tolist()


def test_a_snapshot_without_a_trace_is_one_state() -> None:
    raw = training_snapshot(MODEL)
    raw["device_traces"] = []
    timeline = timeline_of(raw)
    assert timeline.states == 1
    assert timeline.peak.allocated_bytes == sum(segment["allocated_size"] for segment in raw["segments"])


def test_an_empty_snapshot_is_no_bytes() -> None:
    timeline = timeline_of({"segments": [], "device_traces": [[{"action": "snapshot", "addr": 0, "size": 0}]]})
    assert timeline.allocated_bytes.tolist() == [0]
    assert timeline.groups(0) == []
    assert timeline.tree_at(0).total_bytes == 0


def test_the_device_on_which_most_happened_is_taken_unless_another_is_named() -> None:
    first, second = training_snapshot(MODEL, steps=1), training_snapshot(MODEL, steps=2)
    for segment in second["segments"]:
        segment["device"] = 1
    raw = {
        "segments": first["segments"] + second["segments"],
        "device_traces": [first["device_traces"][0], second["device_traces"][0]],
    }
    columns = snapshot.of(raw)
    assert from_snapshot(columns).device == 1
    assert from_snapshot(columns, 0).allocated_bytes.tolist() == Walk(raw, 0).live()
    assert from_snapshot(columns, 1).allocated_bytes.tolist() == Walk(raw, 1).live()
    with pytest.raises(UsageError, match=r"no data of device 5 \(devices: 0, 1\)"):
        from_snapshot(columns, 5)


def test_an_allocation_that_failed_is_on_the_timeline() -> None:
    raw = training_snapshot(MODEL)
    events = sum(entry["action"] != "free_completed" for entry in raw["device_traces"][0])
    raw["device_traces"][0].append({"action": "oom", "device_free": 7, "size": 1 << 40, "stream": 0, "frames": []})
    (failure,) = timeline_of(raw).failures
    assert (failure.state, failure.requested_bytes, failure.device_free_bytes) == (events + 1, 1 << 40, 7)


# --- divisions


@pytest.mark.parametrize("described", [True, False])
def test_every_division_adds_up_to_the_byte_in_every_state(described: bool) -> None:
    timeline = timeline_of(training_snapshot(MODEL, steps=3, described=described))
    assert (timeline.by_category.sum(axis=0) == timeline.allocated_bytes).all()
    for state in {0, 1, timeline.peak.state, timeline.states // 2, timeline.states - 1}:
        allocated = int(timeline.allocated_bytes[state])
        assert sum(timeline.categories_at(state).values()) == allocated
        assert sum(group.total_bytes for group in timeline.groups(state)) == allocated
        root = timeline.tree_at(state)
        assert root.total_bytes == allocated
        for _, node in root.walk():
            assert node.total_bytes == node.own_bytes + sum(child.total_bytes for child in node.children.values())
            assert node.total_bytes == sum(node.by_category.values())


def test_the_tree_of_calls_has_the_users_own_lines_and_every_byte() -> None:
    def stack(*lines: tuple[str, int, str]) -> list[dict[str, Any]]:
        return [frame(*each) for each in reversed(lines)]

    train, forward = ("/home/me/lib/python/train.py", 9, "train"), ("/home/me/torch/model.py", 12, "forward")
    library = ("/venv/lib/python3.11/site-packages/torch/nn/functional.py", 7, "linear")
    made = {
        512: stack(train, forward, library),
        1024: stack(train, library, forward),
        2048: stack(train, library),
        4096: stack(library),
    }
    trace = [
        {"action": "alloc", "addr": size << 20, "size": size, "stream": 0, "frames": frames}
        for size, frames in made.items()
    ]
    timeline = from_snapshot(snapshot.of({"segments": [], "device_traces": [trace]}))
    root = timeline.lines_at(timeline.peak.state)
    assert [(path, node.total_bytes, node.own_bytes) for path, node in root.walk()] == [
        ("", 7680, 4096),
        ("train.py:9 train", 3584, 2048),
        ("train.py:9 train.model.py:12 forward", 1536, 1536),
    ]


def test_the_tree_follows_module_paths() -> None:
    raw = training_snapshot(MODEL, steps=1)
    timeline = timeline_of(raw)
    expected: Counter[str] = Counter()
    for block in (block for segment in raw["segments"] for block in segment["blocks"]):
        if block["state"] == "active_allocated":
            expected[block["user_metadata"].partition(".")[0] if block["user_metadata"] else ""] += block["size"]
    root = timeline.tree_at(timeline.states - 1)
    assert {name: node.total_bytes for name, node in root.children.items()} == {
        name: size for name, size in expected.items() if name
    }
    assert root.own_bytes == expected[""]
    assert set(root.children["layers"].children) == {"0", "1", "2"}


def test_the_peak_is_the_most_there_ever_was_and_consists_of_what_was_live() -> None:
    raw = training_snapshot(MODEL, steps=2)
    timeline, live = timeline_of(raw), Walk(raw).live()
    assert (timeline.peak.state, timeline.peak.allocated_bytes) == (live.index(max(live)), max(live))
    among = timeline.live_at(timeline.peak.state)
    assert timeline.allocations.size_bytes[among].sum() == max(live)


def test_the_largest_allocations_come_with_their_line() -> None:
    timeline = timeline_of(training_snapshot(Model(layers=3, d_model=64, d_ff=64, heads=8, vocab=50, ctx=512), steps=1))
    largest = timeline.groups(timeline.peak.state)[0]
    assert (largest.count, largest.size_bytes, largest.category) == (3, 4 * 8 * 512 * 512 * 4, "activations")
    innermost = timeline.stacks.of(largest.stack)[0]
    assert innermost == Frame("/home/me/transformer.py", 88, "scaled_dot_product")
    assert largest.modules == (("layers", "0", "attn"), ("layers", "1", "attn"), ("layers", "2", "attn"))


def test_phases_are_where_the_annotations_are_and_have_the_peaks_of_a_reset_at_their_beginning() -> None:
    raw = training_snapshot(MODEL, steps=2)
    timeline = timeline_of(raw)
    expected: dict[str, int] = {}
    live, events = Walk(raw).live(), [e for e in raw["device_traces"][0] if e["action"] != "free_completed"]
    marks = raw["external_annotations"]
    for start, end in zip(marks[::2], marks[1::2], strict=True):
        inside = [s for s, e in enumerate(events, 1) if start["time_us"] <= e["time_us"] < end["time_us"]]
        before = sum(e["time_us"] < start["time_us"] for e in events)
        peak = max(live[state] for state in [before, *inside])
        expected[start["name"]] = max(peak, expected.get(start["name"], 0))
    assert {name: peak.allocated_bytes for name, peak in timeline.peaks_by_phase().items()} == expected
    assert list(timeline.peaks_by_phase()) == ["zero_grad", "forward", "loss", "backward", "optimizer"]
    # The state that a phase finds is not of its own making.
    for phase in (phase for phase in timeline.phases if phase.end - phase.first > 1):
        assert timeline.phase_at(phase.first) != phase
        assert {timeline.phase_at(state) for state in range(phase.first + 1, phase.end)} == {phase}


def test_a_phase_that_memory_ran_out_in_lasts_to_the_end() -> None:
    raw = training_snapshot(MODEL, steps=1)
    last_start = next(i for i, mark in enumerate(raw["external_annotations"]) if mark["name"] == "backward")
    raw["external_annotations"] = raw["external_annotations"][: last_start + 1]
    timeline = timeline_of(raw)
    assert (timeline.phases[-1].name, timeline.phases[-1].end) == ("backward", timeline.states)


# --- what is guessed is held against what is known


@pytest.mark.parametrize("backward_stacks", [True, False])
@pytest.mark.parametrize("record_from_step", [0, 2])
def test_guessed_categories_are_the_true_ones_of_a_training_run(backward_stacks: bool, record_from_step: int) -> None:
    true = timeline_of(training_snapshot(MODEL, steps=4))
    guessed = timeline_of(
        training_snapshot(
            MODEL, steps=4, described=False, backward_stacks=backward_stacks, record_from_step=record_from_step
        )
    )
    assert not true.inferred
    assert guessed.inferred
    # Both end in the same state; one of them may begin later.
    wrong = np.abs(true.by_category[:, -guessed.states :] - guessed.by_category).sum(axis=0) / 2
    assert wrong.max() < 0.01 * true.peak.allocated_bytes
    steps = 4 - record_from_step
    assert [phase.name for phase in guessed.phases] == ["forward", "backward", "optimizer"] * steps


def test_residents_without_a_stack_are_told_apart_by_counting_gradients() -> None:
    raw = training_snapshot(MODEL, steps=4, described=False, record_from_step=2)
    true = timeline_of(training_snapshot(MODEL, steps=4, described=True, record_from_step=2))
    for block in (block for segment in raw["segments"] for block in segment["blocks"]):
        block["frames"] = [] if not block["frames"] or "graph.py" not in str(block["frames"]) else block["frames"]
    guessed = timeline_of(raw)
    middle = guessed.peak.state
    assert guessed.categories_at(middle)["parameters"] == true.categories_at(middle)["parameters"]
    assert guessed.categories_at(middle)["optimizer state"] == true.categories_at(middle)["optimizer state"]


def test_nothing_is_claimed_where_there_is_nothing_to_go_by() -> None:
    raw = training_snapshot(MODEL, steps=1, described=False)
    for entry in raw["device_traces"][0]:
        entry["frames"] = []
    for block in (block for segment in raw["segments"] for block in segment["blocks"]):
        block["frames"] = []
    timeline = timeline_of(raw)
    assert set(timeline.categories_at(timeline.peak.state)) == {"unknown"}
    assert timeline.phases == ()


def test_the_profilers_category_names_are_understood() -> None:
    trace = [
        {"action": "alloc", "addr": 4096 * i, "size": 512, "stream": 0, "frames": [], "category": name}
        for i, name in enumerate(("parameter", "optimizer_state", "activation", "autograd_detail", "odd"), 1)
    ]
    timeline = timeline_of({"segments": [], "device_traces": [trace]})
    assert timeline.categories_at(5) == {
        "parameters": 512,
        "optimizer state": 512,
        "activations": 512,
        "temporaries": 512,
        "unknown": 512,
    }
    assert not timeline.inferred


# --- fragmentation


def test_the_largest_free_block_is_that_of_the_end() -> None:
    blocks = [(0, 4, "active_allocated"), (4, 6, "inactive"), (10, 2, "active_allocated"), (12, 8, "inactive")]
    segment = {
        "device": 0,
        "address": 0,
        "total_size": 20 * MIB,
        "blocks": [
            {"address": address * MIB, "size": size * MIB, "requested_size": size * MIB, "state": state}
            for address, size, state in blocks
        ],
    }
    timeline = timeline_of({"segments": [segment], "device_traces": [[]]})
    assert timeline.largest_free_bytes == 8 * MIB
    text = " ".join(remark.text for remark in snapshot_tables.sheet(timeline, "s").remarks)
    assert "At the end, 14.0 MiB are reserved but not allocated; the largest free block has 8.00 MiB." in text


# --- from events


def test_events_and_the_snapshot_of_them_give_one_timeline() -> None:
    raw = training_snapshot(MODEL, steps=2)
    events: list[MemoryEvent] = []
    marks = sorted(raw["external_annotations"], key=lambda mark: mark["time_us"])
    reserved = 0
    for entry in raw["device_traces"][0]:
        while marks and marks[0]["time_us"] < entry["time_us"]:
            mark = marks.pop(0)
            events.append(PhaseBegan(mark["name"] if mark["stage"] == "START" else ""))
        time_us = entry["time_us"]
        if entry["action"] == "alloc":
            stack = tuple(Frame(**found) for found in entry["frames"])
            size, category, module = rounded(entry["size"]), entry["category"], entry["user_metadata"]
            events.append(Allocated(entry["addr"], size, category, module, stack, entry["size"], time_us))
        elif entry["action"] == "free_requested":
            events.append(Released(entry["addr"], time_us))
        elif entry["action"] == "segment_alloc":
            reserved += entry["size"]
            events.append(ReservedChanged(reserved, time_us))
    told, seen = from_events(events, "simulated"), timeline_of(raw)
    assert told.by_category.tolist() == seen.by_category.tolist()
    assert told.reserved_bytes is not None
    assert seen.reserved_bytes is not None
    assert told.reserved_bytes.tolist() == seen.reserved_bytes.tolist()
    assert told.peaks_by_phase() == seen.peaks_by_phase()
    assert told.time_us is not None
    assert seen.time_us is not None
    assert told.time_us.tolist() == seen.time_us.tolist()
    peak = seen.peak.state
    assert sorted(_seen_groups(told, peak)) == sorted(_seen_groups(seen, peak))


def _seen_groups(timeline: Timeline, state: int) -> list[tuple[Any, ...]]:
    return [
        (group.count, group.size_bytes, group.category, timeline.stacks.of(group.stack), group.modules)
        for group in timeline.groups(state)
    ]


def test_what_was_live_before_the_events_is_live_in_the_first_state() -> None:
    timeline = from_events([Released(1)], "measured", before=[Allocated(1, 1024, "parameters")])
    assert timeline.allocated_bytes.tolist() == [1024, 0]


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([Released(3)], "3 is released and was not allocated"),
        ([Allocated(1, 2, "parameters"), Allocated(1, 2, "inputs")], "1 is allocated twice"),
        ([Allocated(1, 2, "wights")], "'wights' is not a category"),
    ],
)
def test_events_that_contradict_each_other_are_refused(events: list[MemoryEvent], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        from_events(events, "simulated")


def test_sums_stay_exact_far_beyond_what_floats_count() -> None:
    sizes = [(1 << 58) + 1, (1 << 54) + 1, 1]
    events: list[MemoryEvent] = [Allocated(key, size, "unknown") for key, size in enumerate(sizes)]
    assert from_events(events, "simulated").peak.allocated_bytes == sum(sizes)


def test_every_category_is_a_row_of_the_breakdown() -> None:
    events: list[MemoryEvent] = [Allocated(key, 512 * (key + 1), name) for key, name in enumerate(CATEGORIES)]
    timeline = from_events(events, "simulated")
    assert timeline.by_category[:, -1].tolist() == [512 * (key + 1) for key in range(len(CATEGORIES))]


def test_frames_of_an_allocation_are_innermost_first() -> None:
    trace = [
        {
            "action": "alloc",
            "addr": 4096,
            "size": 1,
            "stream": 0,
            "frames": [frame("inner.py", 1, "f"), frame("outer.py", 2, "g")],
        }
    ]
    timeline = timeline_of({"segments": [], "device_traces": [trace]})
    assert [found.filename for found in timeline.stacks.of(int(timeline.allocations.stack[0]))] == [
        "inner.py",
        "outer.py",
    ]

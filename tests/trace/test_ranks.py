"""Ranks of a run compared: against brute force, against what is true by construction, and against another program."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.trace import traces
from sysbench.trace.ranks.reading import RankReading, element_bytes, message_bytes, read
from sysbench.trace.ranks.summarise import align, match_collectives, summarise, wait_times
from sysbench.trace.ranks.summary import RanksSummary, bus_factor, kind_of
from sysbench.trace.recording import NONE
from tests.trace.rank_traces import COMMUNICATION, COMPUTE, NCCL, Bucket, Run
from tests.trace.synthetic_traces import GEMM, Builder, recording

FIXTURES = Path(__file__).parents[1] / "fixtures" / "ranks"


def readings(paths: Sequence[Path]) -> dict[int, RankReading]:
    found = [read(traces.read(path)) for path in paths]
    return {each.rank: each for each in found if each.rank is not None}


def summary_of(run: Run, ranks: Sequence[int] | None = None) -> RanksSummary:
    with tempfile.TemporaryDirectory() as directory:
        return summarise(readings(run.write(Path(directory), ranks)))


# --- compute, communication and what of it is exposed

KERNELS = {"compute": GEMM, "communication": NCCL["allreduce"], "copy": "Memcpy DtoD (Device -> Device)"}
SPANS = st.lists(st.tuples(st.sampled_from(sorted(KERNELS)), st.integers(0, 60), st.integers(0, 20)), min_size=1)


@settings(max_examples=150, deadline=None)
@given(SPANS)
def test_exposed_communication_of_a_device_equals_brute_force(spans: list[tuple[str, int, int]]) -> None:
    built = Builder()
    for number, (kind, start, duration) in enumerate(spans):
        if kind == "copy":
            built.copy(KERNELS[kind], start, duration, number, 1)
        else:
            built.kernel(KERNELS[kind], start, duration, number, stream=COMPUTE if kind == "compute" else COMMUNICATION)
    found = read(recording(built.trace())).breakdown
    at = {kind: {t for each, start, length in spans if each == kind for t in range(start, start + length)}
          for kind in KERNELS}  # fmt: skip
    busy = set().union(*at.values())
    window = range(min(busy), max(busy) + 1) if busy else range(0)
    assert {name: int(column.sum()) for name, column in vars(found).items()} == {
        "window_ns": len(window),
        "compute_ns": len(at["compute"]),
        "communication_ns": len(at["communication"]),
        "exposed_ns": len(at["communication"] - at["compute"]),
        "other_ns": len(at["copy"] - at["communication"] - at["compute"]),
        "idle_ns": len(window) - len(busy),
    }


HOST_EVENTS = {
    "aten::mm": "cpu_op",
    "autograd::engine::evaluate_function: MmBackward0": "cpu_op",
    "MmBackward0": "cpu_op",
    "c10d::allreduce_": "cpu_op",
    "gloo:all_reduce": "user_annotation",
    "FSDP::pre_forward": "user_annotation",
}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(HOST_EVENTS)), st.integers(0, 60), st.integers(1, 20), st.integers(0, 2)),
        min_size=1,
    )
)
def test_exposed_communication_of_gloo_equals_brute_force(spans: list[tuple[str, int, int, int]]) -> None:
    events = [
        {"ph": "X", "cat": HOST_EVENTS[name], "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}
        for name, start, length, thread in [*spans, ("aten::mm", 70, 1, 0)]
    ]
    found = _read(events).breakdown

    def open_at(t: int, *names: str, thread: int | None = None) -> bool:
        return any(
            name in names and start <= t < start + length and thread in (None, lane)
            for name, start, length, lane in [*spans, ("aten::mm", 70, 1, 0)]
        )

    computes = {
        t for t in range(100) for lane in range(3)
        if open_at(t, "aten::mm", thread=lane) and not open_at(t, "c10d::allreduce_", "gloo:all_reduce", thread=lane)
    }  # fmt: skip
    communicates = {t for t in range(100) if open_at(t, "gloo:all_reduce")}
    assert int(found.compute_ns.sum()) == 1000 * len(computes)
    assert int(found.communication_ns.sum()) == 1000 * len(communicates)
    assert int(found.exposed_ns.sum()) == 1000 * len(communicates - computes)


def _read(events: list[dict[str, Any]], header: Mapping[str, Any] | None = None) -> RankReading:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.json"
        path.write_text(json.dumps({**(header or {}), "traceEvents": events}))
        return read(traces.read(path))


def made() -> Run:
    """Three ranks whose times a seed chose once."""
    run, chosen = Run(3), random.Random(17)
    kinds = (
        ("_allgather_base", (512, 1536), "BFloat16"),
        ("allreduce", (1024, 1024), "Float"),
        ("_reduce_scatter_base", (3072, 1024), "BFloat16"),
        ("allreduce", (4096, 4096), "Float"),
    )
    for _ in range(3):
        buckets = [
            Bucket({rank: chosen.randint(5, 60) for rank in range(3)}, chosen.randint(5, 50), *kind) for kind in kinds
        ]
        run.step(buckets, {rank: chosen.randint(0, 30) for rank in range(3)})
    return run


def test_a_step_is_divided_as_holistic_trace_analysis_divides_it() -> None:
    """The numbers are those of HolisticTraceAnalysis 0.5.0, on the files that `made().write(directory)` writes:
    `TraceAnalysis(…, include_last_profiler_step=True)`, `get_temporal_breakdown` and `get_comm_comp_overlap`."""
    theirs = {0: (648, 400, 200, 48, 60.08), 1: (651, 469, 141, 41, 60.39), 2: (661, 407, 233, 21, 53.31)}
    rows = summary_of(made()).breakdown
    for rank, (kernels, compute, other, idle, overlap) in theirs.items():
        mine = [row for row in rows if row.rank == rank]
        assert sum(row.window_ns for row in mine) == kernels * 1000
        assert sum(row.compute_ns for row in mine) == compute * 1000
        assert sum(row.exposed_ns + row.other_ns for row in mine) == other * 1000
        assert sum(row.idle_ns for row in mine) == idle * 1000
        hidden = 1 - sum(row.exposed_ns for row in mine) / sum(row.communication_ns for row in mine)
        assert round(100 * hidden, 2) == overlap


# --- matching, clocks, waiting

RANKS = st.integers(2, 4)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any few ranks, with clocks seconds apart and groups of some of them."""
    world = draw(RANKS)
    clocks = {rank: draw(st.integers(-5_000_000, 5_000_000)) for rank in range(1, world)}
    run = Run(world, clocks, numbered=draw(st.booleans()))
    halves = [tuple(range(world))] + ([(0, 1), (2, 3)] if world == 4 else [])
    for _ in range(draw(st.integers(1, 2))):
        buckets = [
            Bucket(
                {rank: draw(st.integers(1, 50)) for rank in range(world)},
                draw(st.integers(1, 40)),
                draw(st.sampled_from(["allreduce", "_allgather_base", "_reduce_scatter_base"])),
                ranks=draw(st.sampled_from(halves)),
            )
            for _ in range(draw(st.integers(1, 4)))
        ]
        run.step([*buckets, Bucket({}, 3)])
    return run


@settings(max_examples=60, deadline=None)
@given(runs())
def test_transfer_waiting_and_clocks_are_those_that_were_made(run: Run) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ranks = readings(run.write(Path(directory)))
    matched, unmatched = match_collectives(ranks, ranks[0].steps)
    alignment = align(ranks, matched)
    assert unmatched == 0
    assert alignment.offsets_ns == {rank: run.clock_us.get(rank, 0) * 1000 for rank in ranks}
    assert alignment.residual_ns == 0
    found = sorted(
        (each.matched.events[0].start_ns - alignment.offsets_ns[each.matched.ranks[0]] + int(each.waiting_ns[0]),
         each.matched.ranks, each.transfer_ns, each.waiting_ns.tolist())
        for each in wait_times(matched, alignment)
    )  # fmt: skip
    origin_ns = found[0][0]
    assert [row[1:] for row in found] == [
        row[1:] for row in sorted(
            (start, each.ranks, each.transfer_us * 1000, [each.waiting_us[rank] * 1000 for rank in each.ranks])
            for start, each in zip(_starts(run, origin_ns), run.truth, strict=True)
        )
    ]  # fmt: skip


def _starts(run: Run, origin_ns: int) -> list[int]:
    """When the last rank arrives at each collective, in the order of the truth."""
    lasts: dict[tuple[int, ...], list[int]] = {}
    for rank, events in run.events.items():
        for event in events:
            if "Collective name" in event["args"]:
                ranks = tuple(json.loads(event["args"]["Process Group Ranks"]))
                if rank == ranks[0]:
                    end = event["ts"] - run.clock_us.get(rank, 0) + event["dur"]
                    lasts.setdefault(ranks, []).append(end)
    return [origin_ns + 1000 * (lasts[each.ranks].pop(0) - each.transfer_us) for each in run.truth]


def test_a_collective_that_differs_between_ranks_is_not_matched_and_said() -> None:
    run = Run(2, numbered=False)
    run.step([Bucket({0: 5, 1: 5}, 10)])
    for event in run.events[1]:
        if "Collective name" in event["args"]:
            event["args"]["Collective name"] = "_allgather_base"
    found = summary_of(run)
    assert found.collectives[0].matched == 0
    assert found.cautions == ["collectives that are not the same on all ranks, so transfer and waiting are unknown: 1"]


def test_kernels_without_arguments_are_matched_by_their_order_and_have_no_size() -> None:
    run = made()
    for event in (each for events in run.events.values() for each in events):
        event["args"] = {key: event["args"][key] for key in ("correlation", "stream", "device") if key in event["args"]}
    found, whole = summary_of(run), summary_of(made())
    assert {row.bytes for row in found.collectives} == {None}
    assert {row.kind for row in found.collectives} == {"all_reduce", "all_gather", "reduce_scatter"}
    assert found.straggler == whole.straggler
    assert sum(row.transfer_ns for row in found.collectives) == sum(row.transfer_ns for row in whole.collectives)


def test_broadcasts_have_no_waiting_because_ranks_do_not_end_them_together() -> None:
    run = Run(2)
    run.step([Bucket({0: 5, 1: 90}, 10, "broadcast")])
    found = summary_of(run)
    (row,) = found.collectives
    assert (row.kind, row.calls, row.matched, row.waiting_ns) == ("broadcast", 1, 0, 0)


def test_collectives_are_counted_by_kind_message_and_group() -> None:
    found = {(row.kind, row.bytes, row.group_size): row for row in summary_of(made()).collectives}
    assert {key: (row.calls, row.events, row.matched) for key, row in found.items()} == {
        ("all_gather", 1536 * 2, 3): (3, 9, 3),
        ("all_reduce", 1024 * 4, 3): (3, 9, 3),
        ("reduce_scatter", 3072 * 2, 3): (3, 9, 3),
        ("all_reduce", 4096 * 4, 3): (3, 9, 3),
    }
    truth = made().truth[1::4]
    row = found["all_reduce", 4096, 3]
    assert row.transfer_ns == 1000 * sum(each.transfer_us for each in truth)
    assert row.waiting_ns == 1000 * sum(sum(each.waiting_us.values()) for each in truth)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)", "reduce_scatter"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "all_reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("all_to_allv", "all_to_all"),
        ("gloo:all_reduce", "all_reduce"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::reduce_", "reduce"),
        ("_broadcast_oop", "broadcast"),
        ("recv", "send_recv"),
        ("wait", "other"),
    ],
)
def test_a_kind_is_read_from_any_spelling(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md of nccl-tests: all-reduce 2(n−1)/n, all-gather, reduce-scatter and all-to-all (n−1)/n."""
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == bus_factor("all_to_all", 8) == 0.875
    assert bus_factor("broadcast", 8) == 1.0
    assert bus_factor("barrier", 8) is None
    assert [element_bytes(each) for each in ("BFloat16", "c10::Half", "float", "Long", "Float8_e4m3fn", "what")] == [
        2, 2, 4, 8, 1, None,
    ]  # fmt: skip
    assert message_bytes("all_gather", (100, NONE), "float", 4) == 1600, "what arrives, as nccl-tests counts it"
    assert message_bytes("reduce_scatter", (400, 100), "BFloat16", 4) == 800
    assert message_bytes("all_reduce", (100, NONE), "", 4) is None


# --- stragglers


def noisy(seed: int, late: int | None, *, computes: bool = False, steps: int = 6, slow_us: int = 30_000) -> Run:
    """Four ranks whose compute varies by a fifth; one of them loses 30 ms in every step."""
    run, chosen = Run(4), random.Random(seed)
    for _ in range(steps):
        first = {rank: round(chosen.gauss(2000, 400)) for rank in range(4)}
        pause = {late: slow_us} if late is not None and not computes else {}
        if late is not None and computes:
            first[late] += slow_us
        rest = [Bucket({rank: round(chosen.gauss(2000, 400)) for rank in range(4)}, 500) for _ in range(3)]
        run.step([Bucket(first, 500), *rest], pause)
    return run


def test_a_rank_slowed_by_30_ms_is_named_with_its_cause_in_20_of_20_runs() -> None:
    for seed in range(20):
        computes = seed % 2 == 0
        late = summary_of(noisy(seed, seed % 4, computes=computes)).straggler
        assert late is not None
        assert (late.rank, late.cause) == (seed % 4, "compute" if computes else "idle")
        assert late.share > 0.8
        assert 30e6 < late.waiting_ns < 38e6, "the others also wait while it computes between its collectives"


def test_no_rank_is_named_in_20_runs_without_a_slow_one() -> None:
    assert [summary_of(noisy(seed, None)).straggler for seed in range(20)] == [None] * 20


def test_silence_where_too_little_was_measured() -> None:
    assert summary_of(noisy(1, 2, steps=2)).straggler is None, "two steps tell nothing about the next one"
    assert summary_of(noisy(1, 2), ranks=(0, 2, 3)).straggler is None, "the rank that is missing may be the late one"
    assert summary_of(noisy(1, 2, slow_us=100)).straggler is None


def test_what_is_missing_is_said() -> None:
    assert summary_of(noisy(1, None), ranks=(0, 3)).cautions == [
        "traces missing of 2 of 4 ranks (1, 2): transfer and waiting times exclude them, and no straggler can be named"
    ]


def test_steps_that_do_not_match_are_said_and_the_common_ones_compared() -> None:
    run = Run(2, first_step={1: 12})
    for _ in range(4):
        run.step([Bucket({0: 5, 1: 9}, 10)])
    found = summary_of(run)
    assert found.steps == ["ProfilerStep#12", "ProfilerStep#13"]
    assert found.cautions[0] == (
        "steps do not match: rank 0 has 4, rank 1 has 4; the 2 steps common to all ranks are compared"
    )


def test_clocks_that_are_apart_are_said() -> None:
    run = Run(2, clock_us={1: -2_500_000})
    run.step([Bucket({0: 5, 1: 9}, 10)])
    found = summary_of(run)
    assert found.clock is not None
    assert found.clock.offsets_ns == {0: 0, 1: -2_500_000_000}
    assert found.cautions == [
        "clocks differ: the clock of rank 1 is 2.50 s behind that of rank 0; collectives are used to align them"
    ]


def test_a_trace_without_its_clock_is_compared_with_one_that_has_it(tmp_path: Path) -> None:
    run = noisy(3, 1)
    paths = run.write(tmp_path)
    content = json.loads(paths[1].read_text())
    del content["baseTimeNanoseconds"]
    paths[1].write_text(json.dumps(content))
    found = summarise(readings(paths))
    assert found.straggler == summary_of(run).straggler
    assert found.cautions[0].startswith("clocks differ")


# --- real traces of gloo (tests/fixtures/ranks)


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def recorded(request: pytest.FixtureRequest) -> list[Path]:
    return sorted((FIXTURES / request.param).glob("*.json.gz"))


def test_exposed_communication_of_recorded_steps_equals_brute_force(recorded: list[Path]) -> None:
    for path in recorded:
        events = [each for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if each["ph"] == "X"]
        spans = [
            (each["name"], each["tid"], round(each["ts"] * 1000), round(each["ts"] * 1000) + round(each["dur"] * 1000))
            for each in events
        ]
        first = min(start for name, _, start, _ in spans if name.startswith("ProfilerStep"))
        last = max(end for name, _, _, end in spans if name.startswith("ProfilerStep"))
        cuts = sorted({min(max(at, first), last) for _, _, *span in spans for at in span})
        exposed = computed = 0
        for begin, end in pairwise(cuts):
            now = [(name, thread) for name, thread, start, stop in spans if start <= begin and stop >= end]
            communicating = {thread for name, thread in now if name.startswith(("gloo:", "c10d::"))}
            computing = any(
                name.startswith(("aten::", "torch::distributed::", "torch.distributed.", "fsdp::"))
                and thread not in communicating
                for name, thread in now
            )
            computed += (end - begin) * computing
            exposed += (end - begin) * (not computing and any(name.startswith("gloo:") for name, _ in now))
        found = read(traces.read(path)).breakdown
        assert int(found.compute_ns.sum()) == computed
        assert int(found.exposed_ns.sum()) == exposed


def test_the_recorded_rank_that_slept_is_named_and_none_where_none_did() -> None:
    late = summarise(readings(sorted((FIXTURES / "ddp").glob("*")))).straggler
    assert late is not None
    assert (late.rank, late.cause) == (1, "idle")
    assert late.waiting_ns == pytest.approx(30e6, rel=0.15)
    assert summarise(readings(sorted((FIXTURES / "fsdp2").glob("*")))).straggler is None


def test_a_reduce_scatter_that_gloo_carries_out_as_an_all_reduce_is_one() -> None:
    found = summarise(readings(sorted((FIXTURES / "fsdp2").glob("*"))))
    rows = {row.kind: row for row in found.collectives}
    assert {kind: (row.bytes, row.group_size, row.calls, row.matched) for kind, row in rows.items()} == {
        "all_gather": (64 * 65 * 4, 2, 4 * 5, 4 * 5),
        "reduce_scatter": (64 * 65 * 4, 2, 2 * 5, 2 * 5),
    }
    assert found.cautions == []
    assert found.clock is not None
    assert found.clock.collectives == 30

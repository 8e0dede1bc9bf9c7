"""Two sides, cell by cell: what is compared with what, what is refused, what passes a gate, and what is said of it."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError
from rich.console import Console

from sysbench.command import command_of, kinds
from sysbench.commands.attention.fold import fold as fold_attention
from sysbench.commands.attention.record import AttentionImported, AttentionRecord
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.compare import tables as compare_tables
from sysbench.commands.compare.cells import (
    NoMatchingCellsError,
    Side,
    build_side,
    find_obstacles,
    match,
    refuse_unknown_axes,
)
from sysbench.commands.compare.comparison import (
    AmountComparison,
    Comparison,
    LeftOver,
    Rules,
    apply_gate,
    compare,
    names,
    refuse_unmeasured,
)
from sysbench.commands.compare.output import exit_code, export_text
from sysbench.commands.compare.spec import CompareOptions
from sysbench.commands.time.fold import fold
from sysbench.commands.time.record import TimeRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import LogError, SysbenchError, UsageError
from sysbench.log.collect import samples_of
from sysbench.log.events import CellStarted, CodeFile, Event, StepMeasured, ThreadsProbe
from sysbench.log.outcomes import Outcome
from sysbench.log.records import RunRecord
from sysbench.log.runs import load
from sysbench.render.latex import latex
from sysbench.render.output import show_sheet
from sysbench.spec.axis import declared_fields
from tests import fixtures_attention, fixtures_runs, fixtures_timing
from tests.commands.time import test_predicted
from tests.fixtures_timing import TWO_CORES
from tests.golden.compare import assert_golden

Record = RunRecord[Any]

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"


def measured(seed: int = 0, **fields: Any) -> TimeRecord:
    """A run on an A100, with noise of 0.2%."""
    return fixtures_timing.record(TimeSpec(**{"size": "small", "ctx": "128,256", "steps": "20", **fields}), seed=seed)


def sided(name: str, *records: Record) -> Side:
    return build_side(name, dict(enumerate(records)))


def compared(a: Record | Sequence[Record], b: Record | Sequence[Record], **rules: Any) -> Comparison:
    one, other = ([records] if isinstance(records, RunRecord) else records for records in (a, b))
    return compare(sided("before", *one), sided("after", *other), Rules(**rules))


def slowed(record: TimeRecord, factor: float, ctx: int | None = None) -> TimeRecord:
    """The same run, as if every phase of (some of) its cells had taken `factor` times as long."""
    changed = record.model_dump(mode="json")
    for cell in changed["cells"]:
        if ctx in (None, cell["axes"]["ctx"]):
            for phase in cell["phases"].values():
                phase["wall"]["samples_s"] = [sample * factor for sample in phase["wall"]["samples_s"]]
    return TimeRecord.model_validate(changed)


def with_environment(record: TimeRecord, part: str, **fields: Any) -> TimeRecord:
    changed = record.environment.model_copy(update={part: getattr(record.environment, part).model_copy(update=fields)})
    return record.model_copy(update={"environment": changed})


def verdicts(found: Comparison) -> dict[tuple[int, str], str]:
    return {(cell.axes["ctx"], time.quantity): time.verdict for cell in found.cells for time in cell.times}


def text_of(found: Comparison, form: Any = "terminal", tables: Sequence[str] = (), width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_sheet(compare_tables.sheet(found, tables, complete=form == "csv"), console, form)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


# Verdicts


def test_a_cell_that_is_slower_is_called_so_and_the_others_are_the_same() -> None:
    found = compared(measured(1), slowed(measured(2), 1.05, ctx=256))
    assert verdicts(found)[128, "step"] == "SAME"
    assert verdicts(found)[256, "step"] == "SLOWER"
    (slower,) = [time for cell in found.cells if cell.axes["ctx"] == 256 for time in cell.times if time.headline]
    assert slower.low is not None
    assert slower.low < 1.05 < (slower.high or 0)


def test_every_phase_has_a_verdict_of_its_own() -> None:
    names = [time.quantity for time in compared(measured(1), measured(2)).cells[0].times]
    assert names == ["step", "zero_grad", "forward", "loss", "backward", "optimizer"]


def test_like_runs_have_no_verdict_in_sixty_cells() -> None:
    grid = {"ctx": "16-480+16", "precision": "fp32,bf16"}
    found = compared(measured(3, **grid), measured(4, **grid), include_phases=False)
    assert len(found.cells) == 60
    assert {time.verdict for cell in found.cells for time in cell.times} <= {"SAME", "AMBIGUOUS"}


def test_the_geometric_mean_is_of_the_steps() -> None:
    a = measured(5)
    (mean,) = compared(a, slowed(slowed(a, 0.5, ctx=128), 2.0, ctx=256)).geometric_means
    assert (mean.quantity, mean.cells) == ("step", 2)
    assert mean.ratio == pytest.approx(1.0)
    assert mean.verdicts == {"FASTER": 1, "SLOWER": 1}


def test_attention_is_judged_by_forward_and_backward() -> None:
    spec = AttentionSpec(impl=("naive",), seq=(256, 1024))
    runs = [fixtures_attention.record(spec, seed=seed) for seed in (1, 2)]
    found = compared(*runs)
    assert {time.quantity for cell in found.cells for time in cell.times if time.headline} == {"forward", "backward"}


def test_memory_is_compared_to_the_byte() -> None:
    a, b = measured(1, ctx="128"), measured(1, ctx="128", attention="sdpa")
    peaks = {each.quantity: each for each in compared(a, b).cells[0].amounts}
    assert peaks["allocated_peak"].exact
    assert peaks["allocated_peak"].unit == "bytes"
    assert peaks["allocated_peak"].a == a.cells[0].memory.allocated_peak_bytes
    assert peaks["allocated_peak"].b == b.cells[0].memory.allocated_peak_bytes
    assert not peaks["host_rss_peak"].exact


def test_several_runs_on_each_side_are_the_unit_of_replication() -> None:
    found = compared([measured(seed) for seed in range(3)], [measured(seed) for seed in range(10, 14)])
    assert {time.repeated for cell in found.cells for time in cell.times} == {"runs"}
    assert {time.count for cell in found.cells for time in cell.times} == {3}


def test_two_runs_on_a_cpu_leave_a_small_difference_open_which_alternating_rounds_find() -> None:
    a, b = (measured(seed, device="cpu", batch=batch) for seed, batch in ((1, "4"), (2, "4")))
    found = compared(a, b)
    assert any("below 32% is AMBIGUOUS" in said and "--ab" in said for said in found.cautions)
    assert {time.verdict for cell in found.cells for time in cell.times} == {"AMBIGUOUS"}
    rounds = compared(
        [measured(n, device="cpu") for n in range(14)], [measured(n, device="cpu") for n in range(14, 28)], paired=True
    )
    assert {time.verdict for cell in rounds.cells for time in cell.times if time.headline} == {"SAME"}


def test_runs_that_chose_other_numbers_of_threads_are_compared_only_when_told_to() -> None:
    def on(threads: int) -> TimeRecord:
        spec = TimeSpec(size="tiny", ctx="128", steps="20", device="cpu")
        record = fixtures_timing.record(spec, TWO_CORES, seed=threads)
        torch = record.environment.torch
        assert torch is not None
        chosen = ThreadsProbe(default=2, threads=threads, mean_s=[(2, 0.01), (1, 0.02 / threads)])
        environment = record.environment.model_copy(
            update={"torch": torch.model_copy(update={"threads": threads}), "threads_probe": chosen}
        )
        return record.model_copy(update={"environment": environment})

    with pytest.raises(UsageError, match=r"threads is 1 in A and 2 in B, as each run chose.*--across threads"):
        compared(on(1), on(2))
    assert compared(on(1), on(2), across=("threads",)).cells
    assert compared([on(1), on(2)], on(2)).cells


def test_two_plain_records_come_with_the_warning_that_processes_differ() -> None:
    assert any("not between processes" in said for said in compared(measured(1), measured(2)).cautions)
    paired = compared([measured(n) for n in range(4)], [measured(n) for n in range(4, 8)], paired=True)
    assert {time.repeated for cell in paired.cells for time in cell.times} == {"rounds"}
    assert not any("not between processes" in said for said in paired.cautions)


# Which cell is compared with which


def predicted_on_two_gpus() -> Comparison:
    def predicted(gpu: str, *steps_s: float | None) -> TimeRecord:
        spec = TimeSpec(size=("tiny",), ctx=(128, 256), simulate=(gpu,))
        return test_predicted.record(spec, *((step_s, "ok") for step_s in steps_s))

    return compared(predicted("h100", 0.01, 0.02), predicted("a100-80gb", 0.02, None), across=("simulate",))


def test_the_ratio_of_predicted_steps_has_the_interval_of_matching_draws() -> None:
    def predicted(gpu: str, step_s: float, draws_s: list[float]) -> TimeRecord:
        spec = TimeSpec(size=("tiny",), ctx=(128,), simulate=(gpu,))
        event = test_predicted.predicted(next(iter(spec.cells())), step_s, step_draws_s=draws_s)
        return test_predicted.record(spec, (step_s, "ok"), predictions=[event])

    runs = predicted("h100", 1.0, [1.0, 0.3, 4.0]), predicted("a100-80gb", 2.0, [2.0, 0.6, 8.0])
    (cell,) = compared(*runs, across=("simulate",)).cells
    assert [(each.ratio, each.low, each.high) for each in cell.predictions] == [(2.0, 2.0, 2.0)]
    without_draws = predicted("h100", 1.0, []), runs[1]
    (cell,) = compared(*without_draws, across=("simulate",)).cells
    assert [(each.ratio, each.low, each.high) for each in cell.predictions] == [(2.0, None, None)]


def test_predictions_are_compared_by_their_points_without_a_verdict() -> None:
    found = predicted_on_two_gpus()
    (step,) = (each for cell in found.cells for each in cell.predictions)  # the other one is withheld on one side
    assert (step.quantity, step.ratio) == ("step", 2.0)
    assert (step.a.low_s, step.b.high_s) == pytest.approx((0.008, 0.026))
    shown = text_of(found)
    assert "PREDICTED, not measured" in shown
    assert "Time: step is predicted to take 2.00× as long in B as in A; nothing was measured." in " ".join(
        shown.split()
    )
    assert "step is predicted to take 2.00× as long" in compare_tables.summary_line(found)
    with pytest.raises(UsageError, match="no cell has a measured time or an exact memory peak on both sides"):
        refuse_unmeasured(found)
    assert not {"FASTER", "SLOWER", "SAME", "AMBIGUOUS"} & set(shown.split())
    assert json.loads(found.model_dump_json())["cells"][0]["predictions"][0]["b"]["point_s"] == 0.02


def test_cells_are_matched_by_their_axes_whatever_their_order() -> None:
    a, b = measured(1, ctx="128,256,512"), measured(2, ctx="512,128,256")
    found = compared(a, b)
    assert [cell.axes["ctx"] for cell in found.cells] == [128, 256, 512]
    assert set(verdicts(found).values()) <= {"SAME", "AMBIGUOUS"}


def test_eager_against_compiled_is_matched_across_that_axis() -> None:
    found = compared(measured(1), measured(2, execution="compiled"))
    assert found.across == ["execution"]
    assert verdicts(found)[256, "step"] == "FASTER"
    assert [(each.name, each.a, each.b) for each in found.differences] == [("--execution", "eager", "compiled")]


def test_a_size_differs_in_one_thing_however_many_dimensions_that_is() -> None:
    assert compared(measured(1), measured(1, size="medium")).across == ["size"]
    assert compared(measured(1), measured(1, layers="6")).across == ["size"]


def test_how_often_was_measured_does_not_make_another_cell() -> None:
    found = compared(measured(1, steps="20"), measured(2, steps="40", warmup="9"))
    assert len(found.cells) == 2
    assert found.across == []
    assert {each.name for each in found.differences} == {"--steps", "--warmup"}


def test_a_sweep_of_warm_ups_is_compared_point_by_point() -> None:
    grid = {"warmup": "0,5", "ctx": "128"}
    found = compared(measured(1, **grid), measured(2, **grid))
    assert [cell.axes["warmup"] for cell in found.cells] == [0, 5]


def test_cells_that_only_one_side_has_are_listed() -> None:
    found = compared(measured(1, ctx="128,256"), measured(2, ctx="256,512"))
    assert [cell.axes["ctx"] for cell in found.cells] == [256]
    assert [(each.arm, each.axes["ctx"]) for each in found.left_over] == [("A", 128), ("B", 512)]
    shown = text_of(found)
    assert "only in A, and not compared: ctx 128 (ok)" in shown
    assert "only in B, and not compared: ctx 512 (ok)" in shown


def test_of_several_kinds_of_run_each_is_compared_with_its_own() -> None:
    attention = fixtures_attention.record(AttentionSpec(impl=("naive",), seq=(256,)))
    found = compared([measured(1), attention], [attention, measured(2)])
    assert {cell.kind for cell in found.cells} == {"time", "attention"}
    only = compared([measured(1), attention], measured(2))
    assert [each.kind for each in only.left_over] == ["attention"]


def test_a_kind_of_run_that_has_nothing_in_common_does_not_keep_the_others_from_being_compared() -> None:
    short, long = (
        fixtures_attention.record(AttentionSpec(impl=("naive",), seq=seq)) for seq in ((256, 512), (1024, 2048))
    )
    found = compared([measured(1), short], [measured(2), long])
    assert {cell.kind for cell in found.cells} == {"time"}
    assert [(each.arm, each.axes["seq"]) for each in found.left_over] == [
        ("A", 256),
        ("A", 512),
        ("B", 1024),
        ("B", 2048),
    ]
    with pytest.raises(UsageError, match="no cell of A matches a cell of B: seq is 256, 512 in A and"):
        compared(short, long)


def test_of_a_cell_that_was_run_twice_the_last_counts() -> None:
    a = measured(1)
    (cell, _) = compared([slowed(a, 3.0), a], a).cells
    assert cell.times[0].ratio == pytest.approx(1.0)


# What is refused


@pytest.mark.parametrize(
    ("fields", "complaint", "across"),
    [
        ({"precision": "bf16"}, "precision is fp32 in A and bf16 in B", "precision"),
        ({"batch": "8"}, "batch is 4 in A and 8 in B", "batch"),
        ({"mode": "forward"}, "mode is train in A and forward in B", "mode"),
        ({"sync": "step"}, "sync is phase in A and step in B", "sync"),
        ({"device": "cpu"}, "device is NVIDIA A100-SXM4-80GB in A and AMD EPYC 7763 64-Core Processor in B", "device"),
    ],
)
def test_unequal_arms_are_not_compared_unless_told(fields: dict[str, Any], complaint: str, across: str) -> None:
    a, b = measured(1), measured(2, **fields)
    with pytest.raises(UsageError) as caught:
        compared(a, b)
    assert complaint in str(caught.value)
    assert f"--across {across}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert compared(a, b, across=(across,)).across == [across]


def test_a_precision_that_both_have_is_compared_and_the_other_is_listed() -> None:
    found = compared(measured(1, precision="fp32,bf16"), measured(2, precision="bf16"))
    assert {cell.axes["precision"] for cell in found.cells} == {"bf16"}
    assert {each.axes["precision"] for each in found.left_over} == {"fp32"}


def test_two_things_at_once_are_not_told_apart_unless_told() -> None:
    a, b = measured(1), measured(2, execution="compiled", attention="sdpa")
    with pytest.raises(UsageError, match=r"--across attention,execution compares them anyway"):
        compared(a, b)
    assert set(compared(a, b, across=("attention", "execution")).across) == {"attention", "execution"}


def test_one_message_names_every_axis_that_across_needs() -> None:
    a = measured(1, ctx="128")
    b = with_environment(
        measured(2, ctx="256", precision="bf16", batch="8", attention="sdpa"), "host", hostname="elsewhere"
    )
    with pytest.raises(UsageError) as caught:
        compared(a, b, across=("batch",))
    found = re.search(r"--across (\S+) compares them anyway", str(caught.value))
    assert found is not None
    across = found[1].split(",")
    assert set(across) == {"batch", "precision", "ctx", "attention", "machine"}
    assert len(compared(a, b, across=tuple(across)).cells) == 1


def test_every_axis_of_every_command_can_be_named() -> None:
    axes = {axis for kind in kinds() for axis in command_of(kind).models().cell.model_fields}
    effort = {name for name, axis in declared_fields().items() if axis.compares == "effort"}
    refuse_unknown_axes(sorted(axes - effort - {"kind", "model"}))


def test_several_ranks_differ_from_one_in_one_thing_although_one_rank_has_no_strategy() -> None:
    one, ddp, fsdp = (
        [{"ranks": 2, "strategy": strategy, knob: 1, "ctx": 128} if strategy else {"ctx": 128}]
        for strategy, knob in (("", ""), ("ddp", "bucket_mb"), ("fsdp2", "reshard"))
    )
    assert find_obstacles(one, ddp) == find_obstacles(ddp, fsdp) == []
    assert match(one, ddp).across == ("ranks", "strategy", "bucket_mb")
    assert match(ddp, fsdp).across == ("strategy", "bucket_mb", "reshard")
    four = [{**fsdp[0], "ranks": 4}]
    assert [(each.axis, each.description) for each in find_obstacles(ddp, four)] == [
        ("ranks", "ranks is 2 in A and 4 in B"),
        ("strategy", "strategy is ddp in A and fsdp2 in B"),
    ]
    assert find_obstacles(ddp, four, ("ranks", "strategy")) == []
    (batch, *_) = find_obstacles(one, [{**ddp[0], "grad_accum": 4}])
    assert batch.description == "grad accum is 1 in A and 4 in B"


def test_cells_that_differ_in_ranks_are_told_apart() -> None:
    cells = [
        LeftOver(arm="A", kind="time", axes={"size": "small", "ranks": ranks, "strategy": "ddp"}, outcome="ok")
        for ranks in (2, 4)
    ]
    assert names(cells) == ["2 ranks", "4 ranks"]


def test_across_takes_one_value_on_each_side() -> None:
    a, b = measured(1, precision="fp32,tf32"), measured(2, precision="bf16")
    expected = r"precision is fp32, tf32 in A and bf16 in B\. --across needs a single value of precision on each side"
    for across in ((), ("precision",)):
        with pytest.raises(UsageError, match=expected):
            compared(a, b, across=across)


def test_two_machines_are_not_compared_unless_told() -> None:
    a = measured(1)
    b = with_environment(measured(2), "host", hostname="elsewhere")
    with pytest.raises(UsageError, match=r"machine is bench \(.*\) in A and elsewhere \(.*--across machine"):
        compared(a, b)
    found = compared(a, b, across=("machine",))
    assert [(each.name, each.a, each.b) for each in found.differences] == [("host", "bench", "elsewhere")]


def test_the_made_up_name_of_a_container_is_no_other_machine() -> None:
    a, b = (
        with_environment(measured(seed), "host", hostname=name, container=True)
        for seed, name in enumerate(("0a1b", "2c3d"))
    )
    assert len(compared(a, b).cells) == 2


def test_measured_is_not_compared_with_simulated() -> None:
    measured_one = fixtures_attention.record(AttentionSpec(impl=("naive",), seq=(256,)))
    simulated = fixtures_attention.record(AttentionSpec(impl=("naive",), seq=(256,), simulate=("a100-80gb",)))
    with pytest.raises(UsageError, match=r"simulate is none in A and a100-80gb in B"):
        compared(measured_one, simulated)


def test_runs_of_different_commands_have_nothing_in_common() -> None:
    attention = fixtures_attention.record(AttentionSpec(impl=("naive",), seq=(256,)))
    with pytest.raises(LogError, match=r"A has `sysbench time`, and B has `sysbench attention`"):
        compared(measured(1), attention)


def test_what_has_no_cell_in_common_says_why() -> None:
    with pytest.raises(UsageError, match=r"no cell of A matches a cell of B: ctx is 128, 256 in A and 512, 1024 in B"):
        compared(measured(1), measured(2, ctx="512,1024"))


def test_a_time_that_is_none_is_an_error_and_not_a_crash() -> None:
    broken = slowed(measured(1), 0.0)
    with pytest.raises(SysbenchError, match="needs positive times"):
        compared(measured(2), broken)


# What differs around the cells


def test_everything_around_that_differs_is_said_first() -> None:
    b = with_environment(with_environment(measured(2), "torch", torch="2.14.0+cu131"), "host", commit="abc")
    found = compared(measured(1), b)
    # That A does not know its commit (it was installed) is no difference.
    assert [(each.name, each.a, each.b) for each in found.differences] == [("torch", "2.13.0+cu130", "2.14.0+cu131")]
    shown = text_of(found)
    assert shown.index("2.14.0+cu131") < shown.index("B / A")


def test_the_same_on_both_sides_is_said_to_be_the_same() -> None:
    assert "A and B have no known differences" in text_of(compared(measured(1), measured(2)))


def with_file_of_own_model(record: TimeRecord, digest: str) -> TimeRecord:
    changed = record.model_dump(mode="json")
    file = {"target": "gpt.py:GPT", "path": "/src/gpt.py", "sha256": digest}
    for cell in changed["cells"]:
        cell["own_model"] = {
            **dict.fromkeys(("loss", "tokens", "flops", "uncounted")),
            "class_name": "GPT",
            "parameters": 1,
            "trainable_parameters": 1,
            "inputs": "",
            "printed": "",
            "files": [file],
        }
    return TimeRecord.model_validate(changed)


def test_another_version_of_the_users_model_is_a_difference() -> None:
    before, after = (with_file_of_own_model(measured(seed), digest * 64) for seed, digest in enumerate("ab"))
    found = compared(before, after)
    assert [(each.name, each.a, each.b) for each in found.differences] == [("file of gpt.py:GPT", "a" * 8, "b" * 8)]
    assert "no known differences" not in text_of(found)
    assert "no known differences" in text_of(compared(before, before))


def test_another_version_of_the_users_attention_is_a_difference() -> None:
    spec = AttentionSpec(impl=("mine:attend",), dim=(64,), seq=(256,))

    def with_file(digest: str) -> AttentionRecord:
        file = CodeFile(target="mine:attend", path="/src/mine.py", sha256=digest * 64)
        events: list[Event] = []
        for event in fixtures_attention.events(spec):
            events.append(event)
            if isinstance(event, CellStarted):
                events.append(AttentionImported(at_s=event.at_s, cell=event.cell, file=file))
        return fold_attention(events)

    before, after = with_file("a"), with_file("b")
    assert [each.name for each in compared(before, after).differences] == ["file of mine:attend"]
    assert AttentionRecord.model_validate_json(after.model_dump_json()) == after


def test_another_card_of_the_same_model_is_a_caution() -> None:
    changed = measured(2).model_dump(mode="json")
    for cell in changed["cells"]:
        cell["device"]["uuid"] = "GPU-other"
    found = compared(measured(1), TimeRecord.model_validate(changed))
    assert any("different GPUs" in said for said in found.cautions)


def test_what_was_measured_under_doubt_is_listed_in_one_order_whatever_the_order_in_the_runs() -> None:
    changed = measured(2).model_dump(mode="json")
    of_cells = (("outliers", "drift", "two-modes", "throttled"), ("host-busy", "drift", "narrow-margin"))
    for cell, codes in zip(changed["cells"], of_cells, strict=True):
        cell["cautions"] = [{"code": code, "remedy": "wait"} for code in codes]
    found = compared(measured(1), TimeRecord.model_validate(changed))
    listed = (
        "outliers (1 of 2 cells), drift (2 of 2 cells), two-modes (1 of 2 cells), throttled (1 of 2 cells), "
        "host-busy (1 of 2 cells), narrow-margin (1 of 2 cells)"
    )
    assert any(said.startswith(f"cautions in B: {listed}; ") for said in found.cautions)
    doubtful = TimeRecord.model_validate(changed)
    said_once = [said for said in compared(doubtful, doubtful).cautions if "cautions in" in said]
    assert said_once == [f"cautions in A and B: {listed}; the output of the runs explains them"]


def test_where_other_processes_disturbed_a_side_the_ratio_of_processor_times_is_said() -> None:
    def with_processor_time(seed: int, processor_s: float, *codes: str) -> TimeRecord:
        content = measured(seed).model_dump(mode="json")
        for cell in content["cells"]:
            cell["cautions"] = [{"code": code, "remedy": "wait"} for code in codes]
            cell["phases"]["step"]["processor_median_s"] = processor_s
        return TimeRecord.model_validate(content)

    quiet, busy = with_processor_time(1, 2.0), with_processor_time(2, 2.2, "host-busy")
    said = "a step takes 1.10× as much CPU time in B as in A (geometric mean of 2 cells)"
    assert any(said in caution for caution in compared(quiet, busy).cautions)
    assert not any("CPU time" in caution for caution in compared(quiet, quiet).cautions)
    assert not gated(compared(quiet, with_processor_time(1, 20.0)), 0.03)[0]  # it was sampled


# Runs that did not come to their end


def test_what_a_killed_run_had_measured_is_compared() -> None:
    spec = TimeSpec(size="small", ctx="128,256,512", steps="20")
    events = fixtures_timing.events(spec)
    killed = fold(fixtures_timing.until_measuring(events, cell=2, step=1))
    found = compared(measured(1, ctx="128,256,512"), killed)
    assert verdicts(found)[128, "step"] in ("SAME", "AMBIGUOUS")
    assert [cell.b_outcome for cell in found.cells] == ["ok", "ok", "unfinished"]
    assert any("did not finish" in said for said in found.cautions)


def test_a_round_that_was_cut_off_does_not_count() -> None:
    spec = TimeSpec(size="small", ctx="128", steps="20")
    events = fixtures_timing.events(spec)
    cut = fold(fixtures_timing.until_measuring(events, cell=0, step=3))
    whole = [measured(seed, ctx="128") for seed in range(8)]
    found = compared([*whole[:4], whole[0]], [*whole[4:], cut], paired=True)
    assert found.cells[0].times[0].count == 4


def test_a_log_that_ends_before_its_first_step_is_compared_with_nothing_and_says_so() -> None:
    events = fixtures_timing.events(TimeSpec(size="small", ctx="128"))
    started = next(number for number, event in enumerate(events) if isinstance(event, CellStarted))
    assert not any(isinstance(event, StepMeasured) for event in events[: started + 1])
    found = compared(measured(1, ctx="128"), fold(events[: started + 1]))
    assert found.cells[0].times == []
    assert "unfinished in B" in text_of(found)


def test_a_cell_that_was_never_started_is_still_the_same_cell() -> None:
    skipped = measured(2).model_dump(mode="json")
    skipped["cells"][1].update(outcome="skipped", device=None, phases={})
    found = compared(measured(1), TimeRecord.model_validate(skipped))
    assert [cell.b_outcome for cell in found.cells] == ["ok", "skipped"]
    assert found.left_over == []


def test_a_run_that_ended_before_it_began_says_so() -> None:
    with pytest.raises(LogError, match="after is empty: it ended before anything was measured"):
        compared(measured(1), fold(fixtures_timing.events(TimeSpec(size="small", ctx="128"))[:1]))


# The gate


def gated(found: Comparison, share: float) -> tuple[list[str], list[str]]:
    held = apply_gate(found, share)
    return held.failed, held.undecided


def test_a_gate_fails_what_is_known_to_be_beyond_it() -> None:
    failed, undecided = gated(compared(measured(1), slowed(measured(2), 1.05, ctx=256)), 0.03)
    assert len(failed) == 1
    assert failed[0].startswith("ctx 256: step takes 1.05× as long in B (99% CI 1.04")
    assert undecided == []


def test_a_gate_passes_a_real_regression_that_is_within_it() -> None:
    assert gated(compared(measured(1), slowed(measured(2), 1.02)), 0.03) == ([], [])


def test_a_gate_passes_noise_and_says_what_it_could_not_tell() -> None:
    noisy = fixtures_timing.record(TimeSpec(size="tiny", ctx="128", steps="10", device="cpu"), TWO_CORES, seed=1)
    found = compared(noisy, slowed(noisy, 1.02))
    failed, undecided = gated(found, 0.03)
    assert failed == []
    assert len(undecided) == 1
    assert "too imprecise to rule out a regression" in text_of(
        found.model_copy(update={"gate": apply_gate(found, 0.03)})
    )


@pytest.mark.parametrize("b_share", [0.9, 1.0, 1.1])
def test_a_time_without_an_interval_is_undecided_whatever_its_ratio(b_share: float) -> None:
    few = measured(1, size="tiny", ctx="128", steps="2")
    found = compared(few, slowed(few, b_share))
    failed, undecided = gated(found, 0.03)
    assert failed == []
    assert len(undecided) == 1
    assert "too few steps to decide" in undecided[0]
    assert not apply_gate(found, 0.03, strict=True).holds


@pytest.mark.parametrize(("b_share", "fails"), [(0.9, False), (1.1, False), (3.0, True)])
def test_two_steps_on_a_cpu_decide_only_what_repetitions_cannot_explain(b_share: float, fails: bool) -> None:
    few = fixtures_timing.record(TimeSpec(size="tiny", ctx="128", steps="2", device="cpu"), TWO_CORES, seed=1)
    failed, undecided = gated(compared(few, slowed(few, b_share)), 0.03)
    assert (len(failed), len(undecided)) == ((1, 0) if fails else (0, 1))


def test_a_step_that_does_not_fit_has_no_predicted_time_to_compare() -> None:
    spec = TimeSpec(size=("tiny",), ctx=(128,), simulate=("h100",))
    fits, oom = test_predicted.record(spec, (1.0, "ok")), test_predicted.record(spec, (1.0, "oom"))
    (cell,) = compared(fits, oom).cells
    assert cell.predictions == []
    assert "is predicted to take" not in text_of(compared(fits, oom))


def test_a_phase_alone_does_not_fail_a_gate() -> None:
    changed = measured(2).model_dump(mode="json")
    for cell in changed["cells"]:
        wall = cell["phases"]["loss"]["wall"]
        wall["samples_s"] = [sample * 3 for sample in wall["samples_s"]]
    assert gated(compared(measured(1), TimeRecord.model_validate(changed)), 0.03) == ([], [])


def test_a_gate_fails_memory_that_grew_beyond_it() -> None:
    grown = measured(1).model_dump(mode="json")
    for cell in grown["cells"]:
        cell["memory"]["allocated_peak_bytes"] = int(cell["memory"]["allocated_peak_bytes"] * 1.04)
        cell["memory"]["host_rss_peak_bytes"] *= 3  # looked at from outside: decides nothing
    failed, _ = gated(compared(measured(1), TimeRecord.model_validate(grown)), 0.03)
    assert len(failed) == 2
    assert all("allocated peak grew from" in said for said in failed)
    assert gated(compared(measured(1), TimeRecord.model_validate(grown)), 0.05) == ([], [])


@pytest.mark.parametrize("outcome", ["oom", "crashed", "timeout"])
def test_a_gate_fails_a_cell_that_can_no_longer_be_measured(outcome: Outcome) -> None:
    lost = measured(2).model_dump(mode="json")
    lost["cells"][1].update(outcome=outcome, phases={})
    failed, _ = gated(compared(measured(1), TimeRecord.model_validate(lost)), 0.03)
    assert failed == [f"ctx 256: measured in A, but {outcome} in B"]


def noisy() -> Comparison:
    """One cell that may be a regression beyond 3%, for all that is known."""
    record = fixtures_timing.record(TimeSpec(size="tiny", ctx="128", steps="10", device="cpu"), TWO_CORES, seed=1)
    return compared(record, slowed(record, 1.02))


def test_a_strict_gate_does_not_pass_what_cannot_be_told() -> None:
    for strict, code in ((False, 0), (True, 3)):
        found = noisy().model_copy(update={"gate": apply_gate(noisy(), 0.03, strict=strict)})
        assert exit_code(found) == code
        assert (
            "Gate failed (--strict): none of 1 numbers worse by more than 3%, 1 undecided" in text_of(found)
        ) == strict


def test_a_strict_gate_passes_what_is_known_to_be_within_it() -> None:
    found = compared(measured(1), measured(2))
    assert exit_code(found.model_copy(update={"gate": apply_gate(found, 0.03, strict=True)})) == 0


@pytest.mark.parametrize("words", [{"strict": True}, {"export": "junit"}, {"export": "bmf", "json_path": "-"}])
def test_what_makes_no_sense_together_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"--gate|--json"):
        CompareOptions(a="one", b="two", **words)  # type: ignore[arg-type]


# For programs


@pytest.fixture(scope="module")
def regressed() -> Comparison:
    found = compared(measured(1), slowed(measured(2), 1.05, ctx=256))
    return found.model_copy(update={"gate": apply_gate(found, 0.03)})


def test_bencher_and_github_get_the_medians_of_b(regressed: Comparison) -> None:
    (time,) = (each for each in regressed.cells[0].times if each.headline)
    bmf = json.loads(export_text(regressed, "bmf"))
    assert bmf["time ctx 128 step"] == {"latency": {"value": pytest.approx(time.b_s * 1e9)}}
    by_name = {each["name"]: each for each in json.loads(export_text(regressed, "gha"))}
    assert by_name["time ctx 128 step"]["value"] == pytest.approx(time.b_s * 1e3)
    assert {each["unit"] for each in by_name.values()} == {"ms", "bytes"}


def test_a_cell_beyond_the_gate_is_a_test_that_failed(regressed: Comparison) -> None:
    suite = ElementTree.fromstring(export_text(regressed, "junit"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "0")
    (failure,) = suite.iter("failure")
    assert "takes 1.05× as long" in failure.get("message", "")
    open_ = ElementTree.fromstring(export_text(noisy().model_copy(update={"gate": apply_gate(noisy(), 0.03)}), "junit"))
    assert (open_.get("failures"), open_.get("skipped")) == ("0", "1")


def test_factors_point_one_way_or_say_which(regressed: Comparison) -> None:
    text = " ".join(text_of(regressed, width=140).split())
    assert "step takes 1.02× as long in B as in A (geometric mean of 2 cells)" in text
    assert "B / A, < 1 faster" in text
    assert "step takes 1.05× as long in B" in text


def test_a_mean_without_a_resolved_difference_is_no_headline(regressed: Comparison) -> None:
    (mean,) = regressed.geometric_means
    unresolved = mean.model_copy(update={"verdicts": {"AMBIGUOUS": 2}, "ratio": 0.5})
    assert compare_tables.summary_line(regressed.model_copy(update={"geometric_means": [unresolved]})).startswith(
        "Time: no difference in step time was resolved: 2 AMBIGUOUS"
    )


def test_quiet_is_one_line(regressed: Comparison) -> None:
    line = compare_tables.summary_line(regressed)
    assert "\n" not in line
    assert line.startswith("Time: step takes 1.02× as long")
    assert line.endswith("gate failed: 1 of 6 numbers worse by more than 3%.")


def test_quiet_says_what_the_gate_could_not_decide() -> None:
    found = noisy()
    lenient, strict = (
        compare_tables.summary_line(found.model_copy(update={"gate": apply_gate(found, 0.03, strict=strict)}))
        for strict in (False, True)
    )
    assert "gate passed: none of 1 numbers worse by more than 3%, 1 undecided" in lenient
    assert "gate failed (--strict): none of 1 numbers worse by more than 3%, 1 undecided" in strict


def test_quiet_says_what_became_of_memory_and_of_cells() -> None:
    a = fixtures_runs.record("memory")
    line = compare_tables.summary_line(compared(a, grown(a, 1.05)))
    assert re.match(r"Memory \(simulated\): \d+ of \d+ peaks changed, by \+5\.0%", line)
    changed = measured(2).model_dump(mode="json")
    changed["cells"][1].update(outcome="oom", phases={})
    line = compare_tables.summary_line(compared(measured(1), TimeRecord.model_validate(changed)))
    assert "cells with different outcomes in A and B: 1" in line


@pytest.mark.parametrize(
    ("peaks_bytes", "sentence"),
    [
        ([(10, 4160)], "Memory (simulated): the peak changed, by +41,500.0%."),
        ([(10, 10), (20, 20)], "Memory (simulated): none of 2 peaks changed."),
        ([(10, 11), (20, 20)], "Memory (simulated): 1 of 2 peaks changed, by +10.0%."),
        ([(10, 11), (20, 21)], "Memory (simulated): 2 of 2 peaks changed, by +5.0% to +10.0%."),
    ],
)
def test_memory_is_summarized_in_plain_words(peaks_bytes: list[tuple[int, int]], sentence: str) -> None:
    found = compared(fixtures_runs.record("memory"), fixtures_runs.record("memory"))
    memory = [
        AmountComparison(quantity="allocated_peak", unit="bytes", better="lower", exact=True, a=a_bytes, b=b_bytes)
        for a_bytes, b_bytes in peaks_bytes
    ]
    found = found.model_copy(update={"cells": [found.cells[0].model_copy(update={"amounts": memory})]})
    assert compare_tables.summary_line(found) == sentence
    assert {table.title for table in compare_tables.amounts_table(found)} == {"memory"}


def test_simulated_memory_beside_measured_memory_is_marked_everywhere() -> None:
    simulated = fixtures_runs.record("memory")
    found = compared(simulated, simulated)
    cells = [cell.model_copy(update={"a_simulated": False}) for cell in found.cells]
    found = found.model_copy(update={"cells": cells})
    for form in ("terminal", "markdown", "latex"):
        text = text_of(found, form, ["amounts"])
        assert "B after (simulated)" in text, form
        assert "A before (" not in text, form
    assert "simulated B (GiB)" in text_of(found, "markdown", ["amounts"])
    rows = list(csv.DictReader(io.StringIO(text_of(found, "csv"))))
    assert {(row["a_source"], row["b_source"]) for row in rows} == {("measured", "simulated")}
    assert compare_tables.summary_line(found).startswith("Memory (measured in A, simulated in B): none")
    assert all(cell["b_simulated"] for cell in json.loads(found.model_dump_json())["cells"])
    assert all(", simulated" in name for name in json.loads(export_text(found, "bmf")))
    assert all(", simulated" in each["name"] for each in json.loads(export_text(found, "gha")))


def test_measured_memory_has_no_mark() -> None:
    found = compared(measured(1), measured(2))
    assert "simulated" not in text_of(found) + found.model_dump_json() + export_text(found, "bmf")
    assert "source" not in text_of(found, "csv")


def saved_side(name: str) -> Side:
    return build_side(name, {0: load(RUNS / name)})


def test_across_is_not_suggested_where_no_cell_would_match_with_it() -> None:
    sides = saved_side("memory-modes.jsonl"), saved_side("memory-sweep.jsonl")
    for across in ((), ("simulate",), ("simulate", "size", "ctx")):
        with pytest.raises(NoMatchingCellsError) as refusal:
            compare(*sides, Rules(across=across))
        assert "ctx is 128 in A and 256, 2048 in B" in str(refusal.value)
        assert str(refusal.value).endswith("--across needs a single value of ctx on each side")


def test_the_suggested_across_is_enough() -> None:
    sides = saved_side("memory-cpu.jsonl"), saved_side("memory-simulated.jsonl")
    with pytest.raises(UsageError, match="--across ") as refusal:
        compare(*sides, Rules())
    suggested = re.search(r"--across (\S+) compares them anyway", str(refusal.value))
    assert suggested
    assert compare(*sides, Rules(across=tuple(suggested[1].split(",")))).cells


def test_combinations_that_do_not_overlap_are_not_blamed_on_a_single_value() -> None:
    a = [{"ctx": 1, "size": "a", "batch": 1}, {"ctx": 2, "size": "b", "batch": 1}]
    b = [{"ctx": 2, "size": "a", "batch": 2}, {"ctx": 1, "size": "b", "batch": 2}]
    with pytest.raises(NoMatchingCellsError) as refusal:
        match(a, b)
    assert str(refusal.value).endswith("batch is 1 in A and 2 in B; their other axes have no combination in common")


def test_calibrate_has_nothing_to_compare_and_says_so() -> None:
    a, b = fixtures_runs.record("calibrate"), fixtures_runs.record("calibrate", machine=TWO_CORES)
    with pytest.raises(LogError) as refusal:
        compared(a, b)
    assert str(refusal.value) == "nothing to compare: `sysbench calibrate` has no numbers that are compared"


# What is shown


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex"])
@pytest.mark.parametrize("name", list(compare_tables.TABLES))
def test_every_table_is_made_in_every_format(form: str, name: str) -> None:
    found = compared(measured(1, ctx="128,256"), measured(2, ctx="256,512", execution="compiled"))
    others = {"predictions": predicted_on_two_gpus, "amounts": lambda: compared(*[fixtures_runs.record("accum")] * 2)}
    assert text_of(others[name]() if name in others else found, form, [name])


def test_a_table_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"--tables verdict is not a table. Did you mean verdicts\?"):
        compare_tables.refuse_unknown_tables(["verdict"])


def test_the_long_table_has_every_number_in_base_units() -> None:
    found = compared(measured(1, ctx="128"), measured(2, ctx="128"))
    rows = list(csv.DictReader(io.StringIO(text_of(found, "csv"))))
    step = next(row for row in rows if row["quantity"] == "step")
    assert float(step["a_s"]) == pytest.approx(found.cells[0].times[0].a_s, rel=1e-8)
    assert float(step["b_over_a_low_ratio"]) < float(step["b_over_a_ratio"]) < float(step["b_over_a_high_ratio"])
    assert step["kind"] == "time"
    assert {"verdicts", "amounts"} == {row["table"] for row in rows}


def test_markup_in_names_reaches_no_format_as_markup() -> None:
    hostile = "[bold red]x[/] \\textbf{y} | z\x1b[31m"
    a = sided(hostile, measured(1))
    b = sided("b", with_environment(measured(2), "torch", torch="[link=file:///]\\input{x}"))
    found = compare(a, b, Rules())
    assert "[bold red]x[/]" in text_of(found)
    assert "\x1b" not in text_of(found)
    assert "\\textbf{y}" not in latex(compare_tables.sheet(found))
    assert "\\input{x}" not in latex(compare_tables.sheet(found))
    assert "[bold red]" not in text_of(found, "markdown")
    assert "} | z" not in text_of(found, "markdown")


def test_what_was_found_survives_json() -> None:
    found = compared(measured(1), measured(2, execution="compiled"))
    assert Comparison.model_validate_json(found.model_dump_json()) == found
    assert json.loads(found.model_dump_json())["kind"] == "comparison"


def test_the_screen_is_the_one_that_was_reviewed() -> None:
    found = compared(measured(1), slowed(measured(2, execution="compiled"), 1.3, ctx=256))
    held = found.model_copy(update={"gate": apply_gate(found, 0.03)})
    assert_golden("compare_100", text_of(held))
    assert_golden("compare_80", text_of(held, width=80))


# Memory, profiles, rounding


def grown(record: Record, factor: float) -> Record:
    """The same run with higher peaks."""
    cells = [
        cell.model_copy(update={"peak_allocated_bytes": int(cell.peak_allocated_bytes * factor)})
        for cell in record.cells
    ]
    return record.model_copy(update={"cells": cells})


def test_simulated_memory_is_compared_whatever_machine_it_was_worked_out_on() -> None:
    a = fixtures_runs.record("memory")
    assert all(cell.axes["simulate"] for cell in a.cells)
    b = grown(a, 1.05)
    elsewhere = b.model_copy(
        update={
            "environment": a.environment.model_copy(
                update={"host": a.environment.host.model_copy(update={"hostname": "elsewhere"})}
            )
        }
    )
    found = compared(a, elsewhere)
    assert len(gated(found, 0.03)[0]) == len(found.cells)
    assert all("allocated peak grew from" in said for said in gated(found, 0.03)[0])
    assert gated(found, 0.06) == ([], [])
    assert "memory" in text_of(found)
    assert "none of 8 peaks changed" in text_of(compared(a, a))


def test_a_profile_is_judged_by_the_step_that_was_not_profiled() -> None:
    profiled = fixtures_runs.record("profile")
    steps = samples_of([0.01, 0.01001, 0.00999] * 5)
    a = profiled.model_copy(
        update={"cells": [cell.model_copy(update={"unprofiled": steps}) for cell in profiled.cells]}
    )
    found = compared(a, a)
    assert {(time.quantity, time.verdict) for cell in found.cells for time in cell.times} == {("step", "SAME")}
    assert "neither side has a time or an amount" in " ".join(text_of(compared(profiled, profiled)).split())


def with_fp16_error(factor: float) -> Record:
    """A run of sums, as if the error of the fp16 sum were another; the sum itself is as before."""
    record = load(RUNS / "accum-sums.jsonl")
    sums = [
        each.model_copy(update={"error": each.error * factor})
        if (each.accumulator, each.addend, each.order) == ("fp16", "fp16", "sequential")
        else each
        for each in record.cells[0].sums
    ]
    return record.model_copy(update={"cells": [record.cells[0].model_copy(update={"sums": sums})]})


def test_errors_of_rounding_are_compared_by_magnitude_and_gated() -> None:
    same, worse = (compared(with_fp16_error(1), with_fp16_error(factor)) for factor in (1, -1.5))
    assert "Accum: none of 34 numbers changed." in text_of(same)
    assert "Accum: 1 of 34 numbers changed, by +50.0%." in text_of(worse)
    (changed,) = [amount for amount in worse.cells[0].amounts if amount.a != amount.b]
    assert (changed.quantity, changed.unit) == ("fp16 += fp16, sequential: error", "number")
    assert changed.b == pytest.approx(1.5 * changed.a)
    assert gated(worse, 0.1)[0] == [f"accum: {changed.quantity} grew from {changed.a:.3g} to {changed.b:.3g}"]
    assert gated(compared(with_fp16_error(1.5), with_fp16_error(1)), 0.1) == ([], [])
    for export in ("bmf", "gha"):
        assert changed.quantity in export_text(worse, export)


def test_an_error_that_appears_is_a_change_without_a_percentage() -> None:
    found = compared(with_fp16_error(0), with_fp16_error(1))
    assert "Accum: 1 of 34 numbers changed." in text_of(found)
    assert len(gated(found, 1.0)[0]) == 1


def test_a_gate_is_not_passed_by_having_measured_nothing() -> None:
    a = fixtures_runs.record("calibrate")
    found = compared(a, a)
    assert "Calibrate: neither side has a time or an amount to compare." in text_of(found)
    with pytest.raises(UsageError, match="no cell has a measured time or an exact memory peak on both sides"):
        refuse_unmeasured(found)

"""Tables hold the numbers that were measured, in the shapes that people report them in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from sysbench import formulas
from sysbench.commands.plan import plan
from sysbench.commands.time.fold import fold
from sysbench.commands.time.live import LiveState, advance
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.commands.time.tables import TABLES, sheet, tables_for
from sysbench.errors import UsageError
from sysbench.log.events import CellFinished, Event, StepMeasured
from sysbench.render.column_selection import select_columns
from sysbench.render.csv import tidy
from sysbench.render.numbers import format_columns
from sysbench.render.sentences.cautions import cautions_of
from sysbench.render.sentences.notes import outcomes
from sysbench.render.table import Measure, Table, Word
from sysbench.simulate.gpu import CONTEXT_BYTES, Gpu
from sysbench.spec import hardware
from sysbench.units import significant
from tests import fixtures_timing as runs
from tests.fixtures_cautions import drift

SWEEP = TimeSpec(size="small,medium", ctx="128,512", precision="fp32,bf16")
LARGE = TimeSpec(size="xl,2.7b", ctx="128-1024*2", precision="fp32,bf16")
WARMUPS = TimeSpec(size="small", ctx=128, warmup="0,1,2,5")
DEVICES = TimeSpec(size="small,medium", ctx=128, mode="forward-backward", device="cuda,cpu")


@pytest.fixture(scope="module")
def sweep_events() -> list[Event]:
    return runs.events(SWEEP)


@pytest.fixture(scope="module")
def sweep() -> TimeRecord:
    return runs.record(SWEEP)


@pytest.fixture(scope="module")
def large() -> TimeRecord:
    return runs.record(LARGE)


@pytest.fixture(scope="module")
def warmups() -> TimeRecord:
    return runs.record(WARMUPS)


@pytest.fixture(scope="module")
def devices() -> TimeRecord:
    return runs.record(DEVICES)


def only(tables: Sequence[Table]) -> Table:
    (table,) = tables
    return table


def cell_of(table: Table, row: int, key: str, unit: str | None = "s") -> object:
    positions = [n for n, column in enumerate(table.columns) if column.key == key and column.unit == unit]
    return table.rows[row][positions[0]]


def number(table: Table, row: int, key: str, unit: str = "s") -> float:
    cell = cell_of(table, row, key, unit)
    assert isinstance(cell, Measure)
    return cell.value


def wall(events: Sequence[Event], cell: TimeCellRecord, phase: str, *, warmup: bool = False) -> list[float]:
    steps = [e for e in events if isinstance(e, StepMeasured) and e.cell == cell.key and e.warmup == warmup]
    samples = [e.step if phase == "step" else e.phases[phase] for e in steps]
    return [sample.wall_s for sample in samples if sample.wall_s is not None]


def with_cell(record: TimeRecord, position: int, **changes: object) -> TimeRecord:
    cells = list(record.cells)
    cells[position] = cells[position].model_copy(update=changes)
    return record.model_copy(update={"cells": cells})


# Summary


def test_the_summary_has_mean_and_sample_deviation_of_every_phase(sweep: TimeRecord, sweep_events: list[Event]) -> None:
    table = only(TABLES["summary"](sweep))
    assert len(table.rows) == 8
    for row, cell in enumerate(sweep.cells):
        for phase in ("forward", "backward", "optimizer", "step"):
            samples = wall(sweep_events, cell, phase)
            found = cell_of(table, row, phase)
            assert isinstance(found, Measure)
            assert found.value == pytest.approx(np.mean(samples), rel=1e-12)
            assert found.deviation == pytest.approx(np.std(samples, ddof=1), rel=1e-9)


def test_the_summary_names_only_what_differs_and_the_subject_the_rest(sweep: TimeRecord) -> None:
    table = only(TABLES["summary"](sweep))
    assert [column.key for column in table.columns[: table.axes]] == ["size", "ctx", "precision"]
    subject = sheet(sweep).subject
    assert {"batch 4", "train", "naive attention", "NVIDIA A100-SXM4-80GB", "5 warm-ups", "10 steps"} <= set(subject)
    assert not any("small" in phrase or "bf16" in phrase for phrase in subject)


def test_a_peak_that_is_not_known_is_called_unknown_and_never_guessed() -> None:
    record = runs.record(TimeSpec(size="small", ctx=128), runs.TWO_CORES)
    table = only(TABLES["summary"](record))
    assert cell_of(table, 0, "peak", "share") == Word("unknown", "quiet")


def test_a_cell_without_numbers_shows_its_outcome_and_not_a_zero(large: TimeRecord) -> None:
    table = only(TABLES["summary"](large))
    words = [cell.outcome for cell in large.cells if cell.outcome != "ok"]
    assert sorted(words) == ["oom", "oom", "oom", "skipped", "skipped"]
    for row, cell in enumerate(large.cells):
        if cell.outcome != "ok":
            found = cell_of(table, row, "step")
            assert isinstance(found, Word)
            assert found.text == cell.outcome
            assert not any(isinstance(each, Measure) for each in table.rows[row])


def test_samples_of_a_cell_that_crashed_half_way_are_not_shown(sweep: TimeRecord) -> None:
    crashed = with_cell(sweep, 0, outcome="crashed", detail="SIGKILL")
    for name in ("summary", "precision"):
        for table in TABLES[name](crashed):
            words = [cell.text for row in table.rows for cell in row if isinstance(cell, Word) and cell.text]
            assert "crashed" in words
    interrupted = with_cell(sweep, 0, outcome="interrupted")
    assert isinstance(cell_of(only(TABLES["summary"](interrupted)), 0, "step"), Measure)


def test_a_forward_pass_alone_is_not_shown_twice() -> None:
    table = only(TABLES["summary"](runs.record(TimeSpec(size="small", ctx="128,256", mode="forward"))))
    assert [column.key for column in table.columns if column.unit == "s"] == ["forward", "median"]


# Comparisons


def test_arms_stand_beside_each_other_with_the_speed_up(sweep: TimeRecord, sweep_events: list[Event]) -> None:
    table = only(TABLES["precision"](sweep))
    assert len(table.rows) == 4
    assert [column.title for column in table.columns[: table.axes]] == ["size", "ctx"]
    pairs = list(zip(sweep.cells[::2], sweep.cells[1::2], strict=True))
    for row, (full, mixed) in enumerate(pairs):
        assert (full.axes["precision"], mixed.axes["precision"]) == ("fp32", "bf16")
        for phase in ("forward", "backward", "step"):
            before = float(np.median(wall(sweep_events, full, phase)))
            after = float(np.median(wall(sweep_events, mixed, phase)))
            assert number(table, row, f"{phase}_fp32") == pytest.approx(before)
            assert number(table, row, f"{phase}_bf16") == pytest.approx(after)
            speedup = cell_of(table, row, f"{phase}_bf16_speedup", "ratio")
            assert isinstance(speedup, Measure)
            assert speedup.value == pytest.approx(before / after)
            assert speedup.low is not None
            assert speedup.high is not None
            assert speedup.low < speedup.value < speedup.high


def test_colour_says_faster_or_slower_only_where_the_interval_does(sweep: TimeRecord) -> None:
    table = only(TABLES["precision"](sweep))
    for row in range(len(table.rows)):
        speedup = cell_of(table, row, "step_bf16_speedup", "ratio")
        assert isinstance(speedup, Measure)
        assert speedup.low is not None
        assert speedup.high is not None
        expected = "good" if speedup.low > 1 else "bad" if speedup.high < 1 else "plain"
        assert speedup.tone == expected


def test_unequal_arms_are_not_compared(large: TimeRecord) -> None:
    table = only(TABLES["precision"](large))
    row = next(n for n, row in enumerate(table.rows) if row[:2] == ("2.7b", 512))
    assert cell_of(table, row, "step_fp32") == Word("oom", "bad")
    assert isinstance(cell_of(table, row, "step_bf16"), Measure)
    assert cell_of(table, row, "step_bf16_speedup", "ratio") == Word("")


@pytest.mark.parametrize(
    ("axis", "values", "phases"),
    [
        ("execution", "eager,compiled", {"forward", "backward", "step"}),
        ("attention", "naive,sdpa,flash", {"forward", "backward", "step"}),
        ("optimizer", "for-loop,foreach,fused", {"optimizer", "step"}),
    ],
)
def test_every_choice_is_compared_over_the_phases_it_matters_to(axis: str, values: str, phases: set[str]) -> None:
    record = runs.record(TimeSpec.model_validate({"size": "small", "ctx": 512, "precision": "bf16", axis: values}))
    table = only(TABLES[axis](record))
    assert {column.group for column in table.columns if column.group} == phases
    arms = values.split(",")
    speedups = [column.key for column in table.columns if column.unit == "ratio" and column.group == "step"]
    assert speedups == [f"step_{arm}_speedup" for arm in arms[1:]]


def test_knobs_are_compared_within_their_strategy_and_strategies_only_with_equal_knobs() -> None:
    asked = {"size": "small", "ctx": 128, "ranks": 2, "strategy": "ddp,fsdp2", "reshard": "on,off"}
    record = runs.record(TimeSpec.model_validate({**asked, "bucket_mb": 5}))
    table = only(TABLES["reshard"](record))
    assert table.title == "on vs. off"
    assert len(table.rows) == 1
    assert not TABLES["strategy"](record)
    assert not TABLES["bucket_mb"](record)


# The other shapes


def test_devices_are_compared_like_any_other_values(devices: TimeRecord) -> None:
    table = only(TABLES["device"](devices))
    assert [row[0] for row in table.rows] == ["small", "medium"]
    assert number(table, 0, "forward_cuda") < number(table, 0, "forward_cpu")
    assert cell_of(table, 0, "step_cpu_speedup" if "cuda" in table.title.split()[0] else "step_cuda_speedup", "ratio")


def test_the_long_table_has_extremes_median_and_its_interval(sweep: TimeRecord, sweep_events: list[Event]) -> None:
    _, rows = tidy(*TABLES["cells"](sweep))
    axes = ("size", "ctx", "precision", "phase")
    row = next(row for row in rows if [row[axis] for axis in axes] == ["small", 128, "fp32", "step"])
    samples = wall(sweep_events, sweep.cells[0], "step")
    assert row["wall_min_s"] == significant(min(samples))
    assert row["wall_max_s"] == significant(max(samples))
    assert row["wall_median_s"] == pytest.approx(np.median(samples))
    assert row["wall_ci95_low_s"] <= row["wall_median_s"] <= row["wall_ci95_high_s"]


# What is shown, and what is said


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (TimeSpec(size="small", ctx=128), ["summary"]),
        (TimeSpec(size="small,medium", ctx="128,256"), ["summary"]),
        (TimeSpec(size="small", ctx="128,256", precision="fp32,bf16"), ["summary", "precision"]),
        (TimeSpec(size="small", ctx=128, execution="eager,compiled"), ["summary", "execution"]),
        (WARMUPS, ["summary"]),
        (DEVICES, ["summary", "device"]),
        (TimeSpec(size="small,medium,large,xl", ctx="128-1024*2", precision="fp32,bf16"), ["precision"]),
    ],
)
def test_without_being_asked_a_run_shows_its_summary_and_the_comparison_it_was_made_for(
    spec: TimeSpec, names: list[str]
) -> None:
    assert [table.name for table in tables_for(runs.record(spec))] == names


def test_any_table_can_be_asked_for_by_name(sweep: TimeRecord) -> None:
    assert [table.name for table in tables_for(sweep, ["precision", "cells"])] == ["precision", "cells"]
    with pytest.raises(UsageError, match=r"summry is not a table. Did you mean summary"):
        tables_for(sweep, ["summry"])
    with pytest.raises(UsageError, match="no data for the table device"):
        tables_for(sweep, ["device"])


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("device", "measured times for several values of --device"),
        ("attention", "measured times for several values of --attention"),
        ("ranks", "times of several ranks (--ranks 2)"),
        ("predicted", "predicted times (--simulate h100)"),
        ("choices", "predicted times for several values of an option such as --precision or --attention"),
    ],
)
def test_a_table_without_data_says_what_it_needs(sweep: TimeRecord, name: str, needs: str) -> None:
    with pytest.raises(UsageError) as caught:
        tables_for(sweep, [name])
    assert str(caught.value) == f"this run has no data for the table {name}: it needs {needs}"


def test_reasons_are_said_once_for_all_cells_they_hold_for(large: TimeRecord) -> None:
    texts = [remark.text for remark in outcomes(large)]
    assert len(texts) == 2
    assert texts[0].startswith("xl ctx 1024 fp32, xl ctx 1024 bf16, 2.7b ctx 512 fp32: oom: CUDA out of memory")
    assert texts[1].startswith("2.7b ctx 1024 fp32, 2.7b ctx 1024 bf16: skipped: larger than xl ctx 1024")


def test_doubts_with_one_remedy_are_said_once_and_name_the_cells(sweep: TimeRecord) -> None:
    doubt, other, said = drift(0.03), drift(0.04), "steps get slower, by {} from the first to the last"
    record = sweep.model_copy(update={"cells": [cell.model_copy(update={"cautions": []}) for cell in sweep.cells]})
    (one,) = cautions_of(with_cell(record, 1, cautions=[doubt]))
    assert (one.text, one.remedy) == (f"small ctx 128 bf16: {said.format('3.0%')}", "wait")
    (two,) = cautions_of(with_cell(with_cell(record, 1, cautions=[doubt]), 2, cautions=[other]))
    assert two.text == f"small ctx 128 bf16, small ctx 512 fp32: {said.format('3.0% to 4.0%')}"
    everywhere = record.model_copy(
        update={"cells": [cell.model_copy(update={"cautions": [doubt]}) for cell in record.cells]}
    )
    assert [remark.text for remark in cautions_of(everywhere)] == [f"every cell: {said.format('3.0%')}"]


def test_every_sample_that_is_shown_has_a_unit(
    sweep: TimeRecord, large: TimeRecord, warmups: TimeRecord, devices: TimeRecord
) -> None:
    for record in (sweep, large, warmups, devices):
        for build in TABLES.values():
            for table in build(record):
                for position, column in enumerate(format_columns(table)):
                    measures = [row[position] for row in table.rows if isinstance(row[position], Measure)]
                    if measures and column.column.unit not in ("count", "number"):
                        assert column.symbol, (table.name, column.column.title)
                    assert not (measures and column.column.unit is None)


def test_a_plan_holds_every_cell_against_the_memory_there_is() -> None:
    cells = list(TimeSpec(size="small,2.7b", ctx=512).cells())
    table = plan(cells, hardware.by_name("24GiB"))
    kind = Gpu.of(hardware.by_name("24GiB")).workspaces
    workspaces = (2 if kind.are_kept else 1) * kind.product_bytes
    needed = [formulas.predicted_memory(cell).total_bytes + workspaces for cell in cells]
    assert [number(table, row, "predicted_memory", "bytes") for row in range(2)] == needed
    assert number(table, 0, "parameters", "count") == 128_625_408
    assert number(table, 1, "step", "flops") == formulas.step_flops_of(cells[1])
    assert number(table, 1, "spare", "bytes") == 24 * 2**30 - CONTEXT_BYTES - needed[1]
    assert cell_of(table, 0, "fits", None) == Word("fits", "good")
    assert cell_of(table, 1, "fits", None) == Word("does not fit", "bad")
    assert "fits" not in [column.key for column in plan(cells).columns]


def test_a_plan_explains_predicted_memory_and_names_gpus_only_where_a_cell_has_it(tmp_path: Path) -> None:
    code = tmp_path / "model.py"
    code.write_text("import torch\nclass GPT(torch.nn.Module): ...\n")
    own = list(TimeSpec(model=f"{code}:GPT", ctx=32).cells())
    known = list(TimeSpec(size="small", ctx=32).cells())
    h100 = hardware.by_name("h100")
    assert (
        plan(own).notes
        == plan(own, h100).notes
        == ("there is no formula for your own model, or with --lora: use memory --simulate GPU",)
    )
    for device in (None, h100):
        notes = " ".join(plan([*own, *known], device).notes)
        assert "predicted memory: estimated by formula" in notes
        assert ("compared with NVIDIA H100" in notes) == (device is h100)


# --- one basis within a row


def test_rates_are_of_the_mean_that_stands_beside_them_and_the_dashboard_says_the_same(
    sweep_events: list[Event], sweep: TimeRecord
) -> None:
    summary, spec_cells = only(TABLES["summary"](sweep)), list(SWEEP.cells())
    done = reduce(advance, sweep_events, LiveState()).ended.values()
    for row, (cell, live) in enumerate(zip(sweep.cells, done, strict=True)):
        mean_s = float(np.mean(wall(sweep_events, cell, "step")))
        flops = formulas.step_flops_of(spec_cells[row])
        assert number(summary, row, "step") == pytest.approx(mean_s)
        assert number(summary, row, "", "flops_per_s") == pytest.approx(flops / mean_s)
        assert number(summary, row, "", "tokens_per_s") == pytest.approx(4 * spec_cells[row].ctx / mean_s)
        assert live.step is not None
        assert live.step[0] == pytest.approx(mean_s)
    peak = 19.5e12
    assert number(summary, 0, "peak", "share") == pytest.approx(number(summary, 0, "", "flops_per_s") / peak)


def test_the_medians_of_all_phases_are_there_for_whoever_asks(sweep: TimeRecord) -> None:
    (table, *_) = select_columns(sheet(sweep), ["forward_median", "backward_median", "median"]).tables
    for row, cell in enumerate(sweep.cells):
        for key, phase in (("forward_median", "forward"), ("backward_median", "backward"), ("median", "step")):
            found = cell.phases[phase].wall
            assert found is not None
            assert number(table, row, key) == found.median_s


# --- runs that end early


def ended_after(warmups: int, steps: int) -> TimeRecord:
    """A run whose only cell was stopped after so many warm-ups and steps."""
    whole = runs.events(TimeSpec(size="small", ctx=128))
    counted = {True: warmups, False: steps}
    kept = [event for event in whole if not isinstance(event, StepMeasured) or event.index < counted[event.warmup]]
    key = next(event.cell for event in kept if isinstance(event, StepMeasured))
    end = next(number for number, event in enumerate(kept) if isinstance(event, CellFinished))
    return fold([*kept[:end], CellFinished(at_s=kept[end].at_s, cell=key, outcome="interrupted")])


def test_a_run_that_ends_early_shows_what_was_measured_as_provisional() -> None:
    texts = [remark.text for remark in sheet(ended_after(4, 0)).remarks]
    assert any(text.startswith("small: 4 warm-ups; median warm-up step ") for text in texts)
    texts = [remark.text for remark in sheet(ended_after(1, 1)).remarks]
    assert any(text.startswith("small: 1 warm-up, 1 step; step ") for text in texts)
    assert all(text.endswith("(provisional, no interval)") for text in texts if "warm-up" in text)
    assert sheet(ended_after(1, 1)).subject[-3:-1] == ("1 warm-up", "1 step")
    assert not any("provisional" in remark.text for remark in sheet(ended_after(5, 8)).remarks)

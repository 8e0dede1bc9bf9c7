"""`sysbench time --simulate`: predicted times are marked, complete, ordered, and refused where they cannot be."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sysbench import formulas
from sysbench.commands.report.assemble import tables_of
from sysbench.commands.time.figures import of_run
from sysbench.commands.time.findings import prediction_findings
from sysbench.commands.time.fold import fold
from sysbench.commands.time.predicted import (
    AUTOTUNE_NOTE,
    CHOICES,
    GPUS,
    GRAPHS_NOTE,
    LOWER_BOUND_NOTE,
    PREDICTED,
    TYPICAL_HOST,
)
from sysbench.commands.time.record import TimeRecord
from sysbench.commands.time.spec import TimeCell, TimeOptions, TimeSpec
from sysbench.commands.time.tables import TRAINING, sheet, usual
from sysbench.engine.sensors import nvml
from sysbench.errors import UnavailableError
from sysbench.log.events import CellFinished, CellStarted, Event, RunFinished
from sysbench.log.outcomes import Outcome
from sysbench.log.predictions import INTERVAL, PredictedPhase, PredictedTime, StepPredicted
from sysbench.predict import simulated_step
from sysbench.predict.rates import typical_host
from sysbench.predict.simulated_step import SimulatedStep
from sysbench.render.plots import content
from sysbench.render.table import Measure, Word, notes
from sysbench.simulate.gpu import MIB, Gpu
from sysbench.spec.command_options import command_line, parse_options, validated
from sysbench.spec.hardware import by_name
from sysbench.units import significant
from tests.cli.running import MINUTE, Ran, answered, ran_once, record_in
from tests.fixtures_cautions import in_words
from tests.fixtures_timing import TWO_CORES
from tests.hosts import run_started


def predicted(cell: TimeCell, step_s: float | None, **fields: Any) -> StepPredicted:
    step = PredictedTime(point_s=step_s, low_s=0.8 * step_s, high_s=1.3 * step_s) if step_s else None
    plain: dict[str, Any] = {
        "gpu": "a GPU", "host": "a host", "withheld": None if step else "unknown operators", "phases": [],
        "limited_by": "host", "limited_share": 0.9, "lower_bound_s": 0.1, "peak_flops_per_s": 1e12,
        "allocated_peak_bytes": 1, "reserved_peak_bytes": 2, "memory_bytes": 3, "unknown_operators": {},
        "unknown_share": 0.0, "constants": [], "doubts": [],
    }  # fmt: skip
    return StepPredicted(at_s=0, cell=cell.key, step=step, **{**plain, **fields})


def record(
    spec: TimeSpec, *found: tuple[float | None, Outcome], predictions: Sequence[StepPredicted] = ()
) -> TimeRecord:
    """The record of a run in which each cell was predicted to take so long, and ended so."""
    cells = list(spec.cells())
    predictions = predictions or [predicted(cell, step_s) for cell, (step_s, _) in zip(cells, found, strict=True)]
    events: list[Event] = [run_started(spec, host=TWO_CORES.host)]
    for number, (cell, (_, outcome), prediction) in enumerate(zip(cells, found, predictions, strict=True)):
        axes = cell.model_dump(mode="json")
        events += [
            CellStarted(at_s=0, cell=cell.key, index=number, axes=axes, device=TWO_CORES.device),
            prediction,
            CellFinished(at_s=0, cell=cell.key, outcome=outcome),
        ]
    return fold([*events, RunFinished(at_s=0, status="complete")])


THREE = TimeSpec(size=("tiny",), ctx=(128,), simulate=("t4", "h100", "a100-80gb"))


def test_gpus_stand_side_by_side_the_fastest_first_and_those_that_do_not_fit_last() -> None:
    (table,) = GPUS(record(THREE, (1.0, "oom"), (0.9, "ok"), (0.5, "ok")))
    assert [row[0] for row in table.rows] == ["a100-80gb", "h100", "t4"]
    assert "fastest" in table.title
    assert Word("oom", "bad") in table.rows[-1]


def test_with_prices_the_cheapest_comes_first_and_a_million_tokens_cost_what_they_take() -> None:
    spec = TimeSpec(**{**THREE.model_dump(), "price": "h100=2,a100-80gb=9"})
    (table,) = GPUS(record(spec, (0.2, "ok"), (0.9, "ok"), (0.5, "ok")))
    assert [row[0] for row in table.rows] == ["h100", "a100-80gb", "t4"]
    assert "cheapest" in table.title
    cost = next(row[position] for row in table.rows[:1] for position, column in enumerate(table.columns)
                if column.key == "million_tokens")  # fmt: skip
    assert isinstance(cost, Measure)
    assert cost.value == pytest.approx(2 / 3600 * 0.9 / (4 * 128) * 1e6)


def training_of(found: TimeRecord) -> list[Sequence[Any]]:
    (table,) = TRAINING(found)
    return [row[-3:] for row in table.rows]


def test_a_whole_training_has_steps_hours_and_a_cost_with_their_intervals_the_cheapest_first() -> None:
    spec = TimeSpec(**{**THREE.model_dump(), "price": "h100=2,a100-80gb=9", "tokens": "1B"})
    found = record(spec, (0.2, "ok"), (0.9, "ok"), (0.5, "oom"))
    (steps, duration, cost), (_, _, unpriced), without_time = training_of(found)
    expected_s = 1e9 / (4 * 128) * 0.9
    assert isinstance(steps, Measure)
    assert isinstance(duration, Measure)
    assert isinstance(cost, Measure)
    assert steps.value == math.ceil(1e9 / (4 * 128))
    assert [duration.value, duration.low, duration.high] == pytest.approx([f * expected_s for f in (1, 0.8, 1.3)])
    assert [cost.value, cost.low, cost.high] == pytest.approx([2 * f * expected_s / 3600 for f in (1, 0.8, 1.3)])
    assert duration.text == f"{expected_s / 3600:.0f} ({0.8 * expected_s / 3600:.0f}–{1.3 * expected_s / 3600:.0f}) h"
    assert unpriced is None
    assert Word("oom", "bad") in without_time
    assert any(note == "no cost without the price of a GPU hour: --price t4=2.5" for note in notes(TRAINING(found)[0]))


def test_more_ranks_train_in_fewer_steps_and_each_of_them_costs() -> None:
    spec = TimeSpec(size="tiny", ctx=128, simulate="h100", ranks=(1, 8), price="h100=2", tokens=2**30)
    one, eight = (cell.training for cell in record(spec, (1.0, "ok"), (1.0, "ok")).cells)
    assert one is not None
    assert one.cost is not None
    assert eight is not None
    assert eight.cost is not None
    assert eight.duration_s.point == pytest.approx(one.duration_s.point / 8)
    assert eight.cost.point == pytest.approx(one.cost.point)


def texts(found: TimeRecord) -> list[str]:
    return [each.text for each in prediction_findings(found.cells)]


def test_the_cheapest_gpu_is_named_with_the_interval_of_its_cost_where_no_other_interval_overlaps() -> None:
    spec = TimeSpec(**{**THREE.model_dump(), "price": "h100=2,a100-80gb=9"})
    text = texts(record(spec, (0.2, "ok"), (0.9, "ok"), (0.5, "ok")))[0]
    cost = 2 / 3600 * 0.9 / (4 * 128) * 1e6  # its interval is from 0.8 to 1.3 times as much
    interval = f"(90% interval {0.8 * cost:.3g} to {1.3 * cost:.3g})"
    cheapest = "h100 is predicted to be the cheapest of the 2 GPUs that can be compared"
    assert f"{cheapest}, at {cost:.3g} per million tokens {interval}. A step takes" in text


@pytest.mark.parametrize("priced", [True, False])
def test_no_gpu_is_said_to_be_the_best_if_its_interval_overlaps_with_the_next_one(priced: bool) -> None:
    prices = {"price": "t4=1,h100=1,a100-80gb=1"} if priced else {}
    found = record(TimeSpec(**{**THREE.model_dump(), **prices}), (2.0, "ok"), (0.9, "ok"), (0.8, "ok"))
    text = texts(found)[0]
    assert f"which of a100-80gb and h100 is the {'cheapest' if priced else 'fastest'}" in text
    assert "t4" not in text
    assert "is predicted to be" not in text
    interval = f"1.12× (90% interval {0.9 * 0.8 / (0.8 * 1.3):.2f} to {0.9 * 1.3 / (0.8 * 0.8):.2f})"
    assert f"With the same host, a step {'costs' if priced else 'takes'} {interval} as" in text


@pytest.mark.parametrize(("gains", "decided"), [((1.3, 1.1, 1.4), True), ((1.3, 0.9, 1.4), False)])
def test_gpus_with_the_same_host_are_compared_draw_by_draw(gains: tuple[float, ...], decided: bool) -> None:
    hosts = (1.0, 0.5, 2.0)  # a host that is four times as fast as another leaves the ratios as they are
    draws = ([host * gain for host, gain in zip(hosts, gains, strict=True)], list(hosts))
    spec = TimeSpec(**{**THREE.model_dump(), "simulate": ("h100", "a100-80gb")})
    wide = [predicted(cell, step_s[0], step_draws_s=step_s) for cell, step_s in zip(spec.cells(), draws, strict=True)]
    found = record(spec, (1.3, "ok"), (1.0, "ok"), predictions=wide)
    text, (table,) = texts(found)[0], GPUS(found)
    assert text.startswith("a100-80gb is predicted to be the fastest. ") is decided
    assert ("do not decide" in text) is not decided
    assert "1.30× (90% interval" in text
    (ratio,) = (row[i] for row in table.rows[1:] for i, column in enumerate(table.columns) if column.key == "ratio")
    assert isinstance(ratio, Measure)
    assert ratio.low is not None
    assert (ratio.low > 1) is decided
    assert any("with the same host" in note for note in notes(table))


def test_gpus_that_were_calibrated_each_with_its_own_host_are_not_said_to_share_one() -> None:
    spec = TimeSpec(**{**THREE.model_dump(), "simulate": ("h100", "a100-80gb")})
    own = [predicted(cell, 1.0, host=f"the host of {cell.simulate}") for cell in spec.cells()]
    found = record(spec, (1.0, "ok"), (1.0, "ok"), predictions=own)
    assert "Each with its own host, a step takes" in texts(found)[0]


def test_the_typical_host_is_known_by_its_title() -> None:
    assert typical_host().title == TYPICAL_HOST


def test_a_single_gpu_is_named_above_the_tables_and_in_figures() -> None:
    one = record(TimeSpec(size=("tiny",), ctx=(128,), simulate=("h100",)), (1.0, "ok"))
    assert "a GPU" in sheet(one).subject
    two = record(TimeSpec(size=("tiny",), ctx=(128, 256), simulate=("h100",)), (1.0, "ok"), (2.0, "ok"))
    assert "a GPU" in next(iter(of_run(two))).caption


def test_choices_stand_side_by_side_and_each_alone_is_compared_with_the_first_cell() -> None:
    spec = TimeSpec(
        size=("tiny",), ctx=(128,), simulate=("h100",), precision=("fp32", "bf16"), optimizer=("foreach", "fused")
    )
    taken_s = {("fp32", "foreach"): 1.0, ("fp32", "fused"): 0.9, ("bf16", "foreach"): 0.5, ("bf16", "fused"): 0.4}
    cells = list(spec.cells())
    gib = {("fp32", "foreach"): 4, ("fp32", "fused"): 4, ("bf16", "foreach"): 1, ("bf16", "fused"): 1}
    events = [
        predicted(
            cell,
            point_s := taken_s[cell.precision, cell.optimizer],
            step_draws_s=[point_s, 2 * point_s],
            reserved_peak_bytes=gib[cell.precision, cell.optimizer] << 30,
        )
        for cell in cells
    ]
    found = record(spec, *[(1.0, "ok")] * 4, predictions=events)
    (table,) = CHOICES(found)
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    assert [(row["precision"], row["optimizer"]) for row in rows] == sorted(taken_s, key=taken_s.__getitem__)
    assert [row["ratio"].value for row in rows] == pytest.approx([1.0, 1.25, 2.25, 2.5])
    assert texts(found)[0] == (
        "compared with foreach AdamW fp32, predicted: bf16 −3.00 GiB, step 0.50× (90% interval 0.50 to 0.50) as long; "
        "fused AdamW same memory, step 0.90× (90% interval 0.90 to 0.90) as long."
    )


PRICED = {**THREE.model_dump(), "price": "h100=2,a100-80gb=9"}


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (THREE, ((1.0, "oom"), (None, "invalid"), (0.5, "ok"))),
        (THREE, ((1.0, "oom"), (None, "ok"), (0.5, "ok"))),
        (TimeSpec(**PRICED), ((0.2, "oom"), (0.9, "ok"), (None, "ok"))),
    ],
)
def test_a_gpu_that_is_compared_with_no_other_is_not_called_the_best(spec: TimeSpec, found: tuple[Any, ...]) -> None:
    ran = record(spec, *found)
    (table,) = GPUS(ran)
    for text in (*texts(ran), table.title, *notes(table)):
        assert not any(word in text for word in ("fastest", "cheapest", "sort"))


def test_step_times_are_compared_if_only_one_gpu_has_a_price() -> None:
    found = record(TimeSpec(**{**THREE.model_dump(), "price": "h100=2"}), (2.0, "ok"), (0.9, "ok"), (0.3, "ok"))
    assert texts(found)[0].startswith("a100-80gb is predicted to be the fastest. ")
    (table,) = GPUS(found)
    assert [row[0] for row in table.rows] == ["a100-80gb", "h100", "t4"]
    assert "fastest first" in table.title
    assert "use --price a100-80gb=2.5,… to sort by cost per token" in notes(table)


def test_the_best_gpu_is_the_best_of_those_that_could_be_compared() -> None:
    text = texts(record(THREE, (1.0, "oom"), (0.9, "ok"), (0.3, "ok")))[0]
    assert "a100-80gb is predicted to be the fastest of the 2 GPUs that can be compared. A step" in text
    four = TimeSpec(**{**PRICED, "simulate": ("t4", "h100", "a100-80gb", "v100-32gb")})
    text = texts(record(four, (0.2, "ok"), (0.9, "ok"), (0.5, "ok"), (1.0, "oom")))[0]
    assert "h100 is predicted to be the cheapest of the 2 GPUs that can be compared, at" in text


def test_a_faster_gpu_is_said_to_save_at_most_the_time_that_the_host_does_not_need() -> None:
    *_, text = texts(record(THREE, (1.0, "ok"), (0.9, "ok"), (0.5, "ok")))  # the host needs 90% of each step
    assert "with the same host, a faster GPU would save at most 10% there" in text
    assert "would not help" not in text


def test_a_table_without_any_time_has_no_notes_about_times() -> None:
    ran = record(THREE, (1.0, "oom"), (0.9, "oom"), (None, "ok"))
    for table in (*PREDICTED(ran), *GPUS(ran)):
        assert not any(word in note for note in notes(table) for word in ("bracket", "lower bound", "issued by"))
    with_time = record(THREE, (1.0, "oom"), (0.9, "oom"), (0.5, "ok"))
    for table in (*PREDICTED(with_time), *GPUS(with_time)):
        assert {INTERVAL, LOWER_BOUND_NOTE} <= set(notes(table))


SHARDED = TimeSpec(size=("tiny",), ctx=(128,), simulate=("h100",), ranks=(1, 4), strategy=("fsdp2",))


def scaled(*found: tuple[float, float]) -> TimeRecord:
    """The record of a run whose cells take so long for the optimizer, and for everything else."""
    cells = list(SHARDED.cells())
    fields = {"host_s": 0.1, "device_s": 0.2, "limited_by": "bandwidth", "limited_share": 1.0, "lower_bound_s": 0.1}
    phases = [
        [
            PredictedPhase(name=name, point_s=taken_s, low_s=taken_s, high_s=taken_s, launches=1, **fields)
            for name, taken_s in (("backward", rest_s), ("optimizer", optimizer_s))
        ]
        for optimizer_s, rest_s in found
    ]
    predictions = [
        predicted(cell, sum(taken), phases=each) for cell, taken, each in zip(cells, found, phases, strict=True)
    ]
    return record(SHARDED, *((sum(taken), "ok") for taken in found), predictions=predictions)


def test_a_report_has_every_table_that_the_terminal_shows() -> None:
    gpus = record(THREE, (1.0, "ok"), (0.9, "ok"), (0.5, "ok"))
    spec = TimeSpec(size=("tiny",), ctx=(128,), simulate=("h100",), precision=("fp32", "bf16"))
    choices = record(spec, (1.0, "ok"), (0.5, "ok"))
    training = record(TimeSpec(**{**spec.model_dump(), "precision": "fp32", "tokens": "1M"}), (1.0, "ok"))
    for found in (gpus, choices, training, scaled((1.0, 1.0), (0.2, 1.0))):
        shown = [table.name for table in sheet(found).tables]
        assert len(shown) == 2
        assert [table.name for table in tables_of(found)] == shown
        assert set(shown) <= set(usual(TimeSpec(**{k: v for k, v in found.spec.items() if k != "kind"})))


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(("strategy", "names"), [("fsdp2", "FSDP2 and DTensor"), ("tp", "DTensor"), ("ddp", None)])
def test_a_prediction_that_the_host_limits_says_whose_host_time_it_leaves_out(strategy: Any, names: str | None) -> None:
    (found,) = [event for event in tiny("h100", ranks=(2,), strategy=(strategy,)) if isinstance(event, StepPredicted)]
    messages = [in_words(each) for each in found.cautions() if each.code == "host-time-missing"]
    assert [f"the Python code of {names}: phases" in each for each in messages] == [True] * (names is not None)
    fast_host = [each.model_copy(update={"limited_by": "bandwidth"}) for each in found.phases]
    assert not list(found.model_copy(update={"phases": fast_host}).cautions())


def test_only_cells_with_a_time_count_among_those_that_the_host_limits() -> None:
    *_, text = texts(record(THREE, (1.0, "oom"), (None, "ok"), (0.5, "ok")))
    assert "the host is predicted to limit 1 of 1 predicted steps;" in text


def test_a_withheld_time_is_a_word_and_no_number() -> None:
    found = record(TimeSpec(size=("tiny",), ctx=(128,), simulate=("h100",)), (None, "ok"))
    (table,) = PREDICTED(found)
    assert Word("withheld", "bad") in table.rows[0]
    assert not any(isinstance(cell, Measure) for cell in table.rows[0][:4])


def test_a_measured_cell_is_written_down_as_it_was_before_there_were_predictions() -> None:
    (cell,) = TimeSpec(size=("tiny",), ctx=(128,)).cells()
    assert not {"simulate", "host"} & set(cell.model_dump())
    (other,) = TimeSpec(size=("tiny",), ctx=(128,), simulate=("h100",)).cells()
    assert other.key != cell.key


def tiny(slug: str, **changes: Any) -> list[Event]:
    """What is predicted of a tiny step on one GPU, in this process."""
    fields = {"size": ("tiny",), "ctx": (64,), "simulate": (slug,)} | changes
    (cell,) = TimeSpec(**fields).cells()
    return list(SimulatedStep(cell, slug, host_link=cell.host_link).events())


def test_one_trace_serves_all_gpus() -> None:
    simulated_step._traced.cache_clear()
    for slug in ("v100-32gb", "a100-80gb", "h100", "b200"):
        tiny(slug)
    assert simulated_step._traced.cache_info().misses == 1


def test_a_precision_that_a_gpu_has_no_units_for_is_not_predicted() -> None:
    with pytest.raises(UnavailableError, match="bf16 needs sm80 or newer; Tesla T4 is older"):
        tiny("t4", precision=("bf16",))


def test_a_compiled_step_takes_less_time_and_memory_than_an_eager_one() -> None:
    spec = TimeSpec(
        layers=1, d_model=256, heads=4, d_ff=1024, vocab=512, ctx=(256,), simulate=("h100",),
        execution=("eager", "compiled"),
    )  # fmt: skip
    eager, compiled = (
        next(event for event in SimulatedStep(cell, "h100").events() if isinstance(event, StepPredicted))
        for cell in spec.cells()
    )
    assert compiled.step is not None
    assert eager.step is not None
    assert compiled.step.point_s < eager.step.point_s
    assert compiled.allocated_peak_bytes < eager.allocated_peak_bytes
    assert sum(phase.launches for phase in compiled.phases) < sum(phase.launches for phase in eager.phases)


def test_kernels_that_a_search_would_find_are_said_to_be_unknown() -> None:
    spec = TimeSpec(size=("tiny",), ctx=(128,), simulate=("h100",), execution=("compiled-graphs", "compiled-autotune"))
    said = [notes(table) for table in PREDICTED(record(spec, (1.0, "ok"), (1.0, "ok")))]
    assert any(AUTOTUNE_NOTE in each and GRAPHS_NOTE in each for each in said)
    withheld = [notes(table) for table in PREDICTED(record(spec, (1.0, "ok"), (None, "ok")))]
    assert not any(AUTOTUNE_NOTE in each for each in withheld)


def test_a_time_that_is_withheld_says_why() -> None:
    found = next(each for each in tiny("h100", offload=("optimizer",)) if isinstance(each, StepPredicted))
    assert (found.step, found.times) == (None, {})
    (caution,) = found.cautions()
    assert in_words(caution) == f"the step time is withheld: {found.withheld}"
    assert "--host-link 25GB/s" in in_words(caution)
    assert found.allocated_peak_bytes > 0


def test_a_faster_link_to_the_host_makes_an_offloaded_step_shorter() -> None:
    def step(**link: Any) -> PredictedTime:
        events = tiny("h100", offload=("optimizer",), optimizer=("fused",), **link)
        found = next(each for each in events if isinstance(each, StepPredicted))
        assert found.step is not None
        assert found.step.low_s < found.step.point_s < found.step.high_s
        return found.step

    assert step(host_link=1e9).point_s > step(host_link=50e9).point_s


def test_a_picture_has_gpus_side_by_side_and_a_mark_where_one_does_not_fit() -> None:
    (drawn,) = of_run(record(THREE, (1.0, "oom"), (0.9, "ok"), (0.5, "ok")))
    assert "Nothing was measured" in drawn.caption
    shown = content(drawn.draw, "svg").decode()
    for text in ("PREDICTED, not measured", "out of memory", "a100-80gb", "90% interval"):
        assert text in shown


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    line = ("time", *MINUTE, "--ctx", "64", "--simulate", "a100-80gb,4090", "--price", "4090=0.4")
    return ran_once(tmp_path_factory, "predicted", *line)


def test_a_run_says_everywhere_that_nothing_was_measured(ran: tuple[Ran, Path]) -> None:
    done, directory = ran
    assert done.code == 0, done.err
    assert done.out.count("PREDICTED, not measured") == 3
    assert done.err.count("PREDICTED step") == 2
    cells = record_in(directory / "runs")["cells"]
    assert [cell["axes"]["simulate"] for cell in cells] == ["a100-80gb", "rtx-4090"]
    for cell in cells:
        found = cell["prediction"]
        assert found["source"] == "predicted"
        assert cell["phases"] == {}
        assert cell["rates"] is None
        step = found["step"]
        assert found["lower_bound_s"] < step["low_s"] <= step["point_s"] <= step["high_s"]
        # Phases are synchronized before and after: a step is their sum.
        assert sum(phase["point_s"] for phase in found["phases"]) == pytest.approx(step["point_s"])
        assert all(each["source"] and each["spread"] >= 0 and each["value"] > 0 for each in found["constants"])
        assert {"matmul_fp32", "stream", "operator", "launch"} <= {each["name"] for each in found["constants"]}
    tiny = TimeSpec(**{k: v for k, v in record_in(directory / "runs")["spec"].items() if k != "kind"})
    first = next(iter(tiny.cells()))
    assert cells[0]["prediction"]["step_flops"] == formulas.step_flops_of(first)


def test_a_report_marks_it_too(ran: tuple[Ran, Path]) -> None:
    _, directory = ran
    reported = answered("report", "latest", "-o", "report.md", cwd=directory)
    assert reported.code == 0, reported.err
    text = (directory / "report.md").read_text()
    assert "PREDICTED" in text
    assert "Nothing in this report was measured" in text
    assert "computed without the hardware" in text
    rows = json.loads(answered("time", "--from", "latest", "--json", "-", cwd=directory).out)
    assert rows["cells"][1]["prediction"]["price_per_million_tokens"] > 0


def test_a_program_reads_predicted_times_with_their_intervals(ran: tuple[Ran, Path]) -> None:
    directory = ran[1]
    shown = answered("time", "--from", "latest", "--format", "csv", cwd=directory)
    rows = list(csv.DictReader(shown.out.splitlines()))
    for cell in record_in(directory / "runs")["cells"]:
        found = cell["prediction"]
        times = {**{phase["name"]: phase for phase in found["phases"]}, "step": found["step"]}
        of_cell = {row["phase"]: row for row in rows if row["simulate"] == cell["axes"]["simulate"]}
        assert of_cell.keys() == times.keys()
        for phase, row in of_cell.items():
            given_s = [float(row[name]) for name in ("predicted_s", "predicted_low_s", "predicted_high_s")]
            assert given_s == [significant(times[phase][f"{end}_s"]) for end in ("point", "low", "high")]
            assert (row["source"], row["device_name"], row["wall_mean_s"]) == ("predicted", found["gpu"], "")
        assert float(of_cell["step"]["tokens_per_s"]) == significant(found["tokens_per_s"])
        assert int(of_cell["step"]["reserved_peak_bytes"]) == found["reserved_peak_bytes"]


def test_the_line_that_repeats_a_run_with_prices_can_be_typed() -> None:
    spec = TimeSpec(size=("tiny",), simulate=("t4", "h100"), price={"t4": 0.35, "h100": 2.5})
    again = shlex.split(command_line(spec))[2:]
    (asked, _) = parse_options("time", again, TimeSpec, TimeOptions)
    assert validated(TimeSpec, asked) == spec


def test_a_step_that_barely_fits_gets_the_cautions_that_memory_gives_for_it(tmp_path: Path) -> None:
    directory = tmp_path / "config" / "sysbench" / "hardware"
    directory.mkdir(parents=True)
    sheet = (Path(__file__).parents[3] / "profiles" / "hardware" / "h100.toml").read_text(encoding="utf-8")

    def cautions(command: str, memory_bytes: int) -> list[dict[str, str]]:
        ours = re.sub(r"(?m)^memory_bytes = \S+", f"memory_bytes = {memory_bytes}", sheet)
        (directory / "ours.toml").write_text(ours, encoding="utf-8")
        line = (command, "--size", "tiny", "--ctx", "64", "--mode", "train", "--simulate", "ours", "--json", "-")
        done = answered(*line, cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path / "config"))
        assert done.code == 0, done.err
        found: list[dict[str, str]] = json.loads(done.out)["cells"][0]["cautions"]
        return found

    needed_bytes = next(each for each in tiny("h100") if isinstance(each, StepPredicted)).reserved_peak_bytes
    for spare_bytes, codes in ((4 * MIB, ["narrow-margin"]), (1024 * MIB, [])):
        memory_bytes = needed_bytes + Gpu.of(by_name("h100")).context_bytes + spare_bytes
        in_time = cautions("time", memory_bytes)
        assert [each["code"] for each in in_time] == codes
        if codes:
            assert in_time == cautions("memory", memory_bytes)


def test_a_predicted_step_that_releases_the_cache_says_so() -> None:
    pressed = {"memory_bytes": 1000 * MIB, "margin_bytes": 500 * MIB, "alloc_retries": 2}
    (cell,) = TimeSpec(size=("tiny",), ctx=(128,), simulate=("h100",)).cells()
    (caution,) = predicted(cell, 1.0, **pressed).cautions()
    assert caution.code == "allocator-retried"
    assert "release its whole cache 2 times" in in_words(caution)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--simulate h10", "--simulate h10 is not a known GPU"),
        ("--simulate a100", "a100-pcie-80gb"),
        ("--simulate 24GiB", "times cannot be predicted; sysbench memory --simulate 24GiB shows whether a step fits"),
        ("--simulate h100 --device cpu", "--device names the device to measure on"),
        ("--simulate h100 --price t4=1", "--price names t4, but --simulate does not"),
        ("--simulate h100 --price h100", "h100 is not GPU=PRICE"),
        ("--simulate h100 --price h100=0", "--price"),
        ("--simulate h100 --price h100=inf", "--price"),
        (
            "--simulate h100 --tokens 1B --columns cost",
            "--columns cost needs the price of a GPU hour: --price h100=2.5",
        ),
        ("--simulate h100 --tokens 0", "--tokens 0"),
        ("--simulate h100 --tokens 1B --mode forward", "--tokens is the size of a training: --mode must be train"),
        ("--price h100=2", "--price needs --simulate GPU"),
        ("--simulate h100 --host nowhere.toml", "--host nowhere.toml is not a valid host file"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_line(line: str, complaint: str, tmp_path: Path) -> None:
    done = answered("time", "--size", "tiny", *line.split(), cwd=tmp_path)
    assert done.code == 2
    assert complaint in done.complaint
    assert not (tmp_path / "runs").exists()


def test_a_gpu_that_is_here_is_measured_unless_a_prediction_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "present_gpus", lambda: [("NVIDIA H200", 150_000_000_000)])
    done = answered("time", "--size", "tiny", "--simulate", "h200", cwd=tmp_path)
    assert (done.code, "add --force to predict anyway" in done.complaint) == (2, True)


OTHER = """
title = "NVIDIA H100 80GB HBM3 (SXM)"
memory_bytes = 84_932_558_848
[calibration]
device = "NVIDIA H200"
torch = "2.13.0"
at = "2026-11-22T00:00:00Z"
"""


def test_a_calibration_of_another_gpu_is_not_used(tmp_path: Path) -> None:
    directory = tmp_path / "sysbench" / "hardware"
    directory.mkdir(parents=True)
    (directory / "h100.toml").write_text(OTHER)
    done = answered("time", "--size", "tiny", "--simulate", "h100", cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path))
    assert done.code == 2
    assert "was calibrated on NVIDIA H200, which is a different GPU" in done.complaint


def test_what_was_predicted_for_a_device_calibrated_elsewhere_is_read_and_reported_here(tmp_path: Path) -> None:
    directory = tmp_path / "calibrated" / "sysbench" / "hardware"
    directory.mkdir(parents=True)
    sheet = (Path(__file__).parents[3] / "profiles" / "hardware" / "h100.toml").read_text(encoding="utf-8")
    (directory / "ours.toml").write_text(sheet, encoding="utf-8")
    asked = ("time", "--size", "tiny", "--ctx", "64", "--simulate", "ours", "--json", "found.json")
    assert answered(*asked, cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path / "calibrated")).code == 0
    (log,) = (tmp_path / "runs").glob("*.jsonl")
    for words in (("time", "--from", str(log)), ("report", "found.json"), ("history",)):
        assert answered(*words, cwd=tmp_path).code == 0
    again = answered("time", "--simulate", "ours", cwd=tmp_path)
    assert again.complaint.startswith("sysbench time: --simulate ours is not a known GPU")

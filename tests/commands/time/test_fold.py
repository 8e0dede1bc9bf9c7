"""From the log of a run to its record."""

import json
import statistics

import pytest

from sysbench.commands.time.fold import fold
from sysbench.commands.time.record import TimeRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import LogError
from sysbench.log.events import CellFinished, CellStarted, Event, Reading, RunFinished, RunResumed, StepMeasured
from tests.fixtures_cautions import in_words
from tests.fixtures_timing import A100, TWO_CORES, events, record, until_measuring

SPEC = TimeSpec.model_validate({"size": "small,medium", "ctx": "128,256", "precision": "fp32,bf16"})
ONE = TimeSpec.model_validate({"size": "small", "ctx": 128})


def test_the_record_has_every_cell_in_the_order_of_the_grid() -> None:
    assert [cell.key for cell in record(SPEC).cells] == [cell.key for cell in SPEC.cells()]
    assert {cell.outcome for cell in record(SPEC).cells} == {"ok"}


def test_every_raw_sample_of_the_log_is_in_the_record() -> None:
    stream = events(ONE)
    measured = [event for event in stream if isinstance(event, StepMeasured) and not event.warmup]
    warmup = [event for event in stream if isinstance(event, StepMeasured) and event.warmup]
    (cell,) = fold(stream).cells
    assert list(cell.phases) == ["zero_grad", "forward", "loss", "backward", "optimizer", "step"]
    for phase in ("zero_grad", "forward", "loss", "backward", "optimizer"):
        wall, device = cell.phases[phase].wall, cell.phases[phase].device
        assert wall is not None
        assert device is not None
        assert wall.samples_s == [event.phases[phase].wall_s for event in measured]
        assert device.samples_s == [event.phases[phase].device_s for event in measured]
    assert cell.warmup_samples_s == [event.step.wall_s for event in warmup]


def test_summaries_are_those_of_pythons_own_statistics() -> None:
    (cell,) = record(ONE).cells
    wall = cell.phases["step"].wall
    assert wall is not None
    assert wall.mean_s == pytest.approx(statistics.mean(wall.samples_s), rel=1e-12)
    assert wall.std_s == pytest.approx(statistics.stdev(wall.samples_s), rel=1e-9)
    assert wall.median_s == pytest.approx(statistics.median(wall.samples_s), rel=1e-12)
    assert (wall.min_s, wall.max_s) == (min(wall.samples_s), max(wall.samples_s))


def test_a_training_takes_as_many_median_steps_as_its_tokens_need() -> None:
    (cell,) = record(ONE.model_copy(update={"tokens": 10**9})).cells
    wall, training = cell.phases["step"].wall, cell.training
    assert wall is not None
    assert wall.ci95_s is not None
    assert training is not None
    steps = 1e9 / (4 * 128)
    found = [training.duration_s.point, training.duration_s.low, training.duration_s.high]
    assert found == pytest.approx([steps * statistics.median(wall.samples_s), *(steps * end for end in wall.ci95_s)])
    assert training.cost is None


def test_rates_state_the_formula_the_peak_and_the_ceiling() -> None:
    (cell,) = record(ONE, A100).cells
    wall, rates = cell.phases["step"].wall, cell.rates
    assert wall is not None
    assert rates is not None
    assert rates.step_flops == 3 * cell.model.forward_flops
    assert rates.flops_per_s == rates.step_flops / wall.mean_s
    assert rates.tokens_per_s == 4 * 128 / wall.mean_s
    assert rates.peak_flops_per_s == 19.5e12
    assert rates.peak_share == rates.flops_per_s / 19.5e12
    assert rates.ceiling_share == rates.flops_per_s / (15.2e12 * 1.25)


def test_the_peak_of_unknown_hardware_is_unknown_and_not_a_default() -> None:
    (cell,) = record(ONE, TWO_CORES).cells
    assert cell.rates is not None
    assert cell.rates.peak_flops_per_s is None
    assert cell.rates.peak_share is None
    assert cell.rates.ceiling_share is not None


def test_a_run_that_was_killed_keeps_what_it_measured() -> None:
    stream = until_measuring(events(SPEC), cell=1, step=3)
    killed = fold(stream)
    assert killed.status == "unfinished"
    assert killed.finished_at is None
    assert [cell.outcome for cell in killed.cells] == ["ok", "unfinished"] + ["not run"] * 6
    wall = killed.cells[1].phases["step"].wall
    assert wall is not None
    assert len(wall.samples_s) == 4
    assert killed.cells[2].phases == {}


def test_a_cell_that_is_started_again_forgets_its_earlier_attempt() -> None:
    whole = events(ONE)
    cut = until_measuring(whole, cell=0, step=5)
    again = next(number for number, event in enumerate(whole) if isinstance(event, CellStarted))
    resumed: list[Event] = [*cut, RunResumed(at_s=cut[-1].at_s, keep=0), *whole[again:]]
    assert fold(resumed).cells == fold(whole).cells
    assert fold(resumed).status == "complete"


def test_a_resumed_run_that_is_killed_again_is_not_complete() -> None:
    whole = events(ONE)
    assert isinstance(whole[-1], RunFinished)
    assert fold([*whole, RunResumed(at_s=whole[-1].at_s, keep=0)]).status == "unfinished"


def test_readings_count_for_the_cell_during_which_they_were_taken() -> None:
    stream = events(ONE)
    finished = next(number for number, event in enumerate(stream) if isinstance(event, CellFinished))
    late = Reading(at_s=stream[finished].at_s, host_rss_bytes=10**15)
    early = Reading(at_s=stream[finished].at_s, host_rss_bytes=10**13)
    (cell,) = fold([*stream[:finished], early, stream[finished], late, *stream[finished + 1 :]]).cells
    assert cell.memory.host_rss_peak_bytes == 10**13


def test_what_was_seen_just_before_a_cell_holds_for_it() -> None:
    stream = events(ONE)
    started = next(number for number, event in enumerate(stream) if isinstance(event, CellStarted))
    before = Reading(at_s=stream[started].at_s, other_processes=2)
    (cell,) = fold([*stream[:started], before, *stream[started:]]).cells
    assert [in_words(caution) for caution in cell.cautions if caution.code == "gpu-shared"] == [
        "2 other processes used the GPU"
    ]


def test_an_event_stream_that_is_no_run_is_refused() -> None:
    for stream in ([], events(ONE)[1:]):
        with pytest.raises(LogError, match="does not start with the start event of a run"):
            fold(stream)


def test_a_record_survives_json_with_its_units_in_the_keys() -> None:
    made = record(SPEC)
    text = made.model_dump_json()
    assert TimeRecord.model_validate_json(text) == made
    top = json.loads(text)
    assert (top["schema_version"], top["kind"], top["status"]) == (1, "time", "complete")
    assert top["cells"][0]["axes"]["ctx"] == 128
    assert top["cells"][0]["model"]["parameters"] == 128_625_408

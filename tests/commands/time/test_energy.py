"""Joules belong to the measured steps alone, and are withheld where the counter is too slow for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sysbench.commands.time.fold import COUNTER_UPDATE_S, energy
from sysbench.commands.time.record import EnergyRecord
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.log.collect import CellEvents
from sysbench.log.events import PhaseSample, Reading, StepMeasured
from tests import fixtures_timing as runs
from tests.engine.stub_nvml import FIRST, Driver, compile_driver

IDLE_W, BUSY_W = 80.0, 400.0


def the_cell() -> TimeCell:
    (cell,) = TimeSpec(size="small", ctx=512, batch=4).cells()  # type: ignore[arg-type]
    return cell


CELL = the_cell()


def burning(begin_s: float, end_s: float, counter_s: float = 0.0) -> Callable[[float], float]:
    """A counter at a time: idle, but for one stretch; it is updated every `counter_s`, or always."""

    def joules(at_s: float) -> float:
        seen_s = at_s // counter_s * counter_s if counter_s else at_s
        busy_s = min(max(seen_s - begin_s, 0.0), end_s - begin_s)
        return 5000.0 + IDLE_W * (seen_s - busy_s) + BUSY_W * busy_s

    return joules


def seen(
    steps: int, step_s: float, joules: Callable[[float], float] | None, begin_s: float = 10.0, gap_s: float = 0.0
) -> CellEvents:
    """Steps from `begin_s` on with a gap after each, and ten readings a second from long before to long after."""
    events = CellEvents()
    for index in range(steps):
        end_s = begin_s + (index + 1) * step_s + index * gap_s
        sample = PhaseSample(wall_s=step_s)
        events.add(StepMeasured(at_s=end_s, cell="x", index=index, warmup=False, phases={}, step=sample))
    for number in range(400):
        at_s = begin_s - 5.037 + number * 0.1
        events.add(Reading(at_s=at_s, energy_j=joules(at_s) if joules else None))
    return events


def found(events: CellEvents) -> EnergyRecord:
    record = energy(CELL, events)
    assert record is not None
    return record


def test_the_energy_of_a_step_is_that_of_the_measured_steps_alone() -> None:
    """The same machine idles, and warms up, at another power right before and after."""
    record = found(seen(40, 0.1, burning(10.0, 14.0)))
    assert record.power_w == pytest.approx(BUSY_W)
    assert record.step_j == pytest.approx(BUSY_W * 0.1)
    assert record.token_j == pytest.approx(BUSY_W * 0.1 / (4 * 512))
    assert record.withheld is None


def test_pauses_between_steps_are_part_of_what_a_step_costs() -> None:
    """The GPU draws power in them, and a training run would have them too."""
    record = found(seen(40, 0.1, burning(10.0, 99.0), gap_s=0.05))
    assert record.step_j == pytest.approx(BUSY_W * 0.15, rel=0.01)


@pytest.mark.parametrize("update_s", [0.02, 0.05, COUNTER_UPDATE_S])
def test_a_counter_that_is_updated_rarely_stays_within_what_is_said_of_it(update_s: float) -> None:
    for begin_s in (10.0, 10.013, 10.049, 10.081):
        record = found(seen(15, 0.1, burning(begin_s, begin_s + 1.5, update_s), begin_s=begin_s))
        assert record.uncertainty_share is not None
        assert record.power_w == pytest.approx(BUSY_W, rel=record.uncertainty_share)
        assert record.uncertainty_share == pytest.approx(COUNTER_UPDATE_S / record.counted_s)


def test_a_window_that_is_too_short_has_no_joules_and_says_how_many_steps_would_do() -> None:
    record = found(seen(10, 0.05, burning(10.0, 10.5)))
    assert (record.step_j, record.token_j, record.power_w) == (None, None, None)
    assert record.withheld == "measured for 0.50 s"
    assert record.steps_needed == 40
    enough = found(seen(record.steps_needed, 0.05, burning(10.0, 12.0)))
    assert enough.step_j == pytest.approx(BUSY_W * 0.05)


def test_a_counter_that_began_anew_is_not_believed() -> None:
    record = found(seen(40, 0.1, lambda at_s: 1000.0 - at_s))
    assert record.step_j is None
    assert record.withheld == "the counter did not increase, or was reset"


def test_without_a_counter_nothing_is_said_of_energy() -> None:
    assert energy(CELL, seen(40, 0.1, None)) is None
    assert energy(CELL, CellEvents()) is None


def test_a_runs_joules_are_those_that_its_counter_counted() -> None:
    """The made-up machine draws 300 W throughout."""
    (cell,) = runs.record(TimeSpec(size="medium", ctx=512, precision="bf16", steps=40)).cells  # type: ignore[arg-type]
    assert cell.energy is not None
    assert cell.energy.power_w == pytest.approx(300.0)
    step = cell.phases["step"].wall
    assert step is not None
    assert cell.energy.step_j == pytest.approx(300 * step.mean_s, rel=0.02)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return compile_driver(tmp_path_factory.mktemp("driver"))


def test_the_sampler_reads_the_counter_that_joules_are_made_of(driver: Driver) -> None:
    """Through the real pynvml: the stand-in's counter grows by half a joule with every call."""
    program = """
    sampler.use(gpu(FIRST))
    show(joules=[sampler.read(float(turn)).energy_j for turn in range(3)])
    """
    first, second, third = driver.run(program)["joules"]
    assert second - first == pytest.approx(0.5)
    assert third - second == pytest.approx(0.5)
    assert FIRST.startswith("GPU-")

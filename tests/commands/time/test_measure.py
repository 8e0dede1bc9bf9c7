"""The timing experiment says what it does in order, times nothing but steps, and leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from sysbench import formulas
from sysbench.command import runnable
from sysbench.commands.time import measure as timing
from sysbench.commands.time.spec import TimeCell
from sysbench.errors import UnavailableError
from sysbench.lab.clocks import Call, Clock, StepTimes
from sysbench.lab.devices import using_threads
from sysbench.lab.step import TrainingStep
from sysbench.log.events import (
    Compiled,
    DeviceInfo,
    EffortChosen,
    Event,
    MemoryMeasured,
    ModelBuilt,
    PhaseEntered,
    StageEntered,
    StepChecked,
    StepMeasured,
    ThreadsTried,
    decode,
    encode,
)
from sysbench.log.kinds import command_of
from sysbench.spec.grid import ModelShape
from sysbench.spec.steps import PHASES_OF, Mode, Sync
from sysbench.statistics import has_converged
from tests.lab.fake_clock import FakeClock
from tests.small_cells import SMALL_STEP

CPU = DeviceInfo(name="a processor", type="cpu")
SHAPE = ModelShape(d_model=16, d_ff=24, layers=2, heads=2, vocab=31)


def cell(**changes: Any) -> TimeCell:
    measured = {"warmup": 2, "steps": 3, "until": None, "max_steps": 50, "sync": "phase"}
    return TimeCell(**{**SMALL_STEP, "model": SHAPE, "ctx": 8, "batch": 2, **measured, **changes})


def events_of(measured: TimeCell, clock: Clock | None = None) -> list[Event]:
    return list(timing.run(measured, CPU, clock=clock))


def steps_in(events: list[Event], *, warmup: bool) -> list[StepMeasured]:
    return [event for event in events if isinstance(event, StepMeasured) and event.warmup == warmup]


def outline(events: list[Event]) -> list[str]:
    return [event.stage if isinstance(event, StageEntered) else type(event).__name__ for event in events]


def the(kind: type[Any], events: list[Event]) -> Any:
    (event,) = [event for event in events if isinstance(event, kind)]
    return event


def alive_tensors() -> int:
    """Tensors that hold memory: the compiler keeps some without data, in the patterns that it looks for."""
    gc.collect()
    every = (each for each in gc.get_objects() if issubclass(type(each), torch.Tensor))
    return sum(not issubclass(type(each), FakeTensor) for each in every)


# --- what is said, and when ----------------------------------------------------------------------------------------


def test_a_cell_is_told_from_building_to_memory_in_order() -> None:
    assert outline(events_of(cell())) == [
        "building",
        "ModelBuilt",
        "warming-up",
        "StepMeasured",
        "StepMeasured",
        "measuring",
        "StepMeasured",
        "StepChecked",
        "StepMeasured",
        "StepMeasured",
        "MemoryMeasured",
    ]


def test_no_warm_up_is_allowed_and_means_none() -> None:
    events = events_of(cell(warmup=0))
    assert outline(events)[:4] == ["building", "ModelBuilt", "measuring", "StepMeasured"]
    assert steps_in(events, warmup=True) == []


def test_warm_up_and_measured_steps_are_counted_apart() -> None:
    events = events_of(cell(warmup=2, steps=3))
    assert [step.index for step in steps_in(events, warmup=True)] == [0, 1]
    assert [step.index for step in steps_in(events, warmup=False)] == [0, 1, 2]


def test_a_limit_that_is_too_short_for_another_step_leaves_one_that_counts() -> None:
    events = events_of(cell(max_time=0.001))
    assert steps_in(events, warmup=True) == []
    assert [step.index for step in steps_in(events, warmup=False)] == [0]
    checked, chosen = the(StepChecked, events), the(EffortChosen, events)
    assert (checked.gradients_present, checked.parameters_changed) == (True, True)
    assert chosen.ends == ("time", "time")


def test_a_continued_cell_measures_only_the_steps_that_are_missing() -> None:
    events = list(timing.run(cell(steps=3), CPU, earlier_s=(0.1, 0.2)))
    assert [step.index for step in steps_in(events, warmup=True)] == [0, 1]
    assert [step.index for step in steps_in(events, warmup=False)] == [2]


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_step_says_by_how_much_the_wall_clock_went_ahead_of_the_one_that_times_it(
    jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, real_time = list[int](), time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + jump_s * (len(started) >= 3))

    class Jumping(FakeClock):
        def measure(self, phases: Iterable[tuple[str, Call]], sync: Sync) -> StepTimes:
            started.append(len(started))
            return super().measure(phases, sync)

    jumps = [step.clock_jump_s for step in steps_in(events_of(cell(), Jumping([0.01] * 99)), warmup=False)]
    assert jumps == [pytest.approx(jump_s, abs=1), 0, 0]


def test_a_long_step_says_which_phase_it_is_in_and_is_measured_alike() -> None:
    events = events_of(cell(warmup=0, steps=2, grad_accum=2), FakeClock([100.0] * 20))
    said = [event.phase for event in events if isinstance(event, PhaseEntered)]
    assert said == ["zero_grad", *["forward", "loss", "backward"] * 2, "optimizer"]
    first, second = steps_in(events, warmup=False)
    assert tuple(first.phases) == tuple(second.phases) == PHASES_OF["train"]


@pytest.mark.parametrize("mode", PHASES_OF)
def test_every_step_of_a_mode_has_its_phases_and_their_sum(mode: Mode) -> None:
    for step in steps_in(events_of(cell(mode=mode)), warmup=False):
        assert tuple(step.phases) == PHASES_OF[mode]
        assert step.step.wall_s == pytest.approx(sum(phase.wall_s or 0 for phase in step.phases.values()))
        assert all(phase.wall_s is not None and phase.wall_s > 0 for phase in step.phases.values())


def test_samples_are_the_clocks_own_to_the_last_digit() -> None:
    clock = FakeClock([0.1, 0.2, 0.30000000000000004])
    (first, second, third) = steps_in(events_of(cell(mode="forward", warmup=0), clock), warmup=False)
    assert [each.step.wall_s for each in (first, second, third)] == [0.1, 0.2, 0.30000000000000004]


def test_an_unperturbed_step_has_one_wall_time() -> None:
    for step in steps_in(events_of(cell(sync="step")), warmup=False):
        assert step.step.wall_s
        assert tuple(step.phases) == PHASES_OF["train"]
        assert all(phase.wall_s is None for phase in step.phases.values())


def test_events_survive_the_way_to_the_log() -> None:
    for event in events_of(cell(sync="step")):
        assert decode(encode(event)) == event


def test_the_model_that_was_built_has_the_parameters_of_its_shape() -> None:
    built = the(ModelBuilt, events_of(cell()))
    assert built.parameters == formulas.parameters(SHAPE)
    assert built.parameters_without_lm_head == formulas.parameters_without_lm_head(SHAPE)


def test_a_cpu_has_a_resident_peak_and_no_allocator_peaks() -> None:
    memory = the(MemoryMeasured, events_of(cell()))
    assert (memory.allocated_peak_bytes, memory.reserved_peak_bytes) == (None, None)
    assert memory.host_rss_peak_bytes > 50 * 2**20


def test_every_kind_of_run_has_an_experiment_of_its_own() -> None:
    assert command_of("time").measure() is timing.run
    found = [command_of(kind).measure() for kind in runnable()]
    assert len(set(found)) == len(found)


# --- whether the steps did what they say ---------------------------------------------------------------------------


def test_a_real_step_has_gradients_changes_parameters_and_has_a_loss() -> None:
    checked = the(StepChecked, events_of(cell()))
    assert (checked.gradients_present, checked.parameters_changed) == (True, True)
    assert 1 < checked.loss < 10
    assert checked.attention_kernel == "aten::bmm"


def test_what_a_mode_does_not_do_is_not_claimed() -> None:
    checked = the(StepChecked, events_of(cell(mode="inference")))
    assert (checked.gradients_present, checked.parameters_changed, checked.loss) == (None, None, None)
    checked = the(StepChecked, events_of(cell(mode="forward-backward")))
    assert (checked.gradients_present, checked.parameters_changed) == (True, None)


def test_an_optimizer_step_after_the_gradients_were_cleared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    phases = TrainingStep.phases.fget
    assert phases is not None

    def cleared_too_late(step: TrainingStep) -> list[tuple[str, Any]]:
        in_order = dict(phases(step))
        return [(name, in_order[name]) for name in ("forward", "loss", "backward", "zero_grad", "optimizer")]

    monkeypatch.setattr(TrainingStep, "phases", property(cleared_too_late))
    checked = the(StepChecked, events_of(cell(warmup=0, steps=1)))
    assert (checked.gradients_present, checked.parameters_changed) == (False, False)


def test_checking_happens_outside_the_timed_windows() -> None:
    """Nothing but the phases runs between the first and the last reading of a clock."""

    class Watching:
        def __init__(self) -> None:
            self.running = False

        def measure(self, phases: Iterable[tuple[str, Call]], sync: Sync) -> StepTimes:
            self.running = True
            times = FakeClock(itertools.repeat(0.01)).measure(phases, sync)
            self.running = False
            return times

    clock = Watching()
    for event in timing.run(cell(), CPU, clock=clock):
        assert not clock.running, event


# --- steps that scatter ----------------------------------------------------------------------------------------------


class ThreadClock:
    """Notes how many threads compute each step, and says that they wait for each other."""

    def __init__(self, *seconds: float) -> None:
        self.threads: list[int] = []
        self._clock = FakeClock([*seconds, *[0.05] * 100])

    def measure(self, phases: Iterable[tuple[str, Call]], sync: Sync) -> StepTimes:
        self.threads.append(torch.get_num_threads())
        return self._clock.measure(phases, sync)


@pytest.fixture
def two_threads() -> Iterator[None]:
    with using_threads(2):
        yield


@pytest.mark.usefixtures("two_threads")
def test_scattered_steps_on_a_cpu_are_tried_on_fewer_threads() -> None:
    clock = ThreadClock(0.1, 0.9, 0.5)
    events = events_of(cell(mode="forward", warmup=0), clock)
    tried = the(ThreadsTried, events)
    assert outline(events)[-2:] == ["MemoryMeasured", "ThreadsTried"]
    assert (tried.before, tried.threads, tried.wall_s) == (2, 1, [0.05] * 3)
    assert clock.threads == [2] * 3 + [1] * 4
    assert torch.get_num_threads() == 2
    assert decode(encode(tried)) == tried


@pytest.mark.usefixtures("two_threads")
def test_so_are_steady_steps_whose_threads_lose_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "preemptions", itertools.count(step=8).__next__)
    assert the(ThreadsTried, events_of(cell(mode="forward", warmup=0), ThreadClock(0.1, 0.11, 0.12))).threads == 1


@pytest.mark.usefixtures("two_threads")
def test_fewer_threads_that_do_not_help_are_not_tried_on() -> None:
    clock = ThreadClock(0.1, 0.9, 0.5, 0.6, 0.6)
    assert the(ThreadsTried, events_of(cell(mode="forward", warmup=0), clock)).wall_s == [0.6]


@pytest.mark.usefixtures("two_threads")
def test_steady_steps_are_not_tried_on_fewer_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "preemptions", lambda: 0)
    assert outline(events_of(cell(mode="forward", warmup=0), ThreadClock(0.1, 0.11, 0.12)))[-1] == "MemoryMeasured"


def test_one_thread_waits_for_no_other() -> None:
    with using_threads(1):
        events = events_of(cell(mode="forward", warmup=0), ThreadClock(0.1, 0.9, 0.5))
    assert outline(events)[-1] == "MemoryMeasured"


# --- until ---------------------------------------------------------------------------------------------------------


def noisy() -> Iterator[float]:
    return itertools.cycle([0.100, 0.104, 0.098, 0.101, 0.096, 0.103, 0.099])


def test_until_measures_until_the_interval_is_narrow_and_no_longer() -> None:
    events = events_of(cell(mode="forward", warmup=0, steps=5, until=0.03, max_steps=400), FakeClock(noisy()))
    taken = [step.step.wall_s or 0 for step in steps_in(events, warmup=False)]
    assert 5 < len(taken) < 400
    assert [count for count in range(5, len(taken) + 1) if has_converged(taken[:count], 0.03)] == [len(taken)]


def test_until_gives_up_at_its_cap() -> None:
    events = events_of(cell(mode="forward", warmup=0, steps=5, until=1e-6, max_steps=12), FakeClock(noisy()))
    assert len(steps_in(events, warmup=False)) == 12


def test_until_measures_at_least_the_steps_that_were_asked_for() -> None:
    assert has_converged([0.1] * 15, 0.5)
    steady = FakeClock(itertools.repeat(0.1))
    events = events_of(cell(mode="forward", warmup=0, steps=20, until=0.5), steady)
    assert len(steps_in(events, warmup=False)) >= 20


# --- what is left behind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_no_tensor_survives_a_cell(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[weakref.ref[torch.nn.Module]] = []
    weights: list[weakref.ref[torch.Tensor]] = []
    build = TrainingStep.__init__

    def noted(step: TrainingStep, *arguments: Any) -> None:
        build(step, *arguments)
        models.append(weakref.ref(step.model))
        weights.extend(weakref.ref(parameter) for parameter in step.model.parameters())

    monkeypatch.setattr(TrainingStep, "__init__", noted)
    events_of(cell(mode=mode))
    before = alive_tensors()
    for _ in timing.run(cell(mode=mode), CPU):
        pass
    assert len(models) == 2
    assert [reference() for reference in (*models, *weights)] == [None] * (2 + len(weights))
    assert alive_tensors() == before


def test_no_tensor_survives_a_cell_that_is_given_up() -> None:
    before = alive_tensors()
    run = timing.run(cell(), CPU)
    for event in run:
        if isinstance(event, StepMeasured):
            break
    run.close()  # type: ignore[attr-defined]
    del run
    assert alive_tensors() == before


def test_garbage_is_collected_before_measuring_and_not_while_measuring() -> None:
    collections: list[str] = []
    stage = "building"

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collections.append(stage)

    gc.callbacks.append(note)
    try:
        for event in timing.run(cell(steps=30), CPU):
            if isinstance(event, StageEntered):
                stage = event.stage
            if isinstance(event, StepMeasured) and not event.warmup:
                stage = "between steps"
                _ = [[index] for index in range(5000)]  # enough containers for a collection, if one could come
            if isinstance(event, MemoryMeasured):
                stage = "over"
    finally:
        gc.callbacks.remove(note)
    assert "measuring" in collections
    assert "between steps" not in collections
    assert "over" in collections


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was_even_after_giving_up(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        run = timing.run(cell(), CPU)
        next(event for event in run if isinstance(event, StepMeasured) and not event.warmup)
        run.close()  # type: ignore[attr-defined]
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_the_precision_of_a_cell_ends_with_it() -> None:
    before = torch.get_float32_matmul_precision()
    run = timing.run(cell(precision="tf32"), CPU)
    next(run)
    assert torch.get_float32_matmul_precision() == "high"
    run.close()  # type: ignore[attr-defined]
    assert torch.get_float32_matmul_precision() == before


def test_what_is_not_there_is_said_and_leaves_nothing_behind() -> None:
    before = alive_tensors()
    with pytest.raises(UnavailableError, match="No viable backend"):
        events_of(cell(attention="cudnn"))
    assert alive_tensors() == before
    assert gc.isenabled()


# --- compiled ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.usefixtures("graphs_only")
def test_a_compiled_cell_tells_its_compile_time_apart_and_is_one_graph() -> None:
    small = cell(execution="compiled", warmup=0, steps=2, model=SHAPE.model_copy(update={"layers": 1}))
    before = alive_tensors()
    events = events_of(small)
    assert outline(events) == [
        "building",
        "ModelBuilt",
        "compiling",
        "Compiled",
        "measuring",
        "StepMeasured",
        "StepChecked",
        "StepMeasured",
        "MemoryMeasured",
    ]
    compiled = the(Compiled, events)
    assert (compiled.graphs, compiled.graph_breaks, compiled.fell_back) == (1, 0, False)
    measured = [step.step.wall_s or 0 for step in steps_in(events, warmup=False)]
    assert compiled.compile_s > max(measured)
    assert the(StepChecked, events).loss == pytest.approx(the(StepChecked, events_of(cell_like(small))).loss, rel=1e-4)
    del events
    assert alive_tensors() - before < 10  # the compiler keeps constants of its own


def cell_like(compiled: TimeCell) -> TimeCell:
    """The same cell run eagerly, a step on: the compiling step is one step of training too."""
    return compiled.model_copy(update={"execution": "eager", "warmup": 1})

"""Each doubt is raised by what causes it, and by nothing else."""

import random
from collections.abc import Callable
from statistics import median

import pytest

from sysbench.commands.time.fold import fold
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.cautions import stability
from sysbench.log.collect import samples_of
from sysbench.log.events import (
    CellStarted,
    Compiled,
    Event,
    PhaseSample,
    Reading,
    ReadingsLost,
    StepChecked,
    StepMeasured,
    ThreadsProbe,
    ThreadsTried,
)
from sysbench.log.outcomes import Caution, CautionCode
from sysbench.render.sentences.notes import fewer_threads
from tests.fixtures_cautions import in_words
from tests.fixtures_timing import A100, TWO_CORES, Machine, events


def spec(**options: object) -> TimeSpec:
    # Large enough not to be launch-bound on the fixture's A100.
    return TimeSpec.model_validate({"size": "medium", "ctx": 1024, "steps": 40, **options})


def cautions(stream: list[Event]) -> dict[CautionCode, Caution]:
    (cell,) = fold(stream).cells
    return {caution.code: caution for caution in cell.cautions}


def stream(machine: Machine = A100, **options: object) -> list[Event]:
    return events(spec(**options), machine)


def with_steps(change: Callable[[int, float], float], machine: Machine = A100, **options: object) -> list[Event]:
    """The stream with the wall time of each measured step changed, by its index."""

    def changed(event: Event) -> Event:
        if not isinstance(event, StepMeasured) or event.warmup or event.step.wall_s is None:
            return event
        factor = change(event.index, event.step.wall_s) / event.step.wall_s
        return event.model_copy(
            update={
                "step": scaled(event.step, factor),
                "phases": {name: scaled(sample, factor) for name, sample in event.phases.items()},
            }
        )

    return [changed(event) for event in stream(machine, **options)]


def doubted(warmup: list[float], steps: list[float]) -> list[Caution]:
    samples = samples_of(steps)
    assert samples is not None
    return list(stability(warmup, samples))


def scaled(sample: PhaseSample, factor: float) -> PhaseSample:
    return PhaseSample(
        wall_s=sample.wall_s and sample.wall_s * factor,
        enqueue_s=sample.enqueue_s and sample.enqueue_s * factor,
        device_s=sample.device_s and sample.device_s * factor,
    )


def replaced(events_: list[Event], kind: type[Event], **update: object) -> list[Event]:
    return [event.model_copy(update=update) if isinstance(event, kind) else event for event in events_]  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", [A100, TWO_CORES], ids=["a100", "two-cores"])
def test_a_quiet_run_raises_no_doubt(machine: Machine) -> None:
    assert cautions(stream(machine, size="small" if machine is TWO_CORES else "medium")) == {}


def test_drift_says_how_far_and_which_way() -> None:
    caution = cautions(with_steps(lambda index, wall_s: wall_s * (1 + 0.05 * index / 39)))["drift"]
    assert in_words(caution).startswith("steps get slower, by 5")
    faster = cautions(with_steps(lambda index, wall_s: wall_s * (1 - 0.05 * index / 39)))
    assert any("faster" in in_words(each) or "slower than" in in_words(each) for each in faster.values())


def test_only_a_device_that_slows_down_is_to_cool() -> None:
    slower, faster = (doubted([], [1 + change * index / 39 for index in range(40)]) for change in (0.05, -0.05))
    (slower_drift,), (faster_drift,) = ([each for each in found if each.code == "drift"] for found in (slower, faster))
    assert slower_drift.remedy == "use a longer --warmup, or let the device cool down first"
    assert "steps get faster" in in_words(faster_drift)
    assert faster_drift.remedy == "use a longer --warmup"


def test_two_modes_are_both_named() -> None:
    caution = cautions(with_steps(lambda index, wall_s: wall_s * (1.1 if index * 7 % 3 == 0 else 1)))["two-modes"]
    assert in_words(caution).startswith("step times switch between ")


def test_one_shift_of_the_level_is_told_from_switching() -> None:
    caution = cautions(with_steps(lambda index, wall_s: wall_s * (1.1 if index >= 25 else 1)))["two-modes"]
    assert in_words(caution).startswith("the step time shifted once between ")


def test_outliers_say_how_much_they_move_the_mean() -> None:
    caution = cautions(with_steps(lambda index, wall_s: wall_s * (3 if index == 20 else 1)))["outliers"]
    assert in_words(caution).startswith("outliers among the steps (1 of 40) move the mean by 5")


def test_a_slow_start_asks_for_a_longer_warmup() -> None:
    slow = with_steps(lambda index, wall_s: wall_s * (1 + 0.5 * 0.4**index), warmup=1)
    caution = cautions(slow)["warmup-unfinished"]
    assert in_words(caution).startswith("the first 7 measured steps still took ")
    assert caution.remedy == "use --warmup 8"
    first_only = with_steps(lambda index, wall_s: wall_s * (1.5 if index == 0 else 1), warmup=1)
    assert cautions(first_only)["warmup-unfinished"].remedy == "use --warmup 5"


def test_the_proposed_warmup_covers_the_steps_that_were_still_slow() -> None:
    steps = [1.44 - 0.01 * index for index in range(8)] + [1 + 0.001 * (index * 7 % 5) for index in range(32)]
    found = {each.code: each for each in doubted([3.0, 2.0], steps)}["warmup-unfinished"]
    assert in_words(found).startswith("the first 8 measured steps still took ")
    assert found.remedy == "use --warmup 10"


def test_two_steps_are_too_few() -> None:
    found = cautions(stream(steps=2))["too-few-steps"]
    assert in_words(found) == "2 measured steps are too few for a 95% interval"


def test_an_interval_that_was_not_reached_is_said_to_be_too_wide() -> None:
    dice = random.Random(5)
    noisy = with_steps(lambda index, wall_s: wall_s * dice.uniform(1, 1.3), until="1%")
    assert cautions(noisy)["interval-too-wide"].remedy == "use --steps 2000"


def test_a_phase_whose_device_never_has_work_left_is_launch_bound() -> None:
    (small,) = fold(events(TimeSpec.model_validate({"size": "small", "ctx": 128}), A100)).cells
    assert "launch-bound" in {caution.code for caution in small.cautions}


@pytest.mark.parametrize("execution", ["eager", "compiled", "compiled-graphs"])
def test_a_compiled_model_is_not_told_to_compile(execution: str) -> None:
    caution = cautions(stream(size="small", ctx=128, execution=execution))["launch-bound"]
    assert ("--compile" in caution.remedy) == (execution == "eager")
    assert ("compiled-graphs" in caution.remedy) == (execution == "compiled")


def test_a_cpu_is_never_launch_bound() -> None:
    assert "launch-bound" not in cautions(stream(TWO_CORES, size="small", ctx=128))


def test_a_time_below_the_physical_bound_is_not_to_be_used() -> None:
    caution = cautions(with_steps(lambda index, wall_s: wall_s / 100))["below-lower-bound"]
    assert "at data-sheet peak" in in_words(caution)


def test_hardware_without_a_data_sheet_has_no_physical_bound() -> None:
    impossible = cautions(with_steps(lambda index, wall_s: wall_s / 100, TWO_CORES, size="small"))
    assert "below-lower-bound" not in impossible


def test_a_ceiling_that_the_step_exceeds_was_none() -> None:
    fast = with_steps(lambda index, wall_s: wall_s / 3, TWO_CORES, size="small")
    assert "ceiling-doubtful" in cautions(fast)
    (cell,) = fold(fast).cells
    assert cell.rates is not None
    assert cell.rates.ceiling_share is None
    assert cell.rates.ceiling_flops_per_s is not None


def test_an_optimizer_that_changed_nothing_and_missing_gradients_come_first() -> None:
    changed = replaced(stream(), StepChecked, parameters_changed=False, gradients_present=False)
    assert list(cautions(changed))[:2] == ["gradients-missing", "parameters-unchanged"]


def test_a_compile_that_fell_back_is_not_a_compiled_measurement() -> None:
    fell_back = replaced(stream(execution="compiled"), Compiled, fell_back=True, detail="recompile limit reached")
    assert "recompile limit reached" in in_words(cautions(fell_back)["compile-fell-back"])
    assert "compile-fell-back" not in cautions(stream(execution="compiled"))


def test_a_part_without_a_cuda_graph_is_not_a_measurement_of_graphs() -> None:
    skipped = replaced(stream(execution="compiled-graphs"), Compiled, graphs_skipped=1)
    found = cautions(skipped)["graphs-skipped"]
    assert in_words(found) == "torch.compile recorded no CUDA graph for 1 compiled part"
    assert "graphs-skipped" not in cautions(stream(execution="compiled-graphs"))
    on_a_cpu = stream(TWO_CORES, size="small", execution="compiled-autotune")
    assert "graphs-skipped" not in cautions(replaced(on_a_cpu, Compiled, graphs_skipped=1))


def test_throttling_counts_when_it_is_more_than_one_reading() -> None:
    throttled = replaced(stream(), Reading, throttle_reasons=["sw-power-cap"])
    assert "sw-power-cap" in in_words(cautions(throttled)["throttled"])
    assert "throttled" not in cautions(replaced(stream(), Reading, throttle_reasons=[]))


def test_other_programs_matter_where_the_cpu_measures() -> None:
    assert "host-busy" in cautions(replaced(stream(TWO_CORES, size="small"), Reading, host_cpu_share=0.4))
    assert "host-busy" not in cautions(replaced(stream(A100), Reading, host_cpu_share=0.4))


@pytest.mark.parametrize(("tried_share", "doubted"), [(0.3, True), (0.75, True), (0.85, False), (1.9, False)])
def test_threads_wait_for_each_other_where_fewer_are_faster(tried_share: float, doubted: bool) -> None:
    here = stream(TWO_CORES, size="small")
    step_s = median(step.step.wall_s or 0 for step in here if isinstance(step, StepMeasured) and not step.warmup)
    (cell,) = spec(size="small").cells()
    tried = ThreadsTried(at_s=here[-3].at_s, cell=cell.key, before=8, threads=4, wall_s=[step_s * tried_share] * 3)
    found = cautions([*here[:-2], tried, *here[-2:]])
    assert ("threads-wait" in found) is doubted
    if doubted:
        caution = found["threads-wait"]
        assert "on 8 threads" in in_words(caution)
        assert "on 4, because" in in_words(caution)
        assert caution.remedy.startswith("use --threads 4")


@pytest.mark.parametrize(
    ("precision", "has_it", "doubted"), [("bf16", False, True), ("bf16", True, False), ("fp32", False, False)]
)
def test_bf16_on_a_cpu_that_only_emulates_it_is_said_to_be_emulated(
    precision: str, has_it: bool, doubted: bool
) -> None:
    here = stream(TWO_CORES, size="small", precision=precision)
    device = TWO_CORES.device.model_copy(update={"bf16": has_it})
    assert ("emulated" in cautions(replaced(here, CellStarted, device=device))) is doubted


def test_a_gpu_and_a_cpu_that_nobody_has_asked_are_not_said_to_emulate() -> None:
    assert "emulated" not in cautions(stream(A100, precision="bf16"))
    assert "emulated" not in cautions(stream(TWO_CORES, size="small", precision="bf16"))


def test_a_source_of_readings_that_failed_is_named() -> None:
    quiet = stream()
    lost = ReadingsLost(at_s=quiet[-3].at_s, source="NVML", detail="the GPU is lost")
    during = cautions([*quiet[:-2], lost, *quiet[-2:]])
    assert in_words(during["readings-lost"]) == "NVML stopped answering: the GPU is lost"
    assert "readings-lost" not in cautions([*quiet[:-1], lost, quiet[-1]])  # the cell was over by then


def test_phases_without_times_are_said_to_be_unmeasured() -> None:
    assert cautions(stream(TWO_CORES, size="small", sync="step"))["not-measured"].remedy == "use --sync phase"


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [("attention", "--threads 8 uses all"), ("calibrate", "close the other processes to use all")],
)
def test_fewer_threads_come_with_what_the_command_has_against_it(kind: str, remedy: str) -> None:
    probe = ThreadsProbe(default=8, threads=2, mean_s=[(8, 0.08), (4, 0.02), (2, 0.002)])
    said = fewer_threads(probe, kind)
    assert said is not None
    assert said[0].endswith("the same work took 80.0 ms on 8, 20.0 ms on 4, 2.00 ms on 2")
    assert said[1] == remedy
    assert fewer_threads(probe.model_copy(update={"threads": 8}), kind) is None
    assert fewer_threads(probe, "accum") is None  # which takes no times


# --- suspended machines, clocks that are set, and one caution for one cause


def with_step(number: int, machine: Machine = TWO_CORES, wall_s: float = 0.0, **update: object) -> list[Event]:
    """The stream of twenty steps, one of which takes `wall_s` longer, while no reading is taken."""
    found, later_s, lasts = list[Event](), 0.0, False
    for event in stream(machine, size="small", steps=20):
        if isinstance(event, StepMeasured) and not event.warmup and event.index == number:
            later_s, lasts = wall_s, True
            step = event.step.model_copy(update={"wall_s": (event.step.wall_s or 0.0) + wall_s})
            event = event.model_copy(update={"step": step, **update})
        found.append(event.model_copy(update={"at_s": event.at_s + later_s}))
    assert lasts
    return found


@pytest.mark.parametrize("jump_s", [3600.0, -86400.0])
def test_a_step_during_which_the_wall_clock_jumped_is_named_and_left_out(jump_s: float) -> None:
    (cell,) = fold(with_step(4, clock_jump_s=jump_s)).cells
    assert len(cell.phases["step"].wall.samples_s) == 19  # type: ignore[union-attr]
    (found,) = (caution for caution in cell.cautions if caution.code == "suspended")
    assert in_words(found).endswith(": 1 step is left out")


def test_a_clock_that_goes_on_while_the_machine_is_suspended_makes_no_step_longer() -> None:
    (quiet,), (cell,) = fold(with_step(4)).cells, fold(with_step(4, wall_s=5000.0)).cells
    before, after = quiet.phases["step"].wall, cell.phases["step"].wall
    assert before is not None
    assert after is not None
    assert after.samples_s == before.samples_s[:4] + before.samples_s[5:]
    assert "suspended" in {caution.code for caution in cell.cautions}
    assert "suspended" not in {caution.code for caution in quiet.cautions}


def test_one_cause_gives_one_caution() -> None:
    """Steps beside other programs scatter, drift and switch; what is said is that the machine is busy."""
    dice = random.Random(3)
    busy = replaced(
        with_steps(lambda index, wall_s: wall_s * dice.choice([1, 1.4]) * (1 + index / 40), TWO_CORES, size="small"),
        Reading,
        host_cpu_share=0.5,
    )
    (cell,) = fold(busy).cells
    (found,) = cell.cautions
    assert found.code == "host-busy"
    step = cell.phases["step"].wall
    assert step is not None
    assert step.ci95_s is not None
    assert step.ci95_s[0] < 0.9 * step.median_s
    assert "host-busy" in {doubt.cause for doubt in step.doubts}
    assert not cell.excluding_cautions()

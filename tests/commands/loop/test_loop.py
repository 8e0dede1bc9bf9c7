"""A program that measures its own training loop: times against known ones, steps by marks, and what is kept."""

import gc
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import sysbench
from sysbench import marks
from sysbench.api import Run
from sysbench.commands.loop.fold import fold
from sysbench.commands.loop.measure import Stopwatch
from sysbench.lab.clocks import SynchronizedClock
from sysbench.log.events import Event, PhaseSample, StepMeasured
from sysbench.log.outcomes import CautionCode
from sysbench.statistics import relative_width
from tests.cli.running import answered
from tests.fixtures_cautions import in_words
from tests.processes import HANG_S

SHORT_S, LONG_S, REST_S = 0.004, 0.010, 0.002


def sleeping(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def samples(run: Run | None, phase: str) -> list[float]:
    assert run is not None
    found = run.cells[0].phases[phase].wall
    return list(found.samples_s) if found else []


def codes(run: Run) -> list[CautionCode]:
    return [caution.code for caution in run.cells[0].cautions]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- a step that is called


def test_phases_take_as_long_as_they_sleep_and_are_the_whole_step() -> None:
    slept_s: dict[str, list[float]] = {"data": [], "forward": []}

    def sleeps(phase: str, seconds: float) -> None:
        began_s = time.perf_counter()
        time.sleep(seconds)
        slept_s[phase].append(time.perf_counter() - began_s)

    phases = {"data": partial(sleeps, "data", SHORT_S), "forward": partial(sleeps, "forward", LONG_S)}
    run = sysbench.measure(phases, device="cpu", warmup=1, steps=6, tokens=100)
    (cell,) = run.cells
    assert list(cell.phases) == ["data", "forward", "step"]
    for phase, of_phase_s in slept_s.items():
        added_s = [each_s - true_s for each_s, true_s in zip(samples(run, phase), of_phase_s[1:], strict=True)]
        assert 0 <= min(added_s) < 0.001
    sums = [sum(parts) for parts in zip(samples(run, "data"), samples(run, "forward"), strict=True)]
    assert samples(run, "step") == sums
    assert (len(sums), len(cell.warmup_samples_s), cell.outside) == (6, 1, None)
    assert cell.tokens_per_s == pytest.approx(100 / (sum(sums) / 6))
    assert cell.self_measured
    assert cell.memory.host_rss_peak_bytes > 50 * 2**20
    assert cell.device.type == "cpu"
    shares = [row["step_share"] for row in run.rows("phases") if row["phase"] != "step"]
    assert sum(shares) == pytest.approx(1)


def test_what_a_function_does_outside_its_phases_is_the_rest_of_its_step() -> None:
    own_s: list[float] = []

    def step() -> None:
        began_s = time.perf_counter()
        with sysbench.phase("forward"):
            time.sleep(SHORT_S)
        time.sleep(LONG_S)
        own_s.append(time.perf_counter() - began_s)

    run = sysbench.measure(step, device="cpu", warmup=2, steps=5)
    assert len(own_s) == 7
    added_s = [each_s - true_s for each_s, true_s in zip(samples(run, "step"), own_s[2:], strict=True)]
    assert 0 <= min(added_s) < 0.001
    outside = run.cells[0].outside.samples_s
    assert min(outside) >= LONG_S
    assert [sum(parts) for parts in zip(samples(run, "forward"), outside, strict=True)] == pytest.approx(
        samples(run, "step")
    )


def test_nothing_is_made_up_of_a_function_without_phases() -> None:
    run = sysbench.measure(sleeping(0.001), device="cpu", warmup=0, steps=3)
    assert list(run.cells[0].phases) == ["step"]
    fields = run.cells[0].axes
    assert not {"model", "size", "ctx", "batch", "precision", "tokens"} & set(fields)
    assert run.cells[0].tokens_per_s is None
    assert all(row["tokens_per_s"] is None for row in run.rows())


def test_it_measures_until_the_median_is_as_certain_as_asked() -> None:
    lengths = iter(range(10**6))

    def unsteady() -> None:
        time.sleep(0.001 * (1 + next(lengths) % 3))

    assert len(samples(sysbench.measure(unsteady, device="cpu", steps=2, until="1%", max_steps=40), "step")) == 40
    steady = samples(sysbench.measure(sleeping(0.005), device="cpu", steps=2, until=0.5), "step")
    assert (relative_width(steady) or 1) <= 0.5


def test_progress_hears_every_event_and_the_garbage_collector_rests_only_while_steps_are_measured() -> None:
    heard: list[str] = []
    enabled: list[bool] = []
    sysbench.measure(
        lambda: enabled.append(gc.isenabled()),
        device="cpu",
        warmup=1,
        steps=2,
        progress=lambda e: heard.append(e.event),
    )
    assert enabled == [True, False, False]
    assert gc.isenabled()
    assert (heard[0], heard[-1], heard.count("step_measured")) == ("run_started", "run_finished", 3)


def test_cautions_are_those_of_time_with_remedies_in_words_of_a_program() -> None:
    run = sysbench.measure(sleeping(0.001), device="cpu", warmup=0, steps=2)
    assert "interval-too-wide" in codes(run)
    assert not any("--" in caution.remedy for caution in run.cells[0].cautions)


@pytest.mark.parametrize(
    ("steps_s", "code", "remedy"),
    [
        ([0.03 - 0.001 * each for each in range(8)] + [0.01] * 32, "warmup-unfinished", "use warmup=10"),
        ([0.01 * (1 - each / 400) for each in range(40)], "warmup-unfinished", "use warmup="),
        ([0.01 * (1 + each / 400) for each in range(40)], "drift", "use a longer warmup=, or let the device cool"),
        ([0.01 * (2 + math.sin(each / 9)) for each in range(200)], "autocorrelated", "measure more steps"),
    ],
)
def test_remedies_follow_what_was_measured_and_do_not_repeat_it(steps_s: list[float], code: str, remedy: str) -> None:
    heard: list[Event] = []
    sysbench.measure(lambda: None, device="cpu", warmup=2, steps=len(steps_s), progress=heard.append)
    given_s = iter([0.05, 0.04, *steps_s])  # the warm-up was slower still
    events = [
        event.model_copy(update={"step": PhaseSample(wall_s=next(given_s))})
        if isinstance(event, StepMeasured)
        else event
        for event in heard
    ]
    found = {caution.code: caution for caution in fold(events).cells[0].cautions}[code]  # type: ignore[index]
    assert found.remedy.startswith(remedy)
    assert ("cool down" in found.remedy) == ("slower, by" in in_words(found))
    assert "too narrow" not in found.remedy


@pytest.mark.parametrize(
    ("error", "outcome", "status"),
    [
        (RuntimeError("no luck"), "crashed", "complete"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom", "complete"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
    ],
)
def test_what_a_step_raises_is_raised_and_the_steps_before_it_are_kept(
    place: Path, error: BaseException, outcome: str, status: str
) -> None:
    left = iter([None] * 6)

    def step() -> None:
        if next(left, error) is error:
            raise error

    with pytest.raises(type(error)) as caught:
        sysbench.measure(step, device="cpu", warmup=2, steps=10, save="run.json")
    assert caught.value is error
    assert "4 steps were measured before this; the record is in run.json" in caught.value.__notes__[0]
    run = sysbench.load("run.json")
    assert (run.cells[0].outcome, run.record.status, len(samples(run, "step"))) == (outcome, status, 4)
    assert type(error).__name__ in run.cells[0].detail
    assert marks.active is None


BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"step": 3}, "a step must be a function, or a mapping of phases to functions, not int"),
    ({"step": {}}, "the mapping has no phases"),
    ({"step": {"forward": 3}}, "the phase forward must be a function, not int"),
    ({"step": {"step": print}}, "a phase cannot be called step"),
    ({"step": {"a\nb": print}}, "the name of a phase must be one line"),
    ({"phases": ["a", "a"]}, "phases= names a twice"),
    ({"phases": "ab"}, "phases= 'ab' is not a list of names"),
    ({"step": {"a": print}, "phases": ["a"]}, "a mapping already names its phases"),
    ({"device": "cuda:77"}, "device cuda:77: no such device on this machine; available: "),
    ({"device": "gpu"}, "device= gpu is not a device"),
    ({"steps": 0}, "steps= 0 is out of range: it must be 1 or more"),
    ({"warmup": 1.5}, "warmup= 1.5 is not a whole number"),
    ({"until": "2"}, "until= "),
    ({"sync": "pase"}, "sync= pase is not allowed. Did you mean phase?"),
    ({"name": " "}, "name= the name of a loop must be a non-empty string, not ' '"),
    ({"save": "nowhere/run.json"}, "cannot write nowhere/run.json: there is no directory nowhere"),
    ({"save": "run.txt"}, "run.txt must end in .json"),
]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("wrong", "complaint"), BAD_CALLS)
def test_a_wrong_argument_is_one_line_before_anything_is_called(wrong: dict[str, Any], complaint: str) -> None:
    called: list[None] = []
    given: dict[str, Any] = {"step": lambda: called.append(None), "device": "cpu", **wrong}
    with pytest.raises(sysbench.SysbenchError) as caught:
        sysbench.measure(**given)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (called, marks.active) == ([], None)


# --- a loop that is recorded


def loop(steps: int, *, mark: bool) -> list[float]:
    """Run a loop, and return when each step began by a clock of its own."""
    began_s = []
    for _ in range(steps):
        began_s.append(time.perf_counter())
        with sysbench.phase("forward"):
            time.sleep(SHORT_S)
        with sysbench.phase("backward"):
            time.sleep(LONG_S)
        time.sleep(REST_S)
        if mark:
            sysbench.step()
    return [*began_s, time.perf_counter()]


@pytest.mark.parametrize(("mark", "counted"), [(True, 6), (False, 5)])
def test_a_recorded_step_lasts_from_its_first_phase_to_the_next_step(place: Path, mark: bool, counted: int) -> None:
    with sysbench.record("mine.json", tokens=10, device="cpu") as recording:
        began_s = loop(7, mark=mark)
    run = sysbench.load("mine.json")
    assert recording.run is not None
    assert recording.run.record == run.record
    truly_s = [later - earlier for earlier, later in pairwise(began_s)][1 : 1 + counted]
    assert len(samples(run, "step")) == counted
    # What is done between two steps to measure them belongs to neither.
    unmeasured_s = [true_s - each_s for true_s, each_s in zip(truly_s, samples(run, "step"), strict=True)]
    assert min(map(abs, unmeasured_s)) < 0.001
    assert min(samples(run, "step")) >= SHORT_S + LONG_S + REST_S
    assert min(samples(run, "forward")) >= SHORT_S
    assert run.cells[0].cell.name == "mine"
    assert ("the last step does not count" in str(run.cells[0].detail)) is not mark


def test_the_only_step_of_a_loop_without_an_end_has_its_phases() -> None:
    with sysbench.record(warmup=0, device="cpu") as recording:
        loop(1, mark=False)
    assert samples(recording.run, "step") == []
    assert len(samples(recording.run, "backward")) == 1
    assert recording.run is not None
    assert recording.run.rows("phases")


def test_marks_of_steps_let_a_phase_run_several_times_in_one() -> None:
    with sysbench.record(warmup=1, device="cpu") as recording:
        for _ in range(3):
            for _ in range(2):
                with sysbench.phase("forward"):
                    time.sleep(SHORT_S)
            with sysbench.phase("optimizer"):
                pass
            sysbench.step()
    assert len(samples(recording.run, "forward")) == len(samples(recording.run, "step")) == 2
    assert min(samples(recording.run, "forward")) >= 2 * SHORT_S


def test_steps_alone_need_no_phases() -> None:
    with sysbench.record(warmup=0, device="cpu") as recording:
        for _ in range(3):
            time.sleep(SHORT_S)
            sysbench.step()
    assert len(samples(recording.run, "step")) == 3
    assert min(samples(recording.run, "step")) >= SHORT_S


def test_after_enough_steps_marks_do_nothing() -> None:
    with sysbench.record(warmup=1, max_steps=2, device="cpu") as recording:
        loop(6, mark=True)
        assert sysbench.phase("anything at all") is marks.NULL_CONTEXT
    assert len(samples(recording.run, "step")) == 2


def test_a_loop_that_ends_in_its_warm_up_says_so() -> None:
    with sysbench.record(warmup=5, device="cpu") as recording:
        loop(2, mark=True)
    assert recording.run is not None
    assert recording.run.cells[0].phases == {}
    assert "no step was measured: all steps were warm-up" in recording.run._repr_html_()


def test_a_recording_without_marks_says_so(place: Path) -> None:
    with sysbench.record("empty.json", device="cpu"):
        pass
    shown = answered("loop", "empty.json", cwd=place)
    assert shown.code == 0, "whoever shows a run has not failed, whatever the run did"
    assert "no step was measured: neither sysbench.phase nor sysbench.step was called" in " ".join(shown.out.split())
    assert "warm-up;" not in shown.out


def test_a_recording_that_has_only_a_failed_step_does_not_blame_the_marks() -> None:
    with sysbench.record(device="cpu") as recording, suppress(ValueError), sysbench.phase("forward"):
        raise ValueError("a bad batch")
    assert recording.run is not None
    shown = recording.run._repr_html_()
    assert "no step was measured" in shown
    assert "neither" not in shown


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("mark", [True, False])
def test_a_failed_phase_takes_its_step_with_it_and_no_other(bad: int, mark: bool) -> None:
    with sysbench.record(warmup=0, device="cpu") as recording:
        for number in range(5):
            with suppress(ValueError), sysbench.phase("forward"):
                if number == bad:
                    raise ValueError("a bad batch")
            with sysbench.phase("optimizer"):
                pass
            if mark:
                sysbench.step()
    assert len(samples(recording.run, "step")) == (4 if mark else 3)  # nothing says where the last one ends
    assert len(samples(recording.run, "optimizer")) == len(samples(recording.run, "forward"))


@pytest.mark.parametrize(
    ("error", "outcome"), [(RuntimeError("[red]no luck[/red]"), "crashed"), (SystemExit(3), "interrupted")]
)
def test_a_block_that_raises_leaves_its_record(place: Path, error: BaseException, outcome: str) -> None:
    recordings: list[Any] = []

    def script() -> None:
        with sysbench.record("run.json", warmup=0, device="cpu") as recording:
            recordings.append(recording)
            loop(2, mark=True)
            with sysbench.phase("forward"):
                raise error

    with pytest.raises(type(error)) as caught:
        script()
    assert caught.value is error
    run = sysbench.load("run.json")
    assert (run.cells[0].outcome, len(samples(run, "step"))) == (outcome, 2)
    assert recordings[0].run.record == run.record
    assert [path.name for path in place.iterdir()] == ["run.json"]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"path": "nowhere/run.json"}, "cannot write nowhere/run.json: there is no directory nowhere"),
        ({"path": "run"}, "run must end in .json"),
        ({"path": "run.json", "trace": "run.json"}, "run.json is already the file of the record"),
        ({"trace": "trace.txt"}, "trace.txt must end in .json or .json.gz"),
        ({"trace": "nowhere/trace.json"}, "cannot write nowhere/trace.json"),
        ({"device": "cuda:77"}, "device cuda:77: no such device"),
        ({"max_steps": 0}, "max_steps= 0 is out of range"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_block_begins(wrong: dict[str, Any], complaint: str) -> None:
    began = False
    with pytest.raises(sysbench.SysbenchError) as caught, sysbench.record(**{"device": "cpu", **wrong}):
        began = True
    assert complaint in str(caught.value)
    assert not began
    assert marks.active is None


def test_phases_that_do_not_follow_each_other_and_recordings_in_recordings_are_refused() -> None:
    refused = pytest.raises
    with sysbench.record(device="cpu", phases=("forward", "backward")):
        with (
            refused(sysbench.SysbenchError, match="backward begins inside the phase forward"),
            sysbench.phase("forward"),
        ):
            sysbench.phase("backward").__enter__()
        with refused(sysbench.SysbenchError, match=r"forwrd is not a phase that was declared. Did you mean forward"):
            sysbench.phase("forwrd")
        with refused(sysbench.SysbenchError, match="is inside the phase forward"), sysbench.phase("forward"):
            sysbench.step()
        with refused(sysbench.SysbenchError, match="ends without having begun"):
            sysbench.phase("forward").__exit__(None, None, None)
        with refused(sysbench.SysbenchError, match=r"sysbench.measure begins inside another recording"):
            sysbench.measure(print, device="cpu")
        with (
            refused(sysbench.SysbenchError, match=r"sysbench.record begins inside another"),
            sysbench.record(device="cpu"),
        ):
            pass
        assert marks.active is not None
    for wrong in (3, "", "step"):
        with sysbench.record(device="cpu"), refused(sysbench.SysbenchError, match="phase"):
            sysbench.phase(wrong)  # type: ignore[arg-type]


def test_marks_of_other_threads_do_not_count() -> None:
    with sysbench.record(warmup=0, device="cpu") as recording:
        with sysbench.phase("forward"):
            thread = threading.Thread(target=loop, args=(2,), kwargs={"mark": True})
            thread.start()
            thread.join()
        sysbench.step()
    assert recording.run is not None
    assert list(recording.run.cells[0].phases) == ["forward", "step"]


def test_a_trace_has_three_steps_of_the_loop_which_do_not_count(place: Path) -> None:
    weights = torch.randn(64, 64, requires_grad=True)
    with sysbench.record("run.json", trace="trace.json.gz", device="cpu"):
        for _ in range(9):
            with sysbench.phase("forward"):
                loss = (weights @ weights).square().sum()
            with sysbench.phase("backward"):
                loss.backward()
            sysbench.step()
    run = sysbench.load("run.json")
    assert (run.cells[0].trace.path, run.cells[0].trace.steps) == ("trace.json.gz", 3)
    assert len(samples(run, "step")) == 9 - 1 - 3
    trace = sysbench.read_trace("trace.json.gz")
    assert trace.summary.steps == 3
    assert any("mm" in str(row) for row in trace.rows())


# --- clocks of a device that runs behind the host


class Device:
    """A clock that the host and the device share: a launch takes 1 ms of the host, the work 5 ms of the device."""

    def __init__(self) -> None:
        self.host_ns = self.idle_ns = self.synchronized = 0
        self.places: dict[int, int] = {}

    def launch(self) -> None:
        self.host_ns += 1_000_000
        self.idle_ns = max(self.idle_ns, self.host_ns) + 5_000_000

    def synchronize(self) -> None:
        self.synchronized += 1
        self.host_ns = max(self.host_ns, self.idle_ns)

    def place(self, number: int) -> None:
        self.places[number] = max(self.host_ns, self.idle_ns)

    def between_s(self, first: int, last: int) -> float:
        return (self.places[last] - self.places[first]) / 1e9


@pytest.mark.parametrize(
    ("sync", "synchronized", "step_s", "phase_s", "device_s"),
    [("phase", 6, 0.012, 0.006, 0.006), ("step", 2, 0.011, None, 0.005)],
)
def test_a_device_is_waited_for_around_every_phase_or_around_the_step_alone(
    sync: Any, synchronized: int, step_s: float, phase_s: float | None, device_s: float
) -> None:
    device = Device()
    watch = Stopwatch(SynchronizedClock(device.synchronize, device, True, lambda: device.host_ns), sync, ())
    watch.begin()
    for name in ("forward", "backward"):
        with watch.phase(name):
            device.launch()
    times = watch.end()
    assert device.synchronized == synchronized
    assert times.step.wall_s == pytest.approx(step_s)
    assert times.phases["backward"].wall_s == (None if phase_s is None else pytest.approx(phase_s))
    assert times.phases["backward"].device_s == pytest.approx(device_s)


ON_EVERY_RANK = """
import sysbench

with sysbench.record("run.json", trace="trace.json.gz", device="cpu", warmup=0):
    for _ in range(4):
        with sysbench.phase("forward"):
            pass
        sysbench.step()
sysbench.measure(lambda: None, device="cpu", steps=2, warmup=0, save="measured.json")
"""


@pytest.mark.slow
def test_every_rank_of_a_launch_has_files_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(ON_EVERY_RANK)
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "loop.py")
    ran = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ran.returncode == 0, ran.stderr
    written = {path.name for path in tmp_path.glob("*.json*")}
    assert written == {f"{name}{rank}.json" for name in ("run", "measured") for rank in ("", "-rank1")} | {
        "trace.json.gz",
        "trace-rank1.json.gz",
    }
    assert [sysbench.load(tmp_path / f"run{rank}.json").record.status for rank in ("", "-rank1")] == ["complete"] * 2

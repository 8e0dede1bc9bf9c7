"""What is seen while a run goes on: right, calm, never wider or higher than the terminal, and cheap."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from functools import reduce

import numpy as np
import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from sysbench.commands.accum.spec import AccumCell
from sysbench.commands.memory.spec import MemoryCell
from sysbench.commands.time.live import (
    LiveState,
    TimeScreen,
    advance,
    cell_remaining_s,
    expected_steps,
    run_remaining_s,
    slow_without_gpu,
)
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    Event,
    Reading,
    ReadingsLost,
    RunResumed,
    StageEntered,
    StepEstimated,
    StepMeasured,
    ThreadsProbed,
)
from sysbench.render.dashboard.cell_lines import CellLines
from sysbench.render.dashboard.live import Clock, Dashboard, can_draw_on
from sysbench.render.dashboard.progress import Progress
from tests import fixtures_timing as runs
from tests.golden.compare import assert_golden, plain_environment

__all__ = ["plain_environment"]

SWEEP = TimeSpec(size="medium", ctx="128-1024*2", precision="fp32,bf16")
LARGE = TimeSpec(size="xl,2.7b", ctx="128-1024*2", precision="fp32,bf16")
MANY = TimeSpec(size="small,medium,large,xl", ctx="64-2048*2", precision="fp32,bf16", execution="eager,compiled")
ON_CPU = TimeSpec(size="small", ctx=128)


@pytest.fixture(scope="module")
def sweep() -> list[Event]:
    return runs.events(SWEEP)


def fold_events(events: Sequence[Event]) -> LiveState:
    return reduce(advance, events, LiveState())


def screen(events: Sequence[Event], width: int, height: int, encoding: str = "utf-8", **options: bool) -> list[str]:
    """The lines that a terminal of this size shows after these events."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, color_system=None, legacy_windows=False, **options)
    console.print(TimeScreen(fold_events(events), events[-1].at_s), end="")
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


# The state


def test_the_state_says_what_numpy_says_of_the_samples(sweep: list[Event]) -> None:
    state = fold_events(sweep)
    assert [done.outcome for done in state.ended.values()] == ["ok"] * 8
    for key, done in state.ended.items():
        steps = [e for e in sweep if isinstance(e, StepMeasured) and e.cell == key and not e.warmup]
        walls = [e.step.wall_s for e in steps]
        assert done.step == pytest.approx((np.mean(walls), np.std(walls, ddof=1)), rel=1e-9)


def test_a_state_is_never_changed_in_place(sweep: list[Event]) -> None:
    half = fold_events(sweep[:80])
    picture = repr(half)
    for event in sweep[80:]:
        advance(half, event)
    assert repr(half) == picture
    with pytest.raises(FrozenInstanceError):
        half.reading = None  # type: ignore[misc]


def test_a_cell_that_is_started_again_begins_anew(sweep: list[Event]) -> None:
    part = runs.until_measuring(sweep, cell=0, step=5)
    again = next(event for event in part if isinstance(event, CellStarted))
    state = fold_events([*part, again])
    assert state.current_cell is not None
    assert state.current_cell.steps == ()
    finished = CellFinished(at_s=part[-1].at_s, cell=again.cell, outcome="crashed")
    better = CellFinished(at_s=part[-1].at_s, cell=again.cell, outcome="ok")
    assert [done.outcome for done in fold_events([*part, finished, again, better]).ended.values()] == ["ok"]


def test_cells_that_never_start_are_counted_with_their_reason() -> None:
    state = fold_events(runs.events(LARGE))
    outcomes = [done.outcome for done in state.ended.values()]
    assert len(outcomes) == len(state.planned) == 16
    assert outcomes.count("oom") == 3
    assert outcomes.count("skipped") == 2


def test_a_resumed_run_keeps_what_lasts_and_waits_for_the_rest() -> None:
    log = runs.events(LARGE)
    crashed = [
        event.model_copy(update={"outcome": "crashed"}) if isinstance(event, CellFinished) and number % 2 else event
        for number, event in enumerate(log)
    ]
    resumed = RunResumed(at_s=log[-1].at_s + 3600, keep=7)
    state = advance(fold_events(crashed), resumed)
    assert {done.outcome for done in state.ended.values()} == {"ok", "oom"}
    assert len(state.planned) == 16
    assert state.current_cell is None
    assert state.started_s == resumed.at_s
    console = Console(file=io.StringIO(), width=80)
    with CellLines(console, view=TimeScreen, earlier=crashed) as progress:
        again = next(key for key, done in fold_events(crashed).ended.items() if done.outcome == "crashed")
        for event in (resumed, *(event for event in log[1:] if getattr(event, "cell", again) == again)):
            progress.show(event)
    assert f"{len(state.ended) + 1}/16 xl ctx" in written(console)


def test_a_run_whose_beginning_was_not_shown_is_shown_all_the_same(sweep: list[Event]) -> None:
    later = [RunResumed(at_s=sweep[0].at_s, keep=0), *runs.until_measuring(sweep, cell=1, step=4)[1:]]
    shown = screen(later, 80, 24)
    assert any("5/10" in line for line in shown)
    assert any("109.6 ± 0.2" in line for line in shown)


def test_a_reading_about_other_programs_only_wipes_nothing_out(sweep: list[Event]) -> None:
    part = runs.until_measuring(sweep, cell=1, step=5)
    before = fold_events(part).reading
    assert before is not None
    assert fold_events([*part, Reading(at_s=part[-1].at_s, other_processes=0)]).reading == before


# The forecast


@pytest.mark.parametrize(("cell", "within"), [(0, 0.5), (2, 0.7), (4, 0.35), (6, 0.2)])
def test_the_forecast_of_a_run_comes_near_what_it_takes(sweep: list[Event], cell: int, within: float) -> None:
    part = runs.until_measuring(sweep, cell, step=4)
    left_s = run_remaining_s(fold_events(part))
    assert left_s == pytest.approx(sweep[-1].at_s - part[-1].at_s, rel=within)


def test_the_forecast_of_a_cell_counts_the_steps_that_are_left(sweep: list[Event]) -> None:
    state = fold_events(runs.until_measuring(sweep, cell=3, step=6))
    assert state.current_cell is not None
    median_s = float(np.median([step.total_s for step in state.current_cell.steps[1:][-10:]]))
    assert cell_remaining_s(state.current_cell) == pytest.approx(3 * median_s)


def test_nothing_is_forecast_before_there_is_anything_to_go_by(sweep: list[Event]) -> None:
    started = next(number for number, event in enumerate(sweep) if isinstance(event, CellStarted))
    assert run_remaining_s(fold_events(sweep[: started + 1])) is None
    assert run_remaining_s(fold_events(sweep)) == 0


def test_until_expects_as_many_steps_as_the_interval_needs() -> None:
    for until, expected in ((0.5, 10), (0.0001, 1000)):
        events = runs.until_measuring(runs.events(TimeSpec(ctx=128, until=until)), cell=0, step=9)
        now = fold_events(events).current_cell
        assert now is not None
        assert expected_steps(now) == pytest.approx(expected, abs=1)


# The screen


@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 24), (120, 40), (200, 50), (20, 24)])
def test_a_sweep_in_mid_run_looks_like_this(sweep: list[Event], width: int, height: int) -> None:
    shown = screen(runs.until_measuring(sweep, cell=5, step=6), width, height)
    assert_golden(f"live_sweep_{width}x{height}", "\n".join(shown))


def test_a_sweep_that_ran_out_of_memory_looks_like_this() -> None:
    events = runs.events(LARGE)
    assert_golden("live_oom_80x24", "\n".join(screen(runs.until_measuring(events, cell=13, step=3), 80, 24)))


def test_more_cells_than_the_terminal_has_lines_look_like_this() -> None:
    events = runs.events(MANY)
    assert_golden("live_many_80x24", "\n".join(screen(runs.until_measuring(events, cell=30, step=3), 80, 24)))


def test_a_machine_without_a_gpu_looks_like_this() -> None:
    events = runs.until_measuring(runs.events(ON_CPU, runs.TWO_CORES), cell=0, step=3)
    assert_golden("live_no_gpu_80x24", "\n".join(screen(events, 80, 24)))


def test_the_start_looks_like_this(sweep: list[Event]) -> None:
    assert_golden("live_starting_80x24", "\n".join(screen(sweep[:1], 80, 24)))


def test_a_terminal_without_utf_8_gets_the_same_in_plain_characters(sweep: list[Event]) -> None:
    events = runs.until_measuring(sweep, cell=5, step=6)
    plain_lines = screen(events, 80, 24, encoding="ascii")
    assert_golden("live_ascii_80x24", "\n".join(plain_lines))
    assert "\n".join(plain_lines).isascii()


@settings(max_examples=40, deadline=None)
@given(width=st.integers(1, 230), height=st.integers(1, 60), position=st.integers(1, 240), cpu=st.booleans())
def test_the_screen_is_never_wider_or_higher_than_the_terminal(
    width: int, height: int, position: int, cpu: bool
) -> None:
    events = CPU_EVENTS if cpu else LARGE_EVENTS
    lines = screen(events[: min(position, len(events))], width, height)
    assert len(lines) <= height
    assert max((len(line) for line in lines), default=0) <= width


LARGE_EVENTS = runs.events(LARGE)
CPU_EVENTS = runs.events(ON_CPU, runs.TWO_CORES)


def test_the_most_important_line_survives_in_the_lowest_terminal(sweep: list[Event]) -> None:
    part = runs.until_measuring(sweep, cell=5, step=6)
    (only,) = screen(part, 80, 1)
    assert "7/10" in only
    assert "109.3 ± 0.1 ms" in only
    title, progress = screen(part, 80, 2)
    assert progress == only
    assert title.startswith(" time  medium · ctx 512")


def test_nothing_moves_while_steps_come_in(sweep: list[Event]) -> None:
    def places(events: Sequence[Event]) -> dict[str, int]:
        lines = screen(events, 80, 40)
        names = ("time ", "measuring", "step ", "memory", "device", "ctx 128 fp32")
        return {name: next(number for number, line in enumerate(lines) if name in line) for name in names}

    assert places(runs.until_measuring(sweep, 5, 0)) == places(runs.until_measuring(sweep, 5, 9))


def test_text_from_outside_is_shown_as_it_is_and_not_obeyed(sweep: list[Event]) -> None:
    part = runs.until_measuring(sweep, cell=0, step=2)
    started = next(number for number, event in enumerate(part) if isinstance(event, CellStarted))
    event = part[started]
    assert isinstance(event, CellStarted)
    device = event.device.model_copy(update={"name": "[red]GPU[/red] \x1b[2J\x1b]0;owned\x07 50%"})
    part[started] = event.model_copy(update={"device": device})
    shown = "\n".join(screen(part, 120, 40))
    assert "[red]GPU[/red]" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_a_word_about_the_cpu_is_said_only_where_there_is_no_gpu_and_it_takes_long() -> None:
    events = runs.events(ON_CPU, runs.TWO_CORES)
    slow = runs.until_measuring(events, cell=0, step=0)
    said = slow_without_gpu(fold_events(slow), slow[-1].at_s)
    assert said is not None
    assert said[0].startswith("No GPU here: timing on the CPU (2 cores). A step takes")
    assert said[1].startswith("--size tiny")
    first = next(number for number, event in enumerate(events) if isinstance(event, StepMeasured))
    assert slow_without_gpu(fold_events(events[: first + 1]), events[first].at_s) is None
    assert slow_without_gpu(fold_events(events), events[-1].at_s) is None
    quick = runs.until_measuring(runs.events(TimeSpec(size="tiny", ctx=16), runs.TWO_CORES), cell=0, step=0)
    assert slow_without_gpu(fold_events(quick), quick[-1].at_s) is None
    began = next(number for number, event in enumerate(events) if isinstance(event, StageEntered))
    at_s, key = events[began].at_s, next(iter(ON_CPU.cells())).key

    def said_before(step_s: float) -> tuple[str, str] | None:
        estimated = StepEstimated(at_s=at_s, cell=key, step_s=step_s, max_time_s=180.0)
        return slow_without_gpu(fold_events([*events[: began + 1], estimated]), at_s)

    assert "A step takes about 2 min, so" in (said_before(130.0) or ("",))[0]
    assert said_before(900.0) is None  # a step that is refused at once
    on_gpu = runs.until_measuring(runs.events(LARGE), cell=0, step=0)
    assert slow_without_gpu(fold_events(on_gpu), on_gpu[-1].at_s) is None


# The dashboard


class FakeClock:
    """Time that only passes when it is told to; every drawing costs what is set."""

    def __init__(self, cost_s: float) -> None:
        self.now_s, self.cpu_s, self.cost_s, self.reads = runs.STARTED_AT_S, 0.0, cost_s, 0

    def thread_cpu(self) -> float:
        self.reads += 1
        self.cpu_s += self.cost_s if self.reads % 2 == 0 else 0.0
        return self.cpu_s

    def clock(self) -> Clock:
        return Clock(epoch=lambda: self.now_s, monotonic=lambda: self.now_s, thread_cpu=self.thread_cpu)

    @property
    def drawings(self) -> int:
        return self.reads // 2


def terminal(width: int = 80, height: int = 24, **options: bool) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system="truecolor", **options
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def measuring(device: str) -> list[Event]:
    machine = runs.TWO_CORES if device == "cpu" else runs.A100
    return runs.until_measuring(runs.events(ON_CPU, machine), cell=0, step=3)


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.005), ("cuda", 0.01)])
def test_drawing_stays_within_its_share_of_a_core_while_steps_are_timed(device: str, share: float) -> None:
    events, time = measuring(device), FakeClock(cost_s=0.004)
    with Dashboard(terminal(), time.clock(), view=TimeScreen) as dashboard:
        for event in events:
            dashboard.show(event)
        before, since_s = time.drawings, time.now_s
        for _ in range(1000):
            time.now_s += 0.05
            dashboard.show(events[-1])
        drawn = time.drawings - before
        assert drawn * time.cost_s <= share * (time.now_s - since_s) * 1.01 + time.cost_s
        assert drawn * time.cost_s > share * (time.now_s - since_s) / 2


def test_it_never_draws_more_than_four_times_a_second() -> None:
    events, time = measuring("cuda"), FakeClock(cost_s=0.0)
    with Dashboard(terminal(), time.clock(), view=TimeScreen) as dashboard:
        for _ in range(400):
            time.now_s += 0.025
            dashboard.show(events[0])
    assert time.drawings <= 41


def emulated(output: str, emulator: pyte.Screen) -> list[str]:
    """What a terminal shows after this output; line feeds return the carriage, as a terminal's driver makes them."""
    pyte.Stream(emulator).feed(output.replace("\n", "\r\n"))
    return [line.rstrip() for line in emulator.display]


def test_a_resized_terminal_is_redrawn_at_once_and_shows_nothing_of_the_old_picture(sweep: list[Event]) -> None:
    events, time, console = runs.until_measuring(sweep, 5, 6), FakeClock(cost_s=1.0), terminal(200, 50)
    emulator = pyte.Screen(200, 50)
    with Dashboard(console, time.clock(), view=TimeScreen) as dashboard:
        for event in events:
            time.now_s = event.at_s
            dashboard.show(event)
        emulated(written(console), emulator)
        for width, height in ((80, 24), (20, 10), (150, 40)):
            console.width, console.height = width, height
            emulator.resize(height, width)
            time.now_s += 0.3
            before = len(written(console))
            dashboard.show(ReadingsLost(at_s=time.now_s, source="NVML", detail="gone"))
            alone = terminal(width, height)
            alone.print(TimeScreen(fold_events(events), time.now_s), end="")
            expected = emulated(written(alone).rstrip("\n"), pyte.Screen(width, height))
            assert emulated(written(console)[before:], emulator) == expected
            assert any("7/10" in line for line in expected)


def test_a_dashboard_is_for_terminals_that_can_move_their_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("CI", raising=False)
    assert can_draw_on(Console(file=Tty()))
    assert not can_draw_on(Console(file=io.StringIO()))
    monkeypatch.setenv("CI", "true")
    assert not can_draw_on(Console(file=Tty())), "nobody watches it"
    monkeypatch.setenv("CI", "false")
    assert can_draw_on(Console(file=Tty()))
    monkeypatch.setenv("TERM", "dumb")
    assert not can_draw_on(Console(file=Tty()))


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_the_terminal_is_left_as_it_was_however_the_run_ends(error: type[BaseException] | None) -> None:
    console = terminal()
    try:
        with Dashboard(console, view=TimeScreen) as dashboard:
            for event in measuring("cpu"):
                dashboard.show(event)
            if error:
                raise error
    except (KeyboardInterrupt, RuntimeError):
        pass
    assert written(console).count("\x1b[?1049h") == written(console).count("\x1b[?1049l") == 1
    assert written(console).rindex("\x1b[?25h") > written(console).rindex("\x1b[?25l")
    assert written(console).rindex("\x1b[2J") < written(console).rindex("\x1b[?1049l")


def test_what_is_written_to_stderr_meanwhile_is_shown_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(stderr=True, force_terminal=True, width=80, height=24)
    with Dashboard(console, view=TimeScreen) as dashboard:
        dashboard.show(measuring("cpu")[0])
        print("a warning from elsewhere", file=sys.stderr)
        during = capsys.readouterr().err
    assert "starting the worker" in during
    assert "a warning" not in during
    assert capsys.readouterr().err.endswith("a warning from elsewhere\n")


class LostTerminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.lost = False

    def write(self, text: str) -> int:
        if self.lost:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_a_terminal_that_goes_away_does_not_end_the_run() -> None:
    file, time = LostTerminal(), FakeClock(cost_s=0.0)
    console = Console(file=file, force_terminal=True, width=80, height=24)
    with Dashboard(console, time.clock(), view=TimeScreen) as dashboard:
        dashboard.show(measuring("cpu")[0])
        file.lost = True
        for event in measuring("cpu"):
            time.now_s += 1
            dashboard.show(event)
    assert time.drawings == 2


def test_no_color_means_no_colour(sweep: list[Event]) -> None:
    console = terminal(no_color=True)
    console.print(TimeScreen(fold_events(runs.until_measuring(sweep, 5, 6)), 0.0))
    codes = {code for codes in re.findall(r"\x1b\[([\d;]*)m", written(console)) for code in codes.split(";")}
    assert codes <= {"", "0", "1", "2"}
    assert written(terminal()) == ""


# Where there is no terminal


def plainly(events: Sequence[Event]) -> list[str]:
    console = Console(file=io.StringIO(), width=40)
    with CellLines(console, view=TimeScreen) as progress:
        for event in events:
            progress.show(event)
    return written(console).splitlines()


def test_plain_progress_is_one_line_per_finished_cell_after_the_device(sweep: list[Event]) -> None:
    lines = plainly(sweep)
    assert lines[0] == "NVIDIA A100-SXM4-80GB · torch 2.13.0+cu130"
    assert lines[1] == "1/8 medium ctx 128 fp32 train  step 109.6 ± 0.2 ms"
    assert len(lines) == 9


def test_plain_progress_says_why_a_cell_has_no_numbers() -> None:
    lines = plainly(runs.events(LARGE))
    assert "7/16 xl ctx 1024 fp32 train  oom: CUDA out of memory." in lines[7]
    assert lines[-1].startswith("16/16 2.7b ctx 1024 bf16 train  skipped: larger than xl ctx 1024")


def test_plain_progress_says_how_long_the_cpu_will_take() -> None:
    lines = plainly(runs.events(ON_CPU, runs.TWO_CORES))
    assert [line for line in lines if line.startswith("No GPU here")] == [lines[1]]
    assert "--size tiny" in lines[1]


def test_plain_progress_has_no_control_codes_whatever_it_is_told(sweep: list[Event]) -> None:
    finished = next(event for event in sweep if isinstance(event, CellFinished))
    odd = finished.model_copy(update={"outcome": "crashed", "detail": "one\ntwo \x1b[31mred\x1b[0m [bold]three[/]\r"})
    (device, line) = plainly([*sweep[: sweep.index(finished)], odd])
    assert line.isprintable()
    assert "one two" in line
    assert "[bold]three[/]" in line
    assert device.isprintable()


def test_plain_progress_says_that_a_run_is_resumed(sweep: list[Event]) -> None:
    assert "resumed: 1 finished cell kept" in plainly([sweep[0], RunResumed(at_s=1.0, keep=1)])


def test_plain_progress_outlives_its_reader(sweep: list[Event]) -> None:
    file = LostTerminal()
    file.lost = True
    with CellLines(Console(file=file), view=TimeScreen) as progress:
        for event in sweep:
            progress.show(event)


def test_a_stream_without_utf_8_gets_plain_characters(sweep: list[Event]) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with CellLines(Console(file=file), view=TimeScreen) as progress:
        for event in sweep:
            progress.show(event)
    assert b"step 109.6 +/- 0.2 ms" in file.buffer.getvalue()  # type: ignore[attr-defined]


def test_silence_shows_nothing_and_all_three_are_shown_events_alike(
    sweep: list[Event], capsys: pytest.CaptureFixture[str]
) -> None:
    def follow(progress: Progress) -> None:
        with progress as shown:
            for event in sweep:
                shown.show(event)

    follow(Progress())
    assert capsys.readouterr() == ("", "")
    follow(CellLines(Console(file=io.StringIO()), view=TimeScreen))
    follow(Dashboard(terminal(), view=TimeScreen))


def test_a_finished_cell_says_done_until_the_next_one_starts(sweep: list[Event]) -> None:
    finished = next(number for number, event in enumerate(sweep) if isinstance(event, CellFinished))
    shown = screen(sweep[: finished + 1], 80, 24)
    assert any(line.startswith(" done") and "10" not in line.split("ms")[0][:5] for line in shown)
    entered = next(event for event in sweep[finished:] if isinstance(event, StageEntered))
    shown = screen([*sweep[: finished + 1], *sweep[finished + 1 : sweep.index(entered) + 1]], 80, 24)
    assert any(line.startswith(" building") for line in shown)


# What disturbs the run


def with_probe(events: Sequence[Event], threads: int) -> list[Event]:
    """The events of a run that has chosen this many of 8 threads before its first cell."""
    first = next(number for number, event in enumerate(events) if isinstance(event, CellStarted))
    at_s = events[first].at_s
    probed = ThreadsProbed(at_s=at_s, default=8, threads=threads, mean_s=[(8, 0.08), (threads, 0.002)])
    return [*events[:first], probed, *events[first:]]


def busy(log: Sequence[Event], share: float) -> list[Event]:
    """The events of a run beside which other processes use this share of the cores."""
    return [
        event.model_copy(update={"host_cpu_share": share}) if isinstance(event, Reading) else event for event in log
    ]


def test_interference_is_said_once_while_the_cell_runs() -> None:
    log = busy(runs.events(ON_CPU, runs.TWO_CORES), 0.6)
    said = plainly(log)
    warning = "other processes are using 60% of the CPU: these times will be too long"
    assert said.count(warning) == 1
    assert said.index(warning) < next(number for number, line in enumerate(said) if line.startswith("1/1"))
    assert warning not in plainly(busy(log, 0.1))
    assert warning not in plainly(busy(runs.events(SWEEP), 0.6)), "on a GPU"


def test_interference_is_not_said_of_cells_that_take_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeCell, "takes_times", False)
    said = plainly(busy(with_probe(runs.events(ON_CPU, runs.TWO_CORES), 4), 0.6))
    assert not any("other processes" in line for line in said)
    assert not AccumCell.takes_times
    assert not MemoryCell.takes_times


@pytest.mark.parametrize(("width", "lines"), [(60, 3), (80, 2), (120, 2)])
def test_the_dashboard_shows_what_disturbs_the_run_above_everything_else_and_whole(width: int, lines: int) -> None:
    log = busy(with_probe(runs.events(ON_CPU, runs.TWO_CORES), 4), 0.6)
    part = runs.until_measuring(log, cell=0, step=5)
    time, console = FakeClock(cost_s=0.0), terminal(width, 40)
    with Dashboard(console, time.clock(), view=TimeScreen) as dashboard:
        for event in part:
            time.now_s = event.at_s
            dashboard.show(event)
        shown = emulated(written(console), pyte.Screen(width, 40))
    assert "\x1b[33musing 4 of 8 threads" in written(console), "yellow"
    said = " ".join(line.strip() for line in shown[:lines])
    assert said.startswith("using 4 of 8 threads, because other processes use some of the cores: the same work took")
    assert said.endswith("80.0 ms on 8, 2.00 ms on 4 → --threads 8 uses all")
    rest = " ".join(line.strip() for line in shown[lines : lines + 2])
    assert rest.startswith("other processes are using 60% of the CPU: these times will be too long")

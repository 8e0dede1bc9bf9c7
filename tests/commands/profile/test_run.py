"""How the engine carries out a profile: timed first, elsewhere; read when the worker is done; folded from the log."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sysbench.commands.profile import tables as profile_tables
from sysbench.commands.profile.fold import fold
from sysbench.commands.profile.live import ProfileScreen, ProfileState, advance
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRead, TraceWritten
from sysbench.commands.profile.spec import ProfileCell, ProfileSpec
from sysbench.engine.plan import PlacedCell
from sysbench.engine.process import Launcher
from sysbench.engine.provisions import Provisions
from sysbench.engine.session import run
from sysbench.errors import SysbenchError
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    Event,
    RunFinished,
    StepMeasured,
    ThreadsTried,
    WorkerExited,
    WorkerReady,
)
from sysbench.render.table import Word
from sysbench.spec.run import RunOptions
from sysbench.trace.summary import Check, DeviceUse, KernelName, KernelTimeColumns, ProfileSummary
from tests.engine.fakes import CPU, GPU, FakeSampler, ScriptedLauncher, of_kind
from tests.fixtures_cautions import in_words


def spec_of(**fields: Any) -> ProfileSpec:
    """Cells that the scripted worker tells apart by their context."""
    small: dict[str, Any] = {"size": "tiny", "d_model": 32, "layers": 1, "device": "cpu", "ctx": 16}
    return ProfileSpec(**{**small, **fields})


def summary_of(**fields: Any) -> ProfileSummary:
    """One kernel in one step of a millisecond."""
    known: dict[str, Any] = {
        "title": "trace.json",
        "source": "cpu",
        "devices": [],
        "rank": None,
        "steps": 1,
        "steps_marked": True,
        "window_ns": 1_000_000,
        "busy_ns": 900_000,
        "left_out": 0,
        "left_out_ns": 0,
        "unlinked_ns": 0,
        "phases": ["", "forward"],
        "modules": [""],
        "names": [KernelName(name="aten::mm", short="aten::mm", kernel_class="matmul", precision=None)],
        "spent": KernelTimeColumns(phase=[1], module=[0], kernel=[0], total_ns=[900_000], calls=[3]),
        "kernels": [],
        "operators": [],
        "device": None,
        "precisions": {},
        "rates": [],
        "checks": [],
        "remarks": [],
    }
    return ProfileSummary(**{**known, **fields})


def reader(summary: ProfileSummary) -> Callable[[PlacedCell, Path], Iterator[Event]]:
    """Finds in every trace what the test says it holds."""

    def read(placed: PlacedCell, trace: Path) -> Iterator[Event]:
        yield TraceWritten(at_s=1, cell=placed.cell.key, path=None, size_bytes=7)
        yield ProfileRead(at_s=1, cell=placed.cell.key, summary=summary)

    return read


def carry_out(
    spec: ProfileSpec,
    tmp_path: Path,
    launcher: ScriptedLauncher | None = None,
    *,
    launchers: dict[str, Launcher] | None = None,
    read: Callable[[PlacedCell, Path], Iterator[Event]] | None = None,
) -> list[Event]:
    traces = {cell.key: tmp_path / f"{cell.key}.json" for cell in spec.cells()}
    provisions = Provisions(traces, launchers or {}, read or reader(summary_of()))
    options = RunOptions(out=tmp_path / "runs")
    launcher = launcher or ScriptedLauncher()
    with run(spec, options, launcher=launcher, sampler=FakeSampler(), provisions=provisions) as session:
        return list(session)


def only(spec: ProfileSpec) -> ProfileCell:
    (cell,) = spec.cells()
    return cell


# --- the run


def test_a_step_is_timed_in_one_process_and_profiled_in_another(tmp_path: Path) -> None:
    spec = spec_of()
    cell = only(spec)
    assert cell.reference_time_cell is not None
    events = carry_out(spec, tmp_path)
    worker, by_cell = 0, {}
    for event in events:
        worker = event.pid if isinstance(event, WorkerReady) else worker
        if isinstance(event, CellStarted):
            by_cell[event.cell] = worker
    assert list(by_cell) == [cell.reference_time_cell.key, cell.key]
    assert len(set(by_cell.values())) == 2


def test_the_dashboard_counts_the_steps_without_a_profiler(tmp_path: Path) -> None:
    state, seen = ProfileState(), []
    once = carry_out(spec_of(steps=3), tmp_path)
    for event in chain.from_iterable([event] * (3 if isinstance(event, StepMeasured) else 1) for event in once):
        state = advance(state, event)
        console = Console(file=io.StringIO(), width=100, height=30)
        console.print(ProfileScreen(state, event.at_s))
        seen += re.findall(r"(\d)/3", console.file.getvalue())  # type: ignore[attr-defined]
    assert list(dict.fromkeys(seen)) == ["0", "1", "2", "3"]


def test_no_two_profiles_share_a_process(tmp_path: Path) -> None:
    events = carry_out(spec_of(ctx="16,32", steps=0), tmp_path)
    assert [event.cell for event in of_kind(events, CellStarted)] == [
        cell.key for cell in spec_of(ctx="16,32", steps=0).cells()
    ]
    assert len({event.pid for event in of_kind(events, WorkerReady)}) == 2


def test_what_is_timed_is_the_same_step_undisturbed(tmp_path: Path) -> None:
    cell = only(spec_of(mode="forward", warmup=2, steps=7, precision="bf16"))
    timed = cell.reference_time_cell
    assert timed is not None
    assert (timed.sync, timed.steps, timed.warmup) == ("step", 7, 2)
    for axis in ("size", "model", "ctx", "batch", "precision", "attention", "execution", "optimizer", "mode", "seed"):
        assert getattr(timed, axis) == getattr(cell, axis)


def test_a_step_that_runs_out_of_memory_is_not_profiled_and_no_larger_one_is(tmp_path: Path) -> None:
    spec = spec_of(ctx="16,32")
    events = carry_out(spec, tmp_path, ScriptedLauncher({16: "oom"}))
    small, large = (cell.key for cell in spec.cells())
    finished = {event.cell: event for event in of_kind(events, CellFinished)}
    assert finished[small].outcome == "oom"
    assert finished[small].detail == "without a profiler: CUDA out of memory. Tried to allocate 20.00 GiB."
    assert finished[large].outcome == "skipped"
    assert not {small, large} & {event.cell for event in of_kind(events, CellStarted)}


def test_a_cell_is_over_only_when_its_trace_has_been_read(tmp_path: Path) -> None:
    cell = only(spec_of())
    about = [event.event for event in carry_out(spec_of(), tmp_path) if getattr(event, "cell", None) == cell.key]
    assert about[-3:] == ["trace_written", "profile_read", "cell_finished"]


def test_a_trace_that_is_of_no_use_makes_its_cell_crash_and_no_other(tmp_path: Path) -> None:
    spec = spec_of(ctx="16,32")

    def read(placed: PlacedCell, trace: Path) -> Iterator[Event]:
        if placed.cell.ctx == 16:
            raise SysbenchError("the profile is empty")
        yield from reader(summary_of())(placed, trace)

    record = fold(carry_out(spec, tmp_path, read=read))
    assert [(cell.outcome, cell.detail) for cell in record.cells] == [("crashed", "the profile is empty"), ("ok", None)]


def test_a_cell_that_failed_has_its_row_beside_those_that_did_not(tmp_path: Path) -> None:
    def read(placed: PlacedCell, trace: Path) -> Iterator[Event]:
        if placed.cell.model_dump()["ctx"] == 16:
            raise SysbenchError("the profile is empty")
        yield from reader(on_device())(placed, trace)

    record = fold(carry_out(spec_of(ctx="16,32"), tmp_path, read=read))
    (summary,) = profile_tables.sheet(record, ["summary"]).tables
    assert {len(row) for row in summary.rows} == {len(summary.columns)}
    assert [cell.text for cell in summary.rows[0] if isinstance(cell, Word)] == ["crashed"]
    assert "coverage" in [column.key for column in summary.columns]


def test_what_wraps_a_worker_has_written_its_report_before_it_is_read(tmp_path: Path) -> None:
    """A program around the worker, like a profiler, that writes once the worker has ended in order."""
    cell = only(spec_of())
    report = tmp_path / f"{cell.key}.json"

    class Wrapped(ScriptedLauncher):
        @property
        def wraps(self) -> bool:
            return True

        def command(self) -> list[str]:
            script = (
                "import subprocess, sys, time; code = subprocess.call(sys.argv[2:]); time.sleep(0.3); "
                "open(sys.argv[1], 'w').write(str(code)); print('report written')"
            )
            return [sys.executable, "-c", script, str(report), *super().command()]

    found = []

    def read(placed: PlacedCell, trace: Path) -> Iterator[Event]:
        found.append(trace.read_text())
        yield from reader(summary_of())(placed, trace)

    events = carry_out(spec_of(), tmp_path, launchers={cell.key: Wrapped()}, read=read)
    assert found == ["0"]
    assert of_kind(events, CellFinished)[-1].outcome == "ok"
    assert [event.stderr_tail for event in of_kind(events, WorkerExited)][-1] == "report written"


def test_a_wrapper_that_wrote_nothing_has_its_last_words_in_the_outcome(tmp_path: Path) -> None:
    cell = only(spec_of())

    class Failing(ScriptedLauncher):
        @property
        def wraps(self) -> bool:
            return True

        def command(self) -> list[str]:
            script = "import subprocess, sys; subprocess.call(sys.argv[1:]); print('no space for the report')"
            return [sys.executable, "-c", script, *super().command()]

    def read(placed: PlacedCell, trace: Path) -> Iterator[Event]:
        raise SysbenchError("nsys left no report")
        yield

    (recorded,) = fold(carry_out(spec_of(), tmp_path, launchers={cell.key: Failing()}, read=read)).cells
    assert (recorded.outcome, recorded.detail) == ("crashed", "nsys left no report; no space for the report")


# --- the record


def recorded(tmp_path: Path, summary: ProfileSummary, *, gpu: bool = False, **fields: Any) -> ProfileCellRecord:
    """The record of one cell, of which a trace came down to this; the scripted worker's steps take 1 ms each."""
    launcher = ScriptedLauncher(devices=[GPU, CPU] if gpu else [CPU])
    spec = spec_of(device="cuda" if gpu else "cpu", **fields)
    (cell,) = fold(carry_out(spec, tmp_path, launcher, read=reader(summary))).cells
    assert cell.outcome == "ok"
    return cell


def test_the_record_holds_what_the_profile_cost_and_covers(tmp_path: Path) -> None:
    cell = recorded(tmp_path, on_device(steps=3, busy_ns=2_400_000), gpu=True)
    assert cell.unprofiled is not None
    assert cell.unprofiled.samples_s == [0.001]
    assert cell.profiled_s == [0.001]
    assert cell.cost_share == pytest.approx(0)
    assert cell.coverage == pytest.approx(0.8)
    assert (cell.trace, cell.trace_bytes) == (None, 7)


def test_on_a_cpu_nothing_is_said_about_coverage_because_the_profiler_slows_what_it_covers(tmp_path: Path) -> None:
    cell = recorded(tmp_path, summary_of(busy_ns=1_400_000))
    assert cell.unprofiled is not None
    assert cell.coverage is None


def test_without_a_timing_nothing_is_said_about_cost(tmp_path: Path) -> None:
    cell = recorded(tmp_path, summary_of(), steps=0)
    assert (cell.unprofiled, cell.cost_share, cell.coverage) == (None, None, None)
    assert cell.summary is not None


def test_a_killed_run_has_the_cells_that_were_read(tmp_path: Path) -> None:
    events = carry_out(spec_of(ctx="16,32"), tmp_path)
    cut = next(index for index, event in enumerate(events) if isinstance(event, CellFinished) and index) + 1
    second = [index for index, event in enumerate(events) if isinstance(event, CellFinished)][1] + 1
    assert [cell.outcome for cell in fold(events[:cut]).cells] == ["unfinished", "not run"]
    assert [cell.outcome for cell in fold(events[:second]).cells] == ["ok", "not run"]
    stopped = fold([*events[:cut], RunFinished(at_s=events[cut].at_s, status="interrupted")])
    assert [cell.outcome for cell in stopped.cells] == ["interrupted", "not run"]


# --- its cautions


def cautions(tmp_path: Path, summary: ProfileSummary, **fields: Any) -> dict[str, str]:
    return {caution.code: in_words(caution) for caution in recorded(tmp_path, summary, **fields).cautions}


def device_use(**fields: Any) -> DeviceUse:
    known: dict[str, Any] = {
        "window_ns": 1_000_000,
        "busy_ns": 990_000,
        "work_ns": 1_000_000,
        "waiting_ns": 0,
        "launches": 3,
        "launch_ns": 10,
    }
    return DeviceUse(**{**known, **fields})


def on_device(**fields: Any) -> ProfileSummary:
    return summary_of(**{"source": "device", "device": device_use(), **fields})


def test_a_sound_profile_has_no_cautions(tmp_path: Path) -> None:
    assert "check-failed" not in cautions(tmp_path, summary_of(checks=[Check(name="x", expected=3, found=3)]))
    assert not set(cautions(tmp_path, on_device(precisions={"fp32": 5}), gpu=True)) - {"gpu-shared", "readings-lost"}


def test_a_self_check_that_fails_is_said_with_both_numbers(tmp_path: Path) -> None:
    checks = [Check(name="batched matrix products", expected=111, found=37)]
    said = cautions(tmp_path, summary_of(checks=checks))["check-failed"]
    assert said.startswith("batched matrix products: found 37, expected 111")


def test_tf32_under_fp32_is_a_caution_and_fp32_is_not(tmp_path: Path) -> None:
    said = cautions(tmp_path, on_device(precisions={"tf32": 300, "fp32": 700}), gpu=True)["precision-differs"]
    assert said == "30% of matrix product time is in tf32 kernels, not fp32"
    assert "precision-differs" not in cautions(tmp_path, on_device(precisions={"fp32": 7, "unknown": 3}), gpu=True)


def test_a_gpu_of_which_no_kernel_was_seen_is_a_caution(tmp_path: Path) -> None:
    assert "kernels-missing" in cautions(tmp_path, summary_of(), gpu=True)
    assert "kernels-missing" not in cautions(tmp_path, summary_of())


def test_a_device_that_waits_for_the_host_is_launch_bound(tmp_path: Path) -> None:
    waiting = on_device(device=device_use(waiting_ns=400_000))
    assert "40%" in cautions(tmp_path, waiting, gpu=True)["launch-bound"]


@pytest.mark.parametrize("execution", ["eager", "compiled", "compiled-graphs"])
def test_a_compiled_model_is_not_told_to_compile(tmp_path: Path, execution: str) -> None:
    waiting = on_device(device=device_use(waiting_ns=400_000))
    found = recorded(tmp_path, waiting, gpu=True, execution=execution).cautions
    (caution,) = [each for each in found if each.code == "launch-bound"]
    assert ("--compile" in caution.remedy) == (execution == "eager")
    assert ("compiled-graphs" in caution.remedy) == (execution == "compiled")


def test_kernels_that_nobody_launched_are_said_to_be_in_no_range(tmp_path: Path) -> None:
    assert "5.0%" in cautions(tmp_path, on_device(unlinked_ns=50_000), gpu=True)["kernels-unlinked"]
    assert "kernels-unlinked" not in cautions(tmp_path, on_device(unlinked_ns=5_000), gpu=True)


def test_kernels_that_take_longer_than_the_step_are_doubted(tmp_path: Path) -> None:
    assert "kernels-slower" in cautions(tmp_path, on_device(busy_ns=1_500_000), gpu=True)
    assert "kernels-slower" not in cautions(tmp_path, on_device(busy_ns=1_050_000), gpu=True)


def test_what_was_wrong_with_the_trace_is_said(tmp_path: Path) -> None:
    assert cautions(tmp_path, summary_of(remarks=["cut off at byte 7"]))["trace-damaged"] == "cut off at byte 7"


def test_a_profiler_that_makes_steps_much_longer_is_said_to(tmp_path: Path) -> None:
    events = carry_out(spec_of(), tmp_path)
    key = only(spec_of()).key
    slower = [
        event.model_copy(update={"step": event.step.model_copy(update={"wall_s": 0.004})})
        if isinstance(event, StepMeasured) and event.cell == key
        else event
        for event in events
    ]
    (cell,) = fold(slower).cells
    assert cell.cost_share == pytest.approx(3)
    said = {caution.code: in_words(caution) for caution in cell.cautions}["profiler-costly"]
    assert said.startswith("the profiled step took 4.00 ms instead of 1.00 ms")


def test_threads_that_wait_for_each_other_slow_a_profile_too(tmp_path: Path) -> None:
    events = carry_out(spec_of(), tmp_path)
    timed = only(spec_of()).reference_time_cell
    assert timed is not None
    tried = ThreadsTried(at_s=events[-1].at_s, cell=timed.key, before=8, threads=4, wall_s=[0.0005] * 3)
    (cell,) = fold([*events[:-1], tried, events[-1]]).cells
    assert "threads-wait" in {caution.code for caution in cell.cautions}
    # The program that profiles reads what the timed process reports, although it has imported no other command.
    reads = "import sys; from sysbench.commands.profile import record; from sysbench.log.events import decode; "
    reads += "print(decode(sys.stdin.buffer.read()).threads); assert 'sysbench.commands.time.record' not in sys.modules"
    ran = subprocess.run(
        [sys.executable, "-c", reads], input=tried.model_dump_json(), capture_output=True, text=True, check=False
    )
    assert (ran.stdout.strip(), ran.stderr) == ("4", "")

"""What a run costs beside its steps: the worker starts early, and what nobody sees is neither measured nor awaited."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import psutil
import pytest

from sysbench.__main__ import needs_worker
from sysbench.command import commands, runnable
from sysbench.commands import running
from sysbench.commands.surroundings import RunSurroundings
from sysbench.commands.time import command as time
from sysbench.commands.time.record import TimeRecord
from sysbench.commands.time.spec import TimeOptions, TimeSpec
from sysbench.engine import session
from sysbench.engine.process import get_worker, prelaunched
from sysbench.engine.supervisor import list_devices
from sysbench.errors import OutputError
from sysbench.log import storage
from sysbench.log.events import RunStarted, WorkerExited, WorkerReady
from tests.cli.running import answered
from tests.engine.fakes import CPU, FakeSampler, ScriptedLauncher, carry_out, of_kind, outcomes, spec_of
from tests.worker import forked


@pytest.mark.parametrize(
    "line",
    [
        "time",
        "time --ctx 64",
        "memory --simulate 24GiB",
        "accum --quiet",
        "time --out=runs --columns step",
        "time --resume=log.jsonl",
    ],
)
def test_a_command_that_measures_needs_a_worker(line: str) -> None:
    assert needs_worker(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--help",
        "report runs",
        "compare A B",
        "run sizes",
        "doctor",
        "time --help",
        "time -h",
        "time --plan",
        "memory --from file.pickle",
        "time --from=file.json",
    ],
)
def test_what_only_shows_something_needs_none(line: str) -> None:
    assert not needs_worker(line.split())


def test_completion_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SYSBENCH_COMPLETE", "complete_bash")
    assert not needs_worker(["time", "--ctx", "64"])


def test_every_command_that_runs_cells_needs_a_worker() -> None:
    assert {name for name in commands() if needs_worker([name])} == set(runnable())


PARENT = """
import sys
from sysbench import __main__
from sysbench.engine import process

def started(launcher):
    print(*sorted(sys.modules))
    raise SystemExit

process.WorkerProcess = started
sys.argv = ["sysbench", "time", "--ctx", "64"]
__main__.main()
"""


def test_the_first_worker_is_launched_before_anything_else_is_imported() -> None:
    shown = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True)
    modules = shown.stdout.split()
    assert not {"typer", "pydantic", "rich", "psutil", "numpy", "sysbench.cli"} & set(modules)
    assert len([name for name in modules if name.startswith("sysbench")]) <= 30  # each command's `__init__` is one
    assert len(modules) <= 150


def test_the_worker_imports_torch_before_what_it_talks_with(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import sys; print(*sorted(sys.modules)); sys.exit()")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    environment |= {"SYSBENCH_ADDRESS": "nowhere", "SYSBENCH_AUTHKEY": "00"}
    command = [sys.executable, "-P", "-m", "sysbench.worker"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    modules = shown.stdout.split()
    assert not {"pydantic", "numpy", "psutil", "sysbench.log.events"} & set(modules)
    assert len(modules) <= 100


# Who gets the worker that was launched ahead


def test_a_worker_launched_ahead_is_for_the_first_that_wants_one_like_it() -> None:
    with prelaunched(ScriptedLauncher()):
        first, second = get_worker(ScriptedLauncher()), get_worker(ScriptedLauncher())
        try:
            assert first.pid < second.pid
            assert first.alive
        finally:
            first.end(0)
            second.end(0)


def test_one_that_is_started_otherwise_is_not_it(tmp_path: Path) -> None:
    class Other(ScriptedLauncher):
        def command(self) -> list[str]:
            return [*super().command(), "another"]

    with prelaunched(ScriptedLauncher()):
        ahead = forked.children()
        other = get_worker(Other())
        other.end(0)
        assert other.pid not in [process.pid for process in ahead]
        assert all(process.is_running() for process in ahead)
    assert not any(process.is_running() for process in ahead)


def test_nobody_hears_of_one_that_cannot_be_launched(tmp_path: Path) -> None:
    class Missing(ScriptedLauncher):
        def command(self) -> list[str]:
            return [str(tmp_path / "nowhere")]

    with prelaunched(Missing()):
        get_worker(ScriptedLauncher()).end(0)


def test_a_run_measures_in_the_worker_that_was_launched_ahead(tmp_path: Path) -> None:
    launcher = ScriptedLauncher()
    with prelaunched(launcher):
        (ahead,) = forked.children()
        events = carry_out(spec_of([16, 32]), tmp_path, launcher)
    assert [event.pid for event in of_kind(events, WorkerReady)] == [ahead.pid]
    assert [event.pid for event in of_kind(events, WorkerExited)] == [ahead.pid]


def test_the_worker_that_is_asked_for_devices_measures_the_first_run(tmp_path: Path) -> None:
    launcher = ScriptedLauncher()
    with prelaunched(launcher):
        (asked,) = forked.children()
        assert [device.name for device in list_devices(launcher)] == [CPU["name"]]
        first, second = (carry_out(spec_of([16]), tmp_path / name, launcher) for name in ("first", "second"))
    (began,), (ready,) = of_kind(first, RunStarted), of_kind(first, WorkerReady)
    assert (ready.pid, ready.at_s >= began.at_s) == (asked.pid, True)
    assert [event.pid for event in of_kind(first, WorkerExited)] == [asked.pid]
    assert asked.pid not in [event.pid for event in of_kind(second, WorkerReady)]


def test_simulated_runs_of_an_experiment_share_a_worker_that_measures_nothing_afterwards(tmp_path: Path) -> None:
    launcher = ScriptedLauncher()
    simulated, measured = spec_of([16, 32], device="auto", simulate="h100"), spec_of([16])
    runs = (simulated, simulated, measured, simulated)
    with prelaunched(launcher):
        (ahead,) = forked.children()
        pids = [
            ready.pid
            for number, spec in enumerate(runs)
            for ready in of_kind(carry_out(spec, tmp_path / str(number), launcher, in_experiment=True), WorkerReady)
        ]
        assert pids[:2] == [ahead.pid] * 2
        assert len(set(pids)) == len(pids) - 1
        assert [child.pid for child in forked.children()] == pids[-1:]
    assert forked.children() == []


def test_one_that_dies_after_it_was_asked_is_replaced(tmp_path: Path) -> None:
    launcher, spec = ScriptedLauncher(), spec_of([16])
    with prelaunched(launcher):
        (asked,) = forked.children()
        list_devices(launcher)
        asked.kill()
        while asked.status() != psutil.STATUS_ZOMBIE:
            sleep(0.01)
        events = carry_out(spec, tmp_path, launcher)
    assert outcomes(spec, events) == {16: "ok"}


def test_an_experiment_that_is_only_planned_leaves_no_worker() -> None:
    assert answered("run", "warmup", "--plan").code == 0
    assert not forked.children()


@pytest.mark.parametrize("words", [["--heads", "5"], ["--no-such-option"], ["--ctx", "64x"]])
def test_a_wrong_command_line_leaves_no_worker(tmp_path: Path, words: list[str]) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "sysbench", "time", *words]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    assert not [process for process in psutil.process_iter(["environ"]) if _temporary(process) == str(tmp_path)]


def _temporary(process: psutil.Process) -> str | None:
    environment = process.info["environ"]
    return environment.get("TMPDIR") if environment else None


# What a run leaves


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, True),
        ({"tables": ("precision",)}, False),
        ({"tables": ("precision", "summary")}, True),
        ({"tables": ("cells",), "format": "csv"}, True),
        ({"columns": ("step", "forward")}, False),
        ({"columns": ("+energy",)}, True),
        ({"columns": ("of matmul",)}, True),
        ({"columns": ("step",), "json_path": "-"}, True),
    ],
)
def test_ceilings_are_measured_where_a_table_or_a_file_has_room_for_them(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], needed: bool
) -> None:
    given: list[RunSurroundings] = []
    monkeypatch.setattr(running, "run_cells", lambda spec, options, surroundings: given.append(surroundings))
    time.perform(TimeSpec(), TimeOptions(**options))
    time.perform(TimeSpec(), TimeOptions(**options), RunSurroundings(log_name="of-an-experiment"))
    assert [each.ceilings for each in given] == [needed, True]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are measured by the scripted worker."""
    run = partial(session.run, launcher=ScriptedLauncher(), sampler=FakeSampler())
    monkeypatch.setattr(session, "run", run)


def test_a_record_is_on_disk_even_if_it_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(record: object, options: object) -> None:
        raise OutputError("cannot write standard output: the reading end of the pipe is closed")

    monkeypatch.setattr(running, "show", fails)
    with pytest.raises(OutputError, match="the reading end of the pipe is closed"):
        running.run_cells(spec_of([16]), TimeOptions(out=tmp_path, no_live=True))
    (record,) = tmp_path.glob("*.json")
    assert TimeRecord.model_validate_json(record.read_bytes()).cells
    assert f"saved  {record}" in capsys.readouterr().err


def test_a_record_that_cannot_be_written_is_shown_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(path: Path, content: bytes) -> None:
        raise OutputError(f"cannot write {path}: no space left on the device")

    monkeypatch.setattr(storage, "write_atomically", fails)
    with pytest.raises(OutputError, match="no space left"):
        running.run_cells(spec_of([16]), TimeOptions(out=tmp_path, no_live=True))
    shown = capsys.readouterr()
    assert "mean ± standard deviation" in shown.out
    assert "saved" not in shown.err

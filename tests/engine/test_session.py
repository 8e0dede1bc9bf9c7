"""A run and its log: refused before anything is left behind, continued where it was left, complete however it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sysbench.commands.time.fold import fold
from sysbench.errors import LogError, OutputError, SysbenchError, UsageError
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    StepMeasured,
    WorkerExited,
    WorkerReady,
)
from sysbench.log.journal import read
from sysbench.package import source_digest
from tests.engine.fakes import (
    CPU,
    GPU,
    FakeSampler,
    ScriptedLauncher,
    carry_out,
    of_kind,
    only_log,
    outcomes,
    spec_of,
    start,
)

# Refused before anything is measured


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 3}, "--heads 3 does not divide --d-model 32. Nearest that does: 2"),
        ({"precision": "fp16"}, "--precision fp16 is not supported on the CPU, which would emulate it. Use bf16 there"),
        ({"device": "cuda:3", "precision": "fp16", "heads": 3}, "--heads 3 does not divide --d-model 32."),
    ],
)
def test_a_cell_that_can_run_nowhere_is_refused_before_a_worker_is_started(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        start(spec_of([16, 32], **fields), tmp_path / "runs")
    assert str(caught.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_an_output_directory_that_cannot_be_made_is_refused_before_a_worker_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError) as caught:
        start(spec_of([16]), tmp_path / "file" / "runs")
    assert str(caught.value) == (f"cannot create {tmp_path}/file/runs: not a directory")


def test_a_record_that_cannot_be_written_is_refused_before_a_worker_is_started(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        start(spec_of([16]), tmp_path / "runs", json_path=str(tmp_path / "missing" / "record.json"))
    assert str(caught.value) == (
        f"cannot write {tmp_path}/missing/record.json: there is no directory {tmp_path}/missing"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_record_on_stdout_needs_no_file(tmp_path: Path) -> None:
    start(spec_of([16]), tmp_path, json_path="-").close()


def test_a_session_that_is_never_begun_leaves_nothing(tmp_path: Path) -> None:
    with start(spec_of([16]), tmp_path) as session:
        assert session.log_path.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_log_says_what_made_it(tmp_path: Path) -> None:
    spec = spec_of([16, 32])
    sampler = FakeSampler()
    sampler.driver = "560.35.03"
    started = carry_out(spec, tmp_path, sampler=sampler)[0]
    assert isinstance(started, RunStarted)
    assert type(spec).model_validate(started.spec) == spec
    assert (started.cells, started.driver, started.source_digest) == (2, "560.35.03", source_digest())
    assert started.host.logical_cores == os.cpu_count()


# However it ends


def test_whoever_stops_iterating_gets_a_whole_log_and_no_worker(tmp_path: Path) -> None:
    spec = spec_of([16])
    with start(spec, tmp_path, ScriptedLauncher({16: "goes on"})) as session:
        for event in session:
            if isinstance(event, StepMeasured) and event.index == 2:
                break
    events = only_log(tmp_path)
    assert outcomes(spec, events) == {16: "interrupted"}
    assert [event.event for event in events[-3:]] == ["worker_exited", "cell_finished", "run_finished"]
    assert of_kind(events, RunFinished)[0].status == "interrupted"


def _fail_at_the_first_step(session: Any) -> None:
    with session:
        for event in session:
            if isinstance(event, StepMeasured):
                raise BrokenPipeError("stdout is gone")


def test_an_error_of_whoever_shows_the_run_ends_it_in_order(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError):
        _fail_at_the_first_step(start(spec_of([16]), tmp_path, ScriptedLauncher({16: "goes on"})))
    assert of_kind(only_log(tmp_path), RunFinished)[0].status == "interrupted"
    assert len(of_kind(only_log(tmp_path), WorkerExited)) == 1


def test_a_finished_cell_stays_finished_when_the_run_is_given_up_right_after(tmp_path: Path) -> None:
    spec = spec_of([16, 32])
    with start(spec, tmp_path) as session:
        next(event for event in session if isinstance(event, CellFinished))
    assert outcomes(spec, only_log(tmp_path)) == {16: "ok"}


FILLING = """
import resource, signal, sys
from pathlib import Path
from sysbench.errors import OutputError
from sysbench.log.events import StepMeasured, WorkerReady
from tests.engine.fakes import ScriptedLauncher, spec_of, start

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
session = start(spec_of([16, 32]), Path(sys.argv[1]), ScriptedLauncher({32: "goes on"}))
try:
    for event in session:
        if isinstance(event, WorkerReady):
            print(event.pid)
        if isinstance(event, StepMeasured) and event.index == 3:
            limit = session.log_path.stat().st_size + 2000
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
except OutputError as error:
    print(error)
"""


def test_a_disk_that_fills_up_in_mid_run_stops_it_and_keeps_what_is_finished(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", FILLING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    (path,) = tmp_path.iterdir()
    pid, message = shown.stdout.splitlines()
    assert message == (f"cannot write {path}: file too large. The run was stopped; the log has all earlier events")
    assert not Path(f"/proc/{pid}").exists()
    assert outcomes(spec_of([16, 32]), read(path)) == {16: "ok"}


# Resuming

ACTS = {16: "ok", 32: "oom", 64: "crashed", 128: "killed", 256: "invalid", 512: "ok"}


def _first_run(out: Path, **script: Any) -> Path:
    """A log with an outcome of every kind, of which the last cell was not reached."""
    with start(spec_of(ACTS), out, ScriptedLauncher(ACTS, **script), force=True) as session:
        for event in session:
            if isinstance(event, CellStarted) and event.axes["ctx"] == 512:
                break
    return session.log_path


def _resume(path: Path, **options: Any) -> list[Event]:
    return carry_out(spec_of(ACTS), path.parent, resume=path, **options)


def test_resuming_runs_what_failed_or_is_missing_and_keeps_the_rest(tmp_path: Path) -> None:
    path = _first_run(tmp_path)
    before = list(read(path))
    assert outcomes(spec_of(ACTS), before) == {
        16: "ok",
        32: "oom",
        64: "crashed",
        128: "crashed",
        256: "invalid",
        512: "interrupted",
    }
    events = _resume(path, force=True)
    assert events[0] == RunResumed(at_s=events[0].at_s, keep=3)
    assert [event.axes["ctx"] for event in of_kind(events, CellStarted)] == [64, 128, 512]
    assert [event.index for event in of_kind(events, CellStarted)] == [2, 3, 5]
    assert list(read(path)) == [*before, *events]
    assert outcomes(spec_of(ACTS), read(path)) == {16: "ok", 32: "oom", 64: "ok", 128: "ok", 256: "invalid", 512: "ok"}


def test_resuming_remembers_what_ran_out_of_memory(tmp_path: Path) -> None:
    events = _resume(_first_run(tmp_path))
    assert outcomes(spec_of(ACTS), events) == {64: "skipped", 128: "skipped", 512: "skipped"}
    finished = of_kind(events, CellFinished)[0]
    assert finished.detail == (
        "at least as large as tiny d_model=32 layers=1, ctx 32, batch 4, which ran out of memory. "
        "--force starts it anyway"
    )


def test_a_cell_that_was_skipped_is_looked_at_again(tmp_path: Path) -> None:
    spec = spec_of([16])
    carry_out(spec, tmp_path, sampler=FakeSampler(free_bytes=1))
    (path,) = tmp_path.iterdir()
    assert outcomes(spec, carry_out(spec, tmp_path, resume=path)) == {16: "ok"}


def test_a_run_that_was_killed_in_mid_cell_is_resumed(tmp_path: Path) -> None:
    path = _first_run(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    # As if the power had gone while the second cell was written down.
    second = next(number for number, line in enumerate(lines) if b'"cell_started"' in line and b'"ctx":32' in line)
    path.write_bytes(b"".join(lines[: second + 1]) + lines[second + 1][:25])
    events = _resume(path)
    assert [event.axes["ctx"] for event in of_kind(events, CellStarted)] == [32, 64, 128, 256, 512]
    assert set(outcomes(spec_of(ACTS), read(path)).values()) == {"ok"}


@pytest.mark.parametrize("end", ["stopped", "killed", "damaged"])
def test_a_cell_is_continued_after_its_last_step_unless_the_log_is_damaged_there(tmp_path: Path, end: str) -> None:
    with start(spec_of([16]), tmp_path, ScriptedLauncher({16: "goes on"})) as session:
        for event in session:
            if isinstance(event, StepMeasured) and event.index == 2:
                break
    path = session.log_path
    lines = path.read_bytes().splitlines(keepends=True)
    steps = [number for number, line in enumerate(lines) if b'"step_measured"' in line]
    if end == "killed":
        path.write_bytes(b"".join(lines[: steps[-1] + 1]) + b'{"event":"step_me')
    elif end == "damaged":
        path.write_bytes(b"".join([*lines[: steps[1]], b"{}\n", *lines[steps[1] + 1 :]]))
    kept = 0 if end == "damaged" else len(steps)
    events = carry_out(spec_of([16]), tmp_path, ScriptedLauncher({16: "continues"}), resume=path)
    assert of_kind(events, CellFinished)[0].detail == f"after {kept} steps"
    (cell,) = fold(read(path)).cells
    assert (cell.outcome, cell.steps_taken, cell.attempts) == ("ok", (0, kept + 1), 1 if end == "damaged" else 2)


def test_a_complete_log_is_resumed_without_a_worker(tmp_path: Path) -> None:
    carry_out(spec_of([16]), tmp_path)
    (path,) = tmp_path.iterdir()
    events = carry_out(spec_of([16]), tmp_path, resume=path)
    assert [event.event for event in events] == ["run_resumed", "run_finished"]
    assert of_kind(events, RunFinished)[0].status == "complete"


def test_resuming_twice_needs_nothing_more(tmp_path: Path) -> None:
    path = _first_run(tmp_path)
    _resume(path, force=True)
    assert of_kind(_resume(path), WorkerReady) == []


def _refused(path: Path, error: type[SysbenchError], launcher: ScriptedLauncher | None = None, **fields: Any) -> str:
    """What is said when this log is to be continued; it must be left as it is."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(error) as caught:
        carry_out(spec_of(**{"ctx": ACTS, **fields}), path.parent, launcher, resume=path)
    assert before is None or path.read_bytes() == before
    return str(caught.value)


def test_a_log_of_another_spec_is_refused_with_every_difference(tmp_path: Path) -> None:
    path = _first_run(tmp_path)
    assert _refused(path, UsageError, ctx=[16, 32], batch=8, until="1%") == (
        f"--resume {path}: the log was made with different options: "
        "--batch 4 there, 8 here; --ctx 16,32,64,128,256,512 there, 16,32 here; --until none there, 0.01 here"
    )


def test_a_log_of_other_code_is_refused(tmp_path: Path) -> None:
    path = _first_run(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    started = json.loads(lines[0])
    started["source_digest"] = "feedc0de" * 8
    path.write_bytes(json.dumps(started).encode() + b"\n" + b"".join(lines[1:]))
    assert _refused(path, UsageError) == (
        f"--resume {path}: the log was made by different code: "
        f"sysbench 0.1.0 (feedc0de) there, 0.1.0 ({source_digest()[:8]}) here"
    )


@pytest.mark.parametrize(
    ("there", "here", "difference"),
    [
        ({"devices": [CPU]}, {"devices": [{**CPU, "name": "Other CPU"}]}, "Made-up CPU there, Other CPU here"),
        (
            {"devices": [GPU]},
            {"devices": [{**GPU, "uuid": "GPU-2"}]},
            "Made-up GPU (GPU-1) there, Made-up GPU (GPU-2) here",
        ),
        ({"devices": [GPU, CPU]}, {"devices": [CPU]}, "Made-up GPU (GPU-1) there, Made-up CPU here"),
    ],
)
def test_a_log_of_another_device_is_refused(
    tmp_path: Path, there: dict[str, Any], here: dict[str, Any], difference: str
) -> None:
    spec = spec_of([16, 32], device="auto")
    carry_out(spec, tmp_path, ScriptedLauncher({32: "crashed"}, **there))
    (path,) = tmp_path.iterdir()
    said = _refused(path, UsageError, ScriptedLauncher(**here), ctx=[16, 32], device="auto")
    assert said == f"--resume {path}: the log was made on a different device: {difference}"


def test_a_log_of_another_torch_is_refused(tmp_path: Path) -> None:
    path = _first_run(tmp_path)
    assert _refused(path, UsageError, ScriptedLauncher(torch="2.14.0")) == (
        f"--resume {path}: the log was made with a different torch: 2.13.0 there, 2.14.0 here"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read {path}: no such file"),
        (b"", "{path} is empty"),
        (b'{"cells": []}', "{path} is not a sysbench log"),
    ],
)
def test_what_is_no_log_is_neither_continued_nor_changed(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "log.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert _refused(path, LogError) == message.format(path=path)
    assert path.exists() is (content is not None)


def test_a_log_that_is_still_being_written_is_not_continued(tmp_path: Path) -> None:
    with start(spec_of(ACTS), tmp_path) as session:
        next(session)
        with pytest.raises(UsageError, match="is being written by another sysbench that is still running"):
            carry_out(spec_of(ACTS), tmp_path, resume=session.log_path)


def test_the_digest_changes_with_the_code(tmp_path: Path) -> None:
    program = "from sysbench.package import source_digest; print(source_digest())"
    package = Path(__file__).parents[2] / "sysbench"
    copy = tmp_path / "sysbench"
    subprocess.run(["cp", "-r", package, copy], check=True)

    def digest() -> str:
        run = [sys.executable, "-P", "-c", program]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    before = digest()
    assert before == source_digest()
    with (copy / "units.py").open("a") as file:
        file.write("\n")
    assert digest() != before


def test_only_the_last_attempt_at_a_cell_counts(tmp_path: Path) -> None:
    path = _first_run(tmp_path)
    _resume(path, force=True)
    record = fold(read(path))
    told = {cell.axes["ctx"]: (cell.outcome, cell.phases["step"].wall) for cell in record.cells}
    assert {ctx: (outcome, len(wall.samples_s)) for ctx, (outcome, wall) in told.items() if wall} == {
        16: ("ok", 1),
        32: ("oom", 1),
        64: ("ok", 1),
        128: ("ok", 1),
        256: ("invalid", 1),
        512: ("ok", 1),
    }
    assert record.status == "complete"

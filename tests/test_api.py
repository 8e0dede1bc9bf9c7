"""sysbench from Python: earlier runs, runs, traces and snapshots as objects and rows."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest

import sysbench
from sysbench.log.events import Event, StepMeasured
from tests.cli.running import QUICK, answered
from tests.worker.forked import children

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "tests" / "fixtures" / "runs"
TRACE, SNAPSHOT = RUNS / "trace-cpu.json.gz", RUNS / "snapshot-cpu-train.pickle.gz"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with runs in it, a trace and a snapshot."""
    copytree(RUNS / "dated", tmp_path / "runs")
    copy(TRACE, tmp_path / "trace.json.gz")
    copy(SNAPSHOT, tmp_path / "snapshot.pickle.gz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("place")
def test_the_page_of_the_documentation_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/api.md", "exec"), names)
    said = capsys.readouterr().out
    assert "<sysbench time: 2 cells, complete>" in said
    assert "complete ok" in said
    assert "Did you mean small?" in said
    assert len(list(Path("runs").glob("*-time.json"))) == 4


@pytest.mark.parametrize("name", ["time-a100.jsonl", "memory-a100.jsonl", "attention-budget.jsonl", "accum-a100.jsonl"])
def test_rows_are_those_of_the_csv_with_numbers_as_numbers(name: str) -> None:
    run = sysbench.load(RUNS / name)
    written = list(
        csv.DictReader(io.StringIO(answered(run.record.kind, "--from", str(RUNS / name), "--format", "csv").out))
    )
    rows = run.rows()
    assert [list(row) for row in rows] == [list(row) for row in written]
    assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows] == written


def test_a_table_has_the_same_keys_in_every_row_and_a_wrong_name_lists_all() -> None:
    run = sysbench.load(RUNS / "time-oom.json")
    rows = run.rows("summary")
    assert len({tuple(row) for row in rows}) == 1
    assert "oom" in {row["outcome"] for row in rows}
    with pytest.raises(sysbench.SysbenchError, match=r"sumary is not a table. Did you mean summary\?"):
        run.rows("sumary")


def test_a_time_is_read_alike_whether_it_was_measured_or_predicted(tmp_path: Path) -> None:
    words = "time --d-model 32 --d-ff 64 --layers 1 --heads 2 --vocab 50 --ctx 16 --batch 1 --mode forward"
    (predicted,) = sysbench.run(f"{words} --simulate h100", out=tmp_path / "predicted").cells
    (row,) = sysbench.load(next(tmp_path.glob("predicted/*.json"))).rows("predicted")
    assert predicted.time_s("step") == pytest.approx(row["step_s"], rel=1e-8)
    assert 0 < predicted.time_s("forward") <= predicted.time_s()
    assert predicted.time_s("backward") is None
    with pytest.raises(KeyError, match=r"'step' was not measured in this cell; time_s\('step'\) also returns"):
        predicted.phases["step"]
    for measured in sysbench.load(RUNS / "time-a100.jsonl").cells:
        assert measured.time_s() == (measured.phases["step"].times.median_s if measured.outcome == "ok" else None)
    with pytest.raises(KeyError, match="'forwards' is not a phase"):
        measured.time_s("forwards")


@pytest.mark.usefixtures("place")
def test_earlier_runs_are_found_by_name() -> None:
    newest = json.loads(Path("runs/2026-11-21T10-00-00-time.json").read_text())
    newest["status"] = "interrupted"
    Path("runs/2026-11-21T10-00-00-time.json").write_text(json.dumps(newest))
    assert repr(sysbench.load("latest")) == "<sysbench time: 2 cells, interrupted>"
    assert repr(sysbench.load("time:latest~1")) == "<sysbench time: 2 cells, complete>"
    assert sysbench.load("accum:latest").record.kind == "accum"
    with pytest.raises(sysbench.SysbenchError, match="matches 4 runs"):
        sysbench.load("runs")
    with pytest.raises(sysbench.SysbenchError, match="nowhere is neither a file nor a directory"):
        sysbench.load("nowhere")


def test_a_notebook_shows_tables_with_every_name_escaped() -> None:
    run = sysbench.load(RUNS / "time-a100.jsonl")
    name = "<script>alert(1)</script>"
    cells = [cell.model_copy(update={"outcome": "crashed", "detail": name}) for cell in run.cells]
    page = sysbench.Run(run.record.model_copy(update={"cells": cells}))._repr_html_()
    assert "<table" in page
    assert "&lt;script&gt;" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("read", "path"),
    [(sysbench.load, RUNS / "profile-cpu.jsonl"), (sysbench.read_trace, TRACE), (sysbench.read_snapshot, SNAPSHOT)],
)
def test_whatever_is_read_has_rows_a_page_and_json(read: Callable[[Path], Any], path: Path) -> None:
    found = read(path)
    assert found.rows()
    assert "<table" in found._repr_html_()
    assert json.loads(found.to_json())
    assert "\n" not in repr(found)


@pytest.mark.parametrize("read", [sysbench.load, sysbench.read_trace, sysbench.read_snapshot])
def test_what_cannot_be_read_is_one_error(read: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("Hello")
    for path in (tmp_path / "other.json", tmp_path / "none.json"):
        with pytest.raises(sysbench.SysbenchError, match=path.name):
            read(path)


def test_a_run_of_a_spec_lands_where_its_options_say_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    events: list[str] = []
    spec = sysbench.MemorySpec(size="tiny", ctx="16", simulate="24GiB", mode="train", batch="1,2")
    run = sysbench.run(spec, out=tmp_path / "here", progress=lambda event: events.append(event.event))
    assert [cell.cell.batch for cell in run.cells] == [1, 2]
    assert (events[0], events[-1]) == ("run_started", "run_finished")
    assert len(list((tmp_path / "here").iterdir())) == 2
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_reaches_the_program_once_the_results_are_saved(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, StepMeasured) and event.index == 3:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    words = ("time", *QUICK, "--steps", "1000000")
    with pytest.raises(KeyboardInterrupt):
        sysbench.run(" ".join(words), out=tmp_path, progress=interrupt)
    (saved,) = tmp_path.glob("*.json")
    run = sysbench.load(saved)
    assert run.record.status == "interrupted"
    assert len(run.cells[0].phases["step"].wall.samples_s) >= 3
    assert signal.getsignal(signal.SIGINT) == handler


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("tme", "tme is not a command that runs cells. Did you mean time?"),
        ("time --sise small", "No such option: --sise"),
        ("time --size smal", "--size smal is not a size. Did you mean small?"),
        ("time --simulate 24GiB", "--simulate 24GiB: its rates are unknown, so times cannot be predicted"),
        ("time --plan", "--plan and --from do not run anything"),
        ("time 'x", "into arguments"),
    ],
)
def test_what_the_command_line_refuses_is_refused_in_the_same_words(words: str, complaint: str) -> None:
    with pytest.raises(sysbench.SysbenchError, match=re.escape(complaint)):
        sysbench.run(words)
    with pytest.raises(sysbench.SysbenchError, match=r"forze is not an option of sysbench time. Did you mean force\?"):
        sysbench.run("time", forze=True)


@pytest.mark.parametrize(
    ("spec", "fields", "complaint"),
    [
        (sysbench.TimeSpec, {"size": "smal"}, "size= smal is not a size. Did you mean small? (tiny, small, "),
        (sysbench.TimeSpec, {"siz": "small"}, "siz= is not a field of TimeSpec. Did you mean size? ("),
        (sysbench.TimeSpec, {"max_steps": 0}, "max_steps= 0 is out of range: it must be 1 or more. Nearest: 1"),
        (sysbench.TimeSpec, {"device": "cpu", "simulate": "h100"}, "--device names the device to measure on, but"),
        (sysbench.AttentionSpec, {"impl": "nave"}, "impl= nave is not an implementation. Did you mean naive?"),
        (sysbench.MemorySpec, {"find": "size"}, "find= "),
        (sysbench.ProfileSpec, {"active": 0}, "active= 0 is out of range"),
        (sysbench.AccumSpec, {"experiment": "norms"}, "experiment= norms is not an experiment. Did you mean norm?"),
    ],
)
def test_an_invalid_spec_is_refused_in_one_line(spec: type, fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(sysbench.SysbenchError) as caught:
        spec(**fields)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", [None, 3, ["time", "--size", "tiny"], sysbench.TimeSpec])
def test_what_is_neither_a_spec_nor_a_command_line_is_refused(what: Any) -> None:
    with pytest.raises(sysbench.SysbenchError, match="run needs a spec, such as TimeSpec"):
        sysbench.run(what)


def test_progress_must_be_a_function() -> None:
    with pytest.raises(sysbench.SysbenchError, match="progress=5 is not a function"):
        sysbench.run("time --size tiny", progress=5)  # type: ignore[arg-type]


def test_a_refusal_that_asked_a_worker_for_its_devices_leaves_no_process() -> None:
    with pytest.raises(sysbench.SysbenchError, match="--verify measures on a GPU"):
        sysbench.run("fit --size tiny --on h100 --verify")
    assert not children()


def test_importing_sysbench_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import sysbench; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["sysbench"]


def test_a_record_is_saved_into_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    run = sysbench.load(RUNS / "time-a100.jsonl")
    run.save(tmp_path / "new" / "runs" / "saved.json")
    assert sysbench.load(tmp_path / "new" / "runs" / "saved.json").rows() == run.rows()

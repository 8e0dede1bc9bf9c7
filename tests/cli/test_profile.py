"""`sysbench profile` as a user meets it."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import MINUTE, Ran, answered, only, ran_once, record_in, started, sysbench, wait_until
from tests.processes import HANG_S

CELL = (*MINUTE, "--ctx", "16", "--device", "cpu", "--steps", "3", "--warmup", "1", "--mode", "forward-backward")
LAYERS = 1


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything that one profiled cell can leave."""
    words = (*CELL, "--active=2", "--trace=t.json.gz", "--window=w.json", "--flame=f.html")
    ran, out = ran_once(tmp_path_factory, "profile-of-one-cell", "profile", *words, COLUMNS="120")
    assert ran.code == 0, ran.err
    (out / "shown.txt").write_text(ran.out)
    (out / "said.txt").write_text(ran.err)
    return out


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """Two cells and their traces."""
    axes = ("--steps=0", "--mode=inference,forward", "--trace=t.json", "--json=-")
    ran, out = ran_once(tmp_path_factory, "profile-of-two-cells", "profile", *CELL, *axes)
    return out, ran


def cell_in(directory: Path) -> dict[str, Any]:
    (cell,) = record_in(directory / "runs")["cells"]
    found: dict[str, Any] = cell
    return found


def log_in(directory: Path) -> Path:
    return only(directory / "runs", "*.jsonl")


# --- a run


def test_the_step_is_timed_first_in_another_process_than_it_is_profiled_in(profiled: Path) -> None:
    said = [json.loads(line) for line in log_in(profiled).read_text().splitlines()]
    workers = [event["pid"] for event in said if event["event"] == "worker_ready"]
    assert len(workers) == len(set(workers)) == 2
    timed, cell = (event for event in said if event["event"] == "cell_started")
    assert (timed["axes"]["kind"], cell["axes"]["kind"]) == ("time", "profile")
    record = cell_in(profiled)
    assert record["unprofiled"]["samples_s"] == [
        event["step"]["wall_s"]
        for event in said
        if event["event"] == "step_measured" and event["cell"] == timed["cell"] and not event["warmup"]
    ]
    assert len(record["unprofiled"]["samples_s"]) == 3
    assert len(record["profiled_s"]) == 2


def test_calls_are_per_step_and_the_batched_products_are_all_there(profiled: Path) -> None:
    summary = cell_in(profiled)["summary"]
    assert summary["steps"] == 2
    names = [name["name"] for name in summary["names"]]
    calls = sum(
        count
        for kernel, count in zip(summary["spent"]["kernel"], summary["spent"]["calls"], strict=True)
        if names[kernel] == "aten::bmm"
    )
    assert calls == 2 * 3 * (9 * LAYERS + 1)
    assert summary["checks"]
    assert all(check["found"] == check["expected"] for check in summary["checks"])


def test_the_tables_name_modules_and_say_that_this_is_the_cpu(profiled: Path) -> None:
    shown = (profiled / "shown.txt").read_text()
    for word in ("layers.*", "attention", "softmax", "aten::bmm", "matmul", "CPU", "2 steps profiled"):
        assert word in shown, word


def test_the_trace_is_kept_and_opens_as_json(profiled: Path) -> None:
    cell = cell_in(profiled)
    trace = profiled / "t.json.gz"
    assert cell["trace"] == str(trace)
    assert cell["trace_bytes"] == trace.stat().st_size
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert f"saved  {trace}" in (profiled / "said.txt").read_text()


def test_the_window_is_a_slice_that_opens_as_json(profiled: Path) -> None:
    events = json.loads((profiled / "w.json").read_text())["traceEvents"]
    assert [event["name"] for event in events].count("step") == 1


def test_the_flame_graph_is_written(profiled: Path) -> None:
    assert "<!doctype html>" in (profiled / "f.html").read_text()[:500].lower()


def test_every_cell_of_a_sweep_leaves_a_trace_of_its_own(sweep: tuple[Path, Ran]) -> None:
    out, ran = sweep
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in out.glob("t*.json")) == ["t-forward.json", "t-inference.json"]
    record = json.loads(ran.out)  # stdout is the record alone
    assert [cell["axes"]["mode"] for cell in record["cells"]] == ["inference", "forward"]
    assert record["kind"] == "profile"


def test_without_a_terminal_every_cell_gets_one_line(sweep: tuple[Path, Ran]) -> None:
    _, ran = sweep
    lines = [line for line in ran.err.splitlines() if "these times will be too long" not in line]
    device, first, second, *saved = lines
    assert "torch" in device
    assert first.startswith("1/2 ")
    assert "inference" in first
    assert second.startswith("2/2 ")
    assert "operators per step" in second
    assert all(line.startswith("saved  ") for line in saved)


def test_a_run_that_was_interrupted_is_resumed_in_silence_and_leaves_no_trace(tmp_path: Path) -> None:
    # Enough steps that are not measured for the profile to be still to come when Ctrl-C does.
    words = ("--steps=0", "--warmup=300", "--mode=inference", f"--out={tmp_path / 'runs'}", "--quiet")
    with started("profile", *CELL, *words, TMPDIR=str(tmp_path)) as process:
        logs = (tmp_path / "runs").glob
        wait_until(lambda: any('"cell_started"' in log.read_text() for log in logs("*.jsonl")), process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    log = log_in(tmp_path)
    assert '"profile_read"' not in log.read_text()
    assert not list(tmp_path.glob("sysbench-*"))
    resumed = answered("profile", f"--resume={log}", "--quiet", TMPDIR=str(tmp_path))
    assert (resumed.code, resumed.err) == (0, "")
    cell = cell_in(tmp_path)
    assert (cell["outcome"], cell["unprofiled"], cell["trace"]) == ("ok", None, None)
    assert cell["summary"]["names"]
    assert not list(tmp_path.glob("sysbench-*"))


# --- what was recorded before


def test_a_log_a_record_and_a_trace_are_shown_without_torch(profiled: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not wanted')")
    blocked = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]), "COLUMNS": "120"}
    shown = (profiled / "shown.txt").read_text()
    for source in (log_in(profiled), only(profiled / "runs", "*.json")):
        ran = sysbench("profile", f"--from={source}", **blocked)
        assert (ran.code, ran.out) == (0, shown), ran.err
    trace = sysbench("profile", f"--from={profiled / 't.json.gz'}", **blocked)
    assert trace.code == 0, trace.err
    assert "aten::bmm" in trace.out


def test_several_traces_are_ranks_side_by_side(profiled: Path, tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        shutil.copy(profiled / "t.json.gz", tmp_path / name)
    (tmp_path / "notes.txt").write_text("no trace")
    ran = answered("profile", f"--from={tmp_path / 'a.json.gz'},{tmp_path / 'b.json.gz'}", COLUMNS="120")
    assert ran.code == 0, ran.err
    assert "a.json.gz" in ran.out
    assert "b.json.gz" in ran.out
    assert answered("profile", f"--from={tmp_path}", COLUMNS="120") == ran, "as the directory that they are in"


def test_a_directory_without_traces_is_a_mistake(tmp_path: Path) -> None:
    ran = answered("profile", "--from=.", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.complaint == ("sysbench profile: --from . contains no trace (.json, .json.gz, .sqlite, .nsys-rep)")


def test_what_is_shown_can_be_chosen(profiled: Path) -> None:
    source = f"--from={only(profiled / 'runs', '*.json')}"
    ran = answered("profile", source, "--tables=kernels", "--range=forward", "--kernel=bmm|exp$", "--format=csv")
    assert ran.code == 0, ran.err
    rows = list(csv.reader(ran.out.splitlines()))
    names = {cell for row in rows[1:] for cell in row if cell.startswith("aten::")}
    assert names == {"aten::bmm", "aten::exp"}


def test_csv_of_a_trace_is_one_table_as_of_a_record(profiled: Path) -> None:
    ran = answered("profile", f"--from={profiled / 't.json.gz'}", "--format=csv")
    assert ran.code == 0, ran.err
    heading, *rows = csv.reader(ran.out.splitlines())
    assert "operator" in heading
    assert {len(row) for row in rows} == {len(heading)}


def test_a_slice_can_be_shown_as_a_trace(profiled: Path) -> None:
    ran = answered("profile", f"--from={profiled / 'w.json'}", "--tables=tree", COLUMNS="120")
    assert ran.code == 0, ran.err
    assert "1 step profiled" in ran.out
    assert "softmax" in ran.out


def test_the_summary_of_a_trace_is_json_too(profiled: Path) -> None:
    ran = answered("profile", f"--from={profiled / 't.json.gz'}", "--json=-")
    content = json.loads(ran.out)
    assert content["kind"] == "traces"
    assert [summary["steps"] for summary in content["summaries"]] == [2]


def test_a_trace_with_nothing_in_it_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    ran = answered("profile", "--from=empty.json", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.complaint == "sysbench profile: empty.json has no events with a duration"


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--active", "9"], "--active 9 is out of range: it must be 1 to 3. Nearest: 3"),
        (["--with", "nsis"], "--with nsis is not a profiler. Did you mean nsys? (torch, nsys)"),
        (["--kernel", "gemm("], "--kernel gemm( is not a regular expression: missing ), unterminated subpattern"),
        (["--sort", "tota"], "--sort tota is not allowed. Did you mean total? (total, calls, avg, med, min, max"),
        (["--top", "-1"], "--top -1 is out of range: it must be 0 or more. Nearest: 0"),
        (["--tables", "kernles"], "--tables kernles is not a table. Did you mean kernels?"),
        (["--window", "w.txt"], "--window w.txt must end in .json or .json.gz"),
        (["--flame", "f.png"], "--flame f.png must end in .html"),
        (["--trace", "t.sqlite"], "--trace t.sqlite must end in .json or .json.gz with --with torch"),
        (["--trace", "none/t.json"], "cannot write"),
        (["--with", "nsys"], "--with nsys: nsys not found on PATH. To get it, install Nsight Systems"),
        (["--from", "none.json"], "cannot read none.json: no such file"),
        (["--from", "a.json,"], "--from a.json, is not a list of file names"),
        (["--from", ""], "--from (nothing) is not a list of file names"),
        (
            ["--from", "a.json", "--window", "a.json"],
            "--window a.json is also the file of --from: give each its own file",
        ),
        (
            ["--trace", "a.json", "--window", "./a.json"],
            "--window a.json is also the file of --trace: give each its own file",
        ),
        (
            ["--flame", "a.html", "--json", "a.html"],
            "--flame a.html is also the file of --json: give each its own file",
        ),
        (["--from", "a.json", "--ctx", "7"], "--from shows a finished run; --ctx would have no effect"),
        (["--from", "a.json", "--trace", "b.json"], "--trace keeps the trace of a run; --from reads an existing one"),
        (["--from", "a.json,b.json", "--window", "c.json"], "--window and --flame need a single trace"),
        (["--from", "a.jsonl,b.json"], "--from takes one log or record, or several traces; a.jsonl is a log or record"),
    ],
)
def test_a_mistake_is_answered_in_one_line_before_anything_is_run(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    ran = answered("profile", *arguments, cwd=tmp_path, PATH=str(tmp_path))
    assert ran.code in (1, 2)
    assert ran.out == ""
    assert ran.complaint.startswith(f"sysbench profile: {complaint}")
    assert not list(tmp_path.iterdir())


def test_a_record_holds_no_trace_to_slice(profiled: Path) -> None:
    ran = answered("profile", f"--from={only(profiled / 'runs', '*.json')}", "--window=w.json")
    assert ran.code == 2
    assert "--window needs a trace" in ran.complaint


def test_a_range_that_is_not_there_is_named_with_the_nearest(profiled: Path) -> None:
    ran = answered("profile", f"--from={profiled / 't.json.gz'}", "--range=forwrad")
    assert ran.code == 2
    assert "forwrad" in ran.complaint
    assert "Did you mean forward?" in ran.complaint


def test_what_can_be_shown_is_shown_where_the_part_that_was_asked_for_is_not_there(profiled: Path) -> None:
    source = f"--from={only(profiled / 'runs', '*.json')}"
    for wrong, complaint in (
        ("--range=forwrad", "--range forwrad is not a range of this profile"),
        ("--kernel=gemn", "--kernel gemn matches no operator"),
    ):
        ran = answered("profile", source, wrong, COLUMNS="120")
        assert ran.code == 2
        assert ran.complaint.startswith(f"sysbench profile: {complaint}")
        assert ran.out == (profiled / "shown.txt").read_text()


def test_the_plan_shows_cells_and_runs_nothing(tmp_path: Path) -> None:
    ran = answered("profile", "--plan", "--size=tiny", "--ctx=64,128", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "128" in ran.out
    assert not list(tmp_path.iterdir())

"""`sysbench report` as its users call it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.running import Ran, answered, sysbench
from tests.fixtures_runs import record, stream, write_log, write_record


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    directory = tmp_path / "runs"
    directory.mkdir()
    write_log(directory / "2026-11-20T14-00-00-accum.jsonl", stream("accum")[:-3])
    write_record(directory / "2026-11-20T15-00-00-memory.json", record("memory"))
    return directory


def refused(*arguments: str, cwd: Path) -> Ran:
    ran = answered("report", *arguments, cwd=cwd)
    assert ran.out == ""
    return ran


def blocked(directory: Path) -> Path:
    """The directory, with a torch in it that cannot be imported."""
    (directory / "torch.py").write_text("raise ImportError('torch was asked for')\n")
    return directory


def test_one_call_writes_every_kind_of_report_without_torch(runs: Path) -> None:
    there = runs.parent
    without_torch = f"{blocked(there)}:{':'.join(sys.path)}"
    words = ("-o", "a.html", "-o", "a.md", "-o", "a.tex", "-o", "a.csv", "--title", "Mine")
    ran = sysbench("report", *words, cwd=there, PYTHONPATH=without_torch)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.split() == ["saved", "a.html", "saved", "a.md", "saved", "a.tex", "saved", "a.csv"]
    assert (there / "a.html").read_text().startswith("<!doctype html>")
    assert (there / "a.md").read_text().startswith("# Mine\n")
    assert r"\title{Mine}" in (there / "a.tex").read_text()
    assert {"table", "run", "section", "origin"} <= set((there / "a.csv").read_text().splitlines()[0].split(","))
    stems = {path.stem for path in (there / "a-files").glob("*.png")}
    assert stems == {path.stem for path in (there / "a-files").glob("*.pdf")} != set()
    assert not list(there.glob(".*.tmp"))


def test_without_a_file_the_terminal_shows_findings_tables_and_environment(runs: Path) -> None:
    ran = answered("report", "runs", cwd=runs.parent, COLUMNS="120")
    assert (ran.code, ran.err) == (0, "")
    assert "peak memory, simulated" in ran.out
    assert "this run is not complete" in ran.out
    assert "Environment" in ran.out
    assert all(len(line) <= 120 for line in ran.out.splitlines())


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(runs: Path) -> None:
    ran = refused("nothing-there", "-o", "none/a.html", cwd=runs.parent)
    assert (ran.code, ran.complaint) == (1, "sysbench report: cannot write none/a.html: there is no directory none")
    (runs.parent / "a-files").write_text("in the way")
    ran = refused("nothing-there", "-o", "a.md", cwd=runs.parent)
    assert (ran.code, "a-files" in ran.complaint) == (1, True)
    ran = refused("nothing-there", "-o", f"{'x' * 250}.md", cwd=runs.parent)
    assert (ran.code, "-files: file name too long" in ran.complaint) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-o", "a.htm"], "--output a.htm must end in .html, .md, .tex or .csv"),
        (["-o", "a.md", "-o", "a.md"], "--output a.md is given twice"),
        (["-o", "a.md", "-o", "a.tex", "empty"], "empty contains no runs"),
        (["runs/2026-11-20T15-00-00-memry.json"], "is neither a file nor a directory"),
        (["torn.json"], "torn.json is not JSON, or is truncated"),
        (["newer.json"], "newer.json has schema 99 and was written by sysbench 7.1; this version reads schema 1"),
    ],
)
def test_what_cannot_be_reported_gets_one_line(runs: Path, arguments: list[str], complaint: str) -> None:
    there = runs.parent
    (there / "empty").mkdir()
    whole = next(runs.glob("*.json")).read_text()
    (there / "torn.json").write_text(whole[:5000])
    newer = whole.replace('"schema_version": 1', '"schema_version": 99', 1)
    (there / "newer.json").write_text(newer.replace('"sysbench_version": "0.1.0"', '"sysbench_version": "7.1"', 1))
    ran = refused(*arguments, cwd=there)
    assert ran.code == 2
    assert complaint in ran.complaint
    assert not list(there.glob("a.*"))


def test_without_any_run_it_says_what_to_name(tmp_path: Path) -> None:
    ran = refused(cwd=tmp_path)
    assert ran.code == 2
    assert (
        ran.complaint == "sysbench report: no directory runs here: name logs, records or directories that contain them"
    )


def test_only_some_runs_are_written_up_and_a_wrong_name_lists_those_there_are(tmp_path: Path) -> None:
    runs = Path(__file__).parent.parent / "fixtures" / "runs"
    names = (str(runs / "time-a100.jsonl"), str(runs / "memory-a100.jsonl"))
    shown = answered("report", *names, "--only", "memory", "--summary")
    assert shown.code == 0, shown.err
    assert "Peak memory" in shown.out or "memory" in shown.out
    assert "tokens/s" not in shown.out
    wrong = answered("report", *names, "--only", "memry")
    assert wrong.code == 2
    assert "Did you mean memory" in wrong.complaint

"""Whatever reads records reads those of a program that measured itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sysbench
from tests.cli.running import answered
from tests.fixtures_runs import record, write_record

HOSTILE = "<script>alert(1)</script> [red]\\textbf{x} $a_b$ | 50%"


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two records in `runs/`, of which the second has a hostile name and phase."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    write_record(tmp_path / "runs" / "2026-11-20T10-00-00-loop.json", record("loop"))
    write_record(tmp_path / "runs" / "2026-11-20T10-00-01-loop.json", record("loop", HOSTILE))
    return tmp_path


@pytest.mark.usefixtures("saved")
def test_the_command_shows_it_by_path_and_by_name_in_every_format() -> None:
    shown = answered("loop", "latest~1")
    assert shown.code == 0, shown.err
    assert shown.out == answered("loop", "--from", "runs/2026-11-20T10-00-00-loop.json").out
    for words in ("mine", "forward", "backward", "outside phases", "measured by the process itself", "3 GiB", "3.00"):
        assert words in shown.out or words in ("3 GiB", "3.00")
    for form in ("terminal", "markdown", "csv", "latex"):
        hostile = answered("loop", "latest", "--format", form)
        assert hostile.code == 0, hostile.err
        assert "alert" in hostile.out
    assert r"\textbf{x}" not in answered("loop", "latest", "--format", "latex").out.replace(r"\textbackslash{}", "")
    told = json.loads(answered("loop", "latest", "--json", "-").out)
    assert (told["kind"], told["cells"][0]["self_measured"]) == ("loop", True)
    assert not {"size", "ctx", "batch", "precision", "model"} & set(told["cells"][0]["axes"])
    rows = sysbench.load("loop:latest~1").rows()
    assert [row["phase"] for row in rows] == ["forward", "backward", "outside phases", "step"]
    assert rows[-1]["tokens_per_s"] == pytest.approx(4096 / rows[-1]["wall_mean_s"])


@pytest.mark.usefixtures("saved")
def test_reports_comparisons_and_the_history_take_it() -> None:
    reported = answered("report", "runs", "-o", "report.html", "-o", "report.md")
    assert reported.code == 0, reported.err
    page = Path("report.html").read_text()
    assert "Your own loop" in page
    assert "<script>alert" not in page
    assert "sysbench.record(name=" in Path("report.md").read_text()
    same = answered("compare", "latest~1", "latest~1")
    assert same.code == 0, same.err
    assert "SAME" in same.out
    listed = answered("history", COLUMNS="200")
    assert "sysbench.record(name='mine')" in listed.out
    assert "sysbench loop --from" in answered("history", "latest~1").out


def test_steps_of_other_work_are_not_compared(tmp_path: Path) -> None:
    other = record("loop")
    (cell,) = other.cells
    spec = {**other.spec, "tokens": 8192}
    changed = cell.model_copy(update={"cell": cell.cell.model_copy(update={"tokens": 8192})})
    a = write_record(tmp_path / "a.json", record("loop"))
    b = write_record(tmp_path / "b.json", other.model_copy(update={"spec": spec, "cells": [changed]}))
    refused = answered("compare", str(a), str(b))
    assert refused.code == 2
    assert "tokens is 4096 in A and 8192 in B" in refused.complaint
    assert answered("compare", str(a), str(b), "--across", "tokens").code == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["loop"], "pass exactly one FILE that sysbench.measure or sysbench.record wrote"),
        (["loop", "nowhere"], "nowhere is neither a file nor a directory"),
        (["loop", "latest", "--tables", "phase"], "phase is not a table. Did you mean phases?"),
        (["loop", "latest", "--columns", "meen"], "meen is not a column"),
    ],
)
@pytest.mark.usefixtures("saved")
def test_a_wrong_word_is_one_line(words: list[str], complaint: str) -> None:
    ran = answered(*words)
    assert ran.code == 2
    assert complaint in ran.complaint


def test_a_loop_cannot_be_run_by_sysbench(saved: Path) -> None:
    with pytest.raises(sysbench.SysbenchError, match="loop is not a command that runs cells"):
        sysbench.run("loop latest")
    (saved / "own.toml").write_text('title = "x"\n[[run]]\ncommand = "loop"\n')
    assert "loop is not a command that measures" in answered("run", "own.toml", "--plan").complaint


def test_a_file_of_another_command_and_a_damaged_one_are_refused(saved: Path) -> None:
    path = write_record(saved / "calibrate.json", record("calibrate"))
    assert "is a record of `sysbench calibrate`, not of `sysbench loop`" in answered("loop", str(path)).complaint
    whole = (saved / "runs" / "2026-11-20T10-00-00-loop.json").read_text()
    for number, damaged in enumerate((whole[: len(whole) // 2], whole.replace('"step": {', '"stop": {'))):
        (saved / f"damaged-{number}.json").write_text(damaged)
        refused = answered("loop", f"damaged-{number}.json")
        assert (refused.code, f"damaged-{number}.json" in refused.complaint) == (2, True)


def test_marks_that_nobody_listens_to_import_nothing_else() -> None:
    code = (
        "import sys, sysbench\nwith sysbench.phase('forward'): pass\nsysbench.step()\n"
        "print(sorted(name for name in sys.modules if name.startswith('sysbench')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['sysbench', 'sysbench.marks']"

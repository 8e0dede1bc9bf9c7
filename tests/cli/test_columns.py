"""--columns, on a finished run: no torch, and no waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.commands.time.spec import TimeSpec
from sysbench.log.events import encode
from tests import fixtures_timing
from tests.cli.running import QUICK, answered, sysbench


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    spec = TimeSpec(size="small", ctx=512, precision="bf16", steps=40)  # type: ignore[arg-type]
    path.write_bytes(b"".join(encode(event) + b"\n" for event in fixtures_timing.events(spec)))
    return path


def test_columns_that_were_asked_for_are_shown(log: Path) -> None:
    ran = answered("time", "--from", str(log), "--columns", "step,mfu,energy", COLUMNS="100")
    assert ran.code == 0, ran.err
    assert "MFU" in ran.out
    assert "mJ/token" in ran.out
    assert "backward" not in ran.out.split("MFU:")[0].replace("train", "")


def test_a_wrong_column_is_answered_with_what_there_is_before_any_table(log: Path) -> None:
    ran = answered("time", "--from", str(log), "--columns", "+enrgy", COLUMNS="100")
    assert ran.code == 2
    assert ran.complaint.startswith(
        "sysbench time: --columns enrgy is not a column of these tables. Did you mean energy? (energy, "
    )
    assert ran.out == ""


def test_what_no_terminal_shows_has_all_columns_unless_a_width_is_asked_for(log: Path, tmp_path: Path) -> None:
    words = ("time", "--from", str(log))
    written = sysbench(*words).out
    for title in ("zero_grad", "loss", "of matmul", "throughput", "peak memory"):
        assert f"  {title}" in written
        assert f"  {title}" not in answered(*words, COLUMNS="80").out
    assert "a wider terminal" not in written
    assert "a wider terminal" in answered(*words, COLUMNS="80").out
    only_some = answered(*words, "--columns", "step", COLUMNS="").out
    assert "throughput" not in only_some.partition("peak:")[0]
    (tmp_path / "a.json").write_text(answered(*words, "--json", "-").out)
    assert answered("report", str(tmp_path / "a.json"), COLUMNS="").out.count("throughput") == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("time", *QUICK, "--columns", "stp"), "--columns stp is not a column of these tables. Did you mean step?"),
        (("memory", "--size", "tiny", "--simulate", "8GiB", "--columns", "alocated"), "Did you mean allocated_peak?"),
        (("profile", "--size", "tiny", "--columns", "totl"), "--columns totl is not a column"),
        (("attention", "--seq", "64", "--columns", "forwrd"), "Did you mean forward?"),
        (("accum", "--columns", "eror"), "Did you mean error?"),
        (("time", *QUICK, "--columns", "wall_p95"), "--columns wall_p95 is in the table cells: add --tables cells"),
    ],
)
def test_a_wrong_column_is_refused_before_anything_is_measured(
    words: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    ran = answered(*words, "--out", str(tmp_path))
    assert ran.code == 2
    assert complaint in ran.complaint
    assert ran.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_this_run_does_not_fill_is_said_to_be_missing_and_the_others_are_shown(log: Path) -> None:
    ran = answered("time", "--from", str(log), "--columns", "step,compile", COLUMNS="100")
    assert ran.code == 0, ran.err
    assert "no column compile: no cell of this run has a value" in ran.out
    assert "step" in ran.out


def test_an_experiment_with_a_wrong_column_is_refused_before_its_first_run(tmp_path: Path) -> None:
    experiment = tmp_path / "mine.toml"
    experiment.write_text('title = "mine"\n[[run]]\nname = "one"\ncommand = "time"\ncolumns = "stp"\n')
    ran = answered("run", str(experiment), "--out", str(tmp_path / "runs"))
    assert ran.code == 2
    assert "--columns stp is not a column of these tables" in ran.complaint
    assert list((tmp_path / "runs").iterdir()) == []

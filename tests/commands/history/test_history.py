"""Earlier runs: listed newest first, and shown one by one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from sysbench.log.journal import Log
from sysbench.log.runs import load
from tests.cli.running import answered
from tests.fixtures_runs import write_record

FIXTURES = Path(__file__).parents[2] / "fixtures" / "runs"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Single runs, an experiment, a comparison, and what somebody else keeps there."""
    runs = tmp_path / "runs"
    shutil.copytree(FIXTURES / "dated", runs)
    shutil.copytree(FIXTURES / "experiments" / "2026-11-22T02-26-49-warmup", runs / "2026-11-22T02-26-49-warmup")
    shutil.copytree(FIXTURES / "ab" / "2026-11-22T02-24-39-compare", runs / "2026-11-22T02-24-39-compare")
    (runs / "mine").mkdir()
    shutil.copy(FIXTURES / "time-killed.jsonl", runs / "mine")
    shutil.copy(FIXTURES / "time-a100.jsonl", runs)
    write_record(runs / "time-a100.json", load(FIXTURES / "time-a100.jsonl"))
    (runs / "notes.txt").write_text("keep me")
    (runs / "damaged.jsonl").write_bytes((FIXTURES / "time-a100.jsonl").read_bytes()[:700])
    for path in runs.rglob("*"):
        os.utime(path, (1_795_400_000, 1_795_400_000))
    return tmp_path


def rows(place: Path, *words: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(answered("history", "--json", "-", *words, cwd=place).out)["tables"][0][
        "rows"
    ]
    return found


def test_runs_are_listed_newest_first_with_what_they_were_and_how_they_ended(place: Path) -> None:
    listed = rows(place)
    began = [str(row["began"]) for row in listed]
    assert began == sorted(began, reverse=True)
    by_name = {row["name"]: row for row in listed}
    assert len(by_name) == 9
    single = by_name["time-a100"]
    assert single["what"] == "--size small,xl --ctx 128,1024,4096 --precision fp32,bf16 --warmup 2 --steps 8"
    assert single["outcome"] == "complete, 6 ok, 4 oom, 2 skipped"
    assert single["size_bytes"] == sum(path.stat().st_size for path in (place / "runs").glob("time-a100.*"))
    assert (by_name["2026-11-22T02-26-49-warmup"]["command"], by_name["2026-11-22T02-26-49-warmup"]["what"]) == (
        "run",
        "warmup",
    )
    assert by_name["2026-11-22T02-24-39-compare"]["command"] == "compare"
    assert str(by_name["mine"]["outcome"]).startswith("incomplete")
    assert str(by_name["damaged"]["outcome"]).startswith("unreadable")
    shown = answered("history", cwd=place)
    assert shown.code == 0
    assert shown.out.index("2026-11-22T02-26-49-warmup") < shown.out.index("2026-11-19T10-00-00-time")


def test_one_run_is_shown_with_its_files_and_what_repeats_it(place: Path) -> None:
    shown = answered("history", "time-a1", cwd=place, COLUMNS="")
    assert shown.code == 0, shown.err
    assert "sysbench time --size small,xl --ctx 128,1024,4096" in shown.out
    assert "runs/time-a100.json " in shown.out
    assert "runs/time-a100.jsonl " in shown.out
    assert "sysbench run --resume" in answered("history", "latest", cwd=place, COLUMNS="").out
    by_path = answered("history", "runs/2026-11-22T02-24-39-compare", cwd=place, COLUMNS="").out
    assert "shows its result" in by_path
    unknown = answered("history", "nothing-like-it", cwd=place)
    assert (unknown.code, len(unknown.err.splitlines())) == (2, 1)


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A directory with the log of a run that was killed."""
    log = tmp_path / "runs" / "killed.jsonl"
    log.parent.mkdir()
    shutil.copy(FIXTURES / "time-killed.jsonl", log)
    return tmp_path


def test_an_unfinished_run_is_shown_with_its_cells_and_what_continues_it(unfinished: Path) -> None:
    shown = answered("history", "killed", cwd=unfinished, COLUMNS="").out
    assert "unfinished, 2 ok, 1 unfinished, 1 not run" in shown
    assert re.search(r"^ ok +small$", shown, re.MULTILINE)
    assert re.search(r"^ not run +medium ctx 256$", shown, re.MULTILINE)
    assert "sysbench time --resume runs/killed.jsonl runs the remaining cells" in shown


def test_a_run_in_progress_is_not_offered_for_resuming(unfinished: Path) -> None:
    with Log.reopen(unfinished / "runs" / "killed.jsonl"):
        shown = answered("history", "killed", cwd=unfinished, COLUMNS="").out
    assert "the run is in progress" in shown
    assert "--resume" not in shown


@pytest.mark.parametrize("name", ["time-killed", "profile-killed", "time-failures", "memory-interrupted", "time-a100"])
def test_a_log_is_listed_with_the_outcomes_of_its_record(name: str, tmp_path: Path) -> None:
    log = tmp_path / f"{name}.jsonl"
    shutil.copy(FIXTURES / log.name, log)
    record = load(log)
    outcomes = Counter(cell.outcome for cell in record.cells)
    (row,) = rows(tmp_path, "--runs", ".")
    status, *counts = str(row["outcome"]).split(", ")
    assert (status, sorted(counts)) == (record.status, sorted(f"{count} {each}" for each, count in outcomes.items()))


def test_an_experiment_that_ended_between_two_runs_is_incomplete_and_its_runs_are_counted(tmp_path: Path) -> None:
    small = "2026-11-22T02-25-47-small"
    directory = tmp_path / "runs" / small
    shutil.copytree(FIXTURES / "experiments" / small, directory)
    whole = str(rows(tmp_path)[0]["outcome"])
    assert whole.startswith("complete")
    assert "Missing runs" not in answered("report", f"runs/{small}", cwd=tmp_path).out
    for run in ("rounding", "times"):
        for path in directory.glob(f"{run}.json*"):
            path.unlink()
        missing = 3 - len(list(directory.glob("*.jsonl")))
        outcome = str(rows(tmp_path)[0]["outcome"])
        assert outcome.startswith("incomplete, ")
        assert outcome.endswith(f", {missing} run{'s' if missing > 1 else ''} missing")
        reported = answered("report", f"runs/{small}", "--summary", cwd=tmp_path).out
        assert f"{run}: missing" in reported.partition("Missing runs")[2]
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"as written"', '"left out"'))
    assert str(rows(tmp_path)[0]["outcome"]).startswith("complete")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--runs", "nowhere"], "no directory nowhere here"),
    ],
)
def test_a_mistake_is_answered_in_one_line(place: Path, words: list[str], complaint: str) -> None:
    ran = answered("history", *words, cwd=place)
    assert ran.code == 2
    assert complaint in ran.complaint

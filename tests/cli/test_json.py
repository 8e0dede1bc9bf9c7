"""Whatever can be shown can be had as JSON, and earlier runs go by their names."""

import json
import os
from pathlib import Path
from shutil import copy, copytree

import pytest

from tests.cli.running import QUICK, answered

FIXTURES = Path(__file__).parents[1] / "fixtures" / "runs"
SNAPSHOT = FIXTURES / "snapshot-cpu-train.pickle.gz"

EXPERIMENT = """
title = "Two of a kind each"

[[run]]
name = "one"
command = "time"
d-model = 32
layers = 1
heads = 2
ctx = 16
mode = "forward"
device = "cpu"

[[run]]
name = "other"
command = "accum"
"""


@pytest.mark.parametrize(
    "line",
    [
        "time --plan --size small",
        "memory --plan --simulate 24GiB",
        "profile --plan",
        "attention --plan",
        "accum --plan",
        "run",
    ],
)
def test_a_plan_is_to_be_had_as_json(line: str, tmp_path: Path) -> None:
    ran = answered(*line.split(), "--json", "-")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert found["tables"][0]["rows"]
    beside = answered(*line.split(), "--json", str(tmp_path / "plan.json"))
    assert json.loads((tmp_path / "plan.json").read_text()) == found
    assert beside.out == answered(*line.split()).out


@pytest.mark.parametrize(
    "saved",
    ["time-precisions.jsonl", "memory-modes.jsonl", "profile-train.jsonl", "attention-a100.jsonl", "accum-sums.jsonl"],
)
def test_the_record_of_a_log_is_written_beside_its_tables(saved: str, tmp_path: Path) -> None:
    words = (saved.partition("-")[0], "--from", str(FIXTURES / saved))
    beside = answered(*words, "--json", str(tmp_path / "record.json"))
    assert beside.code == 0, beside.err
    assert (tmp_path / "record.json").read_text() == answered(*words, "--json", "-").out
    assert beside.out == answered(*words).out


def test_rows_of_a_plan_have_numbers_in_base_units() -> None:
    (table,) = json.loads(answered("time", "--plan", "--size", "small,medium", "--ctx", "128", "--json", "-").out)[
        "tables"
    ]
    assert [row["size"] for row in table["rows"]] == ["small", "medium"]
    assert table["rows"][0]["parameters"] == 128_625_408
    assert isinstance(table["rows"][0]["predicted_memory_bytes"], int)


def test_what_a_snapshot_shows_is_to_be_had_as_json() -> None:
    ran = answered("memory", "--from", str(SNAPSHOT), "--tables", "categories,largest", "--json", "-")
    found = json.loads(ran.out)
    assert [table["name"] for table in found["tables"]] == ["categories", "largest"]
    assert found["tables"][0]["rows"][0]["size_bytes"] > 0
    assert any(each["kind"] == "finding" for each in found["remarks"])


def test_the_records_of_an_experiment_are_to_be_had_as_json(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    planned = json.loads(answered("run", "mine.toml", "--plan", "--json", "-", cwd=tmp_path).out)
    assert [row["run"] for row in planned["tables"][0]["rows"]] == ["one", "other"]
    ran = answered("run", "mine.toml", "--json", "-", cwd=tmp_path)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["experiment"]["title"] == "Two of a kind each"
    assert [record["kind"] for record in found["records"].values()] == ["time", "accum"]
    assert answered("run", "mine.toml", "--json", "nowhere/at/all.json", cwd=tmp_path).code == 1


def test_doctor_writes_a_file_only_where_it_is_asked_for_json(tmp_path: Path) -> None:
    assert answered("doctor", "elsewhere.json").complaint.endswith(
        "elsewhere.json: doctor writes a file only with --json elsewhere.json"
    )
    assert answered("doctor", "--json", "nowhere/doctor.json", cwd=tmp_path).code == 1
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0'\n")  # one that takes no seconds to import
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    shown = answered("doctor", "--json", "doctor.json", cwd=tmp_path, PYTHONPATH=paths)
    assert json.loads((tmp_path / "doctor.json").read_text())["kind"] == "doctor"
    assert "machine" in shown.out


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with runs in it."""
    copytree(FIXTURES / "dated", tmp_path / "runs")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("time --from latest", "2026-11-21T10-00-00-time.json"),
        ("time --from latest~1", "2026-11-20T10-00-00-time.json"),
        ("time --from time:latest~2", "2026-11-19T10-00-00-time.json"),
        ("accum --from latest", "2026-11-18T09-00-00-accum.jsonl"),
        ("time --from 2026-11-19", "2026-11-19T10-00-00-time.json"),
    ],
)
def test_earlier_runs_go_by_their_names(place: Path, line: str, file: str) -> None:
    named = answered(*line.split(), cwd=place)
    assert named.code == 0, named.err
    assert named.out == answered(*line.split()[:2], f"runs/{file}", cwd=place).out


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("memory --from latest", "there are no runs of `sysbench memory` in runs"),
        ("time --from latest~9", "there is no latest~9"),
        ("time --from 2026", "sysbench time: 2026 is ambiguous in runs: 2026-11-21T10-00-00-time"),
        ("time --resume latest~9", "there is no latest~9"),
        ("time --from accum:latest", "accum:latest selects runs of `sysbench accum`, not of `sysbench time`"),
        ("time --from 2026-11-18", "2026-11-18 is neither a file nor a directory, nor a run of `sysbench time`"),
        ("loop 2026-11-18", "there are no runs of `sysbench loop` in runs"),
        ("time --from missing.json", "cannot read missing.json: no such file"),
        ("time --resume runs/2026-11-21T10-00-00-time.json", "2026-11-21T10-00-00-time.json"),
    ],
)
def test_a_name_that_stands_for_nothing_is_answered_in_one_line(place: Path, line: str, complaint: str) -> None:
    ran = answered(*line.split(), cwd=place)
    assert ran.code == 2
    assert complaint in ran.complaint


def test_a_run_is_continued_by_its_name_and_by_its_record(tmp_path: Path) -> None:
    assert answered("time", *QUICK, cwd=tmp_path).code == 0
    (record,) = (tmp_path / "runs").glob("*.json")
    for name in ("latest", f"runs/{record.name}"):
        ran = answered("time", "--resume", name, cwd=tmp_path)
        assert ran.code == 0, ran.err
    copy(record, tmp_path / "alone.json")
    alone = answered("time", "--resume", "alone.json", cwd=tmp_path)
    assert (alone.code, "alone.json is a record; only the log of a run" in alone.complaint) == (2, True)
    other = answered("memory", "--resume", "alone.json", cwd=tmp_path)
    assert "alone.json is a record of `sysbench time`, not of `sysbench memory`" in other.complaint

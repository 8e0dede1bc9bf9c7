"""Earlier runs: found by path or name, and read back whatever they are; what is none of them is named in one line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.time.record import TimeRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import LogError
from sysbench.log.events import encode
from sysbench.log.manifest import Manifest
from sysbench.log.runs import experiments, find, find_experiment, is_log_or_record, kind_at, load
from tests import fixtures_attention, fixtures_timing

SPEC = TimeSpec(size="small", ctx="128,256", steps="10")


def instant(day: int, second: float = 0) -> float:
    """Ten o'clock on a day of November 2026."""
    return datetime(2026, 11, day, 10, tzinfo=UTC).timestamp() + second


def write_log(path: Path, started_s: float = instant(1)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    started, *others = fixtures_timing.events(SPEC)
    events = [started.model_copy(update={"at_s": started_s}), *others]
    path.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    return path


def write_record(path: Path, change: Callable[[dict[str, Any]], object] | None = None, day: int = 1) -> Path:
    content = fixtures_timing.record(SPEC).model_dump(mode="json")
    content["started_at"] = f"2026-11-{day:02}T10:00:00Z"
    if change is not None:
        change(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1))
    return path


def write_attention(path: Path, day: int = 1) -> Path:
    record = fixtures_attention.record(AttentionSpec(impl=("naive",), seq=(256,)))
    path.write_text(record.model_copy(update={"started_at": f"2026-11-{day:02}T09:59:59Z"}).model_dump_json(indent=1))
    return path


def write_experiment(directory: Path, experiment: str, day: int) -> Path:
    directory.mkdir(parents=True)
    content = Manifest(
        sysbench_version="0.1.0", experiment=experiment, title="", started_at=instant(day), runs=()
    ).model_dump_json()
    (directory / "manifest.json").write_text(content)
    return directory


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs of two commands, one of them with log and record; and what has no business there."""
    directory = tmp_path / "runs"
    write_log(directory / "2026-11-19T10-00-00-time.jsonl", instant(19))
    write_record(directory / "2026-11-20T10-00-00-time.json", day=20)
    write_log(directory / "2026-11-20T10-00-00-time.jsonl", instant(20))
    os.utime(directory / "2026-11-20T10-00-00-time.jsonl", (1, 1))
    write_attention(directory / "2026-11-20T10-00-00-attention.json", 20)
    (directory / "notes.json").write_text('{"kind": "groceries"}')
    (directory / "figure.png").write_bytes(b"\x89PNG")
    return directory


def test_an_experiment_goes_by_its_path_its_name_or_as_the_latest(runs: Path) -> None:
    write_experiment(runs / "2026-11-19T09-00-00-quick", "quick", 19)
    write_experiment(runs / "2026-11-20T09-00-00-quick", "quick", 20)
    write_experiment(runs / "2026-11-21T09-00-00-sizes", "/somewhere/sizes.toml", 21)
    (runs / "2026-11-22T09-00-00-mine").mkdir()
    wanted = {
        "latest": "2026-11-21T09-00-00-sizes",
        "latest~1": "2026-11-20T09-00-00-quick",
        "quick": "2026-11-20T09-00-00-quick",
        "sizes": "2026-11-21T09-00-00-sizes",
        "2026-11-19": "2026-11-19T09-00-00-quick",
    }
    for name, directory in wanted.items():
        assert find_experiment(name, runs) == runs / directory
    assert find_experiment(str(runs), runs) == runs
    with pytest.raises(LogError, match=r"quack is neither a file .*, nor a run of `sysbench run` in .*sizes"):
        find_experiment("quack", runs)
    with pytest.raises(LogError, match="has no experiment"):
        find_experiment("latest", runs / "2026-11-22T09-00-00-mine")


def names(name: str, directory: Path) -> list[str]:
    return [path.name for path in find(name, directory)]


def complaint(name: str, directory: Path) -> str:
    with pytest.raises(LogError) as caught:
        find(name, directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Finding


def test_a_path_is_what_it_says(runs: Path) -> None:
    path = runs / "2026-11-19T10-00-00-time.jsonl"
    assert find(str(path)) == [path]


def test_a_directory_is_every_run_in_it_and_nothing_else(runs: Path) -> None:
    assert [path.name for path in find(str(runs))] == [
        "2026-11-19T10-00-00-time.jsonl",
        "2026-11-20T10-00-00-attention.json",
        "2026-11-20T10-00-00-time.json",
    ]


def test_a_directory_is_also_what_lies_below_it(runs: Path) -> None:
    write_record(runs / "2026-11-21T10-00-00-quick" / "sizes.json", day=21)
    assert [path.name for path in find(str(runs))][-1] == "sizes.json"
    assert names("2026-11-21", runs) == ["sizes.json"]
    assert names("latest", runs) == ["sizes.json"]


def test_latest_is_the_last_that_began_and_counts_back(runs: Path) -> None:
    assert names("latest", runs) == ["2026-11-20T10-00-00-time.json"]
    assert names("latest~1", runs) == ["2026-11-20T10-00-00-attention.json"]
    assert names("latest~2", runs) == ["2026-11-19T10-00-00-time.jsonl"]
    assert complaint("latest~3", runs).endswith(f"the oldest matching run in {runs} is latest~2")


def test_a_command_in_front_leaves_only_its_runs(runs: Path) -> None:
    assert names("time:latest~1", runs) == ["2026-11-19T10-00-00-time.jsonl"]
    assert names("attention:", runs) == ["2026-11-20T10-00-00-attention.json"]
    assert names(f"attention:{runs}", runs) == ["2026-11-20T10-00-00-attention.json"]
    assert "no runs of `sysbench memory`" in complaint("memory:latest", runs)


def test_a_command_without_a_colon_and_another_word_with_one_are_names(runs: Path) -> None:
    write_log(runs / "time-mine.jsonl")
    assert names("time", runs) == ["time-mine.jsonl"]
    assert "nor a run in" in complaint("groceries:latest", runs)


def test_of_runs_in_the_same_second_the_later_one_is_the_latest(runs: Path) -> None:
    for number in (2, 10):
        write_log(runs / f"2026-11-22T10-00-00-time-{number}.jsonl", instant(22, 0.01 * number))
        write_record(runs / f"2026-11-22T10-00-00-time-{number}.json", day=22)  # it says the second alone
    assert names("latest", runs) == ["2026-11-22T10-00-00-time-10.json"]
    assert names("latest~1", runs) == ["2026-11-22T10-00-00-time-2.json"]


def test_the_name_of_a_file_does_not_decide_when_its_run_started(runs: Path) -> None:
    write_log(runs / "2026-01-01T10-00-00-time.jsonl", instant(23))
    write_attention(runs / "mine.json", 24)
    assert names("latest", runs) == ["mine.json"]
    assert names("latest~1", runs) == ["2026-01-01T10-00-00-time.jsonl"]


def test_the_start_of_a_run_whose_spec_is_long_is_found(runs: Path) -> None:
    write_record(runs / "a.json", lambda content: content["spec"].update(ctx=list(range(1, 3000))), day=25)
    assert names("latest", runs) == ["a.json"]


def test_the_beginning_of_a_name_is_enough_where_there_is_only_one(runs: Path) -> None:
    assert names("2026-11-19", runs) == ["2026-11-19T10-00-00-time.jsonl"]
    several = complaint("2026-11-20", runs)
    assert "is ambiguous" in several
    assert several.endswith(": 2026-11-20T10-00-00-time, 2026-11-20T10-00-00-attention")


def test_a_command_that_is_asked_for_limits_a_name_as_its_prefix_does(runs: Path) -> None:
    assert find("latest", runs, "time") == find("time:latest", runs, "time") == find("time:latest", runs)
    with pytest.raises(LogError, match="attention:latest selects runs of `sysbench attention`, not of `sysbench time`"):
        find("attention:latest", runs, "time")


def test_a_whole_name_that_another_begins_with_means_itself(runs: Path) -> None:
    write_log(runs / "base.jsonl")
    write_log(runs / "base-2.jsonl")
    assert names("base", runs) == ["base.jsonl"]


def test_experiments_are_listed_newest_first(tmp_path: Path) -> None:
    expected = [f"2026-11-{day}T09-00-00-quick" for day in (22, 21, 20, 19)]
    for day in (20, 19, 22, 21):
        write_experiment(tmp_path / f"2026-11-{day}T09-00-00-quick", "quick", day)
    assert experiments(tmp_path) == expected


def test_an_unknown_name_is_answered_with_the_nearest_and_with_what_there_is(runs: Path) -> None:
    said = complaint("2026-11-19T10-00-00-tiem", runs)
    assert "Did you mean 2026-11-19T10-00-00-time?" in said
    assert "2026-11-20T10-00-00-attention" in said
    assert "Did you mean latest?" in complaint("latset", runs)


def test_where_there_is_nothing_that_is_said(tmp_path: Path) -> None:
    assert complaint(str(tmp_path), tmp_path) == f"{tmp_path} contains no runs"
    missing = tmp_path / "runs"
    assert (
        complaint("latest", missing) == f"latest is neither a file nor a directory, and there are no runs in {missing}"
    )


def test_a_log_that_went_on_after_its_record_is_the_one_that_counts(runs: Path) -> None:
    os.utime(runs / "2026-11-20T10-00-00-time.jsonl")
    os.utime(runs / "2026-11-20T10-00-00-time.json", (1, 1))
    assert names("latest", runs) == ["2026-11-20T10-00-00-time.jsonl"]


# Reading


def test_a_log_and_its_record_are_the_same_run(tmp_path: Path) -> None:
    assert load(write_log(tmp_path / "a.jsonl", instant(1))) == load(write_record(tmp_path / "a.json", day=1))


def test_a_record_is_read_whatever_the_order_of_its_fields(tmp_path: Path) -> None:
    path = write_record(tmp_path / "a.json")
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert isinstance(load(path), TimeRecord)


@pytest.mark.parametrize("name", ["run", "run.txt", "run.JSON", "2026-11-20"])
def test_a_log_and_a_record_may_have_any_name(tmp_path: Path, name: str) -> None:
    contents = write_record(tmp_path / "a.json").read_bytes(), write_log(tmp_path / "a.jsonl").read_bytes()
    for content in contents:
        (tmp_path / name).write_bytes(content)
        assert is_log_or_record(tmp_path / name)
        assert load(tmp_path / name) == load(tmp_path / "a.json")
    (tmp_path / name).write_text("notes")
    assert not is_log_or_record(tmp_path / name)
    with pytest.raises(LogError, match="is not a sysbench log"):
        load(tmp_path / name)


def test_a_log_that_is_torn_in_mid_line_is_read_up_to_there(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.jsonl")
    path.write_bytes(path.read_bytes()[:-300])
    record = load(path)
    assert record.status == "unfinished"
    assert record.cells[0].outcome == "ok"


@pytest.mark.parametrize("schema", [0, 2, -1, None])
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_another_schema_is_refused_with_the_version_that_wrote_it(tmp_path: Path, suffix: str, schema: object) -> None:
    path = write_record(tmp_path / "a.json") if suffix == "json" else write_log(tmp_path / "a.jsonl")
    text = re.sub(r'("schema_version": ?)1', rf"\g<1>{json.dumps(schema)}", path.read_text(), count=1)
    path.write_text(text.replace("0.1.0", "9.9"))
    with pytest.raises(LogError) as refused:
        load(path)
    if schema is None and suffix == "json":
        assert str(refused.value) == f"{path} is not a sysbench record: it has no schema_version"
    else:
        found = "no schema" if schema is None else f"schema {schema}"
        assert str(refused.value) == f"{path} has {found} and was written by sysbench 9.9; this version reads schema 1"


def _put(content: dict[str, Any], value: object, *where: str | int) -> None:
    *way, last = where
    place: Any = content
    for step in way:
        place = place[step]
    place[last] = value


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("fast", ("cells", 1, "phases", "step", "wall", "median_s")),
        (["0.1", "x"], ("cells", 0, "phases", "forward", "wall", "samples_s")),
        ("fine", ("cells", 0, "outcome")),
        (None, ("environment", "host", "hostname")),
        ({}, ("cells",)),
        ("x", ("cells", 0, "axes", "ctx")),
        ("x", ("spec", "batch")),
    ],
)
def test_a_record_that_was_edited_is_refused_in_one_line_that_names_the_place(
    tmp_path: Path, value: object, where: tuple[str | int, ...]
) -> None:
    path = write_record(tmp_path / "a.json", lambda content: _put(content, value, *where))
    with pytest.raises(LogError) as caught:
        load(path)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(f"{path} is not a record in sysbench's format: ")
    assert ".".join(map(str, where)).replace("spec.", "spec: ") in said


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not JSON, or is truncated"),
        (b"{", "is not JSON, or is truncated"),
        (b"\x80\x04nonsense", "is not JSON, or is truncated"),
        (b"[" * 100_000, "is not JSON, or is truncated"),
        (b"[1, 2]", "is not a sysbench record"),
        (b'{"schema_version": 1, "kind": "groceries"}', "has kind groceries, which is not the kind of a run"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(LogError, match=problem):
        load(path)
    assert kind_at(path) is None


def test_half_a_record_is_said_to_be_cut_off(tmp_path: Path) -> None:
    path = write_record(tmp_path / "a.json")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(LogError, match="is not JSON, or is truncated"):
        load(path)

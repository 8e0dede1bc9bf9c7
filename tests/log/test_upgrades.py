"""Files of other schemas are refused, and what earlier versions did not store follows from what they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import LogError
from sysbench.log import runs
from sysbench.log.events import CellFinished, decode, encode
from tests import fixtures_timing


@pytest.mark.parametrize(
    ("outcome", "detail", "reason"),
    [
        ("ok", None, None),
        ("oom", "CUDA out of memory", "out-of-memory"),
        ("interrupted", None, "stopped"),
        ("skipped", "needs about 6.23 GiB, but 900 MiB are free (--force starts it anyway)", "exceeds-memory"),
        ("skipped", "needs about 6.23 MiB, but 12 B are free (--force starts it anyway)", "exceeds-memory"),
        ("skipped", "simulated: memory would run out in backward; 1.00 GiB are free", "exceeds-memory"),
        ("skipped", "needs 6.00 GiB, but this process has only 1.00 GiB of memory", "exceeds-memory"),
        ("skipped", "at least as large as tiny, ctx 32, batch 4, which ran out of memory", "larger-than-failed"),
        ("skipped", "at least as large as ctx 32, which does not fit according to a simulation", "larger-than-failed"),
        ("skipped", "no smaller than naive d 16 N 16384, which ran out of memory", "larger-than-failed"),
        ("skipped", "would take about 4 min, more than the 60 s of --budget", "over-budget"),
        ("skipped", "words that no version has written", None),
    ],
)
def test_the_reason_of_an_outcome_that_was_stored_without_one(
    outcome: str, detail: str | None, reason: str | None
) -> None:
    written = {"event": "cell_finished", "at_s": 1.0, "cell": "a", "outcome": outcome, "detail": detail}
    event = decode(json.dumps(written).encode())
    assert isinstance(event, CellFinished)
    assert event.reason == reason
    assert decode(encode(event)) == event


@pytest.mark.parametrize(
    ("expected", "expected_s"), [("0 s", 0.0), ("60 s", 60.0), ("16 min", 960.0), ("1 h 30 min", 5400.0)]
)
@pytest.mark.parametrize("stored", [{}, {"reason": "over-budget"}])
def test_the_time_of_a_cell_over_its_budget_that_only_its_detail_tells(
    expected: str, expected_s: float, stored: dict[str, str]
) -> None:
    detail = f"would take about {expected}, more than the 60 s of --budget"
    written = {"event": "cell_finished", "at_s": 1.0, "cell": "a", "outcome": "skipped", "detail": detail, **stored}
    event = decode(json.dumps(written).encode())
    assert isinstance(event, CellFinished)
    assert event.expected_s == expected_s
    assert decode(encode(event)) == event


@pytest.fixture
def record_path(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(fixtures_timing.record(TimeSpec(ctx=(128,))).model_dump_json(indent=1))
    return path


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    events = fixtures_timing.events(TimeSpec(ctx=(128,)))
    path.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    return path


@pytest.mark.parametrize("schema", [0, -1])
def test_a_schema_that_never_was_is_refused(record_path: Path, log_path: Path, schema: int) -> None:
    for path in (record_path, log_path):
        content = path.read_text().replace('"schema_version": 1', f'"schema_version": {schema}', 1)
        path.write_text(content.replace('"schema_version":1', f'"schema_version":{schema}', 1))
        with pytest.raises(LogError, match=rf"has schema {schema}, which no version of sysbench has written"):
            runs.load(path)


def test_who_wrote_a_newer_record_is_said(record_path: Path) -> None:
    fields = json.loads(record_path.read_text())
    record_path.write_text(json.dumps({**fields, "schema_version": 2, "sysbench_version": "4.2"}))
    with pytest.raises(LogError, match=r"was written by sysbench 4\.2 with schema 2; this version reads up to 1"):
        runs.load(record_path)

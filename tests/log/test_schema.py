"""Records are what docs/record.schema.json says, and the file is what the classes of records say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sysbench.command import Kind, kinds
from sysbench.log.schema import SCHEMA_VERSION
from tests.cli.running import answered
from tests.log.record_schema import FILE, text

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
LOGS = sorted(RUNS.glob("*-*.jsonl"))


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    written = json.loads(FILE.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(written)
    return Draft202012Validator(written)


def complaints(schema: Draft202012Validator, record: object) -> list[str]:
    return [f"{'/'.join(map(str, each.absolute_path))}: {each.message[:200]}" for each in schema.iter_errors(record)]


def printed(kind: Kind, log: Path) -> Any:
    """What `--json -` prints of a log."""
    ran = answered(kind, *([str(log)] if kind == "loop" else ["--from", str(log)]), "--json", "-")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_the_written_schema_is_that_of_the_classes() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "`python -m tests.log.record_schema` writes it"


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_the_record_of_every_saved_log_is_valid(log: Path, schema: Draft202012Validator) -> None:
    kind = log.stem.partition("-")[0]
    record = printed(kind, log)
    assert complaints(schema, record) == []
    assert (record["schema_version"], record["kind"]) == (SCHEMA_VERSION, kind)


def test_there_is_a_saved_log_of_every_command() -> None:
    assert {log.stem.partition("-")[0] for log in LOGS} == set(kinds())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 2}, "schema_version: 1 was expected"),
        ({"kind": "groceries"}, "kind: 'groceries' is not one of"),
        ({"novel": 1}, "('novel' was unexpected)"),
        ({"status": "finished"}, "status: 'finished' is not one of"),
        ({"cells": [{}]}, "cells/0: 'key' is a required property"),
    ],
)
def test_another_record_is_not_valid(change: dict[str, object], said: str, schema: Draft202012Validator) -> None:
    record = {**printed("time", RUNS / "time-until.jsonl"), **change}
    assert said in "\n".join(complaints(schema, record))

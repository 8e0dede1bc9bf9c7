"""Reads what an earlier run left: its log or its record, whichever is named."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from sysbench.analysis.timing import fold
from sysbench.engine import log
from sysbench.errors import LogError
from sysbench.events import SCHEMA_VERSION, RunStarted
from sysbench.records import TimeRecord
from sysbench.specs.time import TimeSpec


def record(path: Path) -> TimeRecord:
    """The record in a file, or the one that its log comes down to; raises LogError."""
    if path.suffix != ".json":
        return fold(log.read(path))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from error
    try:
        _refuse_newer(path, content)
        return TimeRecord.model_validate_json(content)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise LogError(
            f"{path} is not a record of sysbench: {error.errors()[0]['msg']} at {where or 'its top'}"
        ) from None


def spec(path: Path) -> TimeSpec:
    """The spec that a log was made with; raises LogError."""
    for event in log.read(path):
        if isinstance(event, RunStarted):
            return TimeSpec.model_validate(event.spec)
        break
    raise LogError(f"{path} does not begin with the start of a run")


def _refuse_newer(path: Path, content: bytes) -> None:
    try:
        top = json.loads(content)
    except ValueError:
        raise LogError(f"{path} is not JSON") from None
    schema = top.get("schema_version") if isinstance(top, dict) else None
    if not isinstance(schema, int):
        raise LogError(f"{path} is not a record of sysbench")
    if schema > SCHEMA_VERSION:
        raise LogError(
            f"{path} was written by sysbench {top.get('sysbench_version', 'unknown')} in schema {schema}; "
            f"this version reads up to {SCHEMA_VERSION}"
        )

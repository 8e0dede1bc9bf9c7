"""Reads what an earlier run left: its log or its record, whichever is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sysbench.analysis.folds import FOLDS, RECORDS
from sysbench.engine import log
from sysbench.errors import LogError
from sysbench.events import SCHEMA_VERSION, RunStarted
from sysbench.records import RunRecord
from sysbench.specs.kinds import Kind, Spec, spec_of


def record(path: Path, kind: Kind) -> RunRecord[Any]:
    """The record in a file, or the one that its log comes down to; raises LogError, also for one of another kind."""
    if path.suffix != ".json":
        return FOLDS[_beginning(path, kind).kind](log.read(path))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from error
    try:
        _refuse_newer_and_other(path, content, kind)
        return RECORDS[kind].model_validate_json(content)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise LogError(
            f"{path} is not a record of sysbench: {error.errors()[0]['msg']} at {where or 'its top'}"
        ) from None


def spec(path: Path, kind: Kind) -> Spec:
    """The spec that a log was made with; raises LogError, also for a log of another kind."""
    return spec_of(_beginning(path, kind).spec)


def _beginning(path: Path, kind: Kind) -> RunStarted:
    for event in log.read(path):
        if isinstance(event, RunStarted):
            _refuse_other(path, event.kind, kind)
            return event
        break
    raise LogError(f"{path} does not begin with the start of a run")


def _refuse_other(path: Path, found: object, kind: Kind) -> None:
    if found != kind:
        raise LogError(f"{path} is of `sysbench {found}`, not of `sysbench {kind}`")


def _refuse_newer_and_other(path: Path, content: bytes, kind: Kind) -> None:
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
    _refuse_other(path, top.get("kind") if isinstance(top, dict) else None, kind)

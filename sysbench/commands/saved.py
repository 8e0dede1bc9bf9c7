"""Read the log or the record of an earlier run."""

from __future__ import annotations

from pathlib import Path

from sysbench.command import Kind, spec_of
from sysbench.errors import LogError
from sysbench.log import journal as log
from sysbench.log import runs
from sysbench.log.events import RunStarted
from sysbench.log.records import RunRecord
from sysbench.spec.cell import RunSpec


def record(path: Path, kind: Kind) -> RunRecord:
    """Return the record in a file, or the record folded from a log."""
    run = runs.load(path)
    _refuse_other(path, run.kind, kind)
    return run


def spec(path: Path, kind: Kind) -> RunSpec:
    """Return the spec in a log."""
    if runs.begins_as_record(path):
        _refuse_other(path, runs.load(path).kind, kind)
        raise LogError(f"{path} is a record; only the log of a run, a .jsonl file, can be continued")
    for event in log.read(path):
        if isinstance(event, RunStarted):
            _refuse_other(path, event.kind, kind)
            return spec_of(event.spec)
        break
    raise LogError(f"{path} does not start with the start event of a run")


def _refuse_other(path: Path, found: object, kind: Kind) -> None:
    if found != kind:
        raise LogError(f"{path} is a record of `sysbench {found}`, not of `sysbench {kind}`")

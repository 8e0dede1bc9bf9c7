"""Find and read the log or the record of an earlier run, or a file that is not a run."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from sysbench.command import Kind, commands
from sysbench.commands.artefacts import Artefact
from sysbench.commands.kinds import CommandWithRuns
from sysbench.errors import LogError
from sysbench.log import journal as log
from sysbench.log import runs, storage
from sysbench.log.events import RunStarted
from sysbench.log.records import RunRecord
from sysbench.log.storage import cannot_read
from sysbench.spec.cell import RunSpec, spec_of
from sysbench.spec.validation import first_error


def find(path: Path, directory: Path, kind: Kind) -> Path:
    """Return the file of the earlier run named `path`, or `path` itself if it is a path rather than a name."""
    if storage.exists(path) or path.suffix or path.name != str(path):
        return path
    name = str(path)
    paths = runs.find(name, directory, kind)
    if len(paths) > 1:
        raise LogError(f"{name} matches {len(paths)} runs, name one of them: {', '.join(map(str, paths))}")
    return paths[0]


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


_BEGINNING_BYTES = 4096


def artefact(path: Path) -> Artefact | None:
    """Return the trace or snapshot in a file; None for others. Raises LogError if the file cannot be read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
        for command in commands().values():
            if isinstance(command, CommandWithRuns) and (found := command.artefact(path, beginning)):
                return found
        return None
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValidationError as error:
        raise LogError(f"{path} is not in sysbench's format: {first_error(error)}") from None

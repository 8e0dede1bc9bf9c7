"""Earlier runs: lookup by path or by name, and loading from a record or a log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from sysbench.command import Kind, kinds
from sysbench.errors import LogError, nearest
from sysbench.interpreter import gc_paused
from sysbench.log import journal as log
from sysbench.log import manifest
from sysbench.log.events import Arm, RunStarted
from sysbench.log.headers import BEGINNING_BYTES, first_fields, header_at, read_header
from sysbench.log.kinds import command_of
from sysbench.log.records import RunRecord
from sysbench.log.schema import SCHEMA_VERSION, refuse_other_schema
from sysbench.log.storage import cannot_read, exists
from sysbench.spec.run import RUNS
from sysbench.spec.validation import first_error

_MAX_LISTED = 8


class RunFile(NamedTuple):
    """The file of a run, its log or its record, with what the file's beginning says."""

    started_s: float
    """Start of the run in seconds since 1970; 0 if unreadable."""
    path: Path
    kind: Kind


class Entry(NamedTuple):
    """A run in a directory of runs, or a subdirectory that contains runs."""

    started_s: float
    """Start of the first run in seconds since 1970; 0 if unreadable."""
    name: str
    runs: tuple[RunFile, ...]

    @property
    def paths(self) -> list[Path]:
        """The file of each run."""
        return [run.path for run in self.runs]


def is_log_or_record(path: Path) -> bool:
    """Whether a file is a sysbench log or record; traces, which also end in .json, are neither."""
    if path.suffix == ".jsonl":
        return True
    header = header_at(path)
    return header is not None and (header.form == "record" or path.suffix != ".json")


def is_record(path: Path) -> bool:
    """Whether a file that is a log or a record is a record; decided by its content if the ending does not tell."""
    return path.suffix == ".json" or (path.suffix != ".jsonl" and begins_as_record(path))


def begins_as_record(path: Path) -> bool:
    """Whether the content of a file begins as a record's does, whatever its ending."""
    header = header_at(path)
    return header is not None and header.form == "record"


def find(name: str, directory: Path = RUNS, command: Kind | None = None) -> list[Path]:
    """Return the files of the runs that match `name`, in the order in which the runs started; never empty.

    `name` is the path of a log or record; the path of a directory, for every run in it and its subdirectories; or the
    name of an earlier run in `directory`: `latest`, `latest~1` for the one before, or the unique beginning of a file
    name. A prefix such as `time:` limits the search to runs of that command, as `command` does. Of a log and its
    record, the newer one is used. Raises LogError if no run matches, or several do.
    """
    if exists(Path(name)):
        return _runs_at(Path(name), command)
    kind, separator, rest = name.partition(":")
    if separator and kind in kinds():
        if command not in (None, kind):
            raise LogError(f"{name} selects runs of `sysbench {kind}`, not of `sysbench {command}`")
        return _runs_at(Path(rest), kind) if rest and exists(Path(rest)) else _find_named(name, rest, kind, directory)
    return _find_named(name, name, command, directory)


def find_experiment(name: str, directory: Path = RUNS) -> Path:
    """Return the directory of the experiment that matches `name`: a path, or a name in `directory`; see `find`."""
    if exists(Path(name)) or Path(name).name != name:
        return Path(name)
    experiments = _experiments(directory)
    if not experiments:
        raise LogError(f"{name} is not an experiment directory, and {directory} has no experiment")
    named = [entry for entry, experiment in experiments if experiment == name]
    entries = [entry for entry, _ in experiments]
    return directory / (named[-1] if named else _match_entry(name, name, entries, directory, "run")).name


def experiments(directory: Path = RUNS) -> list[str]:
    """Return the names of experiments in a directory, newest first."""
    return [entry.name for entry, _ in _experiments(directory)[::-1]]


def _experiments(directory: Path) -> list[tuple[Entry, str]]:
    """Return the experiments in a directory with their names, in the order in which they started."""
    found = []
    for path in _children(directory):
        if path.is_dir() and manifest.is_manifest(path):
            started_s, name = 0.0, ""
            with suppress(LogError):  # a damaged manifest does not prevent the user from naming another experiment
                content = manifest.read(path)
                started_s, name = content.started_at, content.experiment_name
            found.append((Entry(started_s, path.name, ()), name))
    return sorted(found)


def load(path: Path) -> RunRecord:
    """Read the record of a run of any command, or compute it from the log; raises LogError."""
    if not is_record(path):
        return _fold_log(path)
    try:
        with path.open("rb") as file:
            beginning = file.read(BEGINNING_BYTES).lstrip()
            if beginning and not beginning.startswith(b"{"):  # a file of any size: it is not read
                raise _not_a_record(path, beginning, "it does not begin with {")
            content = beginning + file.read()
    except OSError as error:
        raise cannot_read(path, error) from error
    return _parse_record(path, content)


def _runs_at(path: Path, kind: Kind | None) -> list[Path]:
    if not path.is_dir():
        if kind is not None and load(path).kind != kind:
            raise LogError(f"{path} is not a record of `sysbench {kind}`")
        return [path]
    found = _runs_below(path, kind, strict=True)
    if not found:
        raise LogError(f"{path} contains no run of `sysbench {kind}`" if kind else f"{path} contains no runs")
    return [run.path for run in found]


def _find_named(name: str, rest: str, kind: Kind | None, directory: Path) -> list[Path]:
    found = entries(directory, kind)
    if not found:
        runs = f"runs of `sysbench {kind}`" if kind else "runs"
        raise LogError(f"{rest or name} is neither a file nor a directory, and there are no {runs} in {directory}")
    return _match_entry(name, rest, found, directory, kind).paths


def _match_entry(name: str, rest: str, entries: Sequence[Entry], directory: Path, command: str | None) -> Entry:
    """Return the entry for a full name, a unique beginning of a name, or `latest~N`."""
    run = f"run of `sysbench {command}`" if command else "run"
    word, _, back = rest.partition("~")
    if not rest or (word == "latest" and (rest == word or (back.isdecimal() and len(back) < 10))):
        return _nth_latest(name, entries, int(back or 0), run, directory)
    matches = [entry for entry in entries if entry.name == rest] or [
        entry for entry in entries if entry.name.startswith(rest)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise LogError(f"{name} is ambiguous in {directory}: {_list_names(matches)}")
    relative_names = ("latest", "latest~1")[: len(entries)]
    hint = nearest(rest, [*relative_names[:1], *(entry.name for entry in entries)])
    question = f" Did you mean {hint}?" if hint else ""
    problem = f"{name} is neither a file nor a directory, nor a {run} in {directory}"
    raise LogError(f"{problem}.{question} ({', '.join([_list_names(entries), *relative_names])})")


def _nth_latest(name: str, entries: Sequence[Entry], back: int, run: str, directory: Path) -> Entry:
    if back < len(entries):
        return entries[-1 - back]
    oldest = name.removesuffix(f"~{back}") + (f"~{len(entries) - 1}" if len(entries) > 1 else "")
    raise LogError(f"there is no {name}: the oldest matching run in {directory} is {oldest}")


def _list_names(entries: Sequence[Entry]) -> str:
    names = [entry.name for entry in entries[::-1][:_MAX_LISTED]]
    more = len(entries) - len(names)
    return ", ".join(names) + (f", and {more} more" if more else "")


def entries(directory: Path = RUNS, kind: Kind | None = None) -> list[Entry]:
    """Return the runs, and subdirectories of runs, in a directory, oldest first; with `kind`, only this command's."""
    children = _children(directory)
    # A file that cannot be read does not prevent the user from naming another run.
    found = [Entry(run.started_s, run.path.stem, (run,)) for run in _preferred(children, kind, strict=False)]
    for path in children:
        if path.is_dir() and (runs := _runs_below(path, kind, strict=False)):
            found.append(Entry(min(run.started_s for run in runs), path.name, tuple(runs)))
    return sorted(found)


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir(), key=lambda path: path.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise cannot_read(directory, error) from error


def _refuse_unreadable(error: OSError) -> None:
    """Raise LogError: a run in a directory that the user named must not be missing from the result unnoticed."""
    raise cannot_read(Path(os.fsdecode(error.filename)), error)


def _runs_below(directory: Path, kind: Kind | None, *, strict: bool) -> list[RunFile]:
    """Return the runs in a directory and its subdirectories, ignoring other files."""
    files: list[Path] = []
    for folder, _, names in os.walk(directory, onerror=_refuse_unreadable if strict else None):
        files += (Path(folder, name) for name in names if ".json" in name)
    return sorted(_preferred(sorted(files), kind, strict=strict), key=lambda run: (run.path.parent, run))


def _preferred(files: Iterable[Path], kind: Kind | None, *, strict: bool) -> list[RunFile]:
    """Return the files that are logs or records; for a run with both, the newer file, and in a tie the record."""
    preferred: dict[Path, RunFile] = {}
    for path in files:
        try:
            if path.suffix not in (".json", ".jsonl") or not path.is_file():
                continue
            header, stem = read_header(path), path.with_suffix("")
            if header is None or header.kind is None or kind not in (None, header.kind):
                continue
            run, other = RunFile(header.started_s, path, header.kind), preferred.get(stem)
            if other is not None:
                # sorted() puts .json before .jsonl; the record says only the second in which the run started
                newer = path.stat().st_mtime_ns > other.path.stat().st_mtime_ns
                run = (run if newer else other)._replace(started_s=max(run.started_s, other.started_s))
            preferred[stem] = run
        except OSError as error:
            if strict:
                raise cannot_read(path, error) from error
    return list(preferred.values())


def kind_at(path: Path) -> Kind | None:
    """Return the command that wrote a log or record, according to the beginning of the file; None for other files."""
    header = header_at(path)
    return header.kind if header else None


def _fold_log(path: Path) -> RunRecord:
    beginning = next(log.read(path), None)
    if not isinstance(beginning, RunStarted):
        raise LogError(f"{path} does not start with the start event of a run")
    try:
        with gc_paused():
            return command_of(beginning.kind).records().fold(log.read(path))
    except ValidationError as error:
        raise LogError(f"{path} is not a log in sysbench's format: {first_error(error)}") from None


def _parse_record(path: Path, content: bytes) -> RunRecord:
    top = first_fields(content[:BEGINNING_BYTES])
    if not top.keys() >= {"schema_version", "kind"}:  # in a file that was edited, they may not be the first fields
        top = _top_level(content) or {}
    schema, kind = top.get("schema_version"), top.get("kind")
    model = command_of(kind).records().record if kind in kinds() else None
    if schema != SCHEMA_VERSION or model is None:
        raise _not_a_record(path, content, "it has no kind")
    try:
        with gc_paused():
            return model.model_validate_json(content)
    except ValidationError as error:
        raise _not_a_record(path, content, first_error(error)) from None


def _top_level(content: bytes) -> dict[str, object] | None:
    """Return the fields of a JSON object, or none for other JSON; None for a text that is not JSON."""
    try:
        top = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return top if isinstance(top, dict) else {}


def _not_a_record(path: Path, content: bytes, why: str) -> LogError:
    top = _top_level(content)
    if top is None:
        return LogError(f"{path} is not JSON, or is truncated")
    if not isinstance(schema := top.get("schema_version"), int):
        return LogError(f"{path} is not a sysbench record: it has no schema_version")
    refuse_other_schema(path, schema, top.get("sysbench_version"))
    if top.get("kind") not in kinds():
        return LogError(
            f"{path} has kind {str(top.get('kind'))[:40]}, which is not the kind of a run: {', '.join(kinds())}"
        )
    return LogError(f"{path} is not a record in sysbench's format: {why}")


def find_arms(files: Iterable[Path]) -> dict[Arm, dict[int, Path]]:
    """Return, by arm, the file of each round of the single comparison to which all these files belong; else nothing."""
    arms: dict[Arm, dict[int, Path]] = {}
    comparisons = set()
    for path in files:
        header = header_at(path)
        if header is None or header.turn is None:
            return {}
        comparisons.add(header.turn.comparison)
        arms.setdefault(header.turn.arm, {})[header.turn.round] = path
    return arms if len(comparisons) == 1 else {}

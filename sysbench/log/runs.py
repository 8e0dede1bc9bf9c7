"""Earlier runs: lookup by path or by name, and loading from a record or a log."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import ValidationError

from sysbench.command import Kind, kinds
from sysbench.errors import LogError, nearest
from sysbench.garbage import gc_paused
from sysbench.log import journal as log
from sysbench.log import manifest
from sysbench.log.events import RunStarted
from sysbench.log.kinds import command_of
from sysbench.log.records import RunRecord
from sysbench.log.schema import SCHEMA_VERSION, refuse_other_schema
from sysbench.log.storage import cannot_read, exists
from sysbench.spec.validation import first_error

RUNS = Path("runs")
"""Default directory for runs, and for finding them by name."""

_LATEST = re.compile(r"latest(?:~(\d{1,9}))?")
_DATED = re.compile(r"(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d)-(?P<what>.+?)(?:-(?P<number>\d+))?")
_MAX_LISTED = 8


class Entry(NamedTuple):
    """A run in the default directory of runs, or a subdirectory that contains runs; a run has one path."""

    name: str
    paths: tuple[Path, ...]

    @property
    def order(self) -> tuple[str, int, str]:
        """Sort key: the date in the name, then the number that distinguishes runs started in the same second."""
        dated = _DATED.fullmatch(self.name)
        return (dated["date"], int(dated["number"] or 1), self.name) if dated else ("", 0, self.name)

    @property
    def dated(self) -> bool:
        """Whether the name begins with a date."""
        return _DATED.fullmatch(self.name) is not None


_RECORD = re.compile(rb'\s*\{\s*"schema_version"')

_LOG = re.compile(rb'\s*\{\s*"event"')


def is_log_or_record(path: Path) -> bool:
    """Whether a file is a sysbench log or record; traces, which also end in .json, are neither."""
    if path.suffix == ".jsonl":
        return True
    return begins_as_record(path) or (path.suffix != ".json" and _LOG.match(_beginning(path)) is not None)


def is_record(path: Path) -> bool:
    """Whether a file that is a log or a record is a record; decided by its content if the ending does not tell."""
    return path.suffix == ".json" or (path.suffix != ".jsonl" and begins_as_record(path))


def begins_as_record(path: Path) -> bool:
    """Whether the content of a file begins as a record's does, whatever its ending."""
    return _RECORD.match(_beginning(path)) is not None


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file; none if it cannot be read, which reading it later reports."""
    try:
        with path.open("rb") as file:
            return file.read(_BEGINNING_BYTES)
    except OSError:
        return b""


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
    entries = _experiments(directory)
    if not entries:
        raise LogError(f"{name} is not an experiment directory, and {directory} has no experiment")
    dated_runs = [entry for entry in entries if (dated := _DATED.fullmatch(entry.name)) and dated["what"] == name]
    return (dated_runs[-1] if dated_runs else _match_entry(name, name, entries, directory, "run")).paths[0]


def names(directory: Path = RUNS, kind: Kind | None = None) -> list[str]:
    """Return the names of earlier runs in a directory, newest first; with `kind`, only those of this command."""
    return [entry.name for entry in entries(directory)[::-1] if _of_kind(entry.paths, kind)]


def experiments(directory: Path = RUNS) -> list[str]:
    """Return the names of experiments in a directory, newest first."""
    return [entry.name for entry in _experiments(directory)[::-1]]


def _experiments(directory: Path) -> list[Entry]:
    paths = [path for path in _children(directory) if path.is_dir() and manifest.is_manifest(path)]
    return sorted((Entry(path.name, (path,)) for path in paths), key=lambda entry: entry.order)


def load(path: Path) -> RunRecord:
    """Read the record of a run of any command, or compute it from the log; raises LogError."""
    if not is_record(path):
        return _fold_log(path)
    beginning = _beginning(path).lstrip()
    if beginning and not beginning.startswith(b"{"):  # a file of any size: it is not read
        raise _not_a_record(path, beginning, "it does not begin with {")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error
    return _parse_record(path, content)


def _runs_at(path: Path, kind: str | None) -> list[Path]:
    if not path.is_dir():
        if kind is not None and load(path).kind != kind:
            raise LogError(f"{path} is not a record of `sysbench {kind}`")
        return [path]
    paths = _of_kind(_runs_below(path, strict=True), kind)
    if not paths:
        raise LogError(f"{path} contains no run of `sysbench {kind}`" if kind else f"{path} contains no runs")
    return paths


def _find_named(name: str, rest: str, kind: str | None, directory: Path) -> list[Path]:
    found = [Entry(each, paths) for each, files in entries(directory) if (paths := tuple(_of_kind(files, kind)))]
    if not found:
        runs = f"runs of `sysbench {kind}`" if kind else "runs"
        raise LogError(f"{rest or name} is neither a file nor a directory, and there are no {runs} in {directory}")
    return list(_match_entry(name, rest, found, directory, kind).paths)


def _match_entry(name: str, rest: str, entries: Sequence[Entry], directory: Path, command: str | None) -> Entry:
    """Return the entry for a full name, a unique beginning of a name, or `latest~N`."""
    run = f"run of `sysbench {command}`" if command else "run"
    latest = _LATEST.fullmatch(rest)
    if latest or not rest:
        return _nth_latest(name, entries, int(latest[1] or 0) if latest else 0, run, directory)
    matches = [entry for entry in entries if entry.name == rest] or [
        entry for entry in entries if entry.name.startswith(rest)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise LogError(f"{name} is ambiguous in {directory}: {_list_names(matches)}")
    relative_names = ("latest", "latest~1")[: sum(entry.dated for entry in entries)]
    hint = nearest(rest, [*relative_names[:1], *(entry.name for entry in entries)])
    question = f" Did you mean {hint}?" if hint else ""
    problem = f"{name} is neither a file nor a directory, nor a {run} in {directory}"
    raise LogError(f"{problem}.{question} ({', '.join([_list_names(entries), *relative_names])})")


def _nth_latest(name: str, entries: Sequence[Entry], back: int, run: str, directory: Path) -> Entry:
    dated = [entry for entry in entries if entry.dated]
    if back < len(dated):
        return dated[-1 - back]
    if not dated:
        raise LogError(f"there is no {name}: no {run} in {directory} has a date in its name ({_list_names(entries)})")
    oldest = name.removesuffix(f"~{back}") + (f"~{len(dated) - 1}" if len(dated) > 1 else "")
    raise LogError(f"there is no {name}: the oldest matching run in {directory} is {oldest}")


def _list_names(entries: Sequence[Entry]) -> str:
    names = [entry.name for entry in entries[::-1][:_MAX_LISTED]]
    more = len(entries) - len(names)
    return ", ".join(names) + (f", and {more} more" if more else "")


def entries(directory: Path = RUNS) -> list[Entry]:
    """Return the runs, and subdirectories of runs, in a directory, oldest first; a run is its log or its record."""
    children = _children(directory)
    # A file that cannot be read does not prevent the user from naming another run.
    single = [Entry(path.stem, (path,)) for path in _preferred(children, strict=False)]
    nested = [Entry(path.name, tuple(_runs_below(path, strict=False))) for path in children if path.is_dir()]
    return sorted((entry for entry in [*single, *nested] if entry.paths), key=lambda entry: entry.order)


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise cannot_read(directory, error) from error


def _refuse_unreadable(error: OSError) -> None:
    """Raise LogError: a run in a directory that the user named must not be missing from the result unnoticed."""
    raise cannot_read(Path(os.fsdecode(error.filename)), error)


def _runs_below(directory: Path, *, strict: bool) -> list[Path]:
    """Return the runs in a directory and its subdirectories, ignoring other files."""
    files: list[Path] = []
    for folder, _, names in os.walk(directory, onerror=_refuse_unreadable if strict else None):
        files += (Path(folder, name) for name in names if ".json" in name)
    return sorted(_preferred(sorted(files), strict=strict), key=lambda path: (path.parent, Entry(path.stem, ()).order))


def _preferred(files: Iterable[Path], *, strict: bool) -> list[Path]:
    """Return the files that are logs or records; for a run with both, the newer file, and in a tie the record."""
    preferred: dict[Path, Path] = {}
    for path in files:
        try:
            if path.suffix not in (".json", ".jsonl") or not path.is_file() or _kind_of(path) is None:
                continue
            stem = path.with_suffix("")
            other = preferred.get(stem)
            # sorted() puts .json before .jsonl
            if other is None or path.stat().st_mtime_ns > other.stat().st_mtime_ns:
                preferred[stem] = path
        except OSError as error:
            if strict:
                raise cannot_read(path, error) from error
    return list(preferred.values())


_BEGINNING_BYTES = 4096
_KIND = re.compile(rb'"kind":\s*"(\w+)"')
_TOP = re.compile(rb'\A\s*{\s*"schema_version":\s*(-?\d+),\s*"kind":\s*"(\w+)"')


def kind_at(path: Path) -> Kind | None:
    """Return the command that wrote a log or record, according to the beginning of the file; None for other files."""
    try:
        return _kind_of(path)
    except OSError:
        return None


def _kind_of(path: Path) -> Kind | None:
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
    is_sysbench_file = b'"schema_version"' in beginning and b'"sysbench_version"' in beginning
    found = _KIND.search(beginning) if is_sysbench_file else None
    return next((kind for kind in kinds() if found and found[1] == kind.encode()), None)


def _of_kind(paths: Iterable[Path], kind: str | None) -> list[Path]:
    return [path for path in paths if kind is None or kind_at(path) == kind]


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
    schema: object
    if found := _TOP.search(content, 0, _BEGINNING_BYTES):
        schema, kind = int(found[1]), found[2].decode()
    else:  # in a file that was edited, they may not be the first fields
        top = _top_level(content) or {}
        schema, kind = top.get("schema_version"), str(top.get("kind"))
    model = command_of(kind).records().record if kind in kinds() else None
    if schema != SCHEMA_VERSION or model is None:
        raise _not_a_record(path, content, "it has no kind")
    try:
        with gc_paused():
            return model.model_validate_json(content)
    except ValidationError as error:
        raise _not_a_record(path, content, first_error(error)) from None


def _top_level(content: bytes) -> dict[str, Any] | None:
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


Arm = Literal["A", "B"]
ARMS: tuple[Arm, ...] = get_args(Arm)

_ROUND = re.compile(r"round-(\d+)")


def log_name(number: int) -> str:
    """Return the name, without its suffix, of the log for a round; both arms use the same name."""
    return f"round-{number:02d}"


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm of an earlier comparison; `files` maps round numbers to files."""

    directory: Path
    arm: Arm
    files: Mapping[int, Path]


def find_arm(files: Iterable[Path]) -> ArmRuns | None:
    """Return the single arm of a comparison to which all these files belong; None if there is no such arm."""
    arms = find_arms(files)
    return next(iter(arms.values())) if len(arms) == 1 else None


def find_arms(files: Iterable[Path]) -> dict[Arm, ArmRuns]:
    """Return the arms of the single comparison to which all these files belong."""
    files_of: dict[Arm, dict[int, Path]] = {}
    directories = set()
    for path in files:
        matched = _ROUND.fullmatch(path.stem)
        arm = next((arm for arm in ARMS if path.absolute().parent.name == arm), None)
        if matched is None or arm is None:
            return {}
        directories.add(path.absolute().parent.parent)
        files_of.setdefault(arm, {})[int(matched[1])] = path
    if len(directories) != 1:
        return {}
    (directory,) = directories
    return {arm: ArmRuns(directory, arm, files_of[arm]) for arm in ARMS if arm in files_of}

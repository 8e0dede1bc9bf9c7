"""Experiment files: TOML with one table of command-line options per run, and includes of other experiments.

title = "Model sizes"
include = ["warmup"]              # or [[include]] with run = "warmup" and options for all of its runs

[[run]]
name = "phases"
title = "Forward and backward"
question = "How long do they take?"
command = "time"
size = "small,medium"             # every other key is an option of the command, by its long name
bf16 = true
keep = ["warmup"]                 # options that cannot be overridden, because they are the point of the run

[run.on_cpu]                      # options that replace those above if the run uses a CPU
size = "tiny"                     # or skip = "reason to skip the run on a CPU"

Error messages name the line of a key, although the TOML parser does not report lines.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, ValidationError

from sysbench import package
from sysbench.command import Kind, runnable
from sysbench.errors import UsageError, unknown
from sysbench.log.storage import reason
from sysbench.spec.cell import DeviceType
from sysbench.spec.command_options import OptionKey, keys_of
from sysbench.spec.frozen import Frozen

SUFFIX = ".toml"

_DEVICE_KEYS: Mapping[str, DeviceType] = {f"on_{name}": name for name in get_args(DeviceType)}
_EXPERIMENT_KEYS = ("title", "question", "include", "run")
_RUN_KEYS = ("name", "title", "question", "command", "keep", *_DEVICE_KEYS)
_SKIP = "skip"

MAX_RUNS = 500
"""Maximum number of runs; only nested inclusions could exceed it."""

MAX_NAME_CHARACTERS = 100
"""Longest name of a run, so that the names of its files fit into the 255 bytes that file systems allow."""

_MAX_INTEGER_BITS = 1024
"""Python refuses to print much wider integers."""

_Model = TypeVar("_Model", bound=BaseModel)

Text = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]


@dataclass(frozen=True)
class Place:
    """A location in an experiment file: the file, its text, and a path of keys."""

    file: Path
    text: str = field(repr=False)
    steps: tuple[str | int, ...] = ()

    def at(self, *steps: str | int) -> Place:
        return Place(self.file, self.text, (*self.steps, *steps))

    def error(self, what: str) -> UsageError:
        return UsageError(f"{self.file}, line {line_of(self.text, self.steps)}: {what}")


@dataclass(frozen=True)
class OptionValue:
    """The value of an option, as it would be written on the command line."""

    text: str | None
    """"" for a switch; None for a switch that is explicitly off."""
    place: Place | None = None
    """Place in a file; None for a word from the command line."""


OptionValues = Mapping[str, OptionValue]
"""Option values by field of the spec or of its options."""


class DeviceOverrides(Frozen):
    """Option overrides for a run on one type of device."""

    words: OptionValues = Field(default_factory=dict)
    skip: Text | None = None
    """Why the run is skipped on this type of device; None if it is not skipped."""


class WrittenRun(Frozen):
    """A run as written in an experiment file."""

    name: Annotated[
        str,
        StringConstraints(
            strip_whitespace=True, pattern="^-*[A-Za-z0-9][A-Za-z0-9-]*$", max_length=MAX_NAME_CHARACTERS
        ),
    ]
    title: Text
    question: Text
    command: Kind
    words: OptionValues
    instead: Mapping[DeviceType, DeviceOverrides]
    keep: frozenset[str]
    """Fields that cannot be overridden."""
    place: Place
    part: Text
    """Title of the file that defines the run."""
    overrides: OptionValues = Field(default_factory=dict)
    """Options that experiments which include this run give it instead of `words` and of those for a device."""


class WrittenExperiment(Frozen):
    """The content of an experiment file."""

    path: Path
    title: Text
    question: Text
    runs: tuple[WrittenRun, ...]
    """All runs in order, those of included experiments first."""

    @property
    def name(self) -> str:
        return self.path.stem


def names() -> list[str]:
    return sorted(path.stem for path in package.profiles("runs").glob(f"*{SUFFIX}"))


def load(name: str) -> WrittenExperiment:
    """Read an experiment, given by name, or by a path that ends in .toml or contains a slash."""
    return _read_file(find_file(name), ())


def find_file(name: str, directory: Path = Path()) -> Path:
    """Return the file of an experiment; a path is relative to `directory`. Raises UsageError for an unknown name."""
    if name.isprintable() and (name.endswith(SUFFIX) or "/" in name):
        return directory / name
    if name in names():
        return package.profiles("runs") / f"{name}{SUFFIX}"
    raise UsageError(unknown(name, f"a built-in experiment or a {SUFFIX} file", names()))


def _read_file(path: Path, including_files: tuple[Path, ...]) -> WrittenExperiment:
    root, document = _parse(path)
    for key in document:
        if key not in _EXPERIMENT_KEYS:
            raise root.at(key).error(unknown(key, "a key of an experiment", _EXPERIMENT_KEYS))
    entries = document.get("run", [])
    if not isinstance(entries, list):
        raise root.at("run").error("run must be a list of tables: begin each with [[run]]")
    title = _value_or_default(document, "title", path.stem)
    runs = [_parse_run(entry, root.at("run", number), title) for number, entry in enumerate(entries)]
    for number, run in enumerate(runs):
        if any(run.name.lower() == other.name.lower() for other in runs[:number]):
            raise run.place.error(f"there are two runs called {run.name}: give each run its own name")
    # Unlike `Path.resolve`, `realpath` also works for links in a cycle.
    included = _included_runs(document.get("include", []), root, (*including_files, Path(os.path.realpath(path))))
    runs = [*included, *runs]
    if not runs:
        raise UsageError(
            f'{path} has no runs: each run is a table [[run]]; include = ["sizes"] takes those of another experiment'
        )
    if len(runs) > MAX_RUNS:
        raise UsageError(f"{path} includes more than {MAX_RUNS} runs")
    return _build(
        WrittenExperiment, root, path=path, title=title, question=document.get("question", ""), runs=tuple(runs)
    )


def _parse(path: Path) -> tuple[Place, dict[str, object]]:
    try:
        text = path.read_text(encoding="utf-8")
        return Place(path, text), tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(f"cannot read {path}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a UTF-8 text file") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}") from error
    except ValueError as error:  # invalid TOML, or a number with thousands of digits
        raise UsageError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply") from None


def _build(model: type[_Model], place: Place, /, **values: object) -> _Model:
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "string_pattern_mismatch":
            problem = f"{key} {first['input']!r} becomes part of a file name: use letters, digits and hyphens"
        elif first["type"] == "string_too_long":
            problem = f"{key} becomes part of a file name: use at most {MAX_NAME_CHARACTERS} characters"
        else:
            problem = f"{key} must be a string: write it in quotation marks"
        raise place.at(key).error(problem) from None


def _value_or_default(entry: Mapping[str, object], key: str, default: str) -> Any:
    return default if entry.get(key, "") == "" else entry[key]


# --- other experiments


def _included_runs(entries: object, root: Place, chain: tuple[Path, ...]) -> list[WrittenRun]:
    if not isinstance(entries, list):
        raise root.at("include").error(f"include takes a list of experiments, not {entries!r}")
    runs: list[WrittenRun] = []
    for number, entry in enumerate(entries):
        place = root.at("include", number)
        table = {"run": entry} if isinstance(entry, str) else entry
        if not isinstance(table, dict) or not isinstance(table.get("run"), str):
            raise place.error('an include entry names its experiment: "sizes", or run = "sizes" in [[include]]')
        try:
            path = find_file(table["run"], root.file.parent)
        except UsageError as error:
            raise place.error(str(error)) from None
        real_path = Path(os.path.realpath(path))
        if real_path in chain:
            cycle = (*chain[chain.index(real_path) :], real_path)
            raise place.error(f"includes itself: {' → '.join(each.name for each in cycle)}")
        experiment = _read_file(path, chain)
        # An option of several commands is a switch in all of them or in none.
        known = {name: key for kind in reversed(runnable()) for name, key in keys_of(kind).items()}
        options = {name: value for name, value in table.items() if name != "run"}
        overrides = _options_by_name(options, place, known, "an option of any command")
        runs += override(experiment.runs, overrides, experiment.name)
        if len(runs) > MAX_RUNS:
            break
    return runs


def override(runs: Sequence[WrittenRun], options: OptionValues, experiment: str) -> list[WrittenRun]:
    """Return the runs with `options`, by long name; raises UsageError for an option that no run takes."""
    used: set[str] = set()
    fixed: dict[str, str] = {}
    changed = []
    for run in runs:
        keys = keys_of(run.command)
        fixed |= {name: run.name for name in options if name in keys and keys[name].field in run.keep}
        applied = {name: word for name, word in options.items() if name in keys and keys[name].field not in run.keep}
        used |= applied.keys()
        changed.append(run.model_copy(update={"overrides": {**run.overrides, **by_field(run.command, applied)}}))
    for name, value in options.items():
        if name not in used:
            problem = f"is not an option of any run of {experiment}"
            if name in fixed:
                problem = f"is fixed by {fixed[name]}, and no other run of {experiment} has it"
            raise value.place.error(f"{name} {problem}") if value.place else UsageError(f"--{name} {problem}")
    return changed


# --- runs


def _parse_run(entry: object, place: Place, part: str) -> WrittenRun:
    entry = _require_table(entry, place)
    if "command" not in entry:
        raise place.error(f"a run needs a command: {', '.join(runnable())}")
    command = entry["command"]
    kind = next((kind for kind in runnable() if kind == command), None)
    if kind is None:
        raise place.at("command").error(f"command {unknown(str(command), 'a command that measures', runnable())}")
    name = _value_or_default(entry, "name", kind)
    return _build(
        WrittenRun,
        place,
        name=name,
        title=_value_or_default(entry, "title", name),
        question=entry.get("question", ""),
        command=kind,
        words=_options_by_field(kind, entry, place, _RUN_KEYS),
        instead={
            device: _device_overrides(kind, _require_table(entry[key], place.at(key)), place.at(key))
            for key, device in _DEVICE_KEYS.items()
            if key in entry
        },
        keep=frozenset(_fixed_fields(kind, entry.get("keep", []), place.at("keep"))),
        place=place,
        part=part,
    )


def _require_table(value: object, place: Place) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise place.error(f"{place.steps[-1]} must be a table of options, not {value!r}")
    return value


def _device_overrides(kind: Kind, entry: Mapping[str, object], place: Place) -> DeviceOverrides:
    overrides = _build(
        DeviceOverrides, place, words=_options_by_field(kind, entry, place, (_SKIP,)), skip=entry.get(_SKIP)
    )
    if overrides.skip is not None and overrides.words:
        raise place.at(_SKIP).error("a skipped run takes no options besides skip")
    return overrides


def _fixed_fields(kind: Kind, value: object, place: Place) -> Iterator[str]:
    keys = keys_of(kind)
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or name not in keys:
            raise place.error(unknown(str(name), f"an option of `{kind}` to keep", keys))
        yield keys[name].field


# --- options


def _options_by_field(kind: Kind, entry: Mapping[str, object], place: Place, other_keys: Sequence[str]) -> OptionValues:
    options = {key: value for key, value in entry.items() if key not in other_keys}
    return by_field(kind, _options_by_name(options, place, keys_of(kind), f"an option of `{kind}`", other_keys))


def _options_by_name(
    options: Mapping[str, object],
    place: Place,
    known: Mapping[str, OptionKey],
    noun: str,
    other_keys: Sequence[str] = (),
) -> OptionValues:
    for name in options:
        if name not in known:
            raise place.at(name).error(unknown(name, noun, (*known, *other_keys)))
    return {name: _option_value(name, value, place.at(name), known[name]) for name, value in options.items()}


def by_field(kind: Kind, written: Mapping[str, OptionValue]) -> OptionValues:
    """Convert options by long name to words by field, ignoring names that this command lacks."""
    keys, values = keys_of(kind), dict[str, OptionValue]()
    for name, value in written.items():
        key = keys.get(name)
        if key is None:
            continue
        text = key.shorthand_value if key.shorthand_value is not None and value.text is not None else value.text
        previous = values.get(key.field)
        if previous is not None and previous.text is not None:
            text = f"{previous.text},{text}" if text is not None else previous.text
        values[key.field] = OptionValue(text, value.place)
    return values


def _option_value(name: str, value: object, place: Place, key: OptionKey) -> OptionValue:
    if isinstance(value, bool):
        if not key.is_switch:
            raise place.error(f"{name} needs a value; true and false are for switches")
        return OptionValue("" if value else None, place)
    if key.is_switch:
        raise place.error(f"{name} is a switch: write true or false")
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return OptionValue(",".join(str(each) for each in value), place)
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise place.error(f"{name} is a number of {value.bit_length()} bits, which is too large")
    if isinstance(value, str | int | float):
        if key.is_file and (Path(str(value)).name != value or value.startswith(".")):
            raise place.error(f"{name} is written to the experiment's directory: give it a name, not a path")
        return OptionValue(str(value), place)
    raise place.error(f"{name} takes a string, a number, true, false, or a list of strings or numbers")


def line_of(text: str, path: Sequence[str | int]) -> int:
    """Return the first line (from 1) of the statement that sets the value at `path`; `text` must be TOML.

    `("run", 2, "size")` is the key `size` of the third `[[run]]`. If the path does not exist, its longest existing
    prefix is used.
    """
    lines, document = text.split("\n"), tomllib.loads(text)
    path = next(path[:end] for end in range(len(path), -1, -1) if _has_path(document, path[:end]))
    # Parse the file line by line: a value that appears was set by the lines since the last valid prefix. This is slow,
    # but errors are rare and files are short, and no second parser for quotes and nesting is needed.
    line = 1
    for end in range(1, len(lines) + 1):
        try:
            parsed = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        if _has_path(parsed, path):
            break
        line = end + 1
    return line


def _has_path(document: Any, path: Sequence[str | int]) -> bool:
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True

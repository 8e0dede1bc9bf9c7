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

from sysbench.command import Kind, runnable
from sysbench.errors import UsageError, unknown
from sysbench.spec import hardware as shipped
from sysbench.spec.cell import DeviceType
from sysbench.spec.command_options import OptionKey, keys_of
from sysbench.spec.frozen import Frozen

ENDING = ".toml"

_ON: Mapping[str, DeviceType] = {f"on_{name}": name for name in get_args(DeviceType)}
_OF_A_FILE = ("title", "question", "include", "run")
_OF_A_RUN = ("name", "title", "question", "command", "keep", *_ON)
_SKIP = "skip"

_WIDEST_NUMBER_BITS = 1024
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
        """Return the location of a key nested under this one."""
        return Place(self.file, self.text, (*self.steps, *steps))

    def complaint(self, what: str) -> UsageError:
        """Return an error that names the file and the line."""
        return UsageError(f"{self.file}, line {line_of(self.text, self.steps)}: {what}")


@dataclass(frozen=True)
class Word:
    """The value of an option, as it would be written on the command line."""

    text: str | None
    """"" for a switch; None for a switch that is explicitly off."""
    place: Place | None = None
    """Place in a file; None for a word from the command line."""


Words = Mapping[str, Word]
"""Words by field of the spec or of its options."""


class Instead(Frozen):
    """Option overrides for a run on one type of device."""

    words: Words = Field(default_factory=dict)
    skip: Text | None = None
    """Why the run is skipped on this type of device; None if it is not skipped."""


class WrittenRun(Frozen):
    """A run as written in an experiment file."""

    name: Annotated[str, StringConstraints(strip_whitespace=True, pattern="^-*[A-Za-z0-9][A-Za-z0-9-]*$")]
    title: Text
    question: Text
    command: Kind
    words: Words
    instead: Mapping[DeviceType, Instead]
    keep: frozenset[str]
    """Fields that cannot be overridden."""
    place: Place


class Inclusion(Frozen):
    """An experiment that another one includes, with overrides for its runs."""

    experiment: WrittenExperiment
    overrides: Words
    """Options by long name, for every run that has them."""


class WrittenExperiment(Frozen):
    """The content of an experiment file."""

    path: Path
    title: Text
    question: Text
    inclusions: tuple[Inclusion, ...]
    runs: tuple[WrittenRun, ...]

    @property
    def name(self) -> str:
        """Name of the file without its suffix."""
        return self.path.stem


def names() -> list[str]:
    """Return the names of the built-in experiments."""
    return sorted(path.stem for path in shipped.directory("runs").glob(f"*{ENDING}"))


def load(name: str) -> WrittenExperiment:
    """Read an experiment, given by name or by path; raises UsageError for an unknown name and for an invalid file.

    A name that ends in .toml or contains a slash is a path.
    """
    return _read(found(name), ())


def found(name: str, beside: Path = Path()) -> Path:
    """Return the file of an experiment; a path is relative to `beside`. Raises UsageError for an unknown name."""
    if name.isprintable() and (name.endswith(ENDING) or "/" in name):
        return beside / name
    if name in names():
        return shipped.directory("runs") / f"{name}{ENDING}"
    raise UsageError(unknown(name, f"a built-in experiment or a {ENDING} file", names()))


def _read(path: Path, including: tuple[Path, ...]) -> WrittenExperiment:
    top, document = _parsed(path)
    for key in document:
        if key not in _OF_A_FILE:
            raise top.at(key).complaint(unknown(key, "a key of an experiment", _OF_A_FILE))
    entries = document.get("run", [])
    if not isinstance(entries, list):
        raise top.at("run").complaint("run must be a list of tables: begin each with [[run]]")
    runs = [_run(entry, top.at("run", number)) for number, entry in enumerate(entries)]
    for number, run in enumerate(runs):
        if any(run.name.lower() == other.name.lower() for other in runs[:number]):
            raise run.place.complaint(f"there are two runs called {run.name}: give each run its own name")
    # Unlike `Path.resolve`, `realpath` also works for links in a cycle.
    inclusions = tuple(_inclusions(document.get("include", []), top, (*including, Path(os.path.realpath(path)))))
    if not runs and not inclusions:
        raise UsageError(
            f'{path} has no runs: each run is a table [[run]]; include = ["sizes"] takes those of another experiment'
        )
    return _made(
        WrittenExperiment,
        top,
        path=path,
        title=_or(document, "title", path.stem),
        question=document.get("question", ""),
        inclusions=inclusions,
        runs=runs,
    )


def _parsed(path: Path) -> tuple[Place, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        return Place(path, text), tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(f"cannot read {path}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a UTF-8 text file") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # invalid TOML, or a number with thousands of digits
        raise UsageError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply") from None


def _made(model: type[_Model], place: Place, /, **values: Any) -> _Model:
    """Create an instance of `model`; raises UsageError, naming the line of the first invalid value."""
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "string_pattern_mismatch":
            what = f"{key} {first['input']!r} becomes part of a file name: use letters, digits and hyphens"
        else:
            what = f"{key} must be a string: write it in quotation marks"
        raise place.at(key).complaint(what) from None


def _or(entry: Mapping[str, Any], key: str, otherwise: str) -> Any:
    """Return the value of a key, or `otherwise` if the key is missing or its text is empty."""
    return otherwise if entry.get(key, "") == "" else entry[key]


# --- other experiments


def _inclusions(entries: object, top: Place, chain: tuple[Path, ...]) -> Iterator[Inclusion]:
    if not isinstance(entries, list):
        raise top.at("include").complaint(f"include takes a list of experiments, not {entries!r}")
    for number, entry in enumerate(entries):
        place = top.at("include", number)
        table = {"run": entry} if isinstance(entry, str) else entry
        if not isinstance(table, dict) or not isinstance(table.get("run"), str):
            raise place.complaint('an include entry names its experiment: "sizes", or run = "sizes" in [[include]]')
        try:
            path = found(table["run"], top.file.parent)
        except UsageError as error:
            raise place.complaint(str(error)) from None
        real = Path(os.path.realpath(path))
        if real in chain:
            circle = (*chain[chain.index(real) :], real)
            raise place.complaint(f"includes itself: {' → '.join(each.name for each in circle)}")
        experiment = _read(path, chain)
        # An option of several commands is a switch in all of them or in none.
        known = {name: key for kind in reversed(runnable()) for name, key in keys_of(kind).items()}
        options = {name: value for name, value in table.items() if name != "run"}
        yield Inclusion(experiment=experiment, overrides=_written(options, place, known, "an option of any command"))


# --- runs


def _run(entry: object, place: Place) -> WrittenRun:
    entry = _table(entry, place)
    if "command" not in entry:
        raise place.complaint(f"a run needs a command: {', '.join(runnable())}")
    command = entry["command"]
    kind = next((kind for kind in runnable() if kind == command), None)
    if kind is None:
        raise place.at("command").complaint(f"command {unknown(str(command), 'a command that measures', runnable())}")
    name = _or(entry, "name", kind)
    return _made(
        WrittenRun,
        place,
        name=name,
        title=_or(entry, "title", name),
        question=entry.get("question", ""),
        command=kind,
        words=_words(kind, entry, place, _OF_A_RUN),
        instead={
            device: _instead(kind, _table(entry[key], place.at(key)), place.at(key))
            for key, device in _ON.items()
            if key in entry
        },
        keep=frozenset(_kept(kind, entry.get("keep", []), place.at("keep"))),
        place=place,
    )


def _table(value: object, place: Place) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise place.complaint(f"{place.steps[-1]} must be a table of options, not {value!r}")
    return value


def _instead(kind: Kind, entry: Mapping[str, Any], place: Place) -> Instead:
    instead = _made(Instead, place, words=_words(kind, entry, place, (_SKIP,)), skip=entry.get(_SKIP))
    if instead.skip is not None and instead.words:
        raise place.at(_SKIP).complaint("a skipped run takes no options besides skip")
    return instead


def _kept(kind: Kind, value: object, place: Place) -> Iterator[str]:
    keys = keys_of(kind)
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or name not in keys:
            raise place.complaint(unknown(str(name), f"an option of `{kind}` to keep", keys))
        yield keys[name].field


# --- options


def _words(kind: Kind, entry: Mapping[str, Any], place: Place, also: Sequence[str]) -> Words:
    """Return the options in a TOML table by field; `also` lists other keys that the table may contain."""
    options = {key: value for key, value in entry.items() if key not in also}
    return by_field(kind, _written(options, place, keys_of(kind), f"an option of `{kind}`", also))


def _written(
    options: Mapping[str, Any], place: Place, known: Mapping[str, OptionKey], noun: str, also: Sequence[str] = ()
) -> Words:
    """Return the options in a TOML table by long name; raises UsageError for an unknown key."""
    for name in options:
        if name not in known:
            raise place.at(name).complaint(unknown(name, noun, (*known, *also)))
    return {name: _word(name, value, place.at(name), known[name]) for name, value in options.items()}


def by_field(kind: Kind, written: Mapping[str, Word]) -> Words:
    """Convert options by long name to words by field, ignoring names that this command lacks.

    Shorthands of one field are combined; if all of them are explicitly off, the field gets its default.
    """
    keys, found = keys_of(kind), dict[str, Word]()
    for name, word in written.items():
        key = keys.get(name)
        if key is None:
            continue
        text = key.shorthand_value if key.shorthand_value is not None and word.text is not None else word.text
        former = found.get(key.field)
        if former is not None and former.text is not None:
            text = f"{former.text},{text}" if text is not None else former.text
        found[key.field] = Word(text, word.place)
    return found


def _word(name: str, value: object, place: Place, key: OptionKey) -> Word:
    """Convert a TOML value to the form that it has on the command line."""
    if isinstance(value, bool):
        if not key.is_switch:
            raise place.complaint(f"{name} needs a value; true and false are for switches")
        return Word("" if value else None, place)
    if key.is_switch:
        raise place.complaint(f"{name} is a switch: write true or false")
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return Word(",".join(str(each) for each in value), place)
    if isinstance(value, int) and value.bit_length() > _WIDEST_NUMBER_BITS:
        raise place.complaint(f"{name} is a number of {value.bit_length()} bits, which is too large")
    if isinstance(value, str | int | float):
        if key.is_file and (Path(str(value)).name != value or value.startswith(".")):
            raise place.complaint(f"{name} is written to the experiment's directory: give it a name, not a path")
        return Word(str(value), place)
    raise place.complaint(f"{name} takes a string, a number, true, false, or a list of strings or numbers")


def line_of(text: str, path: Sequence[str | int]) -> int:
    """Return the first line (from 1) of the statement that sets the value at `path`; `text` must be TOML.

    `("run", 2, "size")` is the key `size` of the third `[[run]]`. If the path does not exist, its longest existing
    prefix is used.
    """
    lines, whole = text.split("\n"), tomllib.loads(text)
    path = next(path[:end] for end in range(len(path), -1, -1) if _holds(whole, path[:end]))
    # Parse the file line by line: a value that appears was set by the lines since the last valid prefix. This is slow,
    # but errors are rare and files are short, and no second parser for quotes and nesting is needed.
    begun = 1
    for end in range(1, len(lines) + 1):
        try:
            so_far = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        if _holds(so_far, path):
            break
        begun = end + 1
    return begun


def _holds(document: Any, path: Sequence[str | int]) -> bool:
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True

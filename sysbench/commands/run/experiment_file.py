"""Experiments as they are written down: TOML files of runs in the options' own words, and of other experiments.

title = "Model sizes"
include = ["warmup"]              # or [[include]] with run = "warmup" and options for all of its runs

[[run]]
name = "phases"
title = "Forward and backward"
question = "How long do they take?"
command = "time"
size = "small,medium"             # every other key is an option of the command, by its long name
bf16 = true
keep = ["warmup"]                 # what may not be changed from outside: it is what the run is about

[run.on_cpu]                      # options that stand in their place where the run lands on a CPU
size = "tiny"                     # or skip = "why it is left out there"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from sysbench.command import Kind, kinds
from sysbench.commands.run.toml_lines import line_of
from sysbench.errors import UsageError, unknown
from sysbench.spec import hardware as shipped
from sysbench.spec.cell import DeviceType
from sysbench.spec.commands import Key, keys_of

ENDING = ".toml"

Steps = tuple[str | int, ...]

_ON: Mapping[str, DeviceType] = {f"on_{name}": name for name in get_args(DeviceType)}
_OF_A_FILE = ("title", "question", "include", "run")
_OF_A_RUN = ("name", "title", "question", "command", "keep", *_ON)
_SKIP = "skip"

_WIDEST_NUMBER_BITS = 1024
"""Python does not even write wider ones out."""


@dataclass(frozen=True)
class Place:
    """Where something is said."""

    file: Path
    text: str = field(repr=False)
    steps: Steps = ()

    def at(self, *steps: str | int) -> Place:
        """A place within this one."""
        return Place(self.file, self.text, (*self.steps, *steps))

    def complaint(self, what: str) -> UsageError:
        """An error that says where it is."""
        return UsageError(f"{self.file}, line {line_of(self.text, self.steps)}: {what}")


@dataclass(frozen=True)
class Word:
    """The value of an option as it is written on a command line, and where it was said: None there."""

    text: str | None
    """"" for a switch; None for a switch that is expressly not given."""
    place: Place | None = None


Words = Mapping[str, Word]
"""By the fields of a spec and of its options."""


@dataclass(frozen=True)
class Instead:
    """What is different on one kind of device."""

    words: Words
    skip: str | None
    """Why the run is left out there; None where it is not."""


@dataclass(frozen=True)
class WrittenRun:
    """One run as the file has it."""

    name: str
    title: str
    question: str
    command: Kind
    words: Words
    instead: Mapping[DeviceType, Instead]
    keep: frozenset[str]
    """Fields that nothing from outside changes."""
    place: Place


@dataclass(frozen=True)
class Inclusion:
    """Another experiment, all of whose runs are taken."""

    experiment: WrittenExperiment
    overrides: Mapping[str, Word]
    """By long name, for every run that has the option."""
    place: Place


@dataclass(frozen=True)
class WrittenExperiment:
    """A file."""

    name: str
    """That of its file, without ending."""
    path: Path
    title: str
    question: str
    inclusions: tuple[Inclusion, ...]
    runs: tuple[WrittenRun, ...]


def names() -> list[str]:
    """The experiments that come with sysbench."""
    return sorted(path.stem for path in shipped.directory("runs").glob(f"*{ENDING}"))


def load(name: str) -> WrittenExperiment:
    """The experiment called so, or the one in the file called so; raises UsageError for a name or a file that is wrong.

    What ends in .toml or has a slash in it is a file.
    """
    return _read(found(name), ())


def found(name: str) -> Path:
    """The file of an experiment by its name, or as it was named; raises UsageError for a name that there is not."""
    return _found(name, Path(), None)


def _found(name: str, beside: Path, place: Place | None) -> Path:
    if name.isprintable() and (name.endswith(ENDING) or "/" in name):
        return beside / name
    if name in names():
        return shipped.directory("runs") / f"{name}{ENDING}"
    what = unknown(name, f"an experiment that ships, nor a file, which ends in {ENDING}", names())
    raise place.complaint(what) if place is not None else UsageError(what)


def _read(path: Path, including: tuple[Path, ...]) -> WrittenExperiment:
    top = Place(path, _text_of(path))
    document = _parsed(top)
    _refuse_unknown_keys(document, _OF_A_FILE, top, "a key of an experiment")
    chain = (*including, _real(path))
    runs = tuple(_run(entry, top.at("run", number)) for number, entry in enumerate(_tables(document, "run", top)))
    _refuse_repeated_names(runs)
    inclusions = tuple(_inclusions(document, top, chain))
    if not runs and not inclusions:
        raise UsageError(f'{path} has no runs: each is a table [[run]], and include = ["sizes"] takes those of others')
    return WrittenExperiment(
        path.stem, path, _text(document, "title", top) or path.stem, _text(document, "question", top), inclusions, runs
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"cannot read {path}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text in UTF-8") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _parsed(top: Place) -> dict[str, Any]:
    try:
        return tomllib.loads(top.text)
    except ValueError as error:  # of TOML, or of a number with thousands of digits
        raise UsageError(f"{top.file} is not TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{top.file} is nested too deeply") from None


# --- other experiments


def _inclusions(document: Mapping[str, Any], top: Place, chain: tuple[Path, ...]) -> Iterator[Inclusion]:
    entries = document.get("include", [])
    if not isinstance(entries, list):
        raise top.at("include").complaint(f"include takes a list of experiments, not {entries!r}")
    for number, entry in enumerate(entries):
        place = top.at("include", number)
        table = {"run": entry} if isinstance(entry, str) else entry
        if not isinstance(table, dict) or not isinstance(table.get("run"), str):
            raise place.complaint('an inclusion names its experiment: "sizes", or run = "sizes" in [[include]]')
        path = _found(table["run"], top.file.parent, place)
        _refuse_circle(path, chain, place)
        experiment = _read(path, chain)
        overrides = {
            name: _word(name, value, place.at(name), _key_of_any(name, place.at(name)))
            for name, value in table.items()
            if name != "run"
        }
        yield Inclusion(experiment, overrides, place)


def _refuse_circle(path: Path, chain: tuple[Path, ...], place: Place) -> None:
    real = _real(path)
    if real in chain:
        circle = (*chain[chain.index(real) :], real)
        raise place.complaint(f"includes itself: {' → '.join(each.name for each in circle)}")


def _real(path: Path) -> Path:
    """Where a file really is; unlike `Path.resolve`, of links in a circle too."""
    return Path(os.path.realpath(path))


def _key_of_any(name: str, place: Place) -> Key:
    """What the name stands for; where several commands have it, it is a switch for all of them or for none."""
    known = {name: key for kind in reversed(kinds()) for name, key in keys_of(kind).items()}
    if name not in known:
        raise place.complaint(unknown(name, "an option of any command", known))
    return known[name]


# --- runs


def _run(entry: Mapping[str, Any], place: Place) -> WrittenRun:
    command = _text(entry, "command", place)
    kind = next((kind for kind in kinds() if kind == command), None)
    if kind is None:
        if "command" not in entry:
            raise place.complaint(f"a run needs a command: {', '.join(kinds())}")
        raise place.at("command").complaint(f"command {unknown(command, 'a command that measures', kinds())}")
    name = _text(entry, "name", place) or kind
    _refuse_unfit_name(name, place)
    own = {key: value for key, value in entry.items() if key not in _OF_A_RUN}
    instead = {
        device: _instead(kind, _table(entry[key], place.at(key)), place.at(key))
        for key, device in _ON.items()
        if key in entry
    }
    return WrittenRun(
        name,
        _text(entry, "title", place) or name,
        _text(entry, "question", place),
        kind,
        _words(kind, own, place, _OF_A_RUN),
        instead,
        frozenset(_kept(kind, entry.get("keep", []), place.at("keep"))),
        place,
    )


def _instead(kind: Kind, entry: Mapping[str, Any], place: Place) -> Instead:
    words = _words(kind, {key: value for key, value in entry.items() if key != _SKIP}, place, (_SKIP,))
    skip = _text(entry, _SKIP, place) if _SKIP in entry else None
    if skip is not None and words:
        raise place.at(_SKIP).complaint("a run that is left out takes no options beside skip")
    return Instead(words, skip)


def _words(kind: Kind, entry: Mapping[str, Any], place: Place, also: Sequence[str]) -> Words:
    """By field; a shorthand adds its value to what its field is given in the same table."""
    keys = keys_of(kind)
    written: dict[str, Word] = {}
    for key, value in entry.items():
        if key not in keys:
            raise place.at(key).complaint(unknown(key, f"an option of `{kind}`", (*keys, *also)))
        written[key] = _word(key, value, place.at(key), keys[key])
    return by_field(kind, written)


def by_field(kind: Kind, written: Mapping[str, Word]) -> Words:
    """What a run of this kind takes of options by long name; several that stand for one field are added up.

    A shorthand that is expressly not given takes the field back to its default.
    """
    keys, found = keys_of(kind), dict[str, Word]()
    for name, word in written.items():
        key = keys.get(name)
        if key is None:
            continue
        text = key.stands_for if key.stands_for is not None and word.text is not None else word.text
        former = found.get(key.field)
        if former is not None and former.text is not None:
            text = f"{former.text},{text}" if text is not None else former.text
        found[key.field] = Word(text, word.place)
    return found


def _word(name: str, value: object, place: Place, key: Key) -> Word:
    """A value of TOML as it would be written on the command line."""
    if isinstance(value, bool):
        if not key.switch:
            raise place.complaint(f"{name} takes a value; true and false are for switches")
        return Word("" if value else None, place)
    if key.switch:
        raise place.complaint(f"{name} is a switch: write true or false")
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return Word(",".join(str(each) for each in value), place)
    if isinstance(value, int) and value.bit_length() > _WIDEST_NUMBER_BITS:
        raise place.complaint(f"{name} is a number of {value.bit_length()} bits: nothing here is as large")
    if isinstance(value, str | int | float):
        if key.is_file and (Path(str(value)).name != value or value.startswith(".")):
            raise place.complaint(f"{name} is written to the directory of the experiment: give it a name, not a path")
        return Word(str(value), place)
    raise place.complaint(f"{name} takes text, a number, true, false, or a list of texts or numbers")


def _kept(kind: Kind, value: object, place: Place) -> Iterator[str]:
    keys = keys_of(kind)
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or name not in keys:
            raise place.complaint(unknown(str(name), f"an option of `{kind}` to keep", keys))
        yield keys[name].field


def _refuse_unfit_name(name: str, place: Place) -> None:
    if not name.isascii() or not name.replace("-", "").isalnum():
        raise place.at("name").complaint(f"name {name!r} becomes a file's: write letters, digits and hyphens")


def _refuse_repeated_names(runs: Sequence[WrittenRun]) -> None:
    for number, run in enumerate(runs):
        if any(run.name.lower() == other.name.lower() for other in runs[:number]):
            raise run.place.complaint(f"there are two runs called {run.name}: give each a name of its own")


# --- what TOML holds


def _refuse_unknown_keys(document: Mapping[str, Any], known: Sequence[str], place: Place, noun: str) -> None:
    for key in document:
        if key not in known:
            raise place.at(key).complaint(unknown(key, noun, known))


def _tables(document: Mapping[str, Any], key: str, top: Place) -> list[Mapping[str, Any]]:
    entries = document.get(key, [])
    if not isinstance(entries, list):
        raise top.at(key).complaint(f"{key} is a list of tables: begin each with [[{key}]]")
    return [_table(entry, top.at(key, number)) for number, entry in enumerate(entries)]


def _table(value: object, place: Place) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise place.complaint(f"{place.steps[-1]} is a table of options, not {value!r}")
    return value


def _text(entry: Mapping[str, Any], key: str, place: Place) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise place.at(key).complaint(f"{key} is a text: write it in quotation marks")
    return " ".join(value.split())

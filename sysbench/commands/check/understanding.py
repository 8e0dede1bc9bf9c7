"""What a config says of the training step, in the words of sysbench fit's options, and what became of each key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, NoReturn

from sysbench.commands.check.file import ConfigFile
from sysbench.errors import Refusal, nearest

Direction = Literal["less", "more", "either"]
"""What the training needs compared with the answer: less memory, more, or one of them."""


@dataclass(frozen=True)
class Word:
    """A value of an option, and the keys of the file that say so; none if it is what the trainer does by default."""

    value: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Unmodelled:
    """A key whose effect on memory or time the answer leaves out."""

    key: str
    line: int
    direction: Direction
    reason: str


@dataclass(frozen=True)
class UnknownKey:
    """A key that the reader does not know, with the nearest that it knows."""

    key: str
    line: int
    nearest: str | None


class CannotTellError(Exception):
    """The file cannot be answered for; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Settings:
    """The values of a file, each accounted for once a reader has asked for it."""

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self.used: set[str] = set()

    def refuse(self, name: str, reason: str, remedy: str = "") -> NoReturn:
        """Refuse the file for the value of a key; the reason is a phrase about it: `is no number`."""
        entry = self.file.entries[name]
        shown = str(entry.value)[:60]
        raise CannotTellError(Refusal(reason, remedy, f"{self.file.path}, line {entry.line}: {name}: {shown}"))

    def given(self, name: str) -> bool:
        """Return whether the file has a value for this key, other than null and an empty text."""
        return name in self.file.entries and self.file.entries[name].value not in (None, "")

    def value(self, name: str) -> object:
        """Return the value of a key, None if it is not given; the key counts as used."""
        self.used.add(name)
        return self.file.entries[name].value if self.given(name) else None

    def text(self, name: str) -> str | None:
        """Return a value as text, None if it is not given."""
        value = self.value(name)
        if value is not None and not isinstance(value, str | int | float):
            self.refuse(name, "is no text")
        return None if value is None else str(value)

    def number(self, name: str, least: int = 1) -> int | None:
        """Return a whole number, None if it is not given; refuses the file for anything else."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, str) and value.replace("_", "").isdecimal():
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(name, "is no whole number", "write the number that the trainer shall use")
        if value < least:
            self.refuse(name, f"is less than {least}")
        return int(value)

    def switch(self, name: str) -> bool | None:
        """Return whether a key is on, None if it is not given; refuses the file for what is neither."""
        value = self.value(name)
        if isinstance(value, str) and (word := value.lower()) in ("true", "yes", "on", "false", "no", "off"):
            return word in ("true", "yes", "on")
        if value is not None and not isinstance(value, bool):
            self.refuse(name, "is neither true nor false")
        return value

    def words(self, name: str) -> list[str]:
        """Return a list of texts, or a text whose words commas separate; empty if it is not given."""
        value = self.value(name)
        if isinstance(value, str):
            return [word.strip() for word in value.split(",") if word.strip()]
        if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            self.refuse(name, "is no list of names")
        return list(map(str, value or []))


@dataclass
class Understanding:
    """What the files say together; readers fill it in."""

    options: dict[str, Word] = field(default_factory=dict)
    """Fields of a FitSpec."""
    assumed: list[str] = field(default_factory=list)
    """What the answer takes for granted because the files do not say it: sentences without a full stop."""
    unmodelled: list[Unmodelled] = field(default_factory=list)
    unknown: list[UnknownKey] = field(default_factory=list)
    without_effect: int = 0
    """Number of keys that change neither memory nor time."""
    steps: int | None = None
    """Optimizer steps of the whole training, if the file says so."""
    global_batch: int | None = None
    """Sequences of all GPUs in an optimizer step, for trainers that accumulate gradients until there are so many."""
    model: str = ""
    """The model's name in the file."""

    def say(self, option: str, value: object, *keys: str) -> None:
        """Set an option of the step, as the keys say; a later file that says otherwise wins."""
        self.options[option] = Word(str(value), keys)

    def word(self, option: str) -> str | None:
        """Return the value of an option, None if nothing was said."""
        return self.options[option].value if option in self.options else None

    def leave_out(self, settings: Settings, key: str, direction: Direction, reason: str) -> None:
        """Note that the effect of a key is not modelled."""
        settings.used.add(key)
        self.unmodelled.append(Unmodelled(key, settings.file.entries[key].line, direction, reason))


Change = Mapping[str, object]
"""Changed fields of a step, as a trial of sysbench fit has them."""

Lines = Mapping[str, object]
"""Keys of a file with new values."""


@dataclass(frozen=True)
class Format:
    """A kind of file.

    name            the program that reads it
    recognized_by   top-level keys; a file is of the format that has most of its keys here
    read            fills in an Understanding
    without_effect  patterns of keys that change neither memory nor time; a key stands for all below it
    unmodelled      keys whose effect is left out where they are set, with direction and reason
    lines           returns the keys that make a change in this file; None if it has no key for it
    keep            names for `--keep` of sysbench fit: changes that the file has no key for
    launches        whether the file says how processes are started, not what they train
    decided_by      top-level keys that no other format has: one of them decides
    needs           top-level keys of which each file has at least one, if there are any
    suffix          how all files of this format end, if they end alike
    """

    name: str
    recognized_by: frozenset[str]
    read: Callable[[Settings, Understanding], None]
    without_effect: frozenset[str] = frozenset()
    unmodelled: Mapping[str, tuple[Direction, str]] = field(default_factory=dict)
    lines: Callable[[Change, Understanding], Lines | None] = lambda change, understanding: None
    keep: tuple[str, ...] = ()
    launches: bool = False
    decided_by: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    suffix: str = ""

    def may_be(self, file: ConfigFile) -> bool:
        """Return whether a file can be of this format at all."""
        has_any = not self.needs or not file.keys.isdisjoint(self.needs)
        return has_any and file.path.name.lower().endswith(self.suffix)


def keys(text: str) -> frozenset[str]:
    """Return the words of a text: names or patterns of keys."""
    return frozenset(text.split())


def account(form: Format, settings: Settings, understanding: Understanding) -> None:
    """Account for every key that the reader has not asked for: without effect, not modelled, or unknown.

    A key without a value has no effect, whatever its name.
    """
    for name, entry in settings.file.entries.items():
        if _stands_for(name, settings.used):
            continue
        pattern = next(_matching(name, form.unmodelled), None)
        is_set = entry.value not in (None, False, "", 0, [], {}) and str(entry.value).lower() not in ("false", "none")
        if pattern is not None and is_set:
            direction, reason = form.unmodelled[pattern]
            understanding.unmodelled.append(Unmodelled(name, entry.line, direction, reason))
        elif pattern is not None or entry.value is None or any(_matching(name, form.without_effect)):
            understanding.without_effect += 1
        else:
            known = {*settings.used, *form.without_effect, *form.unmodelled}
            understanding.unknown.append(UnknownKey(name, entry.line, nearest(name, known)))


def _stands_for(name: str, used: Collection[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in used for count in range(1, len(parts) + 1))


def _matching(name: str, patterns: Collection[str]) -> Iterator[str]:
    parts = name.split(".")
    paths = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return (pattern for pattern in patterns if any(fnmatchcase(path, pattern) for path in paths))

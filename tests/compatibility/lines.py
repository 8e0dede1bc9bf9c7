"""Reads `commands.txt`: groups of command lines, with braces for their variants as a shell expands them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMMANDS = Path(__file__).with_name("commands.txt")

_INNERMOST = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Line:
    """One command line."""

    group: str
    text: str
    """As it is written, with its variant filled in: `COLUMNS=120 time --from saved/a.jsonl`."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables in front of the command."""
        return dict(word.split("=", 1) for word in self._words[: self._variables])

    @property
    def arguments(self) -> list[str]:
        """What the command line gets."""
        return self._words[self._variables :]

    @property
    def measures(self) -> bool:
        """Whether it starts a worker, as a ~ in front says: then dates and durations are masked."""
        return self.text.startswith("~")

    @property
    def changes_saved(self) -> bool:
        """Whether it continues a saved run, and so needs a copy of its own."""
        return "--resume" in self.arguments

    @property
    def _words(self) -> list[str]:
        return shlex.split(self.text.lstrip("~ "))

    @property
    def _variables(self) -> int:
        return next((n for n, word in enumerate(self._words) if not re.match(r"[A-Z_]+=", word)), len(self._words))


def lines() -> list[Line]:
    """Every command line, group by group."""
    found: list[Line] = []
    group = ""
    for written in COMMANDS.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"\[([\w-]+)\]", written):
            group = heading[1]
        elif written.strip() and not written.startswith("#"):
            found += [Line(group, text) for text in expanded(written)]
    texts = [line.text for line in found]
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise ValueError(f"given twice: {'; '.join(twice)}")
    return found


def expanded(text: str) -> Iterator[str]:
    """`a {b,c} d` as `a b d` and `a c d`."""
    braces = _INNERMOST.search(text)
    if braces is None:
        yield text
        return
    for choice in braces[1].split(","):
        yield from expanded(text[: braces.start()] + choice + text[braces.end() :])

"""Colours, symbols, and what becomes of them on a terminal that cannot show them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

TITLE = "bold"
ACCENT = "bold cyan"
QUIET = "dim"
GOOD = "green"
BAD = "bold red"
WARNING = "yellow"

PHASE_STYLES = {
    "zero_grad": "bright_black",
    "forward": "cyan",
    "loss": "magenta",
    "backward": "blue",
    "optimizer": "yellow",
}
"""One colour per phase, the same wherever phases are drawn beside each other."""

SPARKS = "▁▂▃▄▅▆▇█"

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""All but the end of a line; with those that turn the direction of writing."""

_FALLBACK = {
    "±": "+/-",
    "·": "|",
    "→": "->",
    "×": "x",
    "—": "-",
    "–": "-",
    "…": "..",
    "µ": "u",
    "°": "",
    "⚠": "!",
    "▶": ">",
    "█": "#",
    **dict(zip(SPARKS, "_.-:=+*#", strict=True)),
}
"""Plain characters in place of those that an encoding does not have."""


@lru_cache(maxsize=1024)
def fitted(text: str, encoding: str) -> str:
    """One line of text as a terminal of this encoding can show it.

    A space stands for every control character: names and error messages come from outside, and a terminal would obey
    what is hidden in them.
    """
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return encodable(text, encoding)


def harmless(text: str) -> str:
    """Text of several lines with a space for every control character: files are also looked at in terminals."""
    return _CONTROL.sub(" ", text)


def encodable(text: str, encoding: str) -> str:
    """The text in characters that `encoding` has: a plain stand-in, or a question mark, for each that it has not."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(_fitted_character(character, encoding) for character in text)
    return text


def _fitted_character(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return _FALLBACK.get(character, "?")
    return character


def elided(text: str, width: int) -> str:
    """At most `width` cells of a text, its middle left out: both ends tell long names apart."""
    if cell_len(text) <= width:
        return text
    tail = _first_cells(text[::-1], width // 3)[::-1]
    return f"{_first_cells(text, width - cell_len(tail) - 1)}…{tail}"


def _first_cells(text: str, width: int) -> str:
    shown = set_cell_size(text, max(width, 0))
    return shown.rstrip() if not text.startswith(shown) else shown


def lines_of(phrases: Iterable[str], width: int, separator: str = " · ") -> list[str]:
    """The phrases joined on as few lines as they need; a line is only broken between two of them."""
    lines: list[str] = []
    for phrase in phrases:
        if lines and cell_len(lines[-1] + separator + phrase) <= width:
            lines[-1] += separator + phrase
        else:
            lines.append(phrase)
    return lines

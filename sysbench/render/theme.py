"""Colours and symbols, and replacements for terminals that do not support them."""

from __future__ import annotations

import json
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
"""One colour per phase, used wherever several phases are drawn together."""

SPARKS = "▁▂▃▄▅▆▇█"

_CONTROL = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e0fff]"
)
"""Characters that terminals obey or do not show: C0 but for line feeds, C1, and the format characters of Unicode."""
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")
"""Direction marks, and all control characters except line ends."""

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
    "✓": "+",
    "█": "#",
    "■": "#",
    "━": "-",
    "╸": "-",
    **dict(zip(SPARKS, "_.-:=+*#", strict=True)),
}
"""Plain replacements for characters that an encoding lacks."""


@lru_cache(maxsize=1024)
def terminal_line(text: str, encoding: str) -> str:
    """Return text as one line that a terminal with this encoding can show.

    Control characters become spaces: names and error messages are untrusted, and a terminal would execute escape
    sequences in them.
    """
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return encodable(text, encoding)


def without_control_characters(text: str) -> str:
    """Replace control characters in a multi-line text with spaces, since files are also viewed in terminals."""
    return _CONTROL.sub(" ", text)


def shown_json(text: str, encoding: str) -> str:
    r"""Return JSON with the characters that a terminal obeys, does not show or lacks as escapes, such as `\u202e`."""
    return (_CONTROL if encodable(text, encoding) == text else _NOT_ASCII).sub(_json_escape, text)


def _json_escape(match: re.Match[str]) -> str:
    # Outside of strings, JSON has no other control characters than line feeds.
    return json.dumps(match[0])[1:-1] if match[0] != "\x7f" else r"\u007f"


def encodable(text: str, encoding: str) -> str:
    """Replace every character that `encoding` lacks with a similar one, or with a question mark."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(_encodable_character(character, encoding) for character in text)
    return text


def _encodable_character(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return _FALLBACK.get(character, "?")
    return character


def elided(text: str, width: int) -> str:
    """Shorten text to `width` terminal cells by omitting its middle: both ends are needed to distinguish long names."""
    if cell_len(text) <= width:
        return text
    tail = _first_cells(text[::-1], width // 3)[::-1]
    return f"{_first_cells(text, width - cell_len(tail) - 1)}…{tail}"


def _first_cells(text: str, width: int) -> str:
    shown = set_cell_size(text, max(width, 0))
    return shown.rstrip() if not text.startswith(shown) else shown


def wrap_phrases(phrases: Iterable[str], width: int, separator: str = " · ") -> list[str]:
    """Join phrases into as few lines as possible; lines break only between phrases."""
    lines: list[str] = []
    for phrase in phrases:
        if lines and cell_len(lines[-1] + separator + phrase) <= width:
            lines[-1] += separator + phrase
        else:
            lines.append(phrase)
    return lines

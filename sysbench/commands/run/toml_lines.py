"""In which line of a TOML file something stands, which the parser does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The first line, from 1, of the statement that says what is at `path`; `text` must be TOML.

    `("run", 2, "size")` is the key `size` of the third `[[run]]`. What is at no place of its own is said to stand
    where as much of its path as there is does.
    """
    lines = text.split("\n")
    whole = tomllib.loads(text)
    path = tuple(path)
    while path and not _holds(whole, path):
        path = path[:-1]
    # The file grows line by line; whatever has just appeared is said by the lines since it was last whole. Errors are
    # few and files are short: what the real parser finds needs no second one that knows about quotes and nesting.
    begun = 0
    for end in range(1, len(lines) + 1):
        try:
            so_far = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        if _holds(so_far, path):
            return _first_statement(lines, begun, end) + 1
        begun = end
    return 1


def _holds(document: Any, path: Sequence[str | int]) -> bool:
    for step in path:
        if isinstance(step, int):
            if not isinstance(document, list) or step >= len(document):
                return False
        elif not isinstance(document, dict) or step not in document:
            return False
        document = document[step]
    return True


def _first_statement(lines: Sequence[str], begun: int, end: int) -> int:
    for number in range(begun, end):
        stripped = lines[number].strip()
        if stripped and not stripped.startswith("#"):
            return number
    return begun

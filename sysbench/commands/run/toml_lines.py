"""In which line of a TOML file something stands, which the parser does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The first line, from 1, of the statement that says what is at `path`; `text` must be TOML.

    `("run", 2, "size")` is the key `size` of the third `[[run]]`. What has no place of its own stands where as much of
    its path as there is does.
    """
    lines, whole = text.split("\n"), tomllib.loads(text)
    path = next(path[:end] for end in range(len(path), -1, -1) if _holds(whole, path[:end]))
    # The file grows line by line; whatever has just appeared is said by the lines since it was last whole. Errors are
    # few and files are short: what the real parser finds needs no second one that knows about quotes and nesting.
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

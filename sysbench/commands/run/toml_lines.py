"""Finds the line of a key in a TOML file, which the parser does not report."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any


def line_of(text: str, path: Sequence[str | int]) -> int:
    """Return the first line, counted from 1, of the statement that sets the value at `path`; `text` must be TOML.

    `("run", 2, "size")` is the key `size` of the third `[[run]]`. If the path does not exist, the line of its longest
    existing part is returned.
    """
    lines, whole = text.split("\n"), tomllib.loads(text)
    path = next(path[:end] for end in range(len(path), -1, -1) if _holds(whole, path[:end]))
    # Parse the file line by line: a value that appears was set by the lines since the last valid prefix. This is slow,
    # but errors are rare and files are short, and it needs no second parser that knows about quotes and nesting.
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

"""Output to stderr, with control characters escaped."""

from __future__ import annotations

import sys

_UNDECODED_SURROGATES = range(0xDC80, 0xDD00)
"""Surrogates by which Python represents bytes that are not UTF-8, in arguments and file names."""


def print_line(text: str) -> None:
    """Print one line to stderr, with control characters escaped.

    The line may contain text from files, and a terminal would interpret control characters in it.
    """
    encoding = sys.stderr.encoding or "ascii"
    print(printable(text).encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)  # noqa: T201


def printable(text: str) -> str:
    r"""Return the text with control characters and invalid UTF-8 bytes escaped, for example as `\x1b`."""
    return text if text.isprintable() else "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    if ord(character) in _UNDECODED_SURROGATES:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()

"""Output to stderr, with control characters escaped."""

from __future__ import annotations

import os
import sys
import textwrap

_UNDECODED_SURROGATES = range(0xDC80, 0xDD00)
"""Surrogates by which Python represents bytes that are not UTF-8, in arguments and file names."""


def print_line(text: str) -> None:
    """Print one line to stderr, with control characters escaped.

    The line may contain text from files, and a terminal would interpret control characters in it. On a terminal it
    breaks between words; a line with a command stays whole, so that it can be copied.
    """
    encoding = sys.stderr.encoding or "ascii"
    line = printable(text).encode(encoding, "backslashreplace").decode(encoding)
    width = 0 if "sysbench " in line else _terminal_width()
    if width > 0:
        line = "\n".join(
            textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        )
    print(line, file=sys.stderr)  # noqa: T201


def _terminal_width() -> int:
    """Return the number of columns of the terminal on stderr; 0 if it is none, or says nothing."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0


def printable(text: str) -> str:
    r"""Return the text with control characters and invalid UTF-8 bytes escaped, for example as `\x1b`."""
    return text if text.isprintable() else "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    if ord(character) in _UNDECODED_SURROGATES:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()

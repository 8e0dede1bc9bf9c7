"""HTML pages that need nothing else: no network, no server, no other file.

A page is a template (`page.html`) in a folder of `assets`, filled with styles, scripts and content. Its policy
(Content-Security-Policy) lets a browser load nothing, and run only the scripts that were put there: they are named by
their hash, so that markup that should ever slip in with a name could not run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from sysbench.errors import OutputError
from sysbench.render.theme import elided

LONGEST_LINE: Final = 300
"""Characters of a title, a label, a caption."""
LONGEST_TEXT: Final = 2000
"""Characters of a sentence."""

_UNIT: Final = re.compile(r"(?<=\d) (?=(?:[%±×]|[mµn]?s|[KMGT]?i?B|[kMGTP]?FLOP|tokens)(?![\w]))")
"""A space between a number and its unit, at which no line should end."""
_PLACE: Final = re.compile(r"\{\{(\w+)\}\}")
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, those that turn the direction of what follows, halves of characters: none belongs on a page."""


def filled(folder: str, parts: Mapping[str, str], scripts: Sequence[str] = ()) -> str:
    """The folder's template with `parts` in their places, and `scripts`, one after the other, in theirs.

    In one pass: what is put in is not looked at again. Parts are markup; `escaped` makes it of text.
    """
    script = "\n" + "\n".join(asset(folder, name) for name in scripts) + "\n"
    # A browser hashes what stands between the tags, line ends included.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    everything = {**parts, "script": script, "script_source": f"'sha256-{digest}'"}
    return _PLACE.sub(lambda place: everything[place[1]], asset(folder, "page.html"))


def asset(folder: str, name: str) -> str:
    """A file that pages are made of."""
    return (resources.files("sysbench.render") / "assets" / folder / name).read_text(encoding="utf-8")


def printable(text: str) -> str:
    """Text without what a page cannot show or should not obey."""
    return _UNPRINTABLE.sub(" ", text)


def escaped(text: str) -> str:
    """Text as markup, fit for elements and for quoted attributes."""
    return html.escape(printable(text))


def line(text: str, longest: int = LONGEST_LINE) -> str:
    """Text on one line as markup; of what is longer than anyone reads the middle is left out."""
    return escaped(_UNIT.sub("\u00a0", elided(" ".join(text.split()), longest)))


def write(path: Path, page: str) -> None:
    """Write a page; raises OutputError when that is not possible."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error

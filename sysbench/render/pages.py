"""HTML pages that need nothing else: no network, no server, no other file.

A page is the jinja2 template `page.html` in a folder of `assets`, with the styles and scripts beside it. Its policy
(Content-Security-Policy) lets a browser load nothing and run only the scripts that belong to the page: it names them
by their hash, so markup that slips in with a name cannot run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sysbench.errors import OutputError
from sysbench.render.theme import elided

if TYPE_CHECKING:
    from jinja2 import Environment

ASSETS: Final = Path(__file__).with_name("assets")
LONGEST_LINE: Final = 300
"""Characters of a title, a label, a caption."""
LONGEST_TEXT: Final = 2000
"""Characters of a sentence."""

_UNIT: Final = re.compile(r"(?<=\d) (?=(?:[%±×]|[mµn]?s|[KMGT]?i?B|[kMGTP]?FLOP|tokens)(?![\w]))")
"""A space between a number and its unit, at which no line should end."""
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, marks that change the direction of text, and lone surrogates: none belongs on a page."""


def render(folder: str, **content: object) -> str:
    """Fill the folder's template with `content`; its `assets("a.js", "b.js")` are files of the folder.

    Text is escaped; only `markupsafe.Markup` reaches the page as it is.
    """
    from markupsafe import Markup

    def assets(*names: str) -> Markup:
        return Markup("\n".join(asset(folder, name) for name in names))

    return _html().get_template(f"{folder}/page.html").render(assets=assets, **content)


@cache
def _html() -> Environment:
    found = environment(printable)
    found.filters |= {"line": line, "prose": lambda text: line(text, LONGEST_TEXT), "sha256": _sha256}
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return found


def environment(finalized: Callable[[str], str], **syntax: str) -> Environment:
    """Where templates are rendered; all text that is put into one goes through `finalized`.

    What that returns is escaped as HTML unless it is `markupsafe.Markup`.
    """
    # Importing it takes a tenth of a second, which only those wait for who write a page.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Markup is a `str` of another type: scripts and drawings stay as they are.
        finalize=lambda value: finalized(value) if type(value) is str else value,
        **syntax,  # type: ignore[arg-type]
    )


def _sha256(text: str) -> str:
    """The hash of a script as a Content-Security-Policy names it; a browser hashes all that stands between the tags."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def asset(folder: str, name: str) -> str:
    """A file that pages are made of."""
    return (ASSETS / folder / name).read_text(encoding="utf-8")


def printable(text: str) -> str:
    """Text without what a page cannot show or should not obey."""
    return _UNPRINTABLE.sub(" ", text)


def line(text: str, longest: int = LONGEST_LINE) -> str:
    """Text on one line, without the middle of what is longer than anyone reads."""
    return printable(_UNIT.sub("\u00a0", elided(" ".join(text.split()), longest)))


def write(path: Path, page: str) -> None:
    """Write a page; raises OutputError when that is not possible."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error

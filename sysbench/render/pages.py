"""Self-contained HTML pages, rendered from the jinja2 template `page.html` in a folder of `assets`.

The page's Content-Security-Policy blocks all loading and permits only the page's own scripts, identified by hash, so a
script injected through a name cannot run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sysbench.log.storage import cannot_write
from sysbench.render.theme import elided

if TYPE_CHECKING:
    from jinja2 import Environment

ASSETS: Final = Path(__file__).with_name("assets")
MAX_LINE_CHARACTERS: Final = 300
"""Longest title, label or caption, in characters."""
MAX_TEXT_CHARACTERS: Final = 2000
"""Longest sentence, in characters."""

_UNIT: Final = re.compile(r"(?<=\d) (?=(?:[%±×]|[mµn]?s|[KMGT]?i?B|[kMGTP]?FLOP|tokens)(?![\w]))")
"""Non-breaking space between a number and its unit."""
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, direction marks and lone surrogates, which are replaced with spaces in pages."""


def render(folder: str, **content: object) -> str:
    """Render a folder's template with `content`, escaped; in it, `assets("a.js")` inserts files from the folder."""
    from markupsafe import Markup

    def assets(*names: str) -> Markup:
        return Markup("\n".join(asset(folder, name) for name in names))

    return _html_environment().get_template(f"{folder}/page.html").render(assets=assets, **content)


@cache
def _html_environment() -> Environment:
    found = environment(printable)
    found.filters |= {"line": line, "prose": lambda text: line(text, MAX_TEXT_CHARACTERS), "sha256": _sha256}
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return found


def environment(finalize: Callable[[str], str], **syntax: str) -> Environment:
    """Create a jinja2 environment that passes every inserted text through `finalize`; `syntax` sets its delimiters."""
    # This import takes a tenth of a second, and only writing a page needs it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Markup is a subclass of `str`: scripts and drawings are not escaped.
        finalize=lambda value: finalize(value) if type(value) is str else value,
        **syntax,  # type: ignore[arg-type]
    )


def _sha256(text: str) -> str:
    """Return the hash of a script for the Content-Security-Policy; browsers hash everything between the tags."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def asset(folder: str, name: str) -> str:
    """Return the text of a file in a folder of the assets."""
    return (ASSETS / folder / name).read_text(encoding="utf-8")


def printable(text: str) -> str:
    """Replace with spaces all characters that a page cannot show or should not interpret."""
    return _UNPRINTABLE.sub(" ", text)


def line(text: str, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    """Put text on one line, and replace its middle with an ellipsis if it has more than `max_characters` characters."""
    return printable(_UNIT.sub("\u00a0", elided(" ".join(text.split()), max_characters)))


def write(path: Path, page: str) -> None:
    """Write a page; raises OutputError if that fails."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from error

"""Figures into files: one look, and the same bytes for the same content."""

from __future__ import annotations

import io
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sysbench.errors import OutputError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Final = ("png", "svg", "pdf")
DOTS_PER_INCH: Final = 160
INK: Final = "#222222"
QUIET: Final = "#666666"
SIMULATED: Final = "#b45309"
"""Of the word that says so."""
_LONGEST_TEXT: Final = 110
_STYLE: Final[Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    # Without it, identifiers in the file change from run to run.
    "svg.hashsalt": "sysbench",
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,
}


def write(path: Path, draw: Callable[[], Figure]) -> None:
    """Write the figure that `draw` makes, as the suffix says: png, svg or pdf. Raises UsageError and OutputError."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise UsageError(f"{path.name} is not a picture's name: it must end in {', '.join(FORMATS)}")
    picture = content(draw, suffix)
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def content(draw: Callable[[], Figure], suffix: str) -> bytes:
    """What a file of the figure that `draw` makes would hold; `suffix` is png, svg or pdf."""
    # matplotlib takes half a second to import, and only those who want a picture should wait for it.
    import matplotlib as mpl

    file = io.BytesIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A name that the font lacks shows as boxes; there is nothing anyone could do about it here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        draw().savefig(file, format=suffix, dpi=DOTS_PER_INCH, metadata=_undated(suffix))
    return file.getvalue()


def printable(text: str) -> str:
    """One short line without control characters, which XML cannot hold."""
    clean = "".join(char for char in text if unicodedata.category(char)[0] != "C")
    return clean if len(clean) <= _LONGEST_TEXT else f"{clean[: _LONGEST_TEXT - 1]}…"


def _undated(suffix: str) -> dict[str, Any]:
    """Metadata without a date, so that the same content gives the same file."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix, {})

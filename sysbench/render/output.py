"""Output on stdout: converts a record to a sheet, and prints it in one of the formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from sysbench.log.storage import cannot_write
from sysbench.render import theme
from sysbench.render.column_selection import select_columns
from sysbench.render.csv import csv_text
from sysbench.render.latex import latex
from sysbench.render.markdown import markdown
from sysbench.render.table import Column, Sheet
from sysbench.render.terminal import SheetView
from sysbench.spec.run import Format

_UNBOUNDED = 100_000
"""Width in cells that no table exceeds."""


def show_sheet(
    content: Sheet, console: Console, form: Format, columns: Sequence[str] = (), possible: Collection[Column] = ()
) -> None:
    """Print a sheet; raises UsageError for a name in `columns` that neither the tables nor `possible` have."""
    content = select_columns(content, columns, possible)
    if form == "terminal":
        # Lines of unlimited width need no cropping, which takes as long as the rest of printing.
        console.print(SheetView(content), crop=console.width < _UNBOUNDED)
        return
    text = csv_text(*content.tables) if form == "csv" else (markdown if form == "markdown" else latex)(content)
    # Rich would wrap at the terminal's width, but a file for other programs has none.
    console.file.write(theme.encodable(theme.without_control_characters(text), console.encoding))


def print_json(text: str) -> None:
    """Print JSON to stdout, followed by a line feed; what a terminal would obey is escaped within strings."""
    sys.stdout.write(theme.shown_json(text, sys.stdout.encoding or "ascii") + "\n")


class _Output(Console):
    """A console that raises BrokenPipeError for a closed pipe, where Rich would end the process."""

    def __init__(self) -> None:
        unbounded = not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit()
        super().__init__(width=_UNBOUNDED if unbounded else None)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@contextmanager
def results() -> Iterator[Console]:
    """Yield a console on stdout, which ends without an error if the reader stops reading (`| head`).

    Raises OutputError if stdout cannot be written, for example because of a full disk.
    """
    try:
        yield _Output()
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        raise cannot_write(Path("standard output"), error) from error


def _discard_stdout() -> None:
    """Redirect stdout to the null device: Python flushes stdout again at exit, which must not fail a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""Output on stdout: converts a record to a sheet, and prints it in one of the formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from sysbench.command import command_of
from sysbench.log.records import RunRecord
from sysbench.log.storage import cannot_write
from sysbench.render import declared as column_names
from sysbench.render import theme
from sysbench.render.column_selection import select_columns
from sysbench.render.csv import csv_text
from sysbench.render.latex import latex
from sysbench.render.markdown import markdown
from sysbench.render.sentences.notes import damaged_lines, fewer_threads
from sysbench.render.table import Column, Remark, Sheet, Table
from sysbench.render.terminal import SheetView
from sysbench.spec.run import Format, Selection

_UNBOUNDED = 100_000
"""Width in cells that no table exceeds."""


def sheet(record: RunRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Return a record's sheet with the tables called `names`, or with the default tables; `selection` is for profiles.

    Raises UsageError for a table or a part that does not exist, or for which this record has no data.
    """
    content = without_headlines(record, names, selection)
    command = command_of(record.kind)
    if not command.headlines:
        return content
    findings = [Remark("finding", each.text) for each in command.part("headlines")(record.cells)]
    notes = [remark for remark in content.remarks if remark.kind == "note"]
    others = [remark for remark in content.remarks if remark.kind != "note"]
    return replace(content, remarks=(*others, *findings, *notes))


def without_headlines(record: RunRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Return a record's sheet without findings, for reports, which show them elsewhere."""
    made: Sheet = command_of(record.kind).part("sheet")(record, names, selection)
    threads = fewer_threads(record.environment.threads_probe, record.kind)
    remarks = [
        *([damaged_lines(record)] if record.damaged_lines else []),
        *([Remark("note", *threads)] if threads else []),
        *made.remarks,
    ]
    return replace(made, remarks=tuple(remarks))


def nonempty_tables(record: RunRecord, names: Iterable[str], selection: Selection | None = None) -> list[Table]:
    """Return the tables called `names`, without those for which the record has no data."""
    command = command_of(record.kind)
    if command.build_tables:
        return list(command.part("build_tables")(record, names, selection or Selection()))
    return [table for name in names for table in command.part("tables")[name](record)]


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


def show(
    record: RunRecord,
    console: Console,
    form: Format = "terminal",
    tables: Iterable[str] = (),
    selection: Selection | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Print the named tables of a record; by default those of its command, as CSV the long one of cells and phases.

    Raises UsageError for a table or a column that does not exist, or for which this record has no data.
    """
    names = tuple(tables)
    if form == "csv":
        names = names or (command_of(record.kind).long_table,)
    possible = column_names.possible_columns(record.kind, names) if columns else ()
    show_sheet(sheet(record, names, selection), console, form, columns, possible)


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

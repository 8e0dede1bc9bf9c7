"""Standard output: a record becomes a sheet, and the sheet is printed in one of the formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from sysbench.command import measuring
from sysbench.log.records import RunRecord
from sysbench.log.storage import cannot_write
from sysbench.render import declared as column_names
from sysbench.render import theme
from sysbench.render.chosen_columns import Name, with_columns
from sysbench.render.csv import csv_text
from sysbench.render.findings import Said
from sysbench.render.latex import latex
from sysbench.render.markdown import markdown
from sysbench.render.table import Remark, Sheet, Table
from sysbench.render.terminal import SheetView
from sysbench.spec.run import Format, Selection


def sheet(record: RunRecord[Any], names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Everything that is shown of a record: the tables called `names`, or those that it was made for.

    `selection` is which part of it, where it has parts. Raises UsageError for a table, or a part, that does not exist
    or that this record cannot fill.
    """
    made = without_headlines(record, names, selection)
    found = [Remark("finding", each.text) for each in _headlines(record)]
    if not found:
        return made
    notes = [remark for remark in made.remarks if remark.kind == "note"]
    others = [remark for remark in made.remarks if remark.kind != "note"]
    return replace(made, remarks=(*others, *found, *notes))


def without_headlines(record: RunRecord[Any], names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """The same, for those who have the sentences from where these are from."""
    made: Sheet = measuring(record.kind).part("sheet")(record, names, selection)
    return made


def _headlines(record: RunRecord[Any]) -> Iterable[Said]:
    """What the run has shown, in the sentences that a report has first."""
    command = measuring(record.kind)
    return command.part("headlines")(record.cells) if command.headlines else ()


def fillable(record: RunRecord[Any], names: Iterable[str], selection: Selection | None = None) -> list[Table]:
    """Those of the tables called `names` that the record can fill, in this order."""
    command = measuring(record.kind)
    if command.fillable:
        return list(command.part("fillable")(record, names, selection or Selection()))
    return [table for name in names for table in command.part("tables")[name](record)]


def show_sheet(
    content: Sheet, console: Console, form: Format, columns: Sequence[str] = (), possible: Collection[Name] = ()
) -> None:
    """Print a sheet in one of the formats; only the terminal's has colours and is fitted to a width.

    Raises UsageError for one of `columns` that none of its tables has, and that is none of the `possible` ones.
    """
    content = with_columns(content, columns, possible)
    if form == "terminal":
        console.print(SheetView(content))
        return
    text = csv_text(*content.tables) if form == "csv" else (markdown if form == "markdown" else latex)(content)
    # Rich would wrap at the terminal's width; a file for other programs has none.
    console.file.write(theme.encodable(theme.harmless(text), console.encoding))


def show(
    record: RunRecord[Any],
    console: Console,
    form: Format = "terminal",
    tables: Iterable[str] = (),
    selection: Selection | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Print a record: the tables called `tables`, or without any those that the run was made for.

    `columns` are those of its tables that are shown; without any it is what each table has by itself.

    CSV without a choice is the long table of all cells and phases; of several chosen tables a column `table` says which
    one a row is of. Raises UsageError for a table or a column that does not exist or that this record cannot fill.
    """
    names = tuple(tables)
    if form == "csv":
        names = names or (measuring(record.kind).long_table,)
    there = column_names.possible(record.kind, names) if columns else ()
    show_sheet(sheet(record, names, selection), console, form, columns, there)


_UNBOUNDED = 100_000
"""Cells; no table is as wide."""


class _Output(Console):
    """A console that leaves a closed pipe to `results`; Rich would end the process.

    What is not looked at on a terminal, but kept in a file or read by a program, is not fitted to any width, unless
    COLUMNS says which.
    """

    def __init__(self) -> None:
        unbounded = not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit()
        super().__init__(width=_UNBOUNDED if unbounded else None)

    def on_broken_pipe(self) -> None:
        """Let the error through."""
        raise BrokenPipeError


@contextmanager
def results() -> Iterator[Console]:
    """A console on stdout. A reader that goes away (`| head`) ends the output, not the command.

    Raises OutputError when stdout cannot take the result: a full disk, say.
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
    """Send what is still buffered nowhere: Python flushes stdout once more at exit, which must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

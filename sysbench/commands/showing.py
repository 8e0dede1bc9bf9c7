"""How commands show their progress and their results: sheets of tables, records, messages, and the files they wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import TypeAdapter

from sysbench import stderr
from sysbench.errors import UsageError
from sysbench.interpreter import gc_paused
from sysbench.log import storage
from sysbench.spec.run import Format, RunOptions, Selection

if TYPE_CHECKING:
    from sysbench.commands.kinds import CommandWithRuns
    from sysbench.commands.surroundings import RunSurroundings
    from sysbench.log.records import RunRecord
    from sysbench.render.dashboard.progress import Progress
    from sysbench.render.table import Sheet


class ShowOptions(Protocol):
    """Destination and format of a result."""

    @property
    def json_path(self) -> str | None:
        """A path, or `-` for stdout."""

    @property
    def format(self) -> Format:
        """Format of tables."""


class RecordOptions(ShowOptions, Protocol):
    """Parts of a record to show."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables to show; the default tables if empty."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to show; the default columns if empty."""

    @property
    def selection(self) -> Selection:
        """Which part of a profile to show, and in what order."""


def show_sheet(content: Sheet, options: ShowOptions, columns: Sequence[str] = (), line: str = "") -> None:
    """Print a sheet to stdout as tables, or as JSON with `--json -`; with `--json FILE`, also write the file.

    `line` replaces the tables. If a name in `columns` is refused, no file is written.
    """
    file = _json_file(options)
    from rich.text import Text

    from sysbench.render import output
    from sysbench.render.csv import sheet_json

    with output.results() as console:
        if options.json_path == "-":
            output.print_json(sheet_json(content))
        elif line:
            console.print(Text(line), soft_wrap=True)
        else:
            output.show_sheet(content, console, options.format, columns)
    if file is not None:
        storage.write_atomically(file, sheet_json(content).encode() + b"\n")


def _json_file(options: ShowOptions) -> Path | None:
    """Return the file of `--json`, if any; raises OutputError if it cannot be written."""
    if options.json_path in (None, "-"):
        return None
    storage.refuse_unwritable(Path(options.json_path))
    return Path(options.json_path)


def tracebacks(path: Path) -> Iterator[str]:
    from sysbench.log import journal
    from sysbench.log.events import CellFinished

    for event in journal.read(path):
        if isinstance(event, CellFinished) and event.traceback:
            yield from event.traceback.splitlines()


def printed_by_models(record: RunRecord) -> Iterator[str]:
    models = (cell.own_model for cell in record.cells if cell.own_model)
    for name, text in dict.fromkeys((model.class_name, model.printed) for model in models):
        yield from (f"{name} printed: {line}" for line in text.splitlines())


@dataclass(frozen=True)
class Saved:
    """A file that was written."""

    path: Path
    remark: str = ""
    """Remark about the file, shown in parentheses."""


def report_saved(files: Iterable[Saved], options: RunOptions) -> tuple[Path, ...]:
    """Report each file as soon as it is written, and return the paths."""
    saved = []
    for file in files:
        say(f"saved  {file.path}{f'  ({file.remark})' if file.remark else ''}", options)
        saved.append(file.path)
    return tuple(saved)


def say(text: str, options: RunOptions) -> None:
    if not options.quiet:
        stderr.print_line(text)


def show(record: RunRecord, options: RecordOptions) -> None:
    """Print the record of a run to stdout: as JSON with `--json -`, otherwise as tables.

    If the run cannot fill the requested tables or columns, show the default ones before refusing.
    """
    try:
        print_record(record, options)
    except UsageError:
        from sysbench.commands import sheets
        from sysbench.render import output

        with output.results() as console, gc_paused():
            sheets.show(record, console, options.format)
        raise


def print_record(record: RunRecord, options: RecordOptions) -> None:
    """Print a record to stdout; raises UsageError, before anything is printed, for what it does not have."""
    from sysbench.commands import sheets
    from sysbench.render import output

    with output.results() as console, gc_paused():
        if options.json_path == "-":
            output.print_json(record.model_dump_json(indent=1))
            return
        sheets.show(record, console, options.format, options.tables, options.selection, options.columns)


def show_saved(record: RunRecord, options: RecordOptions) -> None:
    """Show the record of an earlier run, and write it to the file of `--json`; an unknown column shows nothing.

    Nothing is written if a table or a column is refused.
    """
    file = _json_file(options)
    (print_record if options.columns else show)(record, options)
    if file is not None:
        storage.write_atomically(file, TypeAdapter(type(record)).dump_json(record, indent=1) + b"\n")


def progress_display(command: CommandWithRuns, options: RunOptions, surroundings: RunSurroundings) -> Progress:
    """Return what shows a run while it goes on: a dashboard on a terminal, or a line per cell."""
    from rich.console import Console

    from sysbench.log import journal as log
    from sysbench.render.dashboard.cell_lines import CellLines
    from sysbench.render.dashboard.live import Dashboard, can_draw_on
    from sysbench.render.dashboard.progress import Progress

    if options.quiet:
        return Progress(surroundings.watch)
    # The log of an earlier run is read while the worker imports torch.
    earlier = log.read(options.resume) if options.resume else ()
    console = Console(stderr=True)
    view = command.screen()
    if options.no_live or not view.is_drawn or not can_draw_on(console):
        return CellLines(console, view=view, earlier=earlier, overall=surroundings.overall)
    return Dashboard(console, view=view, earlier=earlier, overall=surroundings.overall)

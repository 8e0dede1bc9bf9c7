"""What every command that runs cells does in the same way: refuse, carry out, save, show, and say how it went."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from sysbench.command import Kind, measuring
from sysbench.errors import UsageError, unknown
from sysbench.garbage import collection_paused
from sysbench.log.outcomes import FAILURES
from sysbench.spec.cell import RunCell, RunSpec
from sysbench.spec.command_options import Given, option_name
from sysbench.spec.run import RunOptions

if TYPE_CHECKING:
    from sysbench.engine.provisions import Provisions
    from sysbench.log.records import RunRecord
    from sysbench.render.dashboard.progress import Progress
    from sysbench.spec.hardware import Hardware

# What a bad option does not need is imported where it is used, so that mistakes are answered at once.


@dataclass(frozen=True)
class Performed:
    """What a command leaves."""

    record: RunRecord[Any]
    files: tuple[Path, ...] = ()
    """Beside the log and the record."""


def refuse_unknown_tables(kind: Kind, options: RunOptions) -> None:
    """Raise UsageError for the first table that this kind of run does not have."""
    if not options.tables:
        return
    tables = measuring(kind).part("tables")
    for name in options.tables:
        if name not in tables:
            raise UsageError(f"--tables {unknown(name, 'a table', tables)}")


def refuse_unknown_columns(spec: RunSpec, options: RunOptions) -> None:
    """Raise UsageError for the first column that no table of this run could have, before it is made."""
    if not options.columns:
        return
    from sysbench.render import column_names

    column_names.refuse_unknown(options.columns, spec, options.tables, options.format)


def refuse_beside_source(spec: type[BaseModel], given: Given) -> None:
    """A saved run is what it is: options that describe another one would be ignored without a word."""
    if given:
        names = ", ".join(option_name(spec, field) for field in given)
        raise UsageError(f"--from shows a finished run; {names} would change nothing in it")


def resumed(kind: Kind, path: Path | None) -> Given:
    """The options that a log was made with; what is given beside `--resume` must agree with them."""
    if path is None:
        return {}
    from sysbench.commands import saved

    return saved.spec(path, kind).model_dump()


def show_plan(spec: RunSpec, options: RunOptions, device: Hardware | None) -> None:
    """Show the cells that the spec expands to, and whether they fit on a device; raises UsageError."""
    from sysbench.engine.plan import refuse_impossible
    from sysbench.render import output as summary
    from sysbench.render.output import results

    cells: list[RunCell] = list(spec.cells())
    refuse_impossible(cells)
    with results() as console:
        shown = measuring(spec.kind).part("plan")(cells, *([device] if device else []))
        summary.show_sheet(shown, console, options.format, options.columns)


def carry_out(spec: RunSpec, options: RunOptions, provisions: Provisions | None = None) -> RunRecord[Any]:
    """Run the spec, save its record and show it; raises UsageError for columns that it will not have."""
    refuse_unknown_columns(spec, options)
    from sysbench.engine import session
    from sysbench.log import journal as log
    from sysbench.log import storage

    with session.run(spec, options, provisions=provisions) as running:
        beginning = list(islice(running, 2))
        # The worker has been started and imports torch: there is time for what it takes to show its results.
        with collection_paused():
            from concurrent.futures import ThreadPoolExecutor

            from sysbench.log import events, records
            from sysbench.render import output as summary  # noqa: F401

            measuring(spec.kind).part("record")
            events.build()
            records.build()
        with _progress(spec.kind, options) as progress:
            for event in chain(beginning, running):
                progress.show(event)
    record = measuring(spec.kind).folded(log.read(running.log_path))
    saved_to = running.log_path.with_suffix(".json")
    content = record.model_dump_json(indent=1).encode() + b"\n"
    with ThreadPoolExecutor(max_workers=1) as writer:
        # A disk may take longer than drawing does, and neither needs the other.
        written = writer.submit(storage.write_atomically, saved_to, content)
        if options.json_path not in (None, "-"):
            storage.write_atomically(Path(options.json_path), content)
        try:
            if options.watch is None:
                show(record, options)
        finally:
            written.result()
            say(f"saved  {saved_to}", options)
    return record


@dataclass(frozen=True)
class Saved:
    """A file that was written."""

    path: Path
    remark: str = ""
    """What is not as one would expect of it."""


def said_to_be_saved(files: Iterable[Saved], options: RunOptions) -> tuple[Path, ...]:
    """The files, each with a line about it as soon as it is there."""
    saved = []
    for file in files:
        say(f"saved  {file.path}{f'  ({file.remark})' if file.remark else ''}", options)
        saved.append(file.path)
    return tuple(saved)


def say(text: str, options: RunOptions) -> None:
    """One line on stderr, unless nothing is wanted there."""
    if not options.quiet and options.watch is None:
        print(text, file=sys.stderr)  # noqa: T201


def show(record: RunRecord[Any], options: RunOptions) -> None:
    """Print the result to stdout: the record itself with `--json -`, else its tables."""
    from sysbench.render import output as summary
    from sysbench.render.output import results

    with results() as console:
        if options.json_path == "-":
            sys.stdout.write(record.model_dump_json(indent=1) + "\n")
            return
        try:
            summary.show(record, console, options.format, options.tables, options.selection, options.columns)
        except UsageError:
            # The tables, columns or part that were asked for cannot be made of this run: show what can, then say so.
            summary.show(record, console, options.format)
            raise


def exit_code(record: RunRecord[Any]) -> int:
    """0 measured, 1 failed or nothing measured, 130 interrupted."""
    outcomes = {cell.outcome for cell in record.cells}
    if record.status == "interrupted":
        return 130
    return 1 if outcomes & FAILURES or not outcomes & {"ok", "oom"} else 0


def _progress(kind: Kind, options: RunOptions) -> Progress:
    from rich.console import Console

    from sysbench.log import journal as log
    from sysbench.render.dashboard.live import Dashboard, can_draw_on
    from sysbench.render.dashboard.progress import Silent

    if options.quiet or options.watch is not None:
        return Silent(options.watch)
    console = Console(stderr=True)
    earlier = log.read(options.resume) if options.resume else ()
    command = measuring(kind)
    if options.no_live or not command.picture or not can_draw_on(console):
        lines: Progress = command.part("lines")(console, earlier=earlier)
        return lines
    return Dashboard(console, earlier=earlier, picture=command.part("picture"))

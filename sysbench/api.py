"""sysbench for programs and notebooks: what it has measured as Python objects, and runs made from Python.

    run = sysbench.load("latest")
    frame = pandas.DataFrame(run.rows())
    run = sysbench.run("time --size tiny,small --steps 20")
    sysbench.read_trace("trace.json.gz").rows("classes")
    sysbench.read_snapshot("snapshot.pickle").rows("categories")

Whatever goes wrong raises SysbenchError with the one line that the command line prints.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysbench.command import Command, kinds, measuring
from sysbench.errors import LogError, SysbenchError, UsageError, unknown

if TYPE_CHECKING:
    from sysbench.log.events import Event
    from sysbench.log.records import RunRecord
    from sysbench.render.csv import Value
    from sysbench.render.table import Sheet
    from sysbench.snapshot.timeline import Timeline
    from sysbench.spec.cell import RunSpec
    from sysbench.spec.validation import Given
    from sysbench.trace.summary import ProfileSummary

__all__ = ["Profile", "Run", "Snapshot", "SysbenchError", "load", "read_snapshot", "read_trace", "run"]


class Result(ABC):
    """Something that can be shown as tables; a notebook shows those that the command line would."""

    @property
    @abstractmethod
    def tables(self) -> tuple[str, ...]:
        """The names of all tables that `rows` knows; not every result can fill each of them."""

    @property
    @abstractmethod
    def _long_table(self) -> str:
        """The table that stands for all others."""

    @abstractmethod
    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        """The tables of these names, or without any those that are shown by themselves, with what is said of them."""

    @abstractmethod
    def to_json(self) -> str:
        """Everything as JSON, as `--json` writes it."""

    def rows(self, table: str | None = None) -> list[dict[str, Value]]:
        """The rows of a table, by default of the one that `--format csv` writes.

        The keys are the headings of that CSV, with units in them (`median_s`, `allocated_peak_bytes`), and all rows
        have the same ones; numbers are in base units and not rounded, and what was not measured is None. Raises
        SysbenchError for a table that does not exist or that this result cannot fill.
        """
        from sysbench.render.csv import tidy

        if table is not None and table not in self.tables:
            raise UsageError(unknown(table, "a table", self.tables))
        headings, found = tidy(*self._sheet((table or self._long_table,)).tables)
        return [{heading: row.get(heading) for heading in headings} for row in found]

    def _repr_html_(self) -> str:
        from sysbench.commands.report.page import WIDEST_TEXT, laid_out
        from sysbench.render import pages

        return pages.render("notebook", sheet=self._sheet(), laid_out=laid_out, widest_text=WIDEST_TEXT)


class Run(Result):
    """A run of a command that measures or simulates cells: `record` is all that is known of it."""

    def __init__(self, record: RunRecord[Any]) -> None:
        self.record = record

    def __repr__(self) -> str:
        count = len(self.cells)
        return f"<sysbench {self.record.kind}: {count} cell{'' if count == 1 else 's'}, {self.record.status}>"

    @property
    def cells(self) -> list[Any]:
        """The record of each cell, as its command has it: a TimeCellRecord, a MemoryCellRecord, …"""
        return self.record.cells

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all tables of the command; not every run can fill each of them."""
        return tuple(measuring(self.record.kind).part("tables"))

    def to_json(self) -> str:
        """The record, as it lies beside the log."""
        return self.record.model_dump_json(indent=1)

    @property
    def _long_table(self) -> str:
        return measuring(self.record.kind).long_table

    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        from sysbench.render.output import sheet

        return sheet(self.record, names)


class Profile(Result):
    """A trace that any program has recorded with torch.profiler or nsys, and what it comes down to: `summary`."""

    def __init__(self, summary: ProfileSummary) -> None:
        self.summary = summary

    def __repr__(self) -> str:
        steps = self.summary.steps
        return f"<trace {self.summary.title}: {len(self.summary.names)} names, {steps} step{'' if steps == 1 else 's'}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all tables of a trace; not every trace can fill each of them."""
        return tuple(name for name in measuring("profile").part("tables") if name != "summary")

    def to_json(self) -> str:
        """The summary, as `sysbench profile --from FILE --json` writes it."""
        from sysbench.commands.profile.record import TraceRecord

        return TraceRecord(summaries=[self.summary]).model_dump_json(indent=1)

    @property
    def _long_table(self) -> str:
        return measuring("profile").long_table

    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        from sysbench.commands.profile.tables import sheet_of

        return sheet_of([(self.summary.title, self.summary)], names)


class Snapshot(Result):
    """A memory snapshot that any program has written, and the memory of its device over time: `timeline`."""

    def __init__(self, timeline: Timeline, name: str) -> None:
        self.timeline = timeline
        self.name = name

    def __repr__(self) -> str:
        from sysbench import units

        peak = units.size(self.timeline.peak.allocated_bytes)
        return f"<snapshot {self.name}: {len(self.timeline.allocations):,} allocations, peak {peak}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all tables of a snapshot; not every snapshot can fill each of them."""
        from sysbench.commands.memory.snapshot_tables import TABLES

        return tuple(TABLES)

    def to_json(self) -> str:
        """The tables, as `sysbench memory --from FILE --json` writes them."""
        from sysbench.render.csv import sheet_json

        return sheet_json(self._sheet())

    @property
    def _long_table(self) -> str:
        return "largest"

    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        from sysbench.commands.memory.snapshot_tables import sheet

        return sheet(self.timeline, self.name, names)


def load(name: str | Path) -> Run:
    """An earlier run: the path of its log or record, or its name in `runs/`, such as `latest` or `time:latest~1`.

    Raises SysbenchError for what is no run, cannot be read, or stands for several.
    """
    from sysbench.log import runs

    found = runs.find(str(name))
    if len(found) > 1:
        raise LogError(f"{name} stands for {len(found)} runs, load one of them: {', '.join(map(str, found))}")
    return Run(runs.load(found[0]))


def run(what: RunSpec | str, *, progress: Callable[[Event], object] | None = None, **options: object) -> Run:
    """Measure, or simulate, in a worker process; log and record land in `runs/` as they do from the command line.

    `what` is a spec (`TimeSpec(size="tiny")`) or what one would type (`"time --size tiny"`). `options` say how it is
    carried out, by the names that they have in the command's options (`out="elsewhere"`, `timeout_s=60`, `force=True`).
    `progress` is called with every event as it is written to the log; nothing is printed. A cell that fails is in the
    record with its outcome; SysbenchError is raised where the command line would refuse. Ctrl-C ends the run in order:
    what was measured is returned, with the status `interrupted`.
    """
    from sysbench.commands import running
    from sysbench.spec.validation import validated

    command, given, words = _typed(what) if isinstance(what, str) else (measuring(what.kind), None, {})
    model = command.options_class
    for name in options:
        if name not in model.model_fields:
            raise UsageError(unknown(name, f"an option of sysbench {command.name}", model.model_fields))
    mute = {"quiet": True, "shown": False, "watch": progress}
    chosen = running.options_of(command.name, {**words, **options, **mute})
    if chosen.plan or getattr(chosen, "source", None):
        raise UsageError("--plan and --from run nothing; sysbench.load reads an earlier run")
    if given is not None:
        what = validated(command.spec_class, {**running.resumed(command.name, chosen.resume), **given})
    return Run(command.part("perform")(what, chosen).record)


def read_trace(path: str | Path) -> Profile:
    """What a trace of torch.profiler (JSON) or nsys (SQLite) comes down to; raises SysbenchError for anything else."""
    from sysbench.trace import traces

    return Profile(traces.summary_of(traces.read(Path(path))))


def read_snapshot(path: str | Path) -> Snapshot:
    """The memory over time in what `torch.cuda.memory._dump_snapshot` or sysbench wrote, plain or gzipped.

    Nothing in the file is executed. Raises SysbenchError for a file that is something else.
    """
    from sysbench.snapshot.snapshot import read
    from sysbench.snapshot.timeline_sources import from_snapshot

    return Snapshot(from_snapshot(read(Path(path))), Path(path).name)


def _typed(line: str) -> tuple[Command, Given, Given]:
    """The command, and what is given of its spec and of its options, in a line as one would type it."""
    from sysbench.spec.command_options import given

    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line} cannot be taken apart into words: {str(error).lower()}") from None
    if words[:1] == ["sysbench"]:
        words = words[1:]
    if not words or words[0] not in kinds():
        raise UsageError(unknown(words[0] if words else "", "a command that runs cells", kinds()))
    command = measuring(words[0])
    of_spec, of_options = given(command.name, words[1:], command.spec_class, command.options_class)
    return command, of_spec, of_options

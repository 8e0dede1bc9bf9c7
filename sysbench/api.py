"""sysbench for programs and notebooks: results as Python objects, and runs started from Python.

    run = sysbench.load("latest")
    frame = pandas.DataFrame(run.rows())
    run = sysbench.run("time --size tiny,small --steps 20")
    sysbench.read_trace("trace.json.gz").rows("classes")
    sysbench.read_snapshot("snapshot.pickle").rows("categories")

All errors raise SysbenchError with the one-line message that the command line prints.
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
    """A result with tables; a notebook shows those that the command line would show."""

    @property
    @abstractmethod
    def tables(self) -> tuple[str, ...]:
        """Names of all tables that `rows` accepts; a particular result may lack some of them."""

    @property
    @abstractmethod
    def _long_table(self) -> str:
        """Name of the default table."""

    @abstractmethod
    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        """Return the tables with these names, or the default ones, with their remarks."""

    @abstractmethod
    def to_json(self) -> str:
        """Return the whole result as JSON, as `--json` writes it."""

    def rows(self, table: str | None = None) -> list[dict[str, Value]]:
        """Return the rows of a table, by default of the one that `--format csv` writes.

        The keys are the CSV headings, which include units (`median_s`, `allocated_peak_bytes`), and are the same for
        all rows; numbers are in base units and not rounded, and missing values are None. Raises SysbenchError for a
        table that does not exist or that this result does not have.
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
    """A run that measured or simulated cells; `record` holds its complete result."""

    def __init__(self, record: RunRecord[Any]) -> None:
        self.record = record

    def __repr__(self) -> str:
        count = len(self.cells)
        return f"<sysbench {self.record.kind}: {count} cell{'' if count == 1 else 's'}, {self.record.status}>"

    @property
    def cells(self) -> list[Any]:
        """The record of each cell, in the class of its command: TimeCellRecord, MemoryCellRecord, …"""
        return self.record.cells

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of all tables of the command; a particular run may lack some of them."""
        return tuple(measuring(self.record.kind).part("tables"))

    def to_json(self) -> str:
        """Return the record, as in the file next to the log."""
        return self.record.model_dump_json(indent=1)

    @property
    def _long_table(self) -> str:
        return measuring(self.record.kind).long_table

    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        from sysbench.render.output import sheet

        return sheet(self.record, names)


class Profile(Result):
    """A trace of any program by torch.profiler or nsys, with its `summary`."""

    def __init__(self, summary: ProfileSummary) -> None:
        self.summary = summary

    def __repr__(self) -> str:
        steps = self.summary.steps
        return f"<trace {self.summary.title}: {len(self.summary.names)} names, {steps} step{'' if steps == 1 else 's'}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of all tables of a trace; a particular trace may lack some of them."""
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
    """A memory snapshot of any program, with its device's memory over time as `timeline`."""

    def __init__(self, timeline: Timeline, name: str) -> None:
        self.timeline = timeline
        self.name = name

    def __repr__(self) -> str:
        from sysbench import units

        peak = units.size(self.timeline.peak.allocated_bytes)
        return f"<snapshot {self.name}: {len(self.timeline.allocations):,} allocations, peak {peak}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of all tables of a snapshot; a particular snapshot may lack some of them."""
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
    """Load an earlier run: the path of its log or record, or its name in `runs/`, such as `latest` or `time:latest~1`.

    Raises SysbenchError for a name that matches no run or several, and for a file that cannot be read.
    """
    from sysbench.log import runs

    found = runs.find(str(name))
    if len(found) > 1:
        raise LogError(f"{name} stands for {len(found)} runs, load one of them: {', '.join(map(str, found))}")
    return Run(runs.load(found[0]))


def run(what: RunSpec | str, *, progress: Callable[[Event], object] | None = None, **options: object) -> Run:
    """Measure or simulate in a worker process; log and record are written to `runs/`, as by the command line.

    `what` is a spec (`TimeSpec(size="tiny")`) or a command line (`"time --size tiny"`). `options` are the command's
    options by field name (`out="elsewhere"`, `timeout_s=60`, `force=True`). `progress` is called with every event as it
    is written to the log; nothing is printed. A cell that fails is in the record with its outcome; SysbenchError is
    raised where the command line would refuse. Ctrl-C ends the run cleanly: earlier results are returned, with the
    status `interrupted`.
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
    """Read and summarise a trace of torch.profiler (JSON) or nsys (SQLite); raises SysbenchError for other files."""
    from sysbench.trace import traces

    return Profile(traces.summary_of(traces.read(Path(path))))


def read_snapshot(path: str | Path) -> Snapshot:
    """Read a snapshot of `torch.cuda.memory._dump_snapshot` or sysbench, plain or gzipped.

    Nothing in the file is executed. Raises SysbenchError for other files.
    """
    from sysbench.snapshot.snapshot import read
    from sysbench.snapshot.timeline_sources import from_snapshot

    return Snapshot(from_snapshot(read(Path(path))), Path(path).name)


def _typed(line: str) -> tuple[Command, Given, Given]:
    """Parse a command line into the command, its spec's values, and its options."""
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

"""sysbench for programs and notebooks: results as Python objects, and runs started from Python.

    run = sysbench.load("latest")
    frame = pandas.DataFrame(run.rows())
    run = sysbench.run("time --size tiny,small --steps 20")
    sysbench.read_trace("trace.json.gz").rows("classes")
    sysbench.read_snapshot("snapshot.pickle").rows("categories")

And for a training loop of your own:

    run = sysbench.measure({"forward": forward, "backward": backward}, tokens=4096)
    with sysbench.record("run.json"):
        for batch in batches:
            with sysbench.phase("forward"):
                …

All errors raise SysbenchError with the one-line message that the command line prints.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysbench.command import Command, measuring, runnable
from sysbench.errors import LogError, UsageError, unknown
from sysbench.errors import SysbenchError as SysbenchError
from sysbench.marks import phase as phase
from sysbench.marks import step as step

if TYPE_CHECKING:
    from sysbench.log.events import Event
    from sysbench.log.records import RunRecord
    from sysbench.render.csv import Value
    from sysbench.render.table import Sheet
    from sysbench.snapshot.timeline import Timeline
    from sysbench.spec.cell import RunSpec
    from sysbench.spec.validation import Given
    from sysbench.trace.summary import ProfileSummary


class Result(ABC):
    """A result with tables; a notebook shows the command line's default tables."""

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
        """Return the named tables, or the default ones, with their remarks."""

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
        """Return the record, as stored next to the log."""
        return self.record.model_dump_json(indent=1)

    def save(self, path: str | Path) -> None:
        """Write the record to a file, which `load` and the command line read; raises SysbenchError."""
        from sysbench.log.storage import write_atomically

        if Path(path).suffix != ".json":
            raise UsageError(f"{path} must end in .json: a record is written to it")
        write_atomically(Path(path), self.to_json().encode() + b"\n")

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
        raise LogError(f"{name} matches {len(found)} runs, load one of them: {', '.join(map(str, found))}")
    return Run(runs.load(found[0]))


def run(what: RunSpec | str, *, progress: Callable[[Event], object] | None = None, **options: object) -> Run:
    """Measure or simulate in a worker process; log and record are written to `runs/`, as by the command line.

    `what` is a spec (`TimeSpec(size="tiny")`) or a command line (`"time --size tiny"`). `options` are the command's
    options by field name (`out="elsewhere"`, `timeout_s=60`, `force=True`). `progress` is called with every event as
    it is written to the log; nothing is printed. A cell that fails is in the record with its outcome. Raises
    SysbenchError where the command line would exit with an error. Ctrl-C ends the run cleanly: earlier results are
    returned, with the status `interrupted`.
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
        raise UsageError("--plan and --from do not run anything; sysbench.load reads an earlier run")
    if given is not None:
        what = validated(command.spec_class, {**running.resumed(command.name, chosen.resume), **given})
    return Run(command.part("perform")(what, chosen).record)


def measure(
    step: Callable[[], object] | Mapping[str, Callable[[], object]],
    *,
    phases: Iterable[str] = (),
    device: object = "auto",
    warmup: int = 5,
    steps: int = 10,
    until: float | str | None = None,
    max_steps: int = 1000,
    sync: str = "phase",
    name: str = "loop",
    tokens: int | None = None,
    save: str | Path | None = None,
    progress: Callable[[Event], object] | None = None,
) -> Run:
    """Measure your own training step in this process, with the clocks, statistics and cautions of `sysbench time`.

    `step` is a function, or a mapping from phases to functions, called in its order: `{"forward": f, …}`. Inside a
    function, mark phases with `with sysbench.phase("forward"):`; `phases` lists the allowed names. `device` is where
    the step runs: a name or a torch.device; default: the current GPU, else the CPU. `warmup`, `steps`, `until`,
    `max_steps` and `sync` are as on the command line; `tokens` is the number of tokens per step, for a throughput.
    The record is written to `save`, or later with `Run.save`. `progress` is called between steps with every event.

    Raises SysbenchError for invalid arguments, and propagates exceptions of the step; earlier steps are saved.
    """
    from sysbench.commands.loop.measure import measured
    from sysbench.commands.loop.spec import LoopSpec
    from sysbench.spec.validation import called_with

    given = {
        "phases": phases, "device": str(device), "warmup": warmup, "steps": steps, "until": until,
        "max_steps": max_steps, "sync": sync, "name": name, "tokens": tokens,
    }  # fmt: skip
    spec = called_with(LoopSpec, {"by": "measure", **given})
    return Run(measured(step, spec, None if save is None else Path(save), progress))


class Recording:
    """The recording that `with sysbench.record(…) as recording:` returns; `run` is set when the block ends."""

    run: Run | None = None


@contextmanager
def record(
    path: str | Path | None = None,
    *,
    trace: str | Path | None = None,
    phases: Iterable[str] = (),
    device: object = "auto",
    warmup: int = 1,
    max_steps: int = 1000,
    sync: str = "phase",
    name: str | None = None,
    tokens: int | None = None,
) -> Iterator[Recording]:
    """Record the loop in this block: the times of its steps and phases, and its peak memory.

    Mark phases with `with sysbench.phase("forward"):`. A step ends when its first phase begins again, or at
    `sysbench.step()`. The first `warmup` steps do not count, and after `max_steps` more steps nothing is recorded.
    The record is written to `path` (.json) however the block ends. `trace` names a file for a trace of three steps
    (.json, .json.gz), which do not count either. `name` defaults to the name of the file; the other arguments are
    those of `measure`.

    Raises SysbenchError before the block starts if it cannot be recorded, and for a mark in the wrong place.
    """
    from sysbench.commands.loop.recording import Recorder
    from sysbench.commands.loop.spec import LoopSpec
    from sysbench.spec.validation import called_with

    save = None if path is None else Path(path)
    given = {
        "phases": phases, "device": str(device), "warmup": warmup, "steps": None, "until": None,
        "max_steps": max_steps, "sync": sync, "name": name or (save.stem if save else "loop"), "tokens": tokens,
    }  # fmt: skip
    recorder = Recorder(called_with(LoopSpec, {"by": "record", **given}), save, None if trace is None else Path(trace))
    held = Recording()
    try:
        with recorder:
            yield held
    finally:
        if recorder.account.record is not None:
            held.run = Run(recorder.account.record)


def read_trace(path: str | Path) -> Profile:
    """Read and summarise a trace of torch.profiler (JSON) or nsys (SQLite); raises SysbenchError for other files."""
    from sysbench.trace import traces

    return Profile(traces.summary_of(traces.read(Path(path))))


def read_snapshot(path: str | Path) -> Snapshot:
    """Read a snapshot of `torch.cuda.memory._dump_snapshot` or sysbench, plain or gzipped.

    Nothing in the file is executed. Raises SysbenchError for other files.
    """
    from sysbench.snapshot.categories import from_snapshot
    from sysbench.snapshot.snapshot import read

    return Snapshot(from_snapshot(read(Path(path))), Path(path).name)


def _typed(line: str) -> tuple[Command, Given, Given]:
    """Parse a command line into the command, its spec's values, and its options."""
    from sysbench.spec.command_options import given

    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"cannot split {line} into arguments: {str(error).lower()}") from None
    if words[:1] == ["sysbench"]:
        words = words[1:]
    if not words or words[0] not in runnable():
        raise UsageError(unknown(words[0] if words else "", "a command that runs cells", runnable()))
    command = measuring(words[0])
    of_spec, of_options = given(command.name, words[1:], command.spec_class, command.options_class)
    return command, of_spec, of_options

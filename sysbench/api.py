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

Errors are raised as SysbenchError, with the one-line message that the command line would print.
"""

from __future__ import annotations

import os
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sysbench.command import runnable
from sysbench.commands.kinds import CommandWithRuns, command_of
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
    """A result, which consists of tables. A notebook displays those that the command line shows by default."""

    @property
    @abstractmethod
    def tables(self) -> tuple[str, ...]:
        """Names of all tables that `rows` accepts; a given result may lack some of these tables."""

    @property
    @abstractmethod
    def _long_table(self) -> str:
        """Name of the table that `rows` returns by default."""

    @abstractmethod
    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        """Return the named tables with their remarks; if no names are given, the default tables."""

    @abstractmethod
    def to_json(self) -> str:
        """Return the whole result as JSON, as `--json` writes it."""

    def rows(self, table: str | None = None) -> list[dict[str, Value]]:
        """Return the rows of a table; by default, of the table that `--format csv` writes.

        The keys are the CSV headings, which include units (`median_s`, `allocated_peak_bytes`). Numbers are in base
        units; missing values are None. Raises SysbenchError if the table does not exist or this result lacks it.
        """
        from sysbench.render.csv import tidy

        if table is not None and table not in self.tables:
            raise UsageError(unknown(table, "a table", self.tables))
        headings, found = tidy(*self._sheet((table or self._long_table,)).tables)
        return [{heading: row.get(heading) for heading in headings} for row in found]

    def _repr_html_(self) -> str:
        from sysbench.commands.report.page import MAX_LINE_LENGTH, table_content
        from sysbench.render import pages

        return pages.render(
            "notebook", sheet=self._sheet(), table_content=table_content, max_line_length=MAX_LINE_LENGTH
        )


class Run(Result):
    """A measured or simulated run; `record` holds its complete result."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record

    def __repr__(self) -> str:
        count = len(self.cells)
        return f"<sysbench {self.record.kind}: {count} cell{'' if count == 1 else 's'}, {self.record.status}>"

    @property
    def cells(self) -> list[Any]:
        """Records of the cells; their class depends on the command: TimeCellRecord, MemoryCellRecord, …"""
        return self.record.cells

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of all tables of the command."""
        return tuple(command_of(self.record.kind).results().tables)

    def to_json(self) -> str:
        """Return the record as JSON, as in the record file next to the log."""
        return self.record.model_dump_json(indent=1)

    def save(self, path: str | Path) -> None:
        """Write the record to a .json file, in a new directory if needed; raises SysbenchError on failure."""
        from sysbench.log.storage import cannot_write, write_atomically

        if Path(path).suffix != ".json":
            raise UsageError(f"{path} must end in .json: a record is written to it")
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(Path(path), error) from error
        write_atomically(Path(path), self.to_json().encode() + b"\n")

    @property
    def _long_table(self) -> str:
        return command_of(self.record.kind).results().long_table

    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        from sysbench.commands.sheets import sheet

        return sheet(self.record, names)


class Profile(Result):
    """A trace of any program, recorded with torch.profiler or nsys; `summary` holds its contents."""

    def __init__(self, summary: ProfileSummary) -> None:
        self.summary = summary

    def __repr__(self) -> str:
        steps = self.summary.steps
        return f"<trace {self.summary.title}: {len(self.summary.names)} names, {steps} step{'' if steps == 1 else 's'}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of all tables of a trace."""
        return tuple(name for name in command_of("profile").results().tables if name != "summary")

    def to_json(self) -> str:
        """Return the summary as JSON, as `sysbench profile --from FILE --json` writes it."""
        from sysbench.commands.profile.record import TraceRecord

        return TraceRecord(summaries=[self.summary]).model_dump_json(indent=1)

    @property
    def _long_table(self) -> str:
        return command_of("profile").results().long_table

    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        from sysbench.commands.profile.tables import traces_sheet

        return traces_sheet([self.summary], names)


class Snapshot(Result):
    """A memory snapshot of any program; `timeline` shows the device's memory over time."""

    def __init__(self, timeline: Timeline, name: str) -> None:
        self.timeline = timeline
        self.name = name

    def __repr__(self) -> str:
        from sysbench import units

        peak = units.size(self.timeline.peak.allocated_bytes)
        return f"<snapshot {self.name}: {len(self.timeline.allocations):,} allocations, peak {peak}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of all tables of a snapshot."""
        from sysbench.commands.memory.snapshot_tables import TABLES

        return tuple(TABLES)

    def to_json(self) -> str:
        """Return the tables as JSON, as `sysbench memory --from FILE --json` writes them."""
        from sysbench.render.csv import sheet_json

        return sheet_json(self._sheet())

    @property
    def _long_table(self) -> str:
        return "largest"

    def _sheet(self, names: Iterable[str] = ()) -> Sheet:
        from sysbench.commands.memory.snapshot_tables import sheet

        return sheet(self.timeline, self.name, names)


def load(name: str | Path) -> Run:
    """Load an earlier run by the path of its log or record, or by its name in `runs/` (`latest`, `time:latest~1`)."""
    from sysbench.log import runs

    paths = runs.find(str(name))
    if len(paths) > 1:
        raise LogError(f"{name} matches {len(paths)} runs, load one of them: {', '.join(map(str, paths))}")
    return Run(runs.load(paths[0]))


def run(what: RunSpec | str, *, progress: Callable[[Event], object] | None = None, **options: object) -> Run:
    """Measure or simulate in a worker process, and write a log and a record to `runs/`, as the command line does.

    `what` is a spec (`TimeSpec(size="tiny")`) or a command line (`"time --size tiny"`). `options` are the command's
    options by field name (`out="elsewhere"`, `timeout_s=60`, `force=True`). `progress` is called with every event as
    it is written to the log; nothing is printed. A failed cell raises nothing: its record holds the outcome.

    Raises SysbenchError where the command line would exit with an error. Ctrl-C raises KeyboardInterrupt once the
    results so far are saved; `load("latest")` returns them, with the status `interrupted`.
    """
    from sysbench.commands import running
    from sysbench.commands.surroundings import RunSurroundings
    from sysbench.engine.interrupts import catch_interrupts
    from sysbench.engine.process import unused_workers_ended
    from sysbench.spec.cell import RunSpec
    from sysbench.spec.validation import validated

    if not isinstance(what, str | RunSpec):
        raise UsageError(
            f"run needs a spec, such as TimeSpec(size='tiny'), or a command line, such as 'time --size tiny', "
            f"not {what!r}"
        )
    if progress is not None and not callable(progress):
        raise UsageError(f"progress={progress!r} is not a function that takes an event")
    command, given, words = _parse_command_line(what) if isinstance(what, str) else (command_of(what.kind), None, {})
    models = command.models()
    for name in options:
        if name not in models.options.model_fields:
            raise UsageError(unknown(name, f"an option of sysbench {command.name}", models.options.model_fields))
    chosen = running.options_of(command.name, {**words, **options, "quiet": True})
    if chosen.plan or getattr(chosen, "source", None):
        raise UsageError("--plan and --from do not run anything; sysbench.load reads an earlier run")
    if given is not None:
        what = validated(models.spec, {**running.resumed_fields(command.name, chosen), **given})
    with unused_workers_ended(), catch_interrupts() as interrupts:
        spec = running.suited(cast(RunSpec, what), chosen)
        record = command.launch().perform(spec, chosen, RunSurroundings(watch=progress, shown=False)).record
    if interrupts.requested or record.status == "interrupted":
        raise KeyboardInterrupt
    return Run(record)


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

    `step` is a function, or a mapping from phase names to functions (`{"forward": f, …}`), which are called in the
    order of the mapping. Inside a function, mark phases with `with sysbench.phase("forward"):`; `phases` lists the
    allowed names. `device` is where the step runs, a name or a torch.device; default: the current GPU, else the CPU.
    `warmup`, `steps`, `until`, `max_steps` and `sync` are as on the command line. `tokens` is the number of tokens per
    step, from which throughput is computed. The record is written to `save`, or later with `Run.save`. `progress` is
    called between steps with every event.

    Raises SysbenchError for invalid arguments. Exceptions raised by the step propagate; earlier steps are saved.
    """
    from sysbench.commands.loop.measure import measure_loop
    from sysbench.commands.loop.spec import LoopSpec
    from sysbench.spec.validation import validated_arguments

    given = {
        "phases": phases, "device": str(device), "warmup": warmup, "steps": steps, "until": until,
        "max_steps": max_steps, "sync": sync, "name": name, "tokens": tokens,
    }  # fmt: skip
    spec = validated_arguments(LoopSpec, {"by": "measure", **given})
    return Run(measure_loop(step, spec, _file_of_rank(save), progress))


class Recording:
    """Result of `with sysbench.record(…) as recording:`; `run` is None until the block ends."""

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
    `sysbench.step()`. The first `warmup` steps do not count, and nothing is recorded after `max_steps` more steps.
    The record is written to `path` (.json) even if the block raises. `trace` names a file (.json, .json.gz) for a trace
    of three steps, which do not count either. Under torchrun or srun every rank records itself, and ranks other than
    0 write to `path` with their rank in its name (`run-rank1.json`). `name` defaults to the stem of `path`; the other
    arguments are those of `measure`.

    Raises SysbenchError before the block if recording is not possible, and inside the block for a misplaced mark.
    """
    from sysbench.commands.loop.recording import Recorder
    from sysbench.commands.loop.spec import LoopSpec
    from sysbench.spec.validation import validated_arguments

    save = _file_of_rank(path)
    given = {
        "phases": phases, "device": str(device), "warmup": warmup, "steps": None, "until": None,
        "max_steps": max_steps, "sync": sync, "name": name or (save.stem if save else "loop"), "tokens": tokens,
    }  # fmt: skip
    recorder = Recorder(validated_arguments(LoopSpec, {"by": "record", **given}), save, _file_of_rank(trace))
    recording = Recording()
    try:
        with recorder:
            yield recording
    finally:
        if recorder.collector.record is not None:
            recording.run = Run(recorder.collector.record)


def _file_of_rank(path: str | Path | None) -> Path | None:
    """Return the path; on ranks other than 0 with the rank in its name."""
    if path is None:
        return None
    from sysbench.bootstrap import rank_from_environment

    distributed: Any = sys.modules.get("torch.distributed")
    is_grouped = distributed is not None and distributed.is_available() and distributed.is_initialized()
    rank = distributed.get_rank() if is_grouped else rank_from_environment(os.environ)
    name, dot, suffix = Path(path).name.partition(".json")
    return Path(path).with_name(f"{name}-rank{rank}{dot}{suffix}") if rank else Path(path)


def read_trace(path: str | Path) -> Profile:
    """Read and summarise a trace from torch.profiler (JSON) or nsys (SQLite); raises SysbenchError for other files."""
    from sysbench.trace import traces

    return Profile(traces.summary_of(traces.read(Path(path))))


def read_snapshot(path: str | Path) -> Snapshot:
    """Read a snapshot file written by `torch.cuda.memory._dump_snapshot` or by sysbench, plain or gzipped.

    Nothing in the file is executed. Raises SysbenchError for other files.
    """
    from sysbench.snapshot.categories import from_snapshot
    from sysbench.snapshot.snapshot import read

    return Snapshot(from_snapshot(read(Path(path))), Path(path).name)


def _parse_command_line(line: str) -> tuple[CommandWithRuns, Given, Given]:
    from sysbench.spec.command_options import parse_options

    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"cannot split {line} into arguments: {str(error).lower()}") from None
    if words[:1] == ["sysbench"]:
        words = words[1:]
    if not words or words[0] not in runnable():
        raise UsageError(unknown(words[0] if words else "", "a command that runs cells", runnable()))
    command = command_of(words[0])
    models = command.models()
    spec_fields, option_fields = parse_options(command.name, words[1:], models.spec, models.options)
    return command, spec_fields, option_fields

"""What the commands that run cells do alike: options → spec → cells, the record of the run, and the exit code."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sysbench import stderr
from sysbench.bootstrap import rank_from_environment
from sysbench.command import Kind, command_of
from sysbench.commands.refusals import (
    refuse_missing_extras,
    refuse_spec_with_source,
    refuse_unknown_columns,
    refuse_unknown_tables,
    refuse_unwritable,
)
from sysbench.commands.showing import printed_by_models, say, show, show_saved, show_sheet, tracebacks
from sysbench.commands.surroundings import ALONE, RunSurroundings
from sysbench.errors import LogError, OutputError, SysbenchError, UsageError
from sysbench.garbage import gc_paused
from sysbench.log import storage
from sysbench.log.outcomes import FAILURES
from sysbench.package import VERSION
from sysbench.spec.cell import RunCell, RunSpec
from sysbench.spec.command_options import Given, option_name, validated
from sysbench.spec.run import RunOptions

if TYPE_CHECKING:
    from sysbench.engine.provisions import Provisions
    from sysbench.log.records import RunRecord
    from sysbench.render.dashboard.progress import Progress

GATE_EXIT_CODE = 3
"""Exit code of a gate that found what it guards against."""

# Modules that are not needed to refuse a bad option are imported where they are used, so that mistakes are reported
# at once.


@dataclass(frozen=True)
class RunResult:
    """Record and files of a run."""

    record: RunRecord
    files: tuple[Path, ...] = ()
    """Files written besides the log and the record."""


def options_of(kind: Kind, given: Given) -> RunOptions:
    """Return the validated options of a command; names of earlier runs are replaced by their files."""
    options = validated(command_of(kind).options_class, given)
    source, resume = getattr(options, "source", None), options.resume
    found: Given = {}
    if isinstance(source, tuple):
        found["source"] = tuple(find_run_file(kind, each, options.out) for each in source)
    elif source is not None:
        found["source"] = find_run_file(kind, source, options.out)
    if resume is not None:
        log = find_run_file(kind, resume, options.out)
        log = log.with_suffix(".jsonl") if log.name else log  # `.` and `/` have none
        found["resume"] = log if log.is_file() else resume
    return options.model_copy(update=found)


def find_run_file(kind: Kind, path: Path, directory: Path) -> Path:
    """Return the file of the earlier run named `path`, or `path` itself if it is a path rather than a name."""
    if storage.exists(path) or path.suffix or path.name != str(path):
        return path
    from sysbench.log import runs

    name = str(path)
    paths = runs.find(name, directory, kind)
    if len(paths) > 1:
        raise LogError(f"{name} matches {len(paths)} runs, name one of them: {', '.join(map(str, paths))}")
    return paths[0]


def suited(spec: RunSpec, options: RunOptions) -> RunSpec:
    """Return the spec as the command suits it to this machine; a resumed run keeps its own."""
    command = command_of(spec.kind)
    if not command.suited or options.resume is not None:
        return spec
    refuse_unknown_columns(spec, options)  # before a worker says which devices there are
    found: RunSpec = command.part("suited")(spec, options)
    return found


def execute_command(kind: Kind, spec_given: Given, options_given: Given) -> None:
    """Execute a command: show a saved run or the plan, or run the cells and exit with the exit code."""
    command = command_of(kind)
    options = options_of(kind, options_given)
    source = getattr(options, "source", None)
    if source and command.show:
        refuse_spec_with_source(command.spec_class, spec_given)
        command.part("show")(source, options)
        return
    refuse_unknown_tables(kind, options)
    refuse_unwritable(kind, options)
    if source:
        from sysbench.commands import saved

        refuse_spec_with_source(command.spec_class, spec_given)
        record = saved.record(source, kind)
        show_saved(record, options)
        if command.files:
            command.part("files")(record, options)
        refuse_at_gate(record, options)
        return
    from sysbench.log.journal import damaged_lines

    spec = validated(command.spec_class, {**resumed_spec_fields(kind, options.resume), **spec_given})
    if options.resume is not None:
        for line in damaged_lines(options.resume):
            say(f"{options.resume}: line {line} is damaged; a cell that it belongs to runs again", options)
    if unused := [option_name(type(spec), name) for name in spec.unused if name in spec_given]:
        say(f"no effect with --simulate, which measures nothing: {', '.join(unused)}", options)
    if options.plan:
        show_plan(spec, options)
        return
    spec = suited(spec, options)
    with _join_launched_ranks(spec, options) as surroundings:
        record = command.part("perform")(spec, options, surroundings).record
        if code := exit_code(record):
            raise typer.Exit(code)
        refuse_at_gate(record, options)
        raise typer.Exit


@contextmanager
def _join_launched_ranks(spec: RunSpec, options: RunOptions) -> Iterator[RunSurroundings]:
    """Yield the run's surroundings if this process is rank 0 of a torchrun or srun launch, or the only process."""
    is_launched = "WORLD_SIZE" in os.environ or "SLURM_STEP_NUM_TASKS" in os.environ
    multi_rank_cells = {cell.key: cell for cell in spec.cells() if cell.workers > 1} if is_launched else {}
    this_rank = None
    if multi_rank_cells:
        from sysbench.engine.rendezvous import other_rank, rank_zero

        this_rank = rank_zero.launched_rank(os.environ)
    if this_rank is None:
        if rank_from_environment(os.environ):
            raise typer.Exit
        yield ALONE
        return
    from sysbench.package import source_digest

    command_of(spec.kind).part("record")  # importing the record registers the events that ranks send
    hello = rank_zero.Hello(
        rank=max(this_rank.rank, 1),
        ranks=this_rank.ranks,
        host=platform.node(),
        version=VERSION,
        digest=source_digest(),
        spec=hashlib.sha256(spec.model_dump_json().encode()).hexdigest(),
    )
    if this_rank.rank:
        firsts = [cell.reference_time_cell for cell in multi_rank_cells.values()]
        cells = {**multi_rank_cells, **{cell.key: cell for cell in firsts if cell is not None}}
        other_rank.serve(this_rank, hello, cells, options.timeout_s)
        raise typer.Exit
    with rank_zero.connect_ranks(this_rank, hello, options.timeout_s) as others:
        yield RunSurroundings(links=others)


def perform(spec: RunSpec, options: RunOptions, surroundings: RunSurroundings = ALONE) -> RunResult:
    """Run the cells and write the requested files."""
    refuse_unwritable(spec.kind, options)
    record = run_cells(spec, options, surroundings)
    command = command_of(spec.kind)
    return RunResult(record, command.part("files")(record, options) if command.files else ())


def _advise_on_shared_memory(spec: RunSpec, options: RunOptions) -> None:
    """Say before several ranks run on GPUs that /dev/shm may be too small: NCCL's own errors do not name it."""
    devices = {cell.device.partition(":")[0] for cell in spec.cells() if cell.workers > 1}
    if options.on or not devices & {"auto", "cuda"} or not Path("/dev/shm").is_dir():
        return
    from shutil import disk_usage

    from sysbench import units
    from sysbench.spec.ranks import SMALL_SHM_BYTES

    total_bytes = disk_usage("/dev/shm").total
    if total_bytes < SMALL_SHM_BYTES:
        from sysbench.engine.supervisor import list_devices

        if list_devices()[0].type == "cuda":
            remedy = "docker run --shm-size 8g, or --ipc host"
            say(f"/dev/shm has {units.size(total_bytes)}: if NCCL fails, that may be why → {remedy}", options)


def resumed_spec_fields(kind: Kind, path: Path | None) -> Given:
    """Return the spec fields from the log to resume; fields given on the command line must agree with them."""
    if path is None:
        return {}
    from sysbench.commands import saved

    return saved.spec(path, kind).model_dump()


def show_plan(spec: RunSpec, options: RunOptions) -> None:
    from sysbench.engine.plan import refuse_impossible

    cells: list[RunCell] = list(spec.cells())
    refuse_impossible(cells)
    show_sheet(command_of(spec.kind).part("plan")(cells), options, options.columns)


def run_cells(
    spec: RunSpec,
    options: RunOptions,
    surroundings: RunSurroundings = ALONE,
    provisions: Provisions | None = None,
    write_files: Callable[[Any], Iterable[str]] = lambda record: (),
) -> RunRecord:
    """Run the cells, then save and show the record.

    `write_files` writes further files from the record, and says which ones; they are named beside the record's file.
    If the run fails after its first cell has begun (a full disk), its results so far are saved and shown first.
    """
    refuse_unknown_columns(spec, options)
    refuse_missing_extras(spec, options)
    _advise_on_shared_memory(spec, options)
    from sysbench.engine.interrupts import catch_interrupts
    from sysbench.log import runs

    # A first or second signal does not prevent saving, whether it arrives during the run or while the record is saved.
    with catch_interrupts():
        path, failure = _run_with_progress(spec, options, surroundings, provisions)
        record: RunRecord = runs.load(path)
        if failure is not None and all(cell.outcome == "not run" for cell in record.cells):
            raise failure
        saved_to = path.with_suffix(".json")
        content = record.model_dump_json(indent=1).encode() + b"\n"
        from concurrent.futures import ThreadPoolExecutor

        # Disks may be slow, so the record is written while the tables are drawn.
        writer = ThreadPoolExecutor(max_workers=1)
        written = writer.submit(storage.write_atomically, saved_to, content)
    with writer:
        for line in (*printed_by_models(record), *(tracebacks(path) if options.debug else ())):
            say(line, options)
        failures = [] if failure is None else [failure]
        # A file that cannot be written does not prevent the other results from being written and shown.
        with _collect_errors(failures):
            if options.json_path not in (None, "-"):
                storage.write_atomically(Path(options.json_path), content)
        with _collect_errors(failures):
            if surroundings.shown:
                show(record, options)
        files: list[str] = []
        with _collect_errors(failures):
            files += write_files(record)
        with _collect_errors(failures):
            written.result()
            say(f"saved  {', '.join([str(saved_to), *files])}", options)
        if record.status != "complete" and not surroundings.log_name:
            say(f"resume with: sysbench {spec.kind} --resume {shlex.quote(str(path))}", options)
    if failures:
        raise failures[0]
    return record


@contextmanager
def _collect_errors(failures: list[SysbenchError]) -> Iterator[None]:
    try:
        yield
    except SysbenchError as error:
        failures.append(error)


def _run_with_progress(
    spec: RunSpec, options: RunOptions, surroundings: RunSurroundings, provisions: Provisions | None
) -> tuple[Path, SysbenchError | None]:
    """Run the cells and show their progress; return the log, and the error that ended the run, if any."""
    from sysbench.engine import session

    with session.run(spec, options, provisions=provisions, surroundings=surroundings) as running:
        first_events = list(islice(running, 2))
        # While the worker imports torch, import what is needed to show its results.
        with gc_paused():
            from concurrent.futures import ThreadPoolExecutor  # noqa: F401

            from sysbench.render import output as summary  # noqa: F401

            command_of(spec.kind).part("record")
        with _progress_display(spec.kind, options, surroundings) as progress:
            failure, path = None, running.log_path
            try:
                for event in chain(first_events, running):
                    progress.show(event)
            except UsageError:
                raise
            except SysbenchError as error:
                failure = error
    if running.log_path != path:
        failure = failure or OutputError(f"{path} was moved or deleted during the run; its copy is {running.log_path}")
    return running.log_path, failure


def refuse_at_gate(record: RunRecord, options: RunOptions) -> None:
    """Exit with GATE_EXIT_CODE, and say why, if this run fails at a gate of the command."""
    command = command_of(record.kind)
    complaints = list(command.part("gate")(record, options)) if command.gate else []
    for complaint in complaints:
        stderr.print_line(complaint)
    if complaints:
        raise typer.Exit(GATE_EXIT_CODE)


def exit_code(record: RunRecord) -> int:
    """Return the exit code: 130 if interrupted, 1 if a cell failed or nothing was measured, otherwise 0."""
    outcomes = {cell.outcome for cell in record.cells}
    if record.status == "interrupted":
        return 130
    return 1 if outcomes & FAILURES or not outcomes & {"ok", "oom"} else 0


def _progress_display(kind: Kind, options: RunOptions, surroundings: RunSurroundings) -> Progress:
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
    view = command_of(kind).part("screen")
    if options.no_live or not view.is_drawn or not can_draw_on(console):
        return CellLines(console, view=view, earlier=earlier, overall=surroundings.overall)
    return Dashboard(console, view=view, earlier=earlier, overall=surroundings.overall)

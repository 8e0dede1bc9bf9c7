"""One run, from the first line of its log to the last: the engine's interface for the command line."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sysbench.engine.admission import Admission
from sysbench.engine.conversation import StoppedByUserError
from sysbench.engine.interrupts import Interrupts, catch_interrupts
from sysbench.engine.plan import PlacedCell, place, refuse_impossible
from sysbench.engine.process import Launcher
from sysbench.engine.provisions import ALONE, Provisions, Surroundings
from sysbench.engine.sensors.host import host_info
from sysbench.engine.sensors.sampler import Sampler
from sysbench.engine.supervisor import Supervisor
from sysbench.errors import OutputError, SysbenchError, UsageError
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    Turn,
    WorkerReady,
)
from sysbench.log.journal import Log
from sysbench.log.outcomes import RunStatus
from sysbench.log.resume import EarlierRun, read_earlier_run
from sysbench.log.storage import refuse_unwritable
from sysbench.package import VERSION, source_digest
from sysbench.spec.cell import RunCell, RunSpec
from sysbench.spec.run import RunOptions

if TYPE_CHECKING:
    from sysbench.engine.parallel.submission import ParallelExecutor


def run(
    spec: RunSpec,
    options: RunOptions,
    *,
    launcher: Launcher | None = None,
    sampler: Sampler | None = None,
    provisions: Provisions | None = None,
    surroundings: Surroundings = ALONE,
    cells: Sequence[RunCell] | None = None,
) -> Session:
    """Prepare a run of all cells of the spec, or of `cells`; iterate over the returned session to execute it.

    Raises UsageError if a cell cannot run anywhere or if a log cannot be resumed, LogError if a log cannot be read, and
    OutputError if the log cannot be written; then no files are left behind.
    """
    cells = list(spec.cells()) if cells is None else cells
    refuse_impossible(cells)
    _refuse_elsewhere(cells, options, provisions, surroundings)
    if surroundings.links is not None and provisions is not None and provisions.artifacts:
        surroundings = replace(surroundings, links=None)  # this process starts the workers, which write files here
    if options.json_path not in (None, "-"):
        refuse_unwritable(Path(options.json_path))
    sampler = sampler or Sampler()
    if options.resume is not None:
        log, earlier = _reopen_log(options.resume, spec)
        kept = sum(earlier.keeps(cell) for cell in cells)
        opening: RunStarted | RunResumed = RunResumed(at_s=time.time(), keep=kept)
    else:
        opening = _run_started(spec, len(cells), sampler.driver, surroundings.turn)
        log, earlier = Log.create(options.out, spec.kind, surroundings.log_name), None
    return Session(
        log,
        opening,
        spec,
        cells,
        earlier,
        options,
        launcher or Launcher(),
        sampler,
        provisions or Provisions(),
        surroundings,
    )


@dataclass
class Session:
    """A run, as an iterator of events, from RunStarted or RunResumed to RunFinished; each is in the log first.

    As a context manager, the session ends the worker and completes the log, however the block is left. Iterating raises
    UsageError if the machine does not match the request (no such device; a log from another machine), after removing
    from the log what this session wrote; SysbenchError if no worker can be started; and OutputError if the log can no
    longer be written.
    """

    log: Log
    opening: RunStarted | RunResumed
    spec: RunSpec
    cells: Sequence[RunCell]
    earlier: EarlierRun | None
    options: RunOptions
    launcher: Launcher
    sampler: Sampler
    provisions: Provisions
    surroundings: Surroundings

    def __post_init__(self) -> None:
        self._admission = Admission(self.options, self.sampler.free_bytes)
        self._open_cell: str | None = None
        """The cell being measured, according to the log."""
        self._events = self._run()

    @property
    def log_path(self) -> Path:
        """Path of the log."""
        return self.log.path

    def __iter__(self) -> Session:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the run if it is still active; all measurements are kept."""
        self._events.close()
        self.sampler.close()
        self.log.close()

    def _run(self) -> Generator[Event, None, None]:
        status: RunStatus = "complete"
        failure: SysbenchError | None = None
        with self.log, closing(self.sampler), catch_interrupts() as interrupts:
            opening = self._write(self.opening)
            executor: Supervisor | ParallelExecutor | None = None
            try:
                yield opening
                yield from map(self._write, self.surroundings.first_events)
                pending = [(index, cell) for index, cell in enumerate(self.cells) if self._is_pending(cell)]
                if pending and (self.options.on or self.options.parallel):
                    from sysbench.engine.parallel.pools import pool_of
                    from sysbench.engine.parallel.submission import ParallelExecutor  # few runs need it

                    executor = ParallelExecutor(pool_of(self.options, run), interrupts, self.spec, self.options)
                    events = executor.run(pending)
                elif pending:
                    executor = self._supervisor(interrupts, all(cell.simulated for _, cell in pending))
                    events = executor.run(self._place)
                else:
                    events = iter(())
                for event in events:
                    yield self._write(event)
            except StoppedByUserError:
                status = "interrupted"
            except UsageError:
                _stop(executor)
                self.log.roll_back()
                raise
            except OutputError as error:
                _stop(executor)
                raise OutputError(f"{error}. The run was stopped; the log has all earlier events") from error
            except SysbenchError as error:
                # If the user stops a rank, its disconnection may be noticed before the request to stop.
                status, failure = ("interrupted", None) if interrupts.requested else ("failed", error)
            except BaseException as error:
                # Abandoned in the middle: by the caller, by a third Ctrl-C, or because of a bug.
                abandoned = isinstance(error, GeneratorExit | KeyboardInterrupt)
                self._finish(executor, "interrupted" if abandoned else "failed")
                raise
            yield from self._finish(executor, status)
        if failure is not None:
            raise failure

    def _write(self, event: Event) -> Event:
        self.log.append(event)
        if isinstance(event, CellStarted):
            self._open_cell = event.cell
        elif isinstance(event, CellFinished):
            self._open_cell = None
        return event

    def _supervisor(self, interrupts: Interrupts, simulates: bool) -> Supervisor:
        return Supervisor(
            self.launcher,
            self.sampler,
            self._admission,
            interrupts,
            self.options.timeout_s,
            self.provisions,
            ceilings=self.surroundings.ceilings,
            threads_probe=(self.earlier.threads_probe if self.earlier else None) or self.surroundings.threads_probe,
            links=self.surroundings.links,
            shares_worker=simulates and self.surroundings.in_experiment,
        )

    def _finish(self, executor: Supervisor | ParallelExecutor | None, status: RunStatus) -> list[Event]:
        """End the worker, complete the log, and return the last events, which are already in the log."""
        final_events: list[Event] = [*_stop(executor)]
        if self._open_cell is not None:
            final_events.append(CellFinished(at_s=time.time(), cell=self._open_cell, outcome="interrupted"))
        final_events.append(RunFinished(at_s=time.time(), status=status))
        return [self._write(event) for event in final_events]

    def _is_pending(self, cell: RunCell) -> bool:
        return self.earlier is None or not self.earlier.keeps(cell)

    def _place(self, ready: WorkerReady) -> list[PlacedCell]:
        links = self.surroundings.links
        placed = place(self.cells, ready.devices, links.ranks if links is not None else None)
        if self.earlier is not None:
            self.earlier.refuse_other_machine(ready, ((cell.cell, cell.device) for cell in placed))
            for cell in placed:
                if self.earlier.outcome(cell.cell) == "oom":
                    self._admission.remember_too_large(cell)
            placed = [replace(each, earlier_s=self.earlier.measured_s(each.cell, each.device)) for each in placed]
        return [cell for cell in placed if self._is_pending(cell.cell)]


def _stop(executor: Supervisor | ParallelExecutor | None) -> Sequence[Event]:
    return [] if executor is None else executor.stop()


def _refuse_elsewhere(
    cells: Sequence[RunCell], options: RunOptions, provisions: Provisions | None, surroundings: Surroundings
) -> None:
    if options.parallel and not all(cell.simulated for cell in cells):
        raise UsageError(
            f"--parallel {options.parallel} is for simulated cells (--simulate GPU): cells measured in parallel on "
            "one machine would slow each other down"
        )
    writes_files = provisions is not None and bool(provisions.artifacts)
    if surroundings.links is not None and writes_files and not surroundings.links.on_one_node:
        raise UsageError(
            "traces and snapshots of ranks on several nodes would be written on each node: start this on one node"
        )
    if (options.on or options.parallel) and (writes_files or (provisions is not None and provisions.launchers)):
        raise UsageError(
            f"{f'--on {options.on}' if options.on else f'--parallel {options.parallel}'}: traces, snapshots and "
            "figures are written where the cell runs: drop one of the two options"
        )


def _run_started(spec: RunSpec, cells: int, driver: str | None, turn: Turn | None) -> RunStarted:
    return RunStarted(
        at_s=time.time(),
        kind=spec.kind,
        turn=turn,
        sysbench_version=VERSION,
        source_digest=source_digest(),
        spec=spec.model_dump(mode="json"),
        host=host_info(),
        driver=driver,
        cells=cells,
    )


def _reopen_log(path: Path, spec: RunSpec) -> tuple[Log, EarlierRun]:
    """Reopen a log to continue it; return the log and the earlier run."""
    log = Log.reopen(path)
    try:
        earlier = read_earlier_run(path)
        earlier.refuse_other_spec(spec)
        earlier.refuse_other_code(source_digest())
        log.truncate_partial_line()
    except BaseException:
        log.close()
        raise
    return log, earlier

"""Grouping of a log's events by cell, and the record fields common to all commands."""

from __future__ import annotations

import statistics as standard
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeVar

from sysbench import formulas, statistics
from sysbench.errors import LogError
from sysbench.log.events import (
    AdaptedModelBuilt,
    AnyRecord,
    CeilingMeasured,
    CellFinished,
    CellOutcome,
    CellStarted,
    Compiled,
    Event,
    LineDamaged,
    MemoryMeasured,
    ModelBuilt,
    OfRank,
    OwnModelBuilt,
    OwnModelFacts,
    PhaseSample,
    Reading,
    ReadingsLost,
    RecomputationCounted,
    RunFinished,
    RunIdentity,
    RunResumed,
    RunStarted,
    StepChecked,
    StepMeasured,
    ThreadsProbe,
    ThreadsProbed,
    WorkerReady,
)
from sysbench.log.records import AnyCell, DoubtRecord, EnvironmentRecord, ModelRecord, PeakRecord, PhaseRecord, Samples
from sysbench.spec.cell import RunCell, spec_of
from sysbench.spec.frozen import Frozen
from sysbench.spec.model import GridCell, ModelCell
from sysbench.statistics.doubt import CPU_REPEAT_SD

AnyEvent = TypeVar("AnyEvent", bound=Frozen)


@dataclass
class CellEvents:
    """Events of the latest attempt at one cell."""

    started: CellStarted | None = None
    built: ModelBuilt | None = None
    compiled: Compiled | None = None
    warmup: list[StepMeasured] = field(default_factory=list)
    steps: list[StepMeasured] = field(default_factory=list)
    memory: MemoryMeasured | None = None
    checked: StepChecked | None = None
    readings: list[Reading] = field(default_factory=list)
    measured_readings: list[Reading] = field(default_factory=list)
    """Readings between the first and the last measured step."""
    finished: CellFinished | None = None
    ranks: dict[int, CellEvents] = field(default_factory=dict)
    """Events of the ranks other than 0 that ran the cell together with rank 0."""
    attempts: int = 1
    """Number of processes that measured these steps, one after the other."""
    said: dict[type, list[Any]] = field(default_factory=dict)

    def all(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        """Return, in order, all events of a class that has no dedicated field in this object."""
        return self.said.get(kind, [])

    def last(self, kind: type[AnyEvent]) -> AnyEvent | None:
        """Return the last event of a class that has no dedicated field in this object, or None."""
        events = self.all(kind)
        return events[-1] if events else None

    def record_of(self, kind: type[Event], record: type[AnyRecord]) -> AnyRecord | None:
        """Return the record that keeps the last event of a class; None without such an event."""
        event = self.last(kind)
        return event.as_record(record) if event else None

    @property
    def warmup_s(self) -> list[float]:
        """Wall times of the warm-up steps, in order."""
        return [measured.step.wall_s for measured in self.warmup if measured.step.wall_s is not None]

    @property
    def device_used_peak_bytes(self) -> int | None:
        """Highest sampled memory use of the whole device; None if it was never sampled."""
        used = [reading.device_used_bytes for reading in self.readings if reading.device_used_bytes is not None]
        return max(used, default=None)

    def continued(self) -> CellEvents:
        """Return what a continued attempt keeps: the measured steps, and the readings during them."""
        return CellEvents(
            steps=self.steps, checked=self.checked, measured_readings=self.measured_readings, attempts=self.attempts + 1
        )

    def add(self, event: Event) -> None:
        """Add an event of this cell."""
        if type(event) is StepMeasured:
            (self.warmup if event.warmup else self.steps).append(event)
        elif type(event) is Reading:
            self.readings.append(event)
            if self.steps and self.memory is None:
                self.measured_readings.append(event)
        elif type(event) is OfRank:
            self.ranks.setdefault(event.rank, CellEvents()).add(event.said)
        elif name := _LATEST.get(type(event)):
            setattr(self, name, event)
        else:
            self.said.setdefault(type(event), []).append(event)


_LATEST = {
    CellStarted: "started",
    ModelBuilt: "built",
    Compiled: "compiled",
    MemoryMeasured: "memory",
    StepChecked: "checked",
    CellFinished: "finished",
}
"""Fields of CellEvents that hold the latest event of a class. Classes are compared by identity: an `isinstance` test of
a pydantic model takes a tenth of the time of reading an event, and a chain of checks takes as long as reading it.
"""


@dataclass
class Run:
    """All events of a log, grouped by cell and by kind."""

    started: RunStarted
    worker: WorkerReady | None = None
    finished: RunFinished | None = None
    cells: dict[str, CellEvents] = field(default_factory=dict)
    ceilings: dict[tuple[str, str, int | None], CeilingMeasured] = field(default_factory=dict)
    threads_probe: ThreadsProbed | None = None
    lost: list[ReadingsLost] = field(default_factory=list)
    damaged_lines: list[int] = field(default_factory=list)
    current: CellEvents | None = None
    """The cell being measured, to which readings belong."""
    reading_between_cells: Reading | None = None
    """The last reading between cells; it also describes the environment of the next cell."""

    def add(self, event: Event) -> None:
        """Add the next event; CellStarted discards the events of earlier attempts at its cell, except kept steps."""
        if type(event) is Reading:
            if self.current is None:
                self.reading_between_cells = event
            else:
                self.current.add(event)
        elif (key := getattr(event, "cell", None)) is None:
            self._add_run_event(event)
        else:
            if type(event) is CellStarted:
                earlier = self.cells.get(key) if event.keeps_steps else None
                self.current = self.cells[key] = CellEvents() if earlier is None else earlier.continued()
                if self.reading_between_cells is not None:
                    self.current.add(self.reading_between_cells)
            elif key not in self.cells:
                self.cells[key] = CellEvents()
            self.cells[key].add(event)
            if type(event) is CellFinished:
                self.current = None

    def _add_run_event(self, event: Event) -> None:
        match event:
            case WorkerReady():
                self.worker = event
            case RunFinished():
                self.finished = event
            case RunResumed():
                self.finished = None
            case CeilingMeasured():
                self.ceilings[event.device, event.precision, event.threads] = event
            case ThreadsProbed():
                self.threads_probe = event
            case ReadingsLost():
                self.lost.append(event)
            case LineDamaged():
                self.damaged_lines.append(event.line)
            case _:
                pass


def collect(events: Iterable[Event]) -> Run:
    """Group the events of a log; raises LogError if the first event is not RunStarted."""
    remaining = iter(events)
    run = _start_run(remaining)
    for event in remaining:
        run.add(event)
    return run


def _start_run(events: Iterator[Event]) -> Run:
    first = next(events, None)
    if not isinstance(first, RunStarted):
        raise LogError("the log does not start with the start event of a run")
    return Run(started=first)


def fold_cells(
    events: Iterable[Event], fold_cell: Callable[[Any, CellEvents, Run], AnyCell]
) -> tuple[Run, list[AnyCell]]:
    """Group the events of a log, and call `fold_cell` for each cell of the run's spec as soon as the cell has finished.

    Keeps only one cell's events in memory at a time: the events of 10,000 cells would take most of a gigabyte.
    `fold_cell` gets the run's events up to the end of the cell. Raises LogError if the first event is not RunStarted.
    """
    remaining = iter(events)
    run = _start_run(remaining)
    cells: dict[str, RunCell] = {cell.key: cell for cell in spec_of(run.started.spec).cells()}
    folded: dict[str, AnyCell] = {}
    for event in remaining:
        run.add(event)
        if type(event) is CellFinished and event.cell in cells:
            # An interrupted cell may be continued.
            seen = run.cells[event.cell] if event.outcome == "interrupted" else run.cells.pop(event.cell)
            if seen.started is None and event.cell in folded:
                # A later verdict on the same attempt, not another attempt.
                folded[event.cell] = folded[event.cell].model_copy(update=outcome_fields(seen))
            else:
                folded[event.cell] = fold_cell(cells[event.cell], seen, run)
    for key, cell in cells.items():
        unfinished = run.cells.get(key, CellEvents())
        if unfinished.started is not None or key not in folded:
            folded[key] = fold_cell(cell, unfinished, run)
    return run, [folded[key] for key in cells]


def run_fields(run: Run) -> dict[str, Any]:
    """Return all fields of a RunRecord except its cells."""
    finished_at = run.finished.at_s if run.finished else None
    torch, probe = run.worker.torch if run.worker else None, run.threads_probe
    if torch is not None and probe is not None:
        torch = torch.model_copy(update={"threads": probe.threads})
    return {
        **run.started.fields_of(RunIdentity),
        "started_at": iso(run.started.at_s),
        "finished_at": iso(finished_at) if finished_at else None,
        "status": run.finished.status if run.finished else "unfinished",
        "damaged_lines": run.damaged_lines,
        "environment": EnvironmentRecord(
            host=run.started.host,
            torch=torch,
            threads_probe=probe.as_record(ThreadsProbe) if probe else None,
            devices=run.worker.devices if run.worker else [],
            driver=run.started.driver,
        ),
    }


def cell_fields(cell: RunCell, seen: CellEvents) -> dict[str, object]:
    """Return all fields of a CellRecord except its cautions."""
    return {
        "key": seen.started.cell if seen.started else cell.key,
        "axes": cell,
        "device": seen.started.device if seen.started else None,
        "host": seen.started.host if seen.started else None,
        **outcome_fields(seen),
        "own_model": seen.record_of(OwnModelBuilt, OwnModelFacts),
    }


def outcome_fields(seen: CellEvents) -> dict[str, object]:
    """Return the outcome of a cell with its reason; a cell whose end is not in the log is `unfinished` or `not run`."""
    if seen.finished is not None:
        return seen.finished.fields_of(CellOutcome)
    if seen.started is not None:
        detail = "the run is in progress or ended abruptly"
        return {"outcome": "unfinished", "detail": detail, "reason": "log-ended"}
    return {"outcome": "not run", "detail": None, "reason": None}


def peak_record(seen: CellEvents, **computed: object) -> PeakRecord:
    """Return the memory peaks of a cell; `computed` ones replace those of the event."""
    measured = seen.memory.fields_of(PeakRecord) if seen.memory else {}
    return PeakRecord(**{**measured, "device_used_peak_bytes": seen.device_used_peak_bytes, **computed})


NO_SIGNS = statistics.Signs()


def signs_of(cell: RunCell, seen: CellEvents, run: Run) -> statistics.Signs:
    """Return what is known about the steps of a cell besides their times, except the times of other steps."""
    readings = seen.measured_readings or seen.readings
    sharers = max((reading.other_processes or 0 for reading in seen.readings), default=0)
    busy = [reading.host_cpu_share for reading in readings if reading.host_cpu_share is not None]
    if seen.started is None or seen.started.device.type != "cpu":
        return statistics.Signs(gpu_sharers=sharers)
    cores = run.started.host.logical_cores
    threads = cell.axis_value("threads") or _default_threads(run) or cores
    return statistics.Signs(load=statistics.Load(cores, threads, standard.median(busy) if busy else None))


def _default_threads(run: Run) -> int | None:
    """Return how many threads a step has on a quiet machine, where nothing asks for fewer."""
    if run.threads_probe is not None:
        return run.threads_probe.default
    return run.worker.torch.threads if run.worker is not None else None


def phases_of(
    names: Iterable[str],
    steps: Sequence[StepMeasured],
    signs: statistics.Signs = NO_SIGNS,
    warmup: Sequence[StepMeasured] = (),
) -> dict[str, PhaseRecord]:
    """Return a record for each of these phases, over the steps that contain the phase, and one for the whole `step`.

    `warmup` are the steps before them; `signs` apply to each phase, except the time on fewer threads, which is that of
    a step.
    """
    if not steps:
        return {}
    of_phase = replace(signs, on_fewer_threads=None)
    return {
        **{name: phase for name in names if (phase := _phase(_samples(steps, name), _samples(warmup, name), of_phase))},
        "step": _phase([step.step for step in steps], [step.step for step in warmup], signs) or _NO_TIMES,
    }


_NO_TIMES = PhaseRecord(wall=None, device=None, enqueue_median_s=None)


def _samples(steps: Sequence[StepMeasured], name: str) -> list[PhaseSample]:
    return [step.phases[name] for step in steps if name in step.phases]


def _phase(
    samples: Sequence[PhaseSample], warmup: Sequence[PhaseSample], signs: statistics.Signs
) -> PhaseRecord | None:
    if not samples:
        return None
    enqueue_s, processor_s = _known(samples, "enqueue_s"), _known(samples, "processor_s")
    by_host = replace(signs, warmup=_known(warmup, "wall_s"), processor=processor_s)
    by_device = replace(signs, warmup=_known(warmup, "device_s"), load=None)
    return PhaseRecord(
        wall=samples_of(_known(samples, "wall_s"), by_host),
        device=samples_of(_known(samples, "device_s"), by_device),
        enqueue_median_s=standard.median(enqueue_s) if enqueue_s else None,
        processor_median_s=standard.median(processor_s) if processor_s else None,
    )


def _known(samples: Iterable[PhaseSample], name: str) -> list[float]:
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def samples_of(samples_s: Sequence[float], signs: statistics.Signs = NO_SIGNS) -> Samples | None:
    """Return raw samples with summary statistics; None if there are none, or if a coarse clock makes their median 0.

    `signs` are in seconds, and widen the interval of the median.
    """
    if not samples_s:
        return None
    summary = statistics.summarize(samples_s)
    if not summary.median:
        return None
    repeat_sd = CPU_REPEAT_SD if signs.load is not None else 0.0
    found = statistics.estimate(samples_s, tuple(statistics.doubts(samples_s, signs)), repeat_sd)
    return Samples(
        samples_s=list(samples_s),
        mean_s=summary.mean,
        std_s=summary.std,
        median_s=summary.median,
        min_s=summary.minimum,
        max_s=summary.maximum,
        p5_s=summary.p5,
        p25_s=summary.p25,
        p75_s=summary.p75,
        p95_s=summary.p95,
        mad_s=summary.mad,
        ci95_s=found.interval(),
        lag1_autocorrelation=summary.lag1,
        doubts=[DoubtRecord(cause=each.cause, low_s=each.low, high_s=each.high) for each in found.doubts],
        repeat_sd=found.repeat_sd,
    )


def model_cell_fields(cell: GridCell, seen: CellEvents) -> dict[str, Any]:
    """Return all fields of a ModelCellRecord except its cautions."""
    counted = _counted_model(seen)
    if (shape := cell.shape_with_formulas) is not None:
        model = ModelRecord(
            parameters=formulas.parameters(shape),
            parameters_without_lm_head=formulas.parameters_without_lm_head(shape),
            forward_flops=formulas.forward_flops(shape, cell.ctx, cell.batch),
        )
    else:
        model = ModelRecord(
            parameters=counted.parameters if counted else None,
            parameters_without_lm_head=None,
            trainable_parameters=counted.trainable_parameters if counted and cell.lora else None,
            forward_flops=counted.flops.get("forward") if counted and counted.flops else None,
        )
    return {**cell_fields(cell, seen), "model": model}


def step_flops(cell: ModelCell, seen: CellEvents) -> int | None:
    """Return the FLOPs of one step, summed over all ranks; None if unknown.

    The FLOPs of the built-in model come from formulas, and those of a user's model, or with adapters, from counting
    operators. Work that several ranks do identically counts once.
    """
    if (shape := cell.shape_with_formulas) is not None:
        return cell.batches * formulas.step_flops(cell.mode, shape, cell.ctx, cell.batch)
    counted = _counted_model(seen)
    if counted is None or not counted.flops:
        return None
    return cell.batches * sum(counted.flops.values()) or None  # no rate without products


def _counted_model(seen: CellEvents) -> OwnModelBuilt | AdaptedModelBuilt | None:
    return seen.last(OwnModelBuilt) or seen.last(AdaptedModelBuilt)


def recomputed_flops(cell: ModelCell, seen: CellEvents) -> int | None:
    """Return the FLOPs of one step that are computed again in backward, over all ranks; None without checkpointing."""
    counted = seen.last(RecomputationCounted)
    return cell.batches * counted.flops if counted else None


def step_tokens(cell: ModelCell, seen: CellEvents) -> int | None:
    """Return the tokens in one step, over all ranks; None if the inputs of a user's model are not token ids."""
    if cell.own is None:
        return cell.batches * cell.tokens
    own = seen.last(OwnModelBuilt)
    return cell.batches * own.tokens if own and own.tokens is not None else None


def merge_ranks(seen: CellEvents) -> CellEvents:
    """Merge the events of a cell's ranks: each step's sample from the slowest rank, and the highest memory peak."""
    ranks = [seen, *seen.ranks.values()]
    if len(ranks) == 1:
        return seen

    def slowest_samples(steps: Iterable[list[StepMeasured]]) -> list[StepMeasured]:
        return [max(same_step, key=lambda each: each.step.wall_s or 0.0) for same_step in zip(*steps, strict=False)]

    peaks = [rank.memory for rank in ranks if rank.memory is not None]
    return replace(
        seen,
        steps=slowest_samples(rank.steps for rank in ranks),
        warmup=slowest_samples(rank.warmup for rank in ranks),
        memory=max(peaks, key=lambda each: each.allocated_peak_bytes or 0, default=None),
    )


MIN_SUSPENSION_S = 10.0
"""Shortest time without any reading of the sensors, which are ten a second, that counts as a suspension."""


def without_suspensions(seen: CellEvents) -> tuple[CellEvents, list[float]]:
    """Return a cell without the steps during which the machine or the run was suspended, and for how long each was.

    A clock that goes on meanwhile makes such a step too long: it took twice as long as others, half of it without any
    reading of the sensors. One that stops does not show what it took to wake up: the wall clock went ahead of it.
    """
    readings_s = sorted(reading.at_s for reading in seen.readings)
    pauses = [(begin, end) for begin, end in pairwise(readings_s) if end - begin > MIN_SUSPENSION_S]
    typical_s = standard.median([step.step.wall_s or 0.0 for step in seen.steps]) if seen.steps else 0.0

    def suspended_s(step: StepMeasured) -> float:
        taken_s = step.step.wall_s or 0.0
        if step.clock_jump_s or taken_s < 2 * typical_s:
            return abs(step.clock_jump_s)
        paused_s = max((min(end, step.at_s) - max(begin, step.at_s - taken_s) for begin, end in pauses), default=0.0)
        return paused_s if paused_s > max(MIN_SUSPENSION_S, taken_s / 2) else 0.0

    warmup, steps = ([(step, suspended_s(step)) for step in each] for each in (seen.warmup, seen.steps))
    kept_warmup, kept_steps = ([step for step, lost_s in each if not lost_s] for each in (warmup, steps))
    kept = replace(seen, warmup=kept_warmup, steps=kept_steps)
    return kept, [lost_s for _, lost_s in (*warmup, *steps) if lost_s]


def iso(at_s: float) -> str:
    """Return a time in seconds since the epoch as ISO 8601, UTC."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

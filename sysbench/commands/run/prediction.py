"""Predicted runs of an experiment for a GPU that is not present, and expected durations of runs on any machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sysbench import units
from sysbench.commands.kinds import command_of
from sysbench.commands.run.experiment import PlannedRun
from sysbench.commands.surroundings import RunSurroundings
from sysbench.engine.process import Launcher, prelaunched
from sysbench.errors import UsageError
from sysbench.log.durations import Durations
from sysbench.log.events import CellFinished
from sysbench.log.records import CellRecord, RunRecord
from sysbench.log.storage import ScratchDirectory
from sysbench.render.dashboard import experiment_progress
from sysbench.render.dashboard.experiment_progress import ExperimentProgress, PendingCell
from sysbench.render.dashboard.progress import show_status
from sysbench.spec.cell import RunCell, RunSpec
from sysbench.spec.hardware import Hardware
from sysbench.spec.validation import validated


def to_prediction(planned: PlannedRun, gpu: Hardware) -> PlannedRun:
    """Convert a run to a prediction for `gpu`; one that cannot be predicted is left out, with the reason."""
    entry = planned.entry
    if entry.here == "left out" or "simulate" in entry.options:
        return planned
    spec, options = planned.spec, {name: word for name, word in entry.options.items() if name != "device"}
    changes: dict[str, object]
    if command_of(entry.command).runs_anywhere:
        spec = spec.model_copy(update={"device": type(spec).model_fields["device"].default})
        changes = {"here": "changed", "why": "it needs no GPU: computed on this machine", "options": options}
    else:
        try:
            spec = _spec_for_gpu(spec, gpu)
            options["simulate"] = gpu.slug
            changes = {"here": "simulated", "why": f"predicted for {gpu.title}", "options": options}
        except UsageError as error:
            changes = {"here": "left out", "why": f"no prediction for {gpu.slug}: {error}"}
    return PlannedRun(entry.model_copy(update=changes), spec, planned.options)


def _spec_for_gpu(spec: RunSpec, gpu: Hardware) -> RunSpec:
    fields = type(spec).model_fields
    if "simulate" not in fields:
        raise UsageError(f"sysbench {spec.kind} needs a device")
    device_field = {"device": fields["device"].default} if "device" in fields else {}
    predicted_spec: RunSpec = validated(type(spec), {**spec.model_dump(), **device_field, "simulate": gpu.slug})
    impossible = next(filter(None, (cell.problem(None) for cell in predicted_spec.cells())), None)
    if impossible is not None:
        raise UsageError(impossible)
    return predicted_spec


PLAN_BUDGET_S = 4.0
"""Longest time that a plan spends on predictions after the first cell; the rest of a large experiment is only predicted
when it runs.
"""


ATTENTION_LAYERS = 4
"""Layers that take about as long to predict as one call of attention by itself."""


class _OutOfTimeError(Exception):
    """The time for predictions is up."""


def predict_durations_s(
    planned: Iterable[PlannedRun], gpu: Hardware, *, silent: bool, budget_s: float = PLAN_BUDGET_S
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return predicted seconds by cell key, and the names of the runs for which `budget_s` was too short."""
    first_finished_s: list[float] = []

    def watch(event: object) -> None:
        if first_finished_s and time.monotonic() > first_finished_s[0] + budget_s:
            raise _OutOfTimeError
        if isinstance(event, CellFinished) and not first_finished_s:
            first_finished_s.append(time.monotonic())

    durations_s: dict[str, float] = {}
    waiting = sorted(_predictable(planned, gpu), key=lambda each: _work(each[1]))
    with (
        show_status(f"predicting for {gpu.slug}", silent=silent) as progress,
        ScratchDirectory() as directory,
        prelaunched(Launcher()),
    ):
        while waiting:
            run, spec = waiting[0]
            progress(f"predicting for {gpu.slug}: {run.entry.name}")
            try:
                record = _perform(spec, Path(directory), watch)
            except _OutOfTimeError:
                break
            del waiting[0]
            record_by_key = {_key_without_device(cell.cell): cell for cell in record.cells}
            on_gpu = [cell for cell in run.spec.cells() if cell.device.partition(":")[0] in ("auto", "cuda")]
            cell_durations_s = {
                cell.key: measuring_s(spec.kind, record_by_key[_key_without_device(cell)]) for cell in on_gpu
            }
            durations_s |= {key: each_s for key, each_s in cell_durations_s.items() if each_s is not None}
    return durations_s, tuple(run.entry.name for run, _ in waiting)


def _predictable(planned: Iterable[PlannedRun], gpu: Hardware) -> Iterator[tuple[PlannedRun, RunSpec]]:
    for run in planned:
        if run.entry.here == "left out" or "simulate" in run.entry.options:
            continue
        if command_of(run.entry.command).results().expected_duration_s is None:
            continue
        with suppress(UsageError):
            yield run, _spec_for_gpu(run.spec, gpu)


def _work(spec: RunSpec) -> int:
    """Return a measure of how long it takes to predict a spec: the number of layers of all its cells."""
    shapes = [cell.step.shape if cell.step is not None else None for cell in spec.cells()]
    return sum(shape.layers if shape is not None else ATTENTION_LAYERS for shape in shapes)


def _key_without_device(cell: RunCell) -> str:
    return cell.model_copy(update={"device": "auto"}).model_dump_json(exclude={"simulate"})


def measuring_s(kind: str, cell: CellRecord) -> float | None:
    """Return how long a predicted cell would take to measure; None if the cell has no predicted time."""
    expected_s = command_of(kind).results().expected_duration_s
    return expected_s(cell) if expected_s else None


def total_measuring_s(records: Iterable[RunRecord]) -> float:
    """Return how long all cells of these runs would take to measure; 0 unless all of them are predicted."""
    cells = [
        (record.kind, cell)
        for record in records
        if command_of(record.kind).results().expected_duration_s
        for cell in record.cells
    ]
    if not all(cell.cell.simulated for _, cell in cells):
        return 0.0
    return sum(measuring_s(kind, cell) or 0.0 for kind, cell in cells)


def _perform(spec: RunSpec, directory: Path, watch: Callable[[object], None]) -> RunRecord:
    """Run the cells of a spec without any output, and return the record; `watch` is called with every event."""
    command = command_of(spec.kind)
    # As parts of an experiment, all predictions share one worker, so that torch is imported once.
    overall = experiment_progress.initial_progress({})
    quiet = command.models().options(out=directory, quiet=True, force=True, no_live=True)
    surroundings = RunSurroundings(in_experiment=True, overall=overall, watch=watch, shown=False)
    return command.launch().perform(spec, quiet, surroundings).record


def cell_s(cell: RunCell, earlier: Durations) -> float | None:
    """Return the duration of the cell's latest measurement, or else its predicted duration; None if unknown."""
    return earlier.cells_s.get(cell.key, earlier.predicted_s.get(cell.key))


def run_s(planned: PlannedRun, earlier: Durations) -> float | None:
    """Return the expected duration of a run, including its worker's start; None if a cell's duration is unknown."""
    cells_s = [cell_s(cell, earlier) for cell in planned.spec.cells()]
    known_s = [each for each in cells_s if each is not None]
    return sum(known_s) + earlier.startup_s(planned.entry.command) if len(known_s) == len(cells_s) else None


def expected(duration_s: float) -> str:
    """Format an expected duration: `12 min`; below 10 s with two digits in the unit that fits, `430 ms`."""
    if duration_s >= 10:
        return units.duration(duration_s)
    rounded_s = float(f"{duration_s:.2g}")
    return f"{rounded_s:g} s" if rounded_s >= 1 else f"{1e3 * rounded_s:g} ms"


def describe_total(planned: Sequence[PlannedRun], earlier: Durations) -> str:
    """Describe the expected duration of the runs: `about 12 min in total for 3 of 4 runs, from …`."""
    executed = [run for run in planned if run.entry.here != "left out"]
    known_s = [seconds for run in executed if (seconds := run_s(run, earlier)) is not None]
    if not known_s:
        return "duration unknown: no run was measured on such a device before, or predicted as a whole"
    some = f" for {len(known_s)} of {len(executed)} runs" if len(known_s) < len(executed) else ""
    sources = ["earlier durations of the same cells"] if earlier.cells_s else []
    if earlier.predicted_s:
        sources.append("PREDICTED steps; building models and starting workers are not included")
    return f"about {expected(sum(known_s))} in total{some}, from {', and '.join(sources)}"


def initial_progress(planned: Sequence[PlannedRun], earlier: Durations) -> ExperimentProgress:
    runs: dict[str, Mapping[str, PendingCell]] = {}
    for run in planned:
        cells = {} if run.entry.here == "left out" else {cell.key: cell for cell in run.spec.cells()}
        durations_s = {key: cell_s(cell, earlier) for key, cell in cells.items()}
        startup_s = [earlier.startup_s(run.entry.command), *[0.0] * len(cells)]  # the first cell waits for the worker
        runs[run.entry.name] = {
            key: PendingCell(run.entry.command, None if duration_s is None else duration_s + start_s)
            for (key, duration_s), start_s in zip(durations_s.items(), startup_s, strict=False)
        }
    return experiment_progress.initial_progress(runs)

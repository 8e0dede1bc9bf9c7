"""Fold the events of a loop into its record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sysbench import statistics
from sysbench.commands.loop.record import LoopCellRecord, LoopRecord, LoopTraced, LoopTraceRecord
from sysbench.commands.loop.spec import LoopCell
from sysbench.log import cautions
from sysbench.log.collect import (
    CellEvents,
    Run,
    cell_fields,
    fold_cells,
    peak_record,
    phases_of,
    run_fields,
    samples_of,
    signs_of,
)
from sysbench.log.events import Event, StepMeasured
from sysbench.log.outcomes import Caution, CautionCode, caution
from sysbench.log.records import Samples

REMEDIES: Mapping[CautionCode, str] = {
    "outliers": "quote the median; close other processes; measure more steps",
    "autocorrelated": "measure more steps",
    "too-few-steps": "measure at least 10 steps",
    "interval-too-wide": "measure more steps",
    "launch-bound": "use torch.compile, or a larger batch",
    "not-measured": 'sync="phase"',
    "gpu-shared": "stop them, or use another device",
}
"""Remedies in terms of the Python API; the default remedies name command-line options."""


def fold(events: Iterable[Event]) -> LoopRecord:
    run, cells = fold_cells(events, _cell)
    return LoopRecord(**run_fields(run), cells=cells)


def _cell(cell: LoopCell, seen: CellEvents, run: Run) -> LoopCellRecord:
    names = dict.fromkeys(name for step in seen.steps for name in step.phases)
    signs = signs_of(cell, seen, run)
    phases = phases_of(names, seen.steps, signs, seen.warmup)
    step = phases["step"].wall if phases else None
    return LoopCellRecord(
        **cell_fields(cell, seen),
        cautions=cautions.causes(_cautions(cell, seen, step, signs.load, run)),
        phases=phases,
        outside=_outside(seen.steps),
        warmup_samples_s=seen.warmup_s,
        memory=peak_record(seen),
        tokens_per_s=cell.tokens / step.mean_s if cell.tokens is not None and step else None,
        trace=seen.record_of(LoopTraced, LoopTraceRecord),
    )


def _outside(steps: Sequence[StepMeasured]) -> Samples | None:
    found = []
    for step in steps:
        parts = [phase.wall_s for phase in step.phases.values()]
        if step.step.wall_s is not None and parts and None not in parts:
            found.append(step.step.wall_s - sum(part for part in parts if part is not None))
    return samples_of([max(0.0, each_s) for each_s in found]) if any(found) else None


def _cautions(
    cell: LoopCell, seen: CellEvents, step: Samples | None, load: statistics.Load | None, run: Run
) -> Iterator[Caution]:
    if not seen.steps or seen.started is None:
        return
    phases = [phase for step in seen.steps for phase in step.phases.values()]
    if seen.started.device.type == "cuda" and seen.memory is not None and not seen.memory.allocated_peak_bytes:
        name = seen.started.device.torch_name
        yield caution("device-unused", 'use device="cpu", or the device that the steps ran on', about=(name,))
    for found in (
        *cautions.environment_cautions(seen, run.lost, load, step),
        *(cautions.stability(seen.warmup_s, step, "warmup=") if step else ()),
        *(cautions.precision_of_the_median(step, cell.until, cell.max_steps) if step else ()),
        *cautions.launch_bound(seen),
        *(
            cautions.phases_not_measured(cell.sync, seen)
            if phases and all(phase.wall_s is None for phase in phases)
            else ()
        ),
    ):
        yield found.model_copy(update={"remedy": REMEDIES.get(found.code, found.remedy)})

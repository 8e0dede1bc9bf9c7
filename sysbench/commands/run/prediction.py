"""An experiment on a GPU that is not here: its runs as predictions, and how long measuring takes there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sysbench.command import measuring
from sysbench.commands.run.experiment import PlannedRun
from sysbench.commands.running import Performed
from sysbench.errors import UsageError
from sysbench.log.records import RunRecord
from sysbench.render.dashboard.progress import waiting
from sysbench.spec.cell import RunSpec
from sysbench.spec.hardware import Hardware
from sysbench.spec.validation import validated


def predicted(planned: Sequence[PlannedRun], gpu: Hardware) -> tuple[PlannedRun, ...]:
    """Every run as it is predicted for that GPU; one of which nothing can be predicted is left out, and says why."""
    return tuple(_predicted(each, gpu) for each in planned)


def _predicted(planned: PlannedRun, gpu: Hardware) -> PlannedRun:
    entry = planned.entry
    if entry.here == "left out" or "simulate" in entry.options:
        return planned
    try:
        spec = _for(planned.spec, gpu)
    except UsageError as error:
        left_out = {"here": "left out", "why": f"it is not predicted for {gpu.slug}: {error}"}
        return PlannedRun(entry.model_copy(update=left_out), planned.spec, planned.options)
    options = {name: word for name, word in entry.options.items() if name != "device"} | {"simulate": gpu.slug}
    simulated = {"here": "simulated", "why": f"predicted for {gpu.title}", "options": options}
    return PlannedRun(entry.model_copy(update=simulated), spec, planned.options)


def _for(spec: RunSpec, gpu: Hardware) -> RunSpec:
    """The spec with that GPU in place of its devices; raises UsageError where that cannot be."""
    fields = type(spec).model_fields
    if "simulate" not in fields:
        raise UsageError(f"sysbench {spec.kind} needs a device")
    here = {"device": fields["device"].default} if "device" in fields else {}
    found: RunSpec = validated(type(spec), {**spec.model_dump(), **here, "simulate": gpu.slug})
    impossible = next(filter(None, (cell.problem(None) for cell in found.cells())), None)
    if impossible is not None:
        raise UsageError(impossible)
    return found


def durations_s(planned: Iterable[PlannedRun], gpu: Hardware, *, silent: bool) -> dict[str, float]:
    """By key, what measuring takes of every cell whose time can be predicted for that GPU; raises as its runs do."""
    found: dict[str, float] = {}
    with waiting(f"predicting for {gpu.slug}", silent=silent) as progress, tempfile.TemporaryDirectory() as directory:
        for each in planned:
            entry = each.entry
            if measuring(entry.command).foreseen is None or entry.here == "left out" or "simulate" in entry.options:
                continue
            try:
                spec = _for(each.spec, gpu)
            except UsageError:
                continue
            progress(f"predicting for {gpu.slug}: {entry.name}")
            cells = zip(each.spec.cells(), _performed(spec, Path(directory)).cells, strict=True)
            taken = {cell.key: foreseen_s(spec.kind, record) for cell, record in cells}
            found |= {key: each_s for key, each_s in taken.items() if each_s is not None}
    return found


def foreseen_s(kind: str, cell: Any) -> float | None:
    """What measuring a predicted cell takes; None where its time is not predicted."""
    known: float | None = measuring(kind).part("foreseen")(cell) if measuring(kind).foreseen else None
    return known


def total_s(records: Iterable[RunRecord[Any]]) -> float:
    """What measuring all predicted cells of these runs takes."""
    return sum(foreseen_s(record.kind, cell) or 0.0 for record in records for cell in record.cells)


def _performed(spec: RunSpec, directory: Path) -> RunRecord[Any]:
    """The run, of which nothing is seen and nothing stays."""
    command = measuring(spec.kind)
    quiet = command.options_class(out=directory, quiet=True, shown=False, force=True, no_live=True)
    performed: Performed = command.part("perform")(spec, quiet)
    return performed.record

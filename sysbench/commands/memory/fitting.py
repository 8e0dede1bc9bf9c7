"""What to say and to do where a step does not fit: by how much, the `sysbench fit` command that helps, and the gate."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from sysbench import units
from sysbench.command import STORED, command_of
from sysbench.commands.memory.findings import does_not_fit
from sysbench.commands.memory.record import MemoryCellRecord, MemoryRecord
from sysbench.commands.memory.spec import MemoryOptions, MemorySpec
from sysbench.log.outcomes import stage_phrase
from sysbench.render.findings import namer
from sysbench.spec import hardware
from sysbench.spec.command_options import command_line
from sysbench.spec.model import ModelSpec

FITTED_MODES = ("train", "train-first")
"""Modes of the steps that `sysbench fit` answers for."""


def shortage(cell: MemoryCellRecord) -> str:
    """Return by how much a step does not fit: `does not fit on h100, by 17.3 GiB, in backward`."""
    verdict = cell.verdict
    where = cell.cell.simulate or (cell.device.name if cell.device else "this device")
    missing = f", by {units.size(-verdict.margin_bytes)}" if verdict and verdict.margin_bytes else ""
    phase = f", {stage_phrase(verdict.failed_phase)}" if verdict and verdict.failed_phase else ""
    return f"does not fit on {where}{missing}{phase}"


def gate(record: MemoryRecord, options: MemoryOptions) -> Iterator[str]:
    """Yield the cells that do not fit, if that is what `--require-fit` guards against."""
    if options.require_fit:
        name = namer(record.cells, ("simulate",))
        for cell in filter(does_not_fit, record.cells):
            yield f"{name(cell) or cell.cell.title}: {shortage(cell)}"


def fit_command(record: MemoryRecord) -> str | None:
    """Return the command that searches for what makes the only cell of a run fit; None if no search is possible."""
    (cell,) = record.cells
    gpu = _gpu_name(cell)
    if cell.cell.mode not in FITTED_MODES or gpu is None:
        return None
    asked = MemorySpec.model_validate(record.spec, context=STORED)
    left_out = {"kind", "device", "threads", *(("ranks", "strategy") if asked.find == "ranks" else ())}
    fields = {name: getattr(asked, name) for name in ModelSpec.model_fields if name not in left_out}
    fields |= {"ctx": (cell.shown_cell.ctx,), "batch": (cell.shown_cell.batch,), "gpus": (gpu,)}
    try:
        question = command_of("fit").spec_class(**fields)
    except ValidationError:
        return None
    return command_line(question) if all(each.problem("cuda") is None for each in question.cells()) else None


def _gpu_name(cell: MemoryCellRecord) -> str | None:
    if cell.cell.simulate is not None:
        return cell.cell.simulate
    device = cell.device
    known = hardware.find(device.name, device.memory_bytes) if device and device.type == "cuda" else None
    return known.slug if known else None

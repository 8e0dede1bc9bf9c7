"""What to say and to do about whether a step fits: the verdict, the gate, and the `sysbench fit` command that helps."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sysbench import units
from sysbench.command import Kind
from sysbench.commands.kinds import command_of
from sysbench.commands.memory.record import LargestRecord, MemoryCellRecord, MemoryRecord
from sysbench.commands.memory.spec import MemorySpec
from sysbench.errors import SpecError
from sysbench.log.outcomes import stage_phrase
from sysbench.render.sentences.phrases import join_words
from sysbench.spec import hardware
from sysbench.spec.command_options import command_line
from sysbench.spec.model import ModelSpec
from sysbench.spec.validation import STORED

FITTED_MODES = ("train", "train-first")
"""Modes of the steps that `sysbench fit` answers for."""


def verdict_text(cell: MemoryCellRecord) -> str:
    """Return the verdict as text: `fits, with 13.9 GiB to spare`, or the reason why the cell does not fit."""
    verdict = cell.verdict
    if verdict is None:
        return cell.outcome
    words = f"{cell.detail or 'does not fit'}."
    if verdict.fits:
        spare = f", with {units.size(verdict.margin_bytes)} to spare" if verdict.margin_bytes is not None else ""
        words = f"fits{spare}."
        if cell.gpu is not None:
            counted = {
                "for the CUDA context": cell.gpu.context_bytes,
                "of NCCL buffers": cell.gpu.nccl_bytes,
                "of workspaces": cell.by_category.get("workspace"),
            }
            parts = [f"{units.size(size_bytes)} {name}" for name, size_bytes in counted.items() if size_bytes]
            words += f" This counts {join_words(parts)}." if parts else ""
    elif doubt := _context_doubt(cell):
        words += f" {doubt}"
    return f"{words} {_search_text(cell.found)}" if cell.found is not None else words


def _context_doubt(cell: MemoryCellRecord) -> str | None:
    """Return that the step may fit, if it lacks less memory than the size of the CUDA context is uncertain by."""
    gpu, margin_bytes = cell.gpu, cell.verdict.margin_bytes if cell.verdict else None
    if gpu is None or gpu.least_context_bytes is None or margin_bytes is None:
        return None
    allowed_bytes = gpu.context_bytes + margin_bytes
    if not gpu.least_context_bytes <= allowed_bytes < gpu.context_bytes:
        return None
    counted = f"{units.size(gpu.least_context_bytes)} to {units.size(gpu.context_bytes)}"
    return (
        f"Cannot tell: it fits if the CUDA context takes no more than {units.size(allowed_bytes)}. "
        f"It takes {counted}, depending on driver and PyTorch; the largest size is counted."
    )


def _search_text(search: LargestRecord) -> str:
    """Return what a search found; the safe value too, if the one found fits only within the uncertainty."""
    safe = "" if search.safe in (None, search.value) else f"; {search.safe or 'none'} is safe"
    if search.axis == "ranks":
        if search.value:
            return f"The fewest ranks that fit are {search.value}{safe}."
        if search.more_is_useless:
            return f"More than {search.beyond} ranks do not help: what is missing is not divided among the ranks."
        return f"Fewer than {2 * (search.beyond or 1)} ranks do not fit; more were not tried."
    if not search.value:
        return f"Not even {search.axis} {search.shown} fits."
    if search.beyond is None:
        return f"Even {search.axis} {search.value} fits; nothing larger was tried."
    return f"The largest {search.axis} that fits is {search.value}{safe}."


def shortage(cell: MemoryCellRecord) -> str:
    """Return by how much a step does not fit: `does not fit on h100, by 17.3 GiB, in backward`."""
    verdict = cell.verdict
    where = cell.cell.simulate or (cell.device.name if cell.device else "this device")
    missing = f", by {units.size(-verdict.margin_bytes)}" if verdict and verdict.margin_bytes else ""
    phase = f", {stage_phrase(verdict.failed_phase)}" if verdict and verdict.failed_phase else ""
    return f"does not fit on {where}{missing}{phase}"


def fit_command(record: MemoryRecord, cell: MemoryCellRecord) -> str | None:
    """Return the command that searches for what makes a cell of a run fit; None if no search is possible."""
    gpu = _gpu_name(cell)
    if cell.cell.mode not in FITTED_MODES or gpu is None:
        return None
    left_out = ("device", "threads", *(("ranks", "strategy") if cell.cell.find == "ranks" else ()))
    return _command("fit", {**_step_fields(record, cell, left_out), "gpus": (gpu,)})


def largest_batch_command(record: MemoryRecord, cell: MemoryCellRecord) -> str | None:
    """Return the command that finds the largest batch of a simulated cell; None if it has searched, or cannot."""
    if cell.cell.simulate is None or cell.cell.find is not None:
        return None
    asked = {"mode": (cell.cell.mode,), "simulate": (cell.cell.simulate,), "find": "batch"}
    return _command("memory", {**_step_fields(record, cell, ("device", "threads")), **asked})


def _command(kind: Kind, fields: Mapping[str, object]) -> str | None:
    """Return the command line that asks for these fields; None if the command does not allow them."""
    try:
        question = command_of(kind).models().spec(**fields)
    except SpecError:
        return None
    return command_line(question) if all(cell.problem("cuda") is None for cell in question.cells()) else None


def _step_fields(record: MemoryRecord, cell: MemoryCellRecord, left_out: Collection[str]) -> dict[str, object]:
    """Return the fields of the step of one cell: of several values on an axis, the cell's own."""
    asked = MemorySpec.model_validate(record.spec, context=STORED)
    names = [name for name in ModelSpec.model_fields if name not in ("kind", *left_out)]
    fields = {name: _of_cell(cell, name, getattr(asked, name)) for name in names}
    return {**fields, "ctx": (cell.shown_cell.ctx,), "batch": (cell.shown_cell.batch,)}


def _of_cell(cell: MemoryCellRecord, name: str, asked: object) -> object:
    own = cell.cell.axis_value(name)
    return (own,) if isinstance(asked, tuple) and len(asked) > 1 and own is not None else asked


def _gpu_name(cell: MemoryCellRecord) -> str | None:
    if cell.cell.simulate is not None:
        return cell.cell.simulate
    device = cell.device
    known = hardware.find(device.name, device.memory_bytes) if device and device.type == "cuda" else None
    return known.slug if known else None

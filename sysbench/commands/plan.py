"""The plan of a run: cells, FLOPs, memory, and whether the cells fit. Nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench import cells as axes
from sysbench import formulas, units
from sysbench.render.axis_columns import axis_columns, axis_values
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Sheet, Table, Word
from sysbench.simulate.gpu import Gpu
from sysbench.spec import hardware
from sysbench.spec.cell import RunCell
from sysbench.spec.hardware import Hardware
from sysbench.spec.model import ModelCell, step_of


def plan(cells: Sequence[RunCell], device: Hardware | None = None) -> Table:
    """Return a table with one row per cell, and whether it fits on its simulated GPU, or else on `device`, if any."""
    gpus = [hardware.by_name(cell.simulated) if cell.simulated else device for cell in cells]
    axis_names = axes.varying(cells) or ("size", "ctx")
    columns = (
        *axis_columns(axis_names),
        Column("parameters", "parameters", "count", importance=2),
        Column("forward", "forward", "flops", importance=3),
        Column("step", "step", "flops", importance=1),
        Column("predicted_memory", "predicted memory", "bytes"),
        *((Column("spare", "to spare", "bytes", importance=1), Column("fits", "")) * any(gpus)),
    )
    rows = tuple(
        (*axis_values(cell, axis_names), *_row(cell, step, gpu))
        for cell, gpu in zip(cells, gpus, strict=True)
        if (step := step_of(cell)) is not None
    )
    title = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
    return Table("plan", title, columns, rows, len(axis_names), tuple(_notes(cells, gpus)))


def _notes(cells: Sequence[RunCell], gpus: Sequence[Hardware | None]) -> Iterator[str]:
    steps = [step for cell in cells if (step := step_of(cell)) is not None]
    predicted = [gpu for cell, gpu in zip(cells, gpus, strict=True) if formulas.predicted_bytes(cell) is not None]
    contexts = {gpu.title: Gpu.of(gpu).context_bytes for gpu in predicted if gpu is not None}
    if predicted:
        yield (
            "predicted memory: estimated by formula; allocator overhead, often 2 to 10%, is not included: sysbench "
            "memory --simulate counts it"
        )
    if contexts:
        sizes = ", ".join(map(units.size, dict.fromkeys(contexts.values())))
        yield f"compared with {', '.join(contexts)}, less {sizes} for the CUDA context"
    if any(step.own is not None or step.lora for step in steps):
        yield "there is no formula for your own model, or with --lora: use memory --simulate GPU"
    if any(step.strategy not in (None, "ddp") for step in steps):
        yield (
            "parameters and FLOPs are totals of the whole model, not per rank; there is no formula for memory per rank"
        )


def _row(planned: RunCell, cell: ModelCell, device: Hardware | None) -> list[Cell]:
    if (shape := cell.shape_with_formulas) is None:
        return [EMPTY_CELL] * (4 if device is None else 6)
    needed = formulas.predicted_bytes(planned)
    if device is not None and needed is not None:
        # Autograd runs backward on its own thread, which has workspaces of its own if they are kept.
        workspaces = Gpu.of(device).workspaces
        needed += workspaces.product_bytes * (2 if workspaces.are_kept and cell.mode != "inference" else 1)
    flops = formulas.phase_flops(shape, cell.ctx, cell.batch)
    row: list[Cell] = [
        Measure(formulas.parameters(shape)),
        Measure(formulas.forward_flops(shape, cell.ctx, cell.batch)),
        Measure(cell.grad_accum * sum(flops.get(phase, 0) for phase in planned.phases or cell.phases)),
        None if needed is None else Measure(needed),
    ]
    if device is not None and needed is None:
        row += [EMPTY_CELL, EMPTY_CELL]
    elif device is not None and needed is not None:
        spare = device.memory_bytes - Gpu.of(device).context_bytes - needed
        row += [Measure(spare), Word("fits", "good") if spare >= 0 else Word("does not fit", "bad")]
    return row


def sheet(cells: Sequence[RunCell], device: Hardware | None = None) -> Sheet:
    return Sheet((*axes.subject(cells), *axes.effort(cells)), (plan(cells, device),))

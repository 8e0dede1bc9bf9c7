"""One phase over two axes: models down, contexts across; and one model over several devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sysbench.records import TimeCellRecord, TimeRecord
from sysbench.views.table import NOTHING, Cell, Column, Measure, Table, Word
from sysbench.views.tables import axes, times
from sysbench.views.tables.phases import FORWARD_BACKWARD

_NAMES = {"cpu": "CPU", "mps": "MPS", "cuda": "CUDA"}


def grid(record: TimeRecord) -> list[Table]:
    """One table per phase, mean ± std: contexts (or batches) across, everything else that differs down."""
    differing = axes.varying(axes.axes_of(record.cells))
    across = next((axis for axis in ("ctx", "batch") if axis in differing), None)
    if across is None or len(differing) < 2:
        return []
    shown = [phase for phase in times.phases_in(record.cells) if phase in ("forward", "backward", "step")]
    return [_grid(record.cells, phase, across, [axis for axis in differing if axis != across]) for phase in shown]


def _grid(cells: Sequence[TimeCellRecord], phase: str, across: str, down: Sequence[str]) -> Table:
    heads = list(dict.fromkeys(cell.axes[across] for cell in cells))
    columns = (
        *axes.columns(down),
        *(Column(f"{phase}_{across}_{head}", str(head), "s", across) for head in heads),
    )
    rows: dict[tuple[Cell, ...], dict[Any, Cell]] = {}
    for cell in cells:
        value = times.or_outcome(cell, times.mean(times.samples(cell, phase)))
        rows.setdefault(axes.values(cell.axes, down), {})[cell.axes[across]] = value
    return Table(
        f"grid-{phase}",
        f"{phase}, mean ± standard deviation",
        columns,
        tuple((*row, *(found.get(head) for head in heads)) for row, found in rows.items()),
        len(down),
    )


def devices(record: TimeRecord) -> list[Table]:
    """Models with their dimensions and parameters down, devices across, each with its forward and forward+backward."""
    heads = list(dict.fromkeys(device_name(cell) for cell in record.cells if cell.device))
    if len(heads) < 2:
        return []
    named = [axis for axis in axes.varying(axes.axes_of(record.cells)) if axis not in ("device", "size")]
    rows: dict[tuple[Cell, ...], dict[str, TimeCellRecord]] = {}
    for cell in record.cells:
        rows.setdefault((*_model(cell), *axes.values(cell.axes, named)), {})[device_name(cell)] = cell
    columns = (
        Column("size", "size"),
        *(Column(name, name, importance=3) for name in ("d_model", "d_ff", "layers", "heads")),
        Column("parameters", "parameters", "count", importance=2),
        *axes.columns(named),
        *(column for head in heads for column in _device_columns(head)),
    )
    return [
        Table(
            "devices",
            "devices beside each other, mean ± standard deviation",
            columns,
            tuple((*row, *(cell for head in heads for cell in _pair(found.get(head)))) for row, found in rows.items()),
            6 + len(named),
            (*_hardware(record.cells), "fwd + bwd is forward, loss and backward; the optimizer is not in it"),
        )
    ]


def device_name(cell: TimeCellRecord) -> str:
    """What people call the kind of device a cell ran on: CPU, MPS, CUDA, CUDA:1."""
    if cell.device is None:
        return str(cell.axes["device"])
    return _NAMES[cell.device.type] + (f":{cell.device.index}" if cell.device.index else "")


def _model(cell: TimeCellRecord) -> tuple[Cell, ...]:
    model = cell.axes["model"]
    dimensions = (model["d_model"], model["d_ff"], model["layers"], model["heads"])
    return (cell.axes["size"], *dimensions, Measure(cell.model.parameters))


def _device_columns(head: str) -> tuple[Column, Column]:
    key = head.lower().replace(":", "_")
    return (
        Column(f"{key}_forward", "forward", "s", head),
        Column(f"{key}_forward_backward", "fwd + bwd", "s", head),
    )


def _pair(cell: TimeCellRecord | None) -> tuple[Cell, Cell]:
    if cell is None:
        return NOTHING, NOTHING
    if not cell.phases or cell.outcome not in times.MEASURED:
        return times.outcome(cell), Word("")
    both = times.summed(cell, FORWARD_BACKWARD) if "backward" in cell.phases else None
    return times.mean(times.samples(cell, "forward")), times.mean_of(both)


def _hardware(cells: Sequence[TimeCellRecord]) -> tuple[str, ...]:
    named = {device_name(cell): cell.device.name for cell in cells if cell.device}
    return tuple(f"{head}: {name}" for head, name in named.items())

"""Table of `sysbench time --tokens`: the hours of the whole training, and its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sysbench import units
from sysbench.commands.time.predicted import is_predicted, missing_time_reason
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.log.predictions import INTERVAL, MARK
from sysbench.render import training_columns
from sysbench.render.declared import DeclaredTable, Field
from sysbench.render.remarks import outcome_word
from sysbench.render.table import Cell, Measure, Word


def _rows(record: TimeRecord) -> list[TimeCellRecord]:
    """Return the cells, the cheapest first, then the fastest; cells without a time come last."""

    def order(cell: TimeCellRecord) -> tuple[float, float]:
        found = cell.training
        cost, duration_s = (found.cost, found.duration_s.point) if found else (None, math.inf)
        return (cost.point if cost else math.inf, duration_s)

    return sorted(record.cells, key=order)


def _title(record: TimeRecord) -> str:
    trainings = [cell.training for cell in record.cells if cell.training]
    tokens = f"training on {units.count(trainings[0].tokens)} tokens"
    order = "cheapest first" if any(each.cost for each in trainings) else "fastest first"
    return f"{MARK if is_predicted(record) else 'not measured'}: {tokens}{f', {order}' * (len(trainings) > 1)}"


def _notes(record: TimeRecord) -> Iterator[str]:
    if not is_predicted(record):
        yield "training: as many steps as that takes, each as long as the median step; in brackets: its 95 % CI"
        return
    yield INTERVAL
    timed = [cell for cell in record.cells if cell.training]
    priced = {cell.cell.simulate or "" for cell in timed if cell.training and cell.training.cost}
    yield from training_columns.missing_prices(priced, [cell.cell.simulate or "" for cell in timed])


def _steps(cell: TimeCellRecord) -> Cell:
    return Measure(math.ceil(cell.training.steps)) if cell.training else None


def _missing_reason(cell: TimeCellRecord) -> Word | None:
    if cell.training:
        return None
    return missing_time_reason(cell) if cell.cell.simulate else outcome_word(cell.outcome)


TRAINING = DeclaredTable(
    "training",
    _title,
    (Field("steps", unit="count", get=_steps, wide_range=True), *training_columns.fields(lambda cell: cell.training)),
    rows=_rows,
    when=lambda record: any(cell.training for cell in record.cells),
    outcome_of=_missing_reason,
    notes=_notes,
    needs="the tokens of the training (--tokens 1B) and a step time",
)
"""One row per cell: the steps that the training takes, its hours, and its cost if the GPU has a price."""

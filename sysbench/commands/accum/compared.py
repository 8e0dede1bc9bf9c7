"""What other commands compare of rounding."""

from __future__ import annotations

import math

from sysbench.commands.accum.record import AccumCellRecord
from sysbench.commands.accum.tables import results
from sysbench.log.measures import Amount, Measures
from sysbench.render.table import Measure


def measures(cell: AccumCellRecord) -> Measures:
    errors = {
        f"{subject}: {quantity}": abs(number.value)
        for _, subject, quantity, number, _ in results(cell)
        if quantity in ("error", "relative_error") and isinstance(number, Measure)
    }
    return Measures(amounts={name: Amount(error, "number") for name, error in errors.items() if math.isfinite(error)})

"""What other commands compare of attention."""

from __future__ import annotations

from sysbench.commands.attention.record import AttentionCellRecord
from sysbench.log.measures import Amount, Measures


def measures(cell: AttentionCellRecord) -> Measures:
    times = {"forward": cell.forward, "backward": cell.backward}
    memory = {
        "allocated_peak": (cell.peak_allocated_bytes, "peak"),
        "saved_for_backward": (cell.saved_bytes, "kept for backward"),
    }
    return Measures(
        {name: samples for name, samples in times.items() if samples is not None},
        {name: Amount(value, headline=headline) for name, (value, headline) in memory.items() if value is not None},
        cell.prediction,
    )

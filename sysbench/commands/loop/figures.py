"""Loops have no figures: their phases are one table."""

from __future__ import annotations

from collections.abc import Iterable

from sysbench.commands.loop.record import LoopRecord


def of_run(record: LoopRecord) -> Iterable[object]:
    """Return no figures."""
    return ()

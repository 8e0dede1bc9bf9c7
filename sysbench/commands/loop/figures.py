"""Figures of a loop: there are none, because one table shows its phases."""

from __future__ import annotations

from collections.abc import Iterable

from sysbench.commands.loop.record import LoopRecord


def of_run(record: LoopRecord) -> Iterable[object]:
    """Return no figures."""
    return ()

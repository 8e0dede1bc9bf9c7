"""Calibrations have no figures: a rate is one number."""

from __future__ import annotations

from collections.abc import Iterable

from sysbench.commands.calibrate.record import CalibrateRecord


def of_run(record: CalibrateRecord) -> Iterable[object]:
    """Return no figures."""
    return ()

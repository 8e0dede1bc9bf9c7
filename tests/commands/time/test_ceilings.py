"""A ceiling that other processes disturbed, with which no rate is compared."""

from __future__ import annotations

from sysbench.commands.time.fold import fold
from sysbench.commands.time.spec import TimeSpec
from sysbench.commands.time.tables import SUMMARY
from sysbench.log.events import CeilingMeasured
from tests import fixtures_timing as runs


def test_no_rate_is_compared_with_a_disturbed_ceiling_and_the_table_says_why() -> None:
    log = [
        event.model_copy(update={"disturbed": True}) if isinstance(event, CeilingMeasured) else event
        for event in runs.events(TimeSpec(size="small", ctx=128), runs.TWO_CORES)
    ]
    record = fold(log)
    rates = record.cells[0].rates
    assert rates is not None
    assert (rates.ceiling_flops_per_s, rates.ceiling_share) == (None, None)
    assert "other processes disturbed a large matrix product, so it is no ceiling" in str(SUMMARY(record))

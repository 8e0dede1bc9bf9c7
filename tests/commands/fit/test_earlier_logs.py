"""Logs of `sysbench fit` that an earlier version wrote: with events and fields that are gone."""

from __future__ import annotations

from pathlib import Path

from sysbench.commands.fit.record import FitRecord
from sysbench.commands.fit.tables import sheet
from sysbench.log import journal, runs
from sysbench.log.events import LineDamaged
from sysbench.log.records import typed

LOG = Path(__file__).with_name("earlier.jsonl")


def test_a_log_with_events_that_are_gone_is_whole() -> None:
    assert b'"combination_estimated"' in LOG.read_bytes()
    assert b'"memory_drawn"' in LOG.read_bytes()
    assert not [event for event in journal.read(LOG) if isinstance(event, LineDamaged)]
    record = typed(runs.load(LOG), FitRecord)
    (cell,) = record.cells
    assert (cell.outcome, len(cell.trials), len(cell.surveyed)) == ("ok", 9, 1)
    assert cell.surveyed[0].phases[0].allocated_bytes
    assert {"asked", "changes", "explained"} <= {table.name for table in sheet(record).tables}


def test_a_record_with_fields_that_are_gone_is_read() -> None:
    stored = typed(runs.load(LOG), FitRecord).model_dump(mode="json")
    stored["cells"][0] |= {"estimated": 13, "memory": []}
    assert FitRecord.model_validate(stored).cells[0].outcome == "ok"

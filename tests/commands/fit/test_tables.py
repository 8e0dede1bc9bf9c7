"""Tables of `sysbench fit`."""

from __future__ import annotations

from sysbench.commands.fit.record import FitRecord
from sysbench.commands.fit.tables import sheet
from sysbench.log.records import typed
from tests import fixtures_runs


def test_a_suggestion_that_is_modelled_says_so() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    trial = next(each for each in cell.trials if each.changes == {"precision": "bf16"})
    low_bit = trial.model_copy(update={"changes": {"optimizer": "adamw-8bit"}, "relearns": True})
    for trials, is_marked in ((cell.trials, False), ([*cell.trials[:2], low_bit], True)):
        shown = sheet(record.model_copy(update={"cells": [cell.model_copy(update={"trials": trials})]}))
        notes = [note for table in shown.tables for note in table.notes if note.startswith("modelled, not traced")]
        assert bool(notes) == is_marked

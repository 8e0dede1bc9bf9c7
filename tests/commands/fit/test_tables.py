"""Tables of `sysbench fit`."""

from __future__ import annotations

from sysbench.commands.fit.findings import of_run
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


def test_an_answer_that_takes_more_gpus_also_says_what_fits_without_them() -> None:
    record = typed(fixtures_runs.record("fit"), FitRecord)
    (cell,) = record.cells
    asked = cell.trials[0].model_copy(update={"fits": False, "margin_bytes": -(1 << 33)})
    shared, relearned = (
        asked.model_copy(
            update={
                "fits": True,
                "margin_bytes": margin_gib << 30,
                "changes": changes,
                "ranks": ranks,
                "relearns": ranks == 1,
            }
        )
        for margin_gib, changes, ranks in (
            (2, {"ranks": 4, "strategy": "fsdp2"}, 4),
            (3, {"precision": "bf16-true"}, 1),
        )
    )
    (said,) = (
        statement.text
        for statement in of_run(
            record.model_copy(update={"cells": [cell.model_copy(update={"trials": [asked, shared, relearned]})]})
        )
        if statement.text.startswith(asked.gpu)
    )
    assert "It fits with 4 GPUs with fsdp2: 2.00 GiB to spare" in said
    assert said.endswith("On one GPU, it fits with bf16-true, which alters what the model learns: 3.00 GiB to spare.")

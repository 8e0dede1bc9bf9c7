"""From record to sheet, for every kind of run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sysbench.command import measuring
from sysbench.log.records import RunRecord
from sysbench.render.findings import Said
from sysbench.render.table import Remark, Sheet, Table
from sysbench.spec.run import Selection


def sheet(record: RunRecord[Any], names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Everything that is shown of a record: the tables called `names`, or those that it was made for.

    `selection` is which part of it, where it has parts. Raises UsageError for a table, or a part, that does not exist
    or that this record cannot fill.
    """
    made = without_headlines(record, names, selection)
    found = [Remark("finding", each.text) for each in _headlines(record)]
    if not found:
        return made
    notes = [remark for remark in made.remarks if remark.kind == "note"]
    others = [remark for remark in made.remarks if remark.kind != "note"]
    return replace(made, remarks=(*others, *found, *notes))


def without_headlines(record: RunRecord[Any], names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """The same, for those who have the sentences from where these are from."""
    made: Sheet = measuring(record.kind).part("sheet")(record, names, selection)
    return made


def _headlines(record: RunRecord[Any]) -> Iterable[Said]:
    """What the run has shown, in the sentences that a report has first."""
    command = measuring(record.kind)
    return command.part("headlines")(record.cells) if command.headlines else ()


def fillable(record: RunRecord[Any], names: Iterable[str], selection: Selection | None = None) -> list[Table]:
    """Those of the tables called `names` that the record can fill, in this order."""
    command = measuring(record.kind)
    if command.fillable:
        return list(command.part("fillable")(record, names, selection or Selection()))
    return [table for name in names for table in command.part("tables")[name](record)]

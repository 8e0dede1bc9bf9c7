"""From record to sheet, for every kind of run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sysbench.commands.accum import tables as accum_tables
from sysbench.commands.attention import tables as attention_tables
from sysbench.commands.memory import findings as memory_findings
from sysbench.commands.memory import tables as memory_tables
from sysbench.commands.profile import findings as profile_findings
from sysbench.commands.profile import tables as profile_tables
from sysbench.commands.time import tables
from sysbench.commands.time import words as time_words
from sysbench.log.records import RunRecord
from sysbench.render.findings import Said
from sysbench.render.table import Remark, Sheet, Table
from sysbench.spec.kinds import Kind
from sysbench.spec.run import Selection

TABLES: Mapping[Kind, Mapping[str, Any]] = {
    "time": tables.TABLES,
    "memory": memory_tables.TABLES,
    "profile": profile_tables.TABLES,
    "attention": attention_tables.TABLES,
    "accum": accum_tables.TABLES,
}
"""The tables that there are, by name."""

LONG: Mapping[Kind, str] = {
    "time": "cells",
    "memory": "cells",
    "profile": "kernels",
    "attention": "cells",
    "accum": "cells",
}
"""The table that stands for all others where there is room for one."""


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
    return _SHEETS[record.kind](record, names, selection or Selection())


def _headlines(record: RunRecord[Any]) -> Iterable[Said]:
    """What the run has shown, in the sentences that a report has first."""
    said = _SAID.get(record.kind)
    return said(record.cells) if said is not None else ()


def fillable(record: RunRecord[Any], names: Iterable[str], selection: Selection | None = None) -> list[Table]:
    """Those of the tables called `names` that the record can fill, in this order."""
    if record.kind == "profile":
        return profile_tables.fillable(record, names, selection or Selection())  # type: ignore[arg-type]
    return [table for name in names for table in TABLES[record.kind][name](record)]


def _whole(build: Callable[[Any, Iterable[str]], Sheet]) -> Callable[[Any, Iterable[str], Selection], Sheet]:
    return lambda record, names, selection: build(record, names)


_SHEETS: Mapping[Kind, Callable[[Any, Iterable[str], Selection], Sheet]] = {
    "time": _whole(tables.sheet),
    "memory": _whole(memory_tables.sheet),
    "profile": profile_tables.sheet,
    "attention": _whole(attention_tables.sheet),
    "accum": _whole(accum_tables.sheet),
}

_SAID: Mapping[Kind, Callable[[Any], Iterable[Said]]] = {
    "time": time_words.headlines,
    "memory": memory_findings.headlines,
    "profile": profile_findings.headlines,
}
"""Of the others the sheets have their sentences themselves."""

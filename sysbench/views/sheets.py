"""From record to sheet, for every kind of run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sysbench.records import RunRecord
from sysbench.specs.kinds import Kind
from sysbench.specs.run import Selection
from sysbench.views import accum_tables, attention_tables, memory_tables, profile_tables, tables
from sysbench.views.table import Sheet, Table

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
    return _SHEETS[record.kind](record, names, selection or Selection())


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

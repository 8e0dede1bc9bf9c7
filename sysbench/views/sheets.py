"""From record to sheet, for every kind of run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sysbench.records import RunRecord
from sysbench.specs.kinds import Kind
from sysbench.views import accum_tables, attention_tables, memory_tables, tables
from sysbench.views.table import Sheet

TABLES: Mapping[Kind, Mapping[str, Any]] = {
    "time": tables.TABLES,
    "memory": memory_tables.TABLES,
    "attention": attention_tables.TABLES,
    "accum": accum_tables.TABLES,
}
"""The tables that there are, by name."""

_SHEETS: Mapping[Kind, Callable[..., Sheet]] = {
    "time": tables.sheet,
    "memory": memory_tables.sheet,
    "attention": attention_tables.sheet,
    "accum": accum_tables.sheet,
}


def sheet(record: RunRecord[Any], names: Iterable[str] = ()) -> Sheet:
    """Everything that is shown of a record: the tables called `names`, or those that it was made for.

    Raises UsageError for a table that does not exist or that this record cannot fill.
    """
    return _SHEETS[record.kind](record, names)

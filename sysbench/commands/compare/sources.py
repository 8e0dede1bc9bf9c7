"""Marks of a comparison for memory that was simulated instead of measured."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from sysbench.render.table import Column, Table

MemorySource = Literal["measured", "simulated", "partly simulated"]

SOURCE_COLUMNS = (Column("a_source", "source of A"), Column("b_source", "source of B"))
"""Columns with the source of both sides, which only tables with simulated memory have."""


def memory_source(simulated: Collection[bool]) -> MemorySource:
    """Return the source of the memory of one side; `simulated` says for each of its cells whether it is simulated."""
    if not any(simulated):
        return "measured"
    return "simulated" if all(simulated) else "partly simulated"


def memory_label(a: MemorySource, b: MemorySource) -> str:
    """Return `memory`, with the sources unless both sides were measured: `memory, measured in A and simulated in B`."""
    if a == b:
        return "memory" if a == "measured" else f"memory, {a}"
    return f"memory, {a} in A and {b} in B"


def with_source_marks(table: Table, a: MemorySource, b: MemorySource) -> Table:
    """Return the table with marked columns of bytes, and with the sources as columns for programs.

    A table with measured memory only stays as it is.
    """
    if a == b == "measured":
        return table
    marks = {side: source for side, source in (("A", a), ("B", b)) if source != "measured"}
    columns = tuple(
        replace(column, group=marks[column.title]) if column.unit == "bytes" and column.title in marks else column
        for column in table.columns
    )
    return replace(table, columns=columns, constants=(*table.constants, *zip(SOURCE_COLUMNS, (a, b), strict=True)))


def title_with_source(title: str, source: str) -> str:
    """Return the title of a side, marked unless it was measured: `after (simulated)`."""
    return title if source == "measured" else f"{title} ({source})"

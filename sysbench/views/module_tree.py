"""Bytes by module as the rows of a tree: modules that differ in their number only are taken together."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sysbench.views.table import Cell, Column, Measure

DEPTH = 4
"""Modules further down are not shown; they are counted in those above them."""

_NUMBER = re.compile(r"(^|\.)\d+(?=\.|$)")


def columns(group: str) -> tuple[Column, ...]:
    """Of the rows that `rows` makes."""
    return (
        Column("module", "module"),
        Column("count", "count"),
        Column("total", "with those below", "bytes", group),
        Column("own", "itself", "bytes", group, importance=1),
    )


def rows(modules: Iterable[tuple[str, int, int]]) -> tuple[tuple[Cell, ...], ...]:
    """From paths with the bytes of all and of their own; `layers.*` stands for every layer."""
    together: dict[str, list[int]] = {}
    for path, total_bytes, own_bytes in modules:
        entry = together.setdefault(_NUMBER.sub(r"\1*", path), [0, 0, 0])
        for position, value in enumerate((1, total_bytes, own_bytes)):
            entry[position] += value
    in_order = sorted(together.items(), key=lambda item: item[0].split("."))
    return tuple(_row(path, *entry) for path, entry in in_order if path.count(".") < DEPTH)


def _row(path: str, count: int, total_bytes: int, own_bytes: int) -> tuple[Cell, ...]:
    parts = path.split(".") if path else []
    name = f"{'  ' * (len(parts) - 1)}{parts[-1]}" if parts else "everything"
    return name, f"{count} ×" if count > 1 else "", Measure(total_bytes), Measure(own_bytes)

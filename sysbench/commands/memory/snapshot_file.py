"""Memory snapshots of any program as input files of `report` and `compare`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands.artefacts import Breakdown, FileComparison, Key, TablesArtefact, saved_tables
from sysbench.render.csv import tidy

if TYPE_CHECKING:
    from sysbench.snapshot.timeline import Timeline

_SUFFIXES = (".pickle", ".pickle.gz", ".pkl")


@dataclass(frozen=True)
class SnapshotArtefact(TablesArtefact):
    """A memory snapshot, or the tables of one."""

    kind: str = "snapshot"
    timeline: Timeline | None = None
    """All allocations of a snapshot; None if only its tables are known, which have the largest groups."""

    def compared_with(self, other: SnapshotArtefact) -> FileComparison:
        a, b = (side._bytes("categories", "size_bytes", "category") for side in (self, other))
        title = "memory at the peak by category"
        categories = Breakdown("categories", title, {"category": "category"}, "bytes", a, b, "all")
        columns = {"category": "category", "line": "line"}
        timelines = [side.timeline for side in (self, other) if side.timeline is not None]
        if len(timelines) == 2:
            from sysbench.commands.memory.snapshot_tables import peak_bytes_by_line

            a, b = map(peak_bytes_by_line, timelines)
            lines = Breakdown("largest", "allocations at the peak by line", columns, "bytes", a, b, "all")
        else:
            a, b = (side._bytes("largest", "total_bytes", *columns) for side in (self, other))
            lines = Breakdown("largest", "the largest allocations at the peak", columns, "bytes", a, b)
        return FileComparison((categories, lines), "at the peak of each side")

    def _bytes(self, table: str, column_name: str, *columns: str) -> dict[Key, float]:
        amounts: dict[Key, float] = defaultdict(float)
        for row in (row for each in self.sheet.tables if each.name == table for row in tidy(each)[1]):
            amounts[tuple(str(row.get(column) or "") for column in columns)] += float(row.get(column_name) or 0)
        return amounts


def read(path: Path, beginning: bytes) -> SnapshotArtefact | None:
    """Return the snapshot in this file, or the tables that `--from` wrote to it with `--json`; None for other files."""
    if path.name.lower().endswith(_SUFFIXES):
        from sysbench.commands.memory.snapshot_tables import sheet
        from sysbench.snapshot import snapshot
        from sysbench.snapshot.categories import from_snapshot

        timeline = from_snapshot(snapshot.read(path))
        return SnapshotArtefact(path.name, sheet(timeline, path.name), timeline=timeline)
    tables = saved_tables(path, beginning)
    if tables is None or all(table.name != "categories" for table in tables.tables):
        return None
    return SnapshotArtefact(path.name, tables)

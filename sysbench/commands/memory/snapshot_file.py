"""Memory snapshots of any program as input files of `report` and `compare`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands.artefacts import Breakdown, FileComparison, Key
from sysbench.render.csv import tidy

if TYPE_CHECKING:
    from sysbench.render.table import Sheet
    from sysbench.snapshot.timeline import Timeline

_SUFFIXES = (".pickle", ".pickle.gz", ".pkl")


@dataclass(frozen=True)
class SnapshotArtefact:
    """A memory snapshot."""

    name: str
    sheet: Sheet
    timeline: Timeline
    kind: str = "snapshot"

    @property
    def is_simulated(self) -> bool:
        return self.timeline.source == "simulated"

    def compared_with(self, other: SnapshotArtefact) -> FileComparison:
        from sysbench.commands.memory.snapshot_tables import peak_bytes_by_line

        a, b = (side._bytes("categories", "size_bytes", "category") for side in (self, other))
        title = "memory at the peak by category"
        categories = Breakdown("categories", title, {"category": "category"}, "bytes", a, b)
        columns = {"category": "category", "line": "line"}
        a, b = (peak_bytes_by_line(side.timeline) for side in (self, other))
        lines = Breakdown("largest", "allocations at the peak by line", columns, "bytes", a, b)
        return FileComparison((categories, lines), "at the peak of each side")

    def _bytes(self, table: str, column_name: str, *columns: str) -> dict[Key, float]:
        amounts: dict[Key, float] = defaultdict(float)
        for row in (row for each in self.sheet.tables if each.name == table for row in tidy(each)[1]):
            amounts[tuple(str(row.get(column) or "") for column in columns)] += float(row.get(column_name) or 0)
        return amounts


def read(path: Path, beginning: bytes) -> SnapshotArtefact | None:
    """Return the snapshot in this file; None for other files."""
    if not path.name.lower().endswith(_SUFFIXES):
        return None
    from sysbench.commands.memory.snapshot_tables import sheet
    from sysbench.snapshot import snapshot
    from sysbench.snapshot.categories import from_snapshot

    timeline = from_snapshot(snapshot.read(path))
    return SnapshotArtefact(path.name, sheet(timeline, path.name), timeline)

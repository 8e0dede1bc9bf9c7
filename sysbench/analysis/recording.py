"""What a profiler recorded, packed: traces of gigabytes fit into memory, to be taken out whole or slice by slice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from sysbench.analysis.packed import Table
from sysbench.analysis.trace import DeviceWork, Launches, Operators, Ranges, Recorded, Trace

START, DURATION, NAME = 0, 1, 2
"""Places of the columns that every table begins with."""


@dataclass(frozen=True, kw_only=True)
class Recording(Recorded):
    """Tables whose columns are those of a `Trace`'s parts, in their order."""

    work: Table
    launches: Table
    operators: Table
    ranges: Table

    @property
    def tables(self) -> tuple[Table, ...]:
        """All of them."""
        return (self.work, self.launches, self.operators, self.ranges)

    def whole(self) -> Trace:
        """Everything at once, in memory that grows with it."""
        return Trace(
            **{each.name: getattr(self, each.name) for each in fields(Recorded)},
            work=DeviceWork(*self.work.columns()),
            launches=Launches(*self.launches.columns()),
            operators=Operators(*self.operators.columns()),
            ranges=Ranges(*self.ranges.columns()),
        )


def since_the_first(tables: Iterable[Table]) -> int:
    """Count the times of all tables from the earliest of them on; returns what that was. At least one has rows."""
    known = [table for table in tables if len(table)]
    origin = min(bounds[0] for table in known if (bounds := table.bounds(START)))
    for table in known:
        table.move(START, -origin)
    return origin

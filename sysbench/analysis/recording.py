"""What a profiler recorded, packed: traces of gigabytes fit into memory, to be taken out whole or slice by slice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sysbench.analysis.packed import Table
from sysbench.analysis.trace import DeviceWork, Integers, Launches, Operators, Ranges, Trace

START, DURATION, NAME = 0, 1, 2
"""Places of the columns that every table begins with."""


@dataclass(frozen=True)
class Recording:
    """A `Trace` in tables, whose columns are those of its parts, in their order."""

    title: str
    format: Literal["kineto", "nsys"]
    names: tuple[str, ...]
    work: Table
    """Like `DeviceWork`, but for the launch shapes themselves."""
    launches: Table
    operators: Table
    ranges: Table
    launch_shapes: Integers
    """(shapes, 6): a grid, in blocks, and a block, in threads."""
    origin_ns: int
    devices: tuple[str, ...] = ()
    rank: int | None = None
    remarks: tuple[str, ...] = field(default=())

    def whole(self) -> Trace:
        """Everything at once, in memory that grows with it."""
        return Trace(
            title=self.title,
            format=self.format,
            names=self.names,
            work=DeviceWork(*self.work.columns(), *[self.launch_shapes]),
            launches=Launches(*self.launches.columns()),
            operators=Operators(*self.operators.columns()),
            ranges=Ranges(*self.ranges.columns()),
            origin_ns=self.origin_ns,
            devices=self.devices,
            rank=self.rank,
            remarks=self.remarks,
        )


def since_the_first(tables: Iterable[Table]) -> int:
    """Count the times of all tables from the earliest of them on; returns what that was. At least one has rows."""
    known = [table for table in tables if len(table)]
    origin = min(bounds[0] for table in known if (bounds := table.bounds(START)))
    for table in known:
        table.move(START, -origin)
    return origin

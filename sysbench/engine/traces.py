"""Reads what a profiler left of a cell, in the parent: the worker is done measuring, or under nsys gone, by then.

What it comes down to goes into the log. The trace itself is large, and is kept only where somebody wants it; the tables
must not depend on that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands.profile.record import ProfileRead, TraceWritten
from sysbench.commands.profile.spec import ProfileCell
from sysbench.engine import nsys
from sysbench.engine.plan import PlacedCell
from sysbench.errors import SysbenchError
from sysbench.log.events import Event, StageEntered
from sysbench.trace.readers.reading import Progress, in_silence
from sysbench.trace.summary import ProfileSummary

if TYPE_CHECKING:
    from sysbench.trace.packed import Recording


@dataclass(frozen=True)
class TraceReader:
    """Reads the traces of a run."""

    kept: bool
    """Whether they stay when they have been read."""
    ranges: Sequence[str] = ()
    """These get a kernel table of their own, beside the ranges that always have one."""

    def __call__(self, placed: PlacedCell, trace: Path) -> Iterator[Event]:
        """Say what a trace holds; raises SysbenchError when there is none, it cannot be read, or it holds nothing."""
        cell = placed.cell
        if not isinstance(cell, ProfileCell):
            raise TypeError(f"{cell.kind} leaves no trace")
        yield StageEntered(at_s=time.time(), cell=cell.key, stage="reading")
        if cell.profiler == "nsys":
            nsys.complete(trace)
        if not trace.is_file():
            raise SysbenchError("nsys left no report" if cell.profiler == "nsys" else "the worker left no trace")
        path = str(trace) if self.kept else None
        yield TraceWritten(at_s=time.time(), cell=cell.key, path=path, size_bytes=trace.stat().st_size)
        yield ProfileRead(at_s=time.time(), cell=cell.key, summary=summary_of(read(trace), cell, self.ranges))


def read(trace: Path, progress: Progress = in_silence) -> Recording:
    """What a file holds; raises LogError for one that holds no trace. `progress` is told how far it has come."""
    from sysbench.trace import traces  # numpy, and parsers: most runs have no trace to read

    return traces.read(trace, lambda so_far: progress(f"reading {trace.name}: {so_far}"))


def summary_of(
    recording: Recording,
    cell: ProfileCell | None = None,
    ranges: Sequence[str] = (),
    progress: Progress = in_silence,
) -> ProfileSummary:
    """What a trace comes down to, of a cell of ours or of anyone's; raises SysbenchError when that is nothing.

    The recording is of no use afterwards.
    """
    from sysbench.trace import summarise as profile

    summary = profile.summarise(
        recording, cell, ranges=ranges, progress=lambda so_far: progress(f"attributing {recording.title}: {so_far}")
    )
    if not summary.names:
        why = f" ({'; '.join(summary.remarks)})" if summary.remarks else ""
        raise SysbenchError(f"the profile is empty: {recording.title} holds no kernels and no operators{why}")
    return summary

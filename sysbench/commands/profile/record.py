"""The events and the record of `sysbench profile`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sysbench import __version__
from sysbench.commands.profile.spec import ProfileCell, Profiler
from sysbench.log.events import SCHEMA_VERSION, Event
from sysbench.log.predictions import PredictionRecord
from sysbench.log.records import CellRecord, RunRecord, Samples
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Amount, Bytes, Finite, PerSecond, Seconds
from sysbench.trace.ranks.summary import RanksSummary
from sysbench.trace.summary import ProfileSummary


class TraceWritten(Event):
    """The trace of the cell is in a file."""

    event: Literal["trace_written"] = "trace_written"
    cell: str
    path: str | None
    """None for a file that is deleted after reading."""
    size_bytes: Bytes


class ProfileRead(Event):
    """The summary of the trace, which is read as soon as the worker is done, because it may not be kept."""

    event: Literal["profile_read"] = "profile_read"
    cell: str
    summary: ProfileSummary


class Link(Frozen):
    """The fastest all-reduce of a large message between all ranks of the cell, in the same run."""

    message_bytes: Bytes
    bus_bytes_per_s: PerSecond
    """busBW, as nccl-tests defines it."""


class LinkMeasured(Link, Event):
    """The ceiling of the ranks' collectives was measured, after the profile."""

    event: Literal["link_measured"] = "link_measured"
    cell: str


class RanksRead(Event):
    """The comparison of the traces of all ranks, if there are several and they communicate."""

    event: Literal["ranks_read"] = "ranks_read"
    cell: str
    summary: RanksSummary


class ProfileCellRecord(CellRecord):
    """One cell of `sysbench profile`; None for whatever was not measured.

    Of a cell of several ranks, steps are those of the rank that took longest for each, and the summary is of rank 0.
    """

    cell: ProfileCell = Field(alias="axes")

    profiler: Profiler
    build_s: Seconds | None
    compile_s: Seconds | None
    attention_kernel: str | None
    unprofiled: Samples | None
    """The step without a profiler, timed first in another process."""
    unprofiled_device: Samples | None
    """The unprofiled step by the device's own clock, if it has one."""
    profiled_s: list[Seconds]
    """The profiled steps by the host's clock."""
    cost_share: Finite | None
    """Relative increase of the mean step time by the profiler."""
    coverage: Amount | None
    """Busy time of the profiled step over the mean of the unprofiled steps; None on a CPU."""
    trace: str | None
    """The path of the trace, if it was kept; other ranks have theirs beside it, as in `trace-rank1.json`."""
    trace_bytes: Bytes | None
    summary: ProfileSummary | None
    ranks: RanksSummary | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the ranks have to do with each other; None for one rank, and for ranks that do not communicate."""
    link: Link | None = Field(default=None, exclude_if=lambda value: value is None)
    """With what the bandwidths of collectives are compared; None for one rank."""
    prediction: PredictionRecord | None = Field(default=None, exclude_if=lambda value: value is None)
    """Prediction of the step, whose phases follow one another undisturbed; None if a device was profiled."""

    @property
    def source(self) -> Literal["measured", "predicted"]:
        """Where its times are from."""
        return "predicted" if self.cell.simulate else "measured"


class ProfileRecord(RunRecord[ProfileCellRecord]):
    """The final summary of `sysbench profile`."""

    kind: Literal["profile"] = "profile"


class TraceRecord(Frozen):
    """Summaries of traces recorded by any program."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["traces"] = "traces"
    sysbench_version: str = __version__
    summaries: list[ProfileSummary]
    ranks: RanksSummary | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the ranks of one run have to do with each other; None for traces that are not."""

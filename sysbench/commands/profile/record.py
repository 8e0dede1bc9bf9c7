"""Events and record of `sysbench profile`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sysbench.commands.profile.spec import ProfileCell, Profiler
from sysbench.log.events import Event
from sysbench.log.predictions import PredictionRecord
from sysbench.log.records import CellRecord, RunRecord, Samples
from sysbench.log.schema import SCHEMA_VERSION
from sysbench.package import VERSION
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Amount, Bytes, Finite, PerSecond, Seconds, stored_unless
from sysbench.trace.ranks.summary import RanksSummary
from sysbench.trace.summary import ProfileSummary


class TraceWritten(Event):
    """The trace of the cell was written to a file."""

    event: Literal["trace_written"] = "trace_written"
    cell: str
    path: str | None
    """Path of the file; None if it is deleted after reading."""
    size_bytes: Bytes


class ProfileRead(Event):
    """Summary of the cell's trace, made once the worker has finished, because the trace may be deleted afterwards."""

    event: Literal["profile_read"] = "profile_read"
    cell: str
    summary: ProfileSummary


class Link(Frozen):
    """Fastest all-reduce of a large message among all ranks of the cell, measured in the same run."""

    message_bytes: Bytes
    bus_bytes_per_s: PerSecond
    """Bus bandwidth (busBW) as nccl-tests defines it."""


class LinkMeasured(Link, Event):
    """Upper limit of the bandwidth of collectives, measured after the profile."""

    event: Literal["link_measured"] = "link_measured"
    cell: str


class RanksRead(Event):
    """Comparison of the traces of all ranks; only for several ranks that communicate."""

    event: Literal["ranks_read"] = "ranks_read"
    cell: str
    summary: RanksSummary


class ProfileCellRecord(CellRecord):
    """One cell of `sysbench profile`; values that were not measured are None.

    With several ranks, step times are those of the slowest rank in each step, and the summary is from rank 0.
    """

    cell: ProfileCell = Field(alias="axes")

    profiler: Profiler
    build_s: Seconds | None
    compile_s: Seconds | None
    attention_kernel: str | None
    unprofiled: Samples | None
    """The step without a profiler, timed first in another process."""
    unprofiled_device: Samples | None
    """The unprofiled step, timed by the device clock, if the device has one."""
    profiled_s: list[Seconds]
    """Durations of the profiled steps by the host clock."""
    cost_share: Finite | None
    """Relative increase of the mean step time due to the profiler."""
    coverage: Amount | None
    """Mean busy time per profiled step divided by the mean duration of the unprofiled steps; None on a CPU."""
    trace: str | None
    """Path of the trace, if it was kept; traces of other ranks are in the same directory: `trace-rank1.json`."""
    trace_bytes: Bytes | None
    summary: ProfileSummary | None
    ranks: RanksSummary | None = stored_unless(None)
    """Comparison of ranks; None for one rank, and for ranks that do not communicate."""
    link: Link | None = stored_unless(None)
    """Reference for the bandwidths of collectives; None for one rank."""
    prediction: PredictionRecord | None = stored_unless(None)
    """Prediction of the step, whose phases follow one another without interruption; None if a device was profiled."""

    @property
    def source(self) -> Literal["measured", "predicted"]:
        return "predicted" if self.cell.simulate else "measured"


class ProfileRecord(RunRecord[ProfileCellRecord]):
    """The final summary of `sysbench profile`."""

    kind: Literal["profile"] = "profile"


class TraceRecord(Frozen):
    """Summaries of traces recorded by any program."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["traces"] = "traces"
    sysbench_version: str = VERSION
    summaries: list[ProfileSummary]
    ranks: RanksSummary | None = stored_unless(None)
    """Comparison of the ranks of one run; None for other traces."""

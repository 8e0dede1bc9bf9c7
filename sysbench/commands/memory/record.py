"""Events and record of `sysbench memory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sysbench.commands.memory.spec import MemoryCell, SearchAxis
from sysbench.log.events import Event, Source
from sysbench.log.records import ModelCellRecord, RunRecord, SimulatedGpuRecord
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Bytes, Count, Signed


class PhaseMemoryMeasured(Event):
    """Peak memory during one phase of the measured step."""

    event: Literal["phase_memory_measured"] = "phase_memory_measured"
    cell: str
    source: Source
    phase: str
    allocated_peak_bytes: Bytes
    """Live tensors as the allocator counts them, in blocks of 512 bytes."""
    reserved_peak_bytes: Bytes | None
    """Memory that the allocator holds; None if unknown."""
    by_category: dict[str, Count]
    """Breakdown at the first moment of the peak; adds up to it. Empty if unknown."""


class PeakMeasured(Event):
    """Peak memory over the whole measured step, and memory outside the allocator."""

    event: Literal["peak_measured"] = "peak_measured"
    cell: str
    source: Source
    phase: str | None
    """The phase in which the peak is first reached."""
    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes | None
    host_rss_peak_bytes: Bytes | None
    """`ru_maxrss` of the worker; None for a simulation."""
    outside_bytes: Bytes | None
    """Device memory outside the allocator: CUDA's context and libraries, and other programs. Assumed in a simulation;
    None for devices without their own memory."""
    alloc_retries: Count | None
    """How often the allocator had to release its whole cache to serve a request."""
    by_category: dict[str, Count]
    """Breakdown of the peak; adds up to it."""


class CodeLine(Frozen):
    """One line of a stack."""

    filename: str
    line: Count
    name: str


class AllocationGroup(Frozen):
    """Similar allocations: the same size, category and stack."""

    count: Count
    size_bytes: Bytes
    """Size of each, as the allocator counts it."""
    category: str
    modules: list[str]
    """The first and the last module they belong to: `layers.0.attention`, `layers.31.attention`."""
    phase: str | None
    """The phase in which they are made; None if unknown."""
    stack: list[CodeLine]
    """Where they are made, innermost frame first; in backward, the forward lines whose gradient they hold."""

    @property
    def total_bytes(self) -> int:
        """Size of all of them together."""
        return self.count * self.size_bytes


class LargestAllocations(Event):
    """Groups of allocations at the peak, largest total first."""

    event: Literal["largest_allocations"] = "largest_allocations"
    cell: str
    source: Source
    groups: list[AllocationGroup]


class ModuleMemory(Frozen):
    """Memory of a module and its submodules."""

    path: str
    """`layers.3.attention`; empty for the whole model."""
    total_bytes: Bytes
    own_bytes: Bytes
    """Without its submodules."""
    by_category: dict[str, Count]
    """Breakdown of the total."""


class ModulesMeasured(Event):
    """The peak by module, parents before children, larger modules first."""

    event: Literal["modules_measured"] = "modules_measured"
    cell: str
    source: Source
    modules: list[ModuleMemory]


class VerdictReached(Event):
    """Whether the cell fits on the device."""

    event: Literal["verdict_reached"] = "verdict_reached"
    cell: str
    source: Source
    fits: bool
    failed_phase: str | None
    """Where memory runs out: `build`, or a phase."""
    failed_step: Signed | None
    """The step in which it runs out, from 0; -1 before the first."""
    margin_bytes: Signed | None
    """Free device memory at the fullest moment; if negative, how much is missing."""
    detail: str | None


class CandidateTried(Event):
    """One value tried in the search for the largest that fits."""

    event: Literal["candidate_tried"] = "candidate_tried"
    cell: str
    axis: SearchAxis
    value: Count
    fits: bool
    margin_bytes: Signed


class LargestFound(Event):
    """The result of a search; all other results of the cell are for this value."""

    event: Literal["largest_found"] = "largest_found"
    cell: str
    axis: SearchAxis
    value: Count
    """The largest value that fits; 0 if not even 1 does."""
    beyond: Count | None
    """The smallest value tried that does not fit; None if everything tried fits."""


class SnapshotWritten(Event):
    """All allocations of the cell are in a file."""

    event: Literal["snapshot_written"] = "snapshot_written"
    cell: str
    path: str
    size_bytes: Bytes


class PhasePeakRecord(Frozen):
    """Peak memory during one phase."""

    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes | None
    by_category: dict[str, Count]


class VerdictRecord(Frozen):
    """Whether the cell fits on the device; see VerdictReached."""

    fits: bool
    failed_phase: str | None
    failed_step: Signed | None
    margin_bytes: Signed | None
    detail: str | None


class RankRecord(Frozen):
    """One of several ranks that took the step of a cell together; fields as in the record of the cell."""

    rank: Count
    peak_allocated_bytes: Bytes | None
    peak_reserved_bytes: Bytes | None
    peak_phase: str | None
    host_rss_peak_bytes: Bytes | None
    context_bytes: Bytes | None
    alloc_retries: Count | None
    by_category: dict[str, Count]
    peaks_by_phase: dict[str, PhasePeakRecord]
    snapshot: str | None
    verdict: VerdictRecord | None


def fullest(ranks: Sequence[RankRecord]) -> RankRecord:
    """Return the rank on which memory ran out, or else that with the highest peak; the first of several alike."""
    lacking = [rank for rank in ranks if rank.verdict is not None and not rank.verdict.fits]
    return max(lacking or ranks, key=lambda rank: rank.peak_allocated_bytes or 0)


class LargestRecord(Frozen):
    """The largest value of an axis that fits; all other results of the cell are for this value."""

    axis: SearchAxis
    value: Count
    beyond: Count | None
    tried: list[Count]


class MemoryCellRecord(ModelCellRecord):
    """One cell of `sysbench memory`; None for whatever was not measured or simulated.

    If several ranks were measured, the results are those of the fullest one: the rank on which memory ran out, or else
    that with the highest peak.
    """

    cell: MemoryCell = Field(alias="axes")

    source: Source
    gpu: SimulatedGpuRecord | None
    peak_allocated_bytes: Bytes | None
    peak_reserved_bytes: Bytes | None
    peak_phase: str | None
    host_rss_peak_bytes: Bytes | None
    """Resident memory of the worker: the larger of the sampled maximum and the kernel's own."""
    device_used_peak_bytes: Bytes | None
    """Memory in use on the whole device, other processes included, according to NVML."""
    context_bytes: Bytes | None
    """Device memory outside the allocator: assumed in a simulation, otherwise according to NVML."""
    alloc_retries: Count | None
    by_category: dict[str, Count]
    """Breakdown of the peak."""
    peaks_by_phase: dict[str, PhasePeakRecord]
    largest: list[AllocationGroup]
    modules: list[ModuleMemory]
    residual_bytes: Bytes | None
    """Size of one residual stream, batch × ctx × d_model numbers in fp32: computed, not measured. None for a model of
    the user's, whose width is not known."""
    snapshot: str | None
    verdict: VerdictRecord | None
    found: LargestRecord | None
    ranks: list[RankRecord] = Field(default=[], exclude_if=lambda value: not value)
    """Every rank that was measured, if there are several."""

    @property
    def fullest_rank(self) -> RankRecord | None:
        """The rank whose results are those of the cell; None if the cell was taken by one process."""
        return fullest(self.ranks) if self.ranks else None


class MemoryRecord(RunRecord[MemoryCellRecord]):
    """The final summary of `sysbench memory`."""

    kind: Literal["memory"] = "memory"

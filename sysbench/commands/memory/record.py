"""Events and record of `sysbench memory`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sysbench.commands.memory.spec import MemoryCell
from sysbench.log.events import Event, SimulatedGpuRecord, Source
from sysbench.log.records import ModelCellRecord, RunRecord
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Bytes, Count, Signed, stored_unless
from sysbench.spec.steps import SearchAxis


class PhasePeakRecord(Frozen):
    """Peak memory during one phase of the measured step."""

    allocated_peak_bytes: Bytes
    """Size of the live tensors; the allocator counts in blocks of 512 bytes."""
    reserved_peak_bytes: Bytes | None
    """Memory reserved by the allocator; None if unknown."""
    by_category: dict[str, Count]
    """Breakdown by category when the peak is first reached; sums to the peak. Empty if unknown."""


class PhaseMemoryMeasured(PhasePeakRecord, Event):
    """The peak of one phase was measured."""

    event: Literal["phase_memory_measured"] = "phase_memory_measured"
    cell: str
    source: Source
    phase: str


class PeakMeasured(PhasePeakRecord, Event):
    """Peak memory over the whole measured step, and memory outside the allocator."""

    event: Literal["peak_measured"] = "peak_measured"
    cell: str
    source: Source
    phase: str | None
    """Phase in which the peak is first reached."""
    host_rss_peak_bytes: Bytes | None
    """`ru_maxrss` of the worker; None for a simulation."""
    outside_bytes: Bytes | None
    """Device memory outside the allocator: CUDA's context and libraries, and other processes. Assumed in a simulation;
    None for devices without their own memory."""
    alloc_retries: Count | None
    """Number of times the allocator had to release its whole cache to serve a request."""


class CodeLine(Frozen):
    """One stack frame."""

    filename: str
    line: Count
    name: str


class AllocationGroup(Frozen):
    """Allocations of equal size, category and stack."""

    count: Count
    size_bytes: Bytes
    """Size of each allocation, as counted by the allocator."""
    category: str
    modules: list[str]
    """First and last module that the allocations belong to: `layers.0.attention`, `layers.31.attention`."""
    phase: str | None
    """Phase in which the allocations were made; None if unknown."""
    stack: list[CodeLine]
    """Stack of the allocations, innermost frame first; in backward, the lines of the forward operation."""

    @property
    def total_bytes(self) -> int:
        return self.count * self.size_bytes


class LargestAllocations(Event):
    """Groups of allocations at the peak, largest total first."""

    event: Literal["largest_allocations"] = "largest_allocations"
    cell: str
    source: Source
    groups: list[AllocationGroup]


class ModuleMemory(Frozen):
    """Memory of a module, including its submodules."""

    path: str
    """`layers.3.attention`; empty for the whole model."""
    total_bytes: Bytes
    own_bytes: Bytes
    """Bytes of the module without its submodules."""
    by_category: dict[str, Count]
    """Breakdown of the total by category."""


class ModulesMeasured(Event):
    """Breakdown of the peak by module: parents before children, larger modules first."""

    event: Literal["modules_measured"] = "modules_measured"
    cell: str
    source: Source
    modules: list[ModuleMemory]


class VerdictRecord(Frozen):
    """Whether the cell fits on the device."""

    fits: bool
    failed_phase: str | None
    """Stage at which memory runs out: `build`, or a phase."""
    failed_step: Signed | None
    """Step in which memory runs out, from 0; -1 before the first step."""
    margin_bytes: Signed | None
    """Free device memory at the peak in bytes; a negative margin is the missing memory."""
    detail: str | None


class VerdictReached(VerdictRecord, Event):
    """It is known whether the cell fits."""

    event: Literal["verdict_reached"] = "verdict_reached"
    cell: str
    source: Source


class CandidateTried(Event):
    """A value tried by a search, and whether the cell fits with it."""

    event: Literal["candidate_tried"] = "candidate_tried"
    cell: str
    axis: SearchAxis
    value: Count
    fits: bool
    margin_bytes: Signed


class SearchResult(Frozen):
    """Result of a search. All other results of the cell are for the value found, or for `beyond` if none was found."""

    axis: SearchAxis
    value: Count
    """The largest value that fits, or the fewest ranks that suffice; 0 if the search found none."""
    beyond: Count | None
    """The smallest value tried that does not fit (for `ranks`, the largest); None if all values tried fit."""
    safe: Count | None = stored_unless(None)
    """The largest value, or the fewest ranks, that leaves more memory than a simulation may be off; 0 if there is none.
    None in logs of versions that did not search for it."""
    more_is_useless: bool = stored_unless(False)
    """Whether the search for ranks ended because more ranks cannot save what is missing."""

    @property
    def answer(self) -> str:
        """The value found and, if it fits only within the uncertainty, the safe one: `17 (15 is safe)`."""
        if self.safe in (None, self.value):
            return str(self.value)
        return f"{self.value} ({self.safe or 'none'} is safe)"


class LargestFound(SearchResult, Event):
    """A search has ended."""

    event: Literal["largest_found"] = "largest_found"
    cell: str


class SnapshotWritten(Event):
    """All allocations of the cell were written to a snapshot file."""

    event: Literal["snapshot_written"] = "snapshot_written"
    cell: str
    path: str
    size_bytes: Bytes


class MemoryResults(Frozen):
    """What is known of the memory of a cell, or of one of its ranks."""

    peak_allocated_bytes: Bytes | None
    peak_reserved_bytes: Bytes | None
    peak_phase: str | None
    host_rss_peak_bytes: Bytes | None
    """Peak resident memory of the worker: the larger of the sampled maximum and `ru_maxrss`."""
    context_bytes: Bytes | None
    """Device memory outside the allocator: assumed in a simulation. None if other programs use the GPU, whose memory
    cannot be told from that of the context."""
    alloc_retries: Count | None
    by_category: dict[str, Count]
    """Breakdown of the peak."""
    peaks_by_phase: dict[str, PhasePeakRecord]
    snapshot: str | None
    verdict: VerdictRecord | None


class RankRecord(MemoryResults):
    """Results of one rank of a cell."""

    rank: Count


def find_fullest_rank(ranks: Sequence[RankRecord]) -> RankRecord:
    """Return the rank on which memory ran out, or else the rank with the highest peak; the first one if several tie."""
    out_of_memory = [rank for rank in ranks if rank.verdict is not None and not rank.verdict.fits]
    return max(out_of_memory or ranks, key=lambda rank: rank.peak_allocated_bytes or 0)


class LargestRecord(SearchResult):
    """Result of a search, with all values tried. All other results of the cell are for `shown`."""

    tried: list[Count]

    @property
    def shown(self) -> int:
        """The value found or, if none was found, the tried value closest to fitting; 0 if nothing was tried."""
        return self.value or self.beyond or 0

    def applied_to(self, cell: MemoryCell) -> MemoryCell:
        """Return the cell with the value shown instead of the one from which the search starts."""
        return cell.model_copy(update={self.axis: self.shown}) if self.shown else cell


class MemoryCellRecord(MemoryResults, ModelCellRecord):
    """One cell of `sysbench memory`; values that were neither measured nor simulated are None.

    If several ranks were measured, the results are those of the fullest rank: the rank on which memory ran out, or else
    the rank with the highest peak.
    """

    cell: MemoryCell = Field(alias="axes")

    source: Source
    gpu: SimulatedGpuRecord | None
    device_used_peak_bytes: Bytes | None
    """Memory in use on the whole device, including other processes, according to NVML."""
    largest: list[AllocationGroup]
    modules: list[ModuleMemory]
    residual_bytes: Bytes | None
    """Size of one residual stream, batch × ctx × d_model numbers in fp32: computed, not measured. None for a
    custom model, whose width is unknown."""
    found: LargestRecord | None
    ranks: list[RankRecord] = stored_unless([])
    """Every rank that was measured, if there are several."""

    @property
    def device_name(self) -> str | None:
        """Name of the device or, for a simulation, of the GPU."""
        return self.gpu.title if self.gpu else super().device_name

    @property
    def shown_cell(self) -> MemoryCell:
        """The cell with the value that its results are for; `cell` has the value from which a search starts."""
        return self.found.applied_to(self.cell) if self.found is not None else self.cell

    @property
    def does_not_fit(self) -> bool:
        return self.outcome == "oom" or (self.verdict is not None and not self.verdict.fits)

    @property
    def peak_bytes(self) -> int:
        """Bytes allocated at the peak; 0 if unknown, or if the step did not get through."""
        return (self.peak_allocated_bytes or 0) if self.outcome == "ok" and not self.does_not_fit else 0

    @property
    def fullest_rank(self) -> RankRecord | None:
        """Rank whose results are reported as the cell's results; None for a cell of one process."""
        return find_fullest_rank(self.ranks) if self.ranks else None


class MemoryRecord(RunRecord[MemoryCellRecord]):
    """The final summary of `sysbench memory`."""

    kind: Literal["memory"] = "memory"

    @property
    def largest_fitting(self) -> MemoryCellRecord | None:
        """The cell that fits with the highest peak; if none fits, the one that lacks the least. None without peaks."""
        known = [cell for cell in self.cells if cell.by_category]
        fitting = [cell for cell in known if cell.peak_bytes]
        return max(fitting, key=_needed_bytes) if fitting else max(known, key=_spare_bytes, default=None)

    @property
    def smallest_failing(self) -> MemoryCellRecord | None:
        """The cell that does not fit and is most like `largest_fitting`; of several, the one that lacks the least."""
        largest = self.largest_fitting
        failing = [cell for cell in self.cells if cell.does_not_fit]
        if largest is None:
            return max(failing, key=_spare_bytes, default=None)
        return max(failing, key=lambda cell: (-_differences(cell, largest), _spare_bytes(cell)), default=None)


def _needed_bytes(cell: MemoryCellRecord) -> tuple[int, int]:
    return cell.peak_reserved_bytes or cell.peak_allocated_bytes or 0, cell.peak_allocated_bytes or 0


def _spare_bytes(cell: MemoryCellRecord) -> float:
    """Return the free bytes at the peak, negative where memory lacks; minus infinity if unknown."""
    margin_bytes = cell.verdict.margin_bytes if cell.verdict else None
    return -math.inf if margin_bytes is None else margin_bytes


def _differences(one: MemoryCellRecord, other: MemoryCellRecord) -> int:
    return sum(one.axes.get(name) != value for name, value in other.axes.items())

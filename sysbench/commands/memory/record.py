"""What `sysbench memory` says of its cells: its own events, and its record."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sysbench.commands.memory.spec import MemoryCell, SearchAxis
from sysbench.log.events import Event, Source
from sysbench.log.records import ModelCellRecord, RunRecord, SimulatedGpuRecord
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Bytes, Count, Signed


class PhaseMemoryMeasured(Event):
    """The most memory during one phase of the step that counts."""

    event: Literal["phase_memory_measured"] = "phase_memory_measured"
    cell: str
    source: Source
    phase: str
    allocated_peak_bytes: Bytes
    """Of live tensors, as the allocator counts them, in blocks of 512 bytes."""
    reserved_peak_bytes: Bytes | None
    """Of what the allocator holds; None where it does not tell."""
    by_category: dict[str, Count]
    """At the first moment at which that much is allocated; adds up to it. Empty when it is not known."""


class PeakMeasured(Event):
    """The most memory over the step that counts, and what there was besides."""

    event: Literal["peak_measured"] = "peak_measured"
    cell: str
    source: Source
    phase: str | None
    """In which phase it is reached first."""
    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes | None
    host_rss_peak_bytes: Bytes | None
    """`ru_maxrss` of the worker; None of a simulation."""
    outside_bytes: Bytes | None
    """On the device and outside the allocator: CUDA's context and libraries, and other programs; assumed of a
    simulation, None where there is no device of its own."""
    alloc_retries: Count | None
    """How often the allocator had to give back everything it had cached before it could serve a request."""
    by_category: dict[str, Count]
    """At the peak; adds up to it."""


class CodeLine(Frozen):
    """One line of a stack."""

    filename: str
    line: Count
    name: str


class AllocationGroup(Frozen):
    """Allocations that are alike: of one size and category, and from one stack."""

    count: Count
    size_bytes: Bytes
    """Of each, as the allocator counts it."""
    category: str
    modules: list[str]
    """The first and the last module that they belong to: `layers.0.attention`, `layers.31.attention`."""
    phase: str | None
    """In which they were made; None where that is not known."""
    stack: list[CodeLine]
    """Where they were made, innermost first; of backward, the lines whose gradient it is."""

    @property
    def total_bytes(self) -> int:
        """Of all of them."""
        return self.count * self.size_bytes


class LargestAllocations(Event):
    """What the peak consists of, the most bytes together first."""

    event: Literal["largest_allocations"] = "largest_allocations"
    cell: str
    source: Source
    groups: list[AllocationGroup]


class ModuleMemory(Frozen):
    """What a module and those below it hold."""

    path: str
    """`layers.3.attention`; empty for the whole."""
    total_bytes: Bytes
    own_bytes: Bytes
    """Without the modules below it."""
    by_category: dict[str, Count]
    """Of the total."""


class ModulesMeasured(Event):
    """The peak by module, every module before those below it, larger ones first."""

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
    """In which step, from 0; -1 before the first."""
    margin_bytes: Signed | None
    """What is left of the device at the fullest moment; if negative, how much more it would need."""
    detail: str | None


class CandidateTried(Event):
    """On the way to the largest that fits."""

    event: Literal["candidate_tried"] = "candidate_tried"
    cell: str
    axis: SearchAxis
    value: Count
    fits: bool
    margin_bytes: Signed


class LargestFound(Event):
    """The end of a search: what else is said of the cell is of this value."""

    event: Literal["largest_found"] = "largest_found"
    cell: str
    axis: SearchAxis
    value: Count
    """The largest that fits; 0 if not even 1 does."""
    beyond: Count | None
    """The next one, which does not fit; None if the search ended before anything did not."""


class SnapshotWritten(Event):
    """Every allocation of the cell is in a file."""

    event: Literal["snapshot_written"] = "snapshot_written"
    cell: str
    path: str
    size_bytes: Bytes


class PhasePeakRecord(Frozen):
    """The most during one phase."""

    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes | None
    by_category: dict[str, Count]


class VerdictRecord(Frozen):
    """Whether it fits."""

    fits: bool
    failed_phase: str | None
    failed_step: Signed | None
    margin_bytes: Signed | None
    detail: str | None


class LargestRecord(Frozen):
    """The largest value of an axis that fits, which the other numbers of the cell are of."""

    axis: SearchAxis
    value: Count
    beyond: Count | None
    tried: list[Count]


class MemoryCellRecord(ModelCellRecord):
    """One cell of `sysbench memory`; None where nothing was measured or simulated."""

    cell: MemoryCell = Field(alias="axes")

    source: Source
    gpu: SimulatedGpuRecord | None
    peak_allocated_bytes: Bytes | None
    peak_reserved_bytes: Bytes | None
    peak_phase: str | None
    host_rss_peak_bytes: Bytes | None
    """Of the worker: the larger of what was seen from outside and what the kernel says."""
    device_used_peak_bytes: Bytes | None
    """Of the whole device, other processes included, as NVML saw it."""
    context_bytes: Bytes | None
    """On the device and outside the allocator: assumed of a simulation, else what NVML saw."""
    alloc_retries: Count | None
    by_category: dict[str, Count]
    """At the peak."""
    peaks_by_phase: dict[str, PhasePeakRecord]
    largest: list[AllocationGroup]
    modules: list[ModuleMemory]
    residual_bytes: Bytes
    """Of one residual stream, batch × ctx × d_model numbers in fp32: computed, not measured."""
    snapshot: str | None
    verdict: VerdictRecord | None
    found: LargestRecord | None


class MemoryRecord(RunRecord[MemoryCellRecord]):
    """The final summary of `sysbench memory`."""

    kind: Literal["memory"] = "memory"

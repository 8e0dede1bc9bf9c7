"""Events and record of `sysbench attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sysbench.log.events import CodeFile, Event, PhaseSample, SimulatedGpuRecord, Source
from sysbench.log.predictions import GpuPrediction
from sysbench.log.records import CellRecord, RunRecord, Samples
from sysbench.spec.attention import AttentionCell
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import (
    Amount,
    Bytes,
    Count,
    Flops,
    Number,
    PositiveSeconds,
    Seconds,
    Size,
    stored_unless,
)


class AttentionImported(Event):
    """The file of the user's implementation."""

    event: Literal["attention_imported"] = "attention_imported"
    cell: str
    file: CodeFile


class RepeatsRecord(Frozen):
    """How many calls of each phase fit into the time limit of a cell."""

    max_time_s: PositiveSeconds
    warmup: Count
    repeats: Size


class RepeatsReduced(RepeatsRecord, Event):
    """A cell is about to be timed with fewer calls than were asked for."""

    event: Literal["repeats_reduced"] = "repeats_reduced"
    cell: str


class AttentionTimed(Event):
    """The time of one forward or backward call."""

    event: Literal["attention_timed"] = "attention_timed"
    cell: str
    index: Count
    """Index of the call from 0, counted separately for each phase and for warm-up and measured calls."""
    warmup: bool
    phase: Literal["forward", "backward"]
    sample: PhaseSample


class AttentionPeaks(Frozen):
    """Memory after one forward call, and peak memory of forward and backward together; None if unknown."""

    before_backward_bytes: Bytes | None = None
    """Size of all tensors that are alive when backward begins: inputs, output and saved tensors."""
    saved_bytes: Bytes | None = None
    """Size of the tensors that forward saves for backward, except its inputs and its output."""
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    """Peak of the allocator's reserved memory; None also if the device has no allocator."""


class AttentionMemory(AttentionPeaks, Event):
    """The memory of a cell was measured or simulated."""

    event: Literal["attention_memory"] = "attention_memory"
    cell: str
    source: Source


class AttentionPredicted(GpuPrediction, Event):
    """Predicted times of forward and backward on a GPU, with their intervals; the cell was not run.

    Times exclude launch overhead, like times measured on CUDA, where kernels are launched in advance.
    """

    event: Literal["attention_predicted"] = "attention_predicted"
    cell: str


class AttentionKernels(Event):
    """The operator that computed attention."""

    event: Literal["attention_kernels"] = "attention_kernels"
    cell: str
    forward: str | None
    """For example `aten::_scaled_dot_product_flash_attention`."""
    detail: str | None = None


class AttentionError(Frozen):
    """Error of a result, relative to the same computation in fp64."""

    max_abs: Number
    relative: Number
    """‖x − x64‖ / ‖x64‖."""


class AttentionChecked(Event):
    """Errors of an implementation relative to fp64, for part of the input."""

    event: Literal["attention_checked"] = "attention_checked"
    cell: str
    errors: dict[str, AttentionError]
    """Errors of `output`, and of the gradients of `q`, `k` and `v`; empty if memory ran out in the comparison."""
    sample: str
    """The checked part of the input: `the first sequence`."""


class AttentionTensor(Frozen):
    """A tensor that attention needs."""

    name: str
    shape: list[Count]
    dtype: str
    size_bytes: Bytes
    phase: Literal["inputs", "forward", "backward"]


class AttentionAccounted(Event):
    """Memory requirement of a cell that does not fit."""

    event: Literal["attention_accounted"] = "attention_accounted"
    cell: str
    tensors: list[AttentionTensor]
    """All tensors alive at the peak."""
    available_bytes: Bytes | None
    reserved_bytes: Bytes | None = None
    """Memory that the allocator would have to reserve for these tensors; None if unknown."""


class AttentionRates(Frozen):
    """Rates of one phase of attention, from its mean time."""

    flops: Flops
    """FLOPs of the two or four matrix products, halved under a causal mask."""
    flops_per_s: Amount
    bytes_moved: Count
    """Minimum memory traffic: inputs read once, results written once."""
    bytes_per_s: Amount
    limit_s: Seconds | None
    """Lower bound on the time on this hardware: the larger of FLOPs / peak rate and bytes / bandwidth."""
    limit_share: Amount | None
    limited_by: Literal["compute", "bandwidth"] | None


class AttentionCellRecord(AttentionPeaks, CellRecord):
    """Results of one cell of `sysbench attention`; values that were neither measured nor simulated are None."""

    cell: AttentionCell = Field(alias="axes")

    source: Source | Literal["predicted"]
    """Source of the values; memory is simulated if times are predicted."""
    gpu: SimulatedGpuRecord | None
    code: CodeFile | None = stored_unless(None)
    """The file of the user's implementation; None for sysbench's own ones."""
    kernel: str | None
    """The operator that attention actually ran."""
    compile_s: Seconds | None
    fell_back: bool | None
    forward: Samples | None
    backward: Samples | None
    device_events: bool
    """Whether times are measured by device events; otherwise by the host's clock between two synchronizations."""
    warmup_samples_s: dict[str, list[Seconds]]
    """Times of the warm-up calls by phase, in order."""
    naive_saved_bytes: Bytes
    """Minimum that naive attention saves: two N × N tensors per row. Computed, not measured."""
    fused_saved_bytes: Bytes
    """Minimum that a fused kernel saves: one number per query. Computed, not measured."""
    rates: dict[str, AttentionRates]
    """Rates by phase."""
    errors: dict[str, AttentionError]
    """Errors relative to fp64, of `output` and of the gradients of `q`, `k` and `v`."""
    tensors: list[AttentionTensor]
    """The tensors of a cell that does not fit."""
    needed_bytes: Bytes | None = None
    """Reserved memory that the cell would need; only for a cell that does not fit."""
    available_bytes: Bytes | None
    prediction: GpuPrediction | None = stored_unless(None)
    """Times on a simulated GPU; None if the cell was measured, or if the rates of the GPU are unknown."""
    reduced: RepeatsRecord | None = stored_unless(None)
    """How many calls fit into the time limit; None if all calls that were asked for did."""

    @property
    def device_name(self) -> str | None:
        """Name of the device or, for a simulation, of the GPU."""
        return self.gpu.title if self.gpu else super().device_name

    @property
    def code_files(self) -> Sequence[CodeFile]:
        return (self.code,) if self.code else ()


class AttentionRecord(RunRecord[AttentionCellRecord]):
    """Record of a run of `sysbench attention`."""

    kind: Literal["attention"] = "attention"

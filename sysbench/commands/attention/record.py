"""What `sysbench attention` says of its cells: its own events, and its record."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sysbench.commands.attention.spec import AttentionCell
from sysbench.log.events import Event, PhaseSample, Source
from sysbench.log.predictions import Grounds
from sysbench.log.records import CellRecord, RunRecord, Samples, SimulatedGpuRecord
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Amount, Bytes, Count, Flops, Number, Seconds


class AttentionTimed(Event):
    """One forward, or one backward, of attention."""

    event: Literal["attention_timed"] = "attention_timed"
    cell: str
    index: Count
    """From 0, counted apart for each phase, and for warm-up and measured calls."""
    warmup: bool
    phase: Literal["forward", "backward"]
    sample: PhaseSample


class AttentionMemory(Event):
    """What one forward leaves in memory, and the most that forward and backward need."""

    event: Literal["attention_memory"] = "attention_memory"
    cell: str
    source: Source
    before_backward_bytes: Bytes | None
    """Everything that lives when backward begins: inputs, output, and what is saved."""
    saved_bytes: Bytes | None
    """What forward keeps for backward beside its inputs and its output."""
    peak_allocated_bytes: Bytes | None
    peak_reserved_bytes: Bytes | None = None
    """What the allocator takes from the device for that; None where it does not tell, or there is none."""


class AttentionPredicted(Grounds, Event):
    """The cell was not run: this is how long forward and backward would take on a GPU, and how sure that is.

    Phases have the device's time alone, as is measured on CUDA: calls are launched ahead.
    """

    event: Literal["attention_predicted"] = "attention_predicted"
    cell: str


class AttentionKernels(Event):
    """What attention really ran as."""

    event: Literal["attention_kernels"] = "attention_kernels"
    cell: str
    forward: str | None
    """The operator: `aten::_scaled_dot_product_flash_attention`, say."""
    detail: str | None = None


class AttentionError(Frozen):
    """How far a result lies from the same in fp64."""

    max_abs: Number
    relative: Number
    """‖x − x64‖ / ‖x64‖."""


class AttentionChecked(Event):
    """The results of an implementation against fp64, on a sample of the input."""

    event: Literal["attention_checked"] = "attention_checked"
    cell: str
    errors: dict[str, AttentionError]
    """Of `output`, and of the gradients of `q`, `k` and `v`."""
    sample: str
    """What was checked: `1 of 8 sequences`."""


class AttentionTensor(Frozen):
    """One tensor that attention needs."""

    name: str
    shape: list[Count]
    dtype: str
    size_bytes: Bytes
    phase: Literal["inputs", "forward", "backward"]


class AttentionAccounted(Event):
    """What a cell that does not fit would need."""

    event: Literal["attention_accounted"] = "attention_accounted"
    cell: str
    tensors: list[AttentionTensor]
    """Those that live together at the fullest moment."""
    available_bytes: Bytes | None
    reserved_bytes: Bytes | None = None
    """What the allocator would have to take from the device for them; None where that is not known."""


class AttentionRates(Frozen):
    """What one phase of attention achieves, over its mean time."""

    flops: Flops
    """Of the two or four matrix products, with the causal half taken off where the mask is causal."""
    flops_per_s: Amount
    bytes_moved: Count
    """The least that has to cross the memory bus: inputs read once, results written once."""
    bytes_per_s: Amount
    limit_s: Seconds | None
    """The least time that the hardware allows: the larger of FLOPs over peak rate and bytes over bandwidth."""
    limit_share: Amount | None
    limited_by: Literal["compute", "bandwidth"] | None


class AttentionCellRecord(CellRecord):
    """One cell of `sysbench attention`; None where nothing was measured or simulated."""

    cell: AttentionCell = Field(alias="axes")

    source: Source | Literal["predicted"]
    """Where its numbers are from; times that are predicted come with memory that is simulated."""
    gpu: SimulatedGpuRecord | None
    kernel: str | None
    """The operator that attention really ran as."""
    compile_s: Seconds | None
    fell_back: bool | None
    forward: Samples | None
    backward: Samples | None
    device_events: bool
    """Times are the device's own; else the host's, between two synchronizations."""
    warmup_samples_s: dict[str, list[Seconds]]
    """By phase, in order."""
    before_backward_bytes: Bytes | None
    saved_bytes: Bytes | None
    peak_allocated_bytes: Bytes | None
    peak_reserved_bytes: Bytes | None = None
    """What the allocator took from the device."""
    naive_saved_bytes: Bytes
    """What the written-out kind keeps at least: two N × N tensors a row. Computed, not measured."""
    fused_saved_bytes: Bytes
    """What a fused kernel has to keep: one number for every query. Computed, not measured."""
    rates: dict[str, AttentionRates]
    """By phase."""
    errors: dict[str, AttentionError]
    """Against fp64: of `output`, and of the gradients of `q`, `k` and `v`."""
    tensors: list[AttentionTensor]
    """Of a cell that does not fit: what it would need."""
    needed_bytes: Bytes | None = None
    """Of a cell that does not fit: these, and what the allocator would have to take from the device beside them."""
    available_bytes: Bytes | None
    prediction: Grounds | None = Field(default=None, exclude_if=lambda value: value is None)
    """Times on a GPU that was not there; None where they were measured, or nothing is known of its speed."""


class AttentionRecord(RunRecord[AttentionCellRecord]):
    """The final summary of `sysbench attention`."""

    kind: Literal["attention"] = "attention"

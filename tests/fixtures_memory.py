"""Memory records made of nothing but numbers: what a published table says, as a run would have recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sysbench import formulas
from sysbench.commands.memory.record import (
    AllocationGroup,
    CodeLine,
    LargestRecord,
    MemoryCellRecord,
    PhasePeakRecord,
    VerdictRecord,
)
from sysbench.commands.memory.spec import MemorySpec
from sysbench.log.events import SimulatedGpuRecord
from sysbench.log.outcomes import Caution, Outcome
from sysbench.log.records import ModelRecord
from tests.fixtures_timing import A100

GIB = 2**30
MIB = 2**20


def memory_cell(
    peak_bytes: float | None,
    *,
    reserved_bytes: float | None = None,
    peak_phase: str | None = None,
    by_category: Mapping[str, float] | None = None,
    phases: Mapping[str, float] | None = None,
    largest: Sequence[AllocationGroup] = (),
    outcome: Outcome = "ok",
    fits: bool | None = None,
    margin_bytes: float | None = None,
    found: LargestRecord | None = None,
    cautions: Sequence[Caution] = (),
    **axes: Any,
) -> MemoryCellRecord:
    """One cell with this peak; simulated where `simulate` is among its axes."""
    asked = {"size": "2.7b", "mode": "forward", **axes}
    listed = {name: value if name == "find" else (value,) for name, value in asked.items()}
    (cell,) = MemorySpec.model_validate(listed).cells()
    gpu = SimulatedGpuRecord(
        title="NVIDIA H100 80GB HBM3 (SXM)",
        memory_bytes=80 * GIB,
        context_bytes=600 * MIB,
        other_bytes=0,
        settings="",
    )
    return MemoryCellRecord(
        key=cell.key,
        axes=cell.model_dump(),
        device=A100.device,
        outcome=outcome,
        detail=None,
        cautions=list(cautions),
        model=ModelRecord(
            parameters=formulas.parameters(cell.model),
            parameters_without_lm_head=formulas.parameters_without_lm_head(cell.model),
            forward_flops=formulas.forward_flops(cell.model, cell.ctx, cell.batch),
        ),
        source="simulated" if cell.simulate else "measured",
        gpu=gpu if cell.simulate else None,
        peak_allocated_bytes=round(peak_bytes) if peak_bytes is not None else None,
        peak_reserved_bytes=round(reserved_bytes) if reserved_bytes is not None else None,
        peak_phase=peak_phase,
        host_rss_peak_bytes=None,
        device_used_peak_bytes=None,
        context_bytes=None,
        alloc_retries=None,
        by_category={name: round(size) for name, size in (by_category or {}).items()},
        peaks_by_phase={
            name: PhasePeakRecord(
                allocated_peak_bytes=round(size), reserved_peak_bytes=None, by_category={"activations": round(size)}
            )
            for name, size in (phases or {}).items()
        },
        largest=list(largest),
        modules=[],
        residual_bytes=formulas.residual_stream_bytes(cell.model, cell.ctx, cell.batch),
        snapshot=None,
        verdict=VerdictRecord(
            fits=fits,
            failed_phase=None,
            failed_step=None,
            margin_bytes=round(margin_bytes) if margin_bytes is not None else None,
            detail=None,
        )
        if fits is not None
        else None,
        found=found,
    )


def group(count: int, size_bytes: int, category: str, module: str, line: str = "attention.py:56") -> AllocationGroup:
    """Allocations that are alike."""
    name, _, number = line.partition(":")
    return AllocationGroup(
        count=count,
        size_bytes=size_bytes,
        category=category,
        modules=[module],
        phase="forward",
        stack=[CodeLine(filename=f"/somewhere/{name}", line=int(number), name="f")],
    )


THIRD_FP32 = {128: (19.3, 60.0), 256: (26.0, 67.0), 512: (42.8, None)}
THIRD_MIXED = {128: (24.0, 65.0), 256: (28.3, 69.0), 512: (39.6, None)}
"""GiB of a forward pass and of a training step of 2.7b, by context, as the third report has them."""


def third_report() -> list[MemoryCellRecord]:
    """Its two tables."""
    return [
        memory_cell(
            size * GIB if size is not None else None,
            outcome="ok" if size is not None else "oom",
            ctx=ctx,
            mode=mode,
            precision=precision,
        )
        for precision, table in (("fp32", THIRD_FP32), ("bf16", THIRD_MIXED))
        for ctx, sizes in table.items()
        for mode, size in zip(("forward", "train"), sizes, strict=True)
    ]

"""Profiles made of nothing but numbers: what a published kernel table says, as a run would have recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.commands.profile.spec import ProfileSpec
from sysbench.log.outcomes import Caution
from sysbench.trace.kernels.names import classify, short_name
from sysbench.trace.summary import DeviceUse, KernelName, KernelTimeColumns, ProfileSource, ProfileSummary, Rate
from tests.fixtures_timing import A100


@dataclass(frozen=True)
class Kernel:
    """A row of a table."""

    name: str
    phase: str
    total_ms: float
    """In a step."""
    calls: int


def profile_cell(
    kernels: Sequence[Kernel],
    *,
    steps: int = 1,
    busy: float = 1.0,
    waiting: float = 0.0,
    precisions: Mapping[str, int] | None = None,
    rates: Sequence[Rate] = (),
    cautions: Sequence[Caution] = (),
    source: ProfileSource = "device",
    scale: tuple[str, float] | None = None,
    **axes: Any,
) -> ProfileCellRecord:
    """One cell with these kernels; `scale` multiplies the time of one of them."""
    asked = {"ctx": 256, "size": "large", **axes}
    (cell,) = ProfileSpec.model_validate({name: (value,) for name, value in asked.items()}).cells()
    summary = _summary(kernels, steps, source, scale)
    window_ns = summary.window_ns
    device = DeviceUse(
        window_ns=window_ns,
        busy_ns=round(busy * window_ns),
        work_ns=round(busy * window_ns),
        waiting_ns=round(waiting * window_ns),
        launches=1,
        launch_ns=1,
    )
    return ProfileCellRecord(
        key=cell.key,
        axes=cell.model_dump(),
        device=A100.device,
        outcome="ok",
        detail=None,
        cautions=list(cautions),
        profiler="torch",
        build_s=None,
        compile_s=None,
        attention_kernel=None,
        unprofiled=None,
        unprofiled_device=None,
        profiled_s=[],
        cost_share=None,
        coverage=None,
        trace=None,
        trace_bytes=None,
        summary=summary.model_copy(
            update={
                "device": device if source == "device" else None,
                "rates": list(rates),
                "precisions": dict(precisions or {}),
            }
        ),
    )


def _summary(
    kernels: Sequence[Kernel], steps: int, source: ProfileSource, scale: tuple[str, float] | None
) -> ProfileSummary:
    phases = ["", "zero_grad", "forward", "loss", "backward", "optimizer"]
    names = list(dict.fromkeys(kernel.name for kernel in kernels))
    times = [
        round(kernel.total_ms * 1e6 * steps * (scale[1] if scale is not None and scale[0] == kernel.name else 1.0))
        for kernel in kernels
    ]
    return ProfileSummary(
        title="",
        source=source,
        devices=[A100.device.name],
        rank=None,
        steps=steps,
        steps_marked=True,
        window_ns=sum(times),
        busy_ns=sum(times),
        left_out=0,
        left_out_ns=0,
        unlinked_ns=0,
        phases=phases,
        modules=[""],
        names=[
            KernelName(
                name=name,
                short=short_name(name),
                kernel_class=classify(name),
                precision=None,
            )
            for name in names
        ],
        spent=KernelTimeColumns(
            phase=[phases.index(kernel.phase) for kernel in kernels],
            module=[0] * len(kernels),
            kernel=[names.index(kernel.name) for kernel in kernels],
            total_ns=times,
            calls=[kernel.calls * steps for kernel in kernels],
        ),
        kernels=[],
        operators=[],
        device=None,
        precisions={},
        rates=[],
        checks=[],
        remarks=[],
    )


def attention_rates(parts_us: Mapping[str, float], phase: str = "forward") -> list[Rate]:
    """Attention of `large` at context 256, batch 4: its parts' time, and FLOPs as its dimensions have them."""
    rows, ctx, width = 4 * 20, 256, 64
    product, each = 2 * rows * ctx * ctx * width, rows * ctx * ctx
    flops = {"scores": product, "mask": each, "softmax": 5 * each, "output": product}
    return [
        Rate(
            part=part,
            phase=phase,
            total_ns=round(taken_us * 1000),
            flops=flops[part],
            bytes=None,
            peak_flops_per_s=None,
            peak_bytes_per_s=None,
        )
        for part, taken_us in parts_us.items()
    ]

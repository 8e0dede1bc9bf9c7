"""Records made of nothing but numbers: what a published table says, as a run would have recorded it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from sysbench import formulas
from sysbench.commands.time.record import RateRecord, TimeCellRecord, TimeRecord
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.log.collect import samples_of
from sysbench.log.events import DeviceInfo
from sysbench.log.outcomes import CautionCode, Outcome, caution
from sysbench.log.records import EnvironmentRecord, ModelRecord, PeakRecord, PhaseRecord
from sysbench.spec import hardware
from sysbench.spec.steps import PHASES_OF
from tests.fixtures_timing import A100

MS = 1e-3


def spread_about(mean: float, deviation: float, count: int = 10) -> list[float]:
    """Samples of exactly this mean and standard deviation, normal, in an order without a trend."""
    scores = [NormalDist().inv_cdf((number + 0.5) / count) for number in range(count)]
    scale = math.sqrt(sum(score**2 for score in scores) / (count - 1))
    random.Random(count).shuffle(scores)
    return [mean + deviation * score / scale for score in scores]


def noisy(mean: float, share: float, dice: random.Random, count: int = 10) -> list[float]:
    """Samples that scatter about a mean by a share of it, as a measurement would."""
    return [mean * math.exp(dice.gauss(0, share)) for _ in range(count)]


def time_cell(
    phases_s: Mapping[str, Sequence[float]],
    *,
    warmup_s: Sequence[float] = (),
    outcome: Outcome = "ok",
    cautions: Sequence[CautionCode] = (),
    hardware_: DeviceInfo = A100.devices[0],
    allocated: int | None = None,
    compile_s: float | None = None,
    **axes: Any,
) -> TimeCellRecord:
    """One cell with these samples, in seconds, of each phase; `step` is their sum unless it is given."""
    defaults = {"ctx": (256,), "mode": ("train" if "optimizer" in phases_s else "forward-backward",)}
    if set(phases_s) == {"forward"}:
        defaults["mode"] = ("forward",)
    asked = {name: (value,) if not isinstance(value, tuple) else value for name, value in axes.items()}
    (cell,) = TimeSpec.model_validate({**defaults, **asked}).cells()
    phases = _phases(cell, phases_s)
    return TimeCellRecord(
        key=cell.key,
        axes=cell.model_dump(),
        device=hardware_,
        outcome=outcome,
        detail=None,
        cautions=[caution(code, "", excess_share=0.1) for code in cautions],
        model=ModelRecord(
            parameters=formulas.parameters(cell.model),
            parameters_without_lm_head=formulas.parameters_without_lm_head(cell.model),
            forward_flops=formulas.forward_flops(cell.model, cell.ctx, cell.batch),
        ),
        build_s=None,
        compile_s=compile_s,
        graph_breaks=None,
        attention_kernel=None,
        loss=None,
        phases=phases,
        warmup_samples_s=list(warmup_s),
        memory=PeakRecord(
            allocated_peak_bytes=allocated,
            reserved_peak_bytes=None,
            device_used_peak_bytes=None,
            host_rss_peak_bytes=None,
        ),
        rates=_rates(cell, phases.get("step"), hardware_),
        readings=None,
    )


def _phases(cell: TimeCell, phases_s: Mapping[str, Sequence[float]]) -> dict[str, PhaseRecord]:
    if not phases_s:
        return {}
    ordered = {phase: phases_s[phase] for phase in PHASES_OF[cell.mode] if phase in phases_s}
    ordered["step"] = phases_s.get("step") or [sum(step) for step in zip(*ordered.values(), strict=True)]
    return {
        phase: PhaseRecord(wall=samples_of(list(values)), device=None, enqueue_median_s=None)
        for phase, values in ordered.items()
    }


def _rates(cell: TimeCell, step: PhaseRecord | None, device: DeviceInfo) -> RateRecord | None:
    known = hardware.find(device.name, device.memory_bytes)
    peak = known.peak_flops_per_s.get(cell.precision) if known else None
    if step is None or step.wall is None:
        return None
    flops = formulas.step_flops_of(cell)
    reached = flops / step.wall.mean_s
    return RateRecord(
        step_flops=flops,
        flops_per_s=reached,
        tokens_per_s=cell.tokens / step.wall.mean_s,
        peak_flops_per_s=peak,
        peak_source=known.source if known and peak else None,
        peak_share=reached / peak if peak else None,
        ceiling_flops_per_s=None,
        ceiling_share=None,
    )


def time_record(cells: Sequence[TimeCellRecord]) -> TimeRecord:
    """A run of these cells."""
    return TimeRecord(
        sysbench_version="0.1.0",
        source_digest="0" * 16,
        started_at="2026-11-20T14:00:00Z",
        finished_at="2026-11-20T15:00:00Z",
        status="complete",
        spec=TimeSpec().model_dump(mode="json"),
        environment=EnvironmentRecord(host=A100.host, torch=A100.torch, devices=list(A100.devices), driver=A100.driver),
        cells=list(cells),
        ceilings=[],
    )


# --- what has been published

Phase = tuple[float, float]
"""Mean and standard deviation, in milliseconds."""

FIRST_FP32: dict[tuple[str, int], tuple[Phase, Phase]] = {
    ("small", 128): ((33.29, 0.71), (46.72, 0.15)),
    ("small", 256): ((33.48, 0.06), (46.75, 0.14)),
    ("small", 512): ((33.98, 0.18), (46.91, 0.59)),
    ("small", 1024): ((45.92, 0.07), (91.94, 0.06)),
    ("medium", 128): ((66.56, 0.69), (90.77, 1.65)),
    ("medium", 256): ((65.87, 0.19), (90.53, 1.25)),
    ("medium", 512): ((67.23, 1.11), (116.87, 0.62)),
    ("medium", 1024): ((127.85, 0.08), (258.95, 0.07)),
    ("large", 128): ((100.19, 2.55), (138.09, 4.66)),
    ("large", 256): ((101.18, 2.08), (140.42, 1.37)),
    ("large", 512): ((129.17, 0.11), (267.12, 0.84)),
    ("large", 1024): ((280.65, 0.11), (571.43, 0.12)),
}
"""Forward and backward by size and context, in fp32."""

FIRST_BF16: dict[tuple[str, int], tuple[Phase, Phase]] = {
    ("small", 128): ((22.11, 0.09), (24.94, 0.16)),
    ("small", 256): ((22.12, 0.12), (25.51, 0.13)),
    ("small", 512): ((23.25, 0.11), (25.84, 0.13)),
    ("small", 1024): ((24.28, 0.22), (46.08, 0.02)),
    ("medium", 128): ((45.25, 0.39), (49.41, 0.40)),
    ("medium", 256): ((45.19, 0.19), (50.24, 0.10)),
    ("medium", 512): ((45.74, 0.14), (50.33, 0.07)),
    ("medium", 1024): ((59.72, 0.02), (117.27, 0.09)),
    ("large", 128): ((68.26, 1.07), (74.59, 0.40)),
    ("large", 256): ((68.47, 0.22), (75.80, 0.51)),
    ("large", 512): ((69.77, 0.12), (94.88, 0.16)),
    ("large", 1024): ((111.83, 0.05), (221.46, 0.19)),
}
"""The same under bf16 autocast."""


H100 = DeviceInfo(name="NVIDIA H100 80GB HBM3", type="cuda", memory_bytes=80 * 2**30, compute_capability="9.0")


def first_report(precisions: Sequence[str] = ("fp32",)) -> list[TimeCellRecord]:
    """The cells of the first report's tables."""
    tables = {"fp32": FIRST_FP32, "bf16": FIRST_BF16}
    return [
        time_cell(
            {
                "forward": spread_about(forward[0] * MS, forward[1] * MS),
                "backward": spread_about(backward[0] * MS, backward[1] * MS),
            },
            size=size,
            ctx=ctx,
            precision=precision,
            hardware_=H100,
        )
        for (size, ctx) in FIRST_FP32
        for precision in precisions
        for forward, backward in [tables[precision][size, ctx]]
    ]


SECOND_FORWARD = {
    "fp32": {"small": (34.57, 0.22), "medium": (109.64, 3.14), "large": (232.65, 2.07), "xl": (482.49, 2.92)},
    "bf16": {"small": (19.94, 0.2), "medium": (46.15, 0.5), "large": (97.46, 1.0), "xl": (175.44, 1.5)},
}
"""Forward at ctx 256; the deviations under bf16 were not published."""


def second_report() -> list[TimeCellRecord]:
    """Forward alone, in both precisions."""
    return [
        time_cell({"forward": spread_about(mean * MS, std * MS)}, size=size, precision=precision)
        for size in SECOND_FORWARD["fp32"]
        for precision in ("fp32", "bf16")
        for mean, std in [SECOND_FORWARD[precision][size]]
    ]


THIRD_FP32 = {"small": 1.051070 / 10, "medium": 2.346358 / 10, "large": 5.040824 / 10, "xl": 10.263995 / 10}
THIRD_MIXED = {"small": 1.404737 / 10, "medium": 2.731696 / 10, "large": 3.574693 / 10, "xl": 5.160632 / 10}
"""Forward and backward of the third report, added up and over ten runs, in seconds; `2.7b` follows."""
THIRD_FP32["2.7b"], THIRD_MIXED["2.7b"] = 15.319212 / 10, 5.02569 / 10


def third_report() -> list[TimeCellRecord]:
    """Forward and backward as one number, which is all that was published, with a deviation of 0.5%."""
    shares = {"forward": 1 / 3, "backward": 2 / 3}
    return [
        time_cell(
            {phase: spread_about(table[size] * share, 0.005 * table[size] * share) for phase, share in shares.items()},
            size=size,
            precision=precision,
        )
        for size in THIRD_FP32
        for precision, table in (("fp32", THIRD_FP32), ("bf16", THIRD_MIXED))
    ]


FOURTH_WARM = [139.712, 139.525, 139.595, 139.690, 139.495, 139.586, 139.558, 139.519, 139.620, 139.562]
FOURTH_COLD = [1763.265, 139.647, 139.629, 139.385, 139.861, 139.324, 139.371, 139.572, 139.327, 139.655]
"""Forward of `large`, ten steps after a warm-up and ten without one, in milliseconds."""

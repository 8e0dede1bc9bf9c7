"""Measures the host's time per operator, as the time that twelve more layers of a narrow model add to a step.

The model is narrow so that the device has next to nothing to do; with two depths the fixed cost of a step cancels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from statistics import median

from sysbench.commands.calibrate.record import RateName
from sysbench.commands.calibrate.spec import CalibrateCell
from sysbench.commands.calibrate.timing import Bench, Timed
from sysbench.lab.clocks import clock_for
from sysbench.lab.step import TrainingStep
from sysbench.predict.trace import HOST_WORK, PhaseTrace
from sysbench.predict.tracing import trace
from sysbench.simulate.gpu import Gpu
from sysbench.spec.model import ModelCell, ModelShape, Phase

DEPTHS = (2, 14)

VIEW_SHARE = 0.2
"""Cost of a view relative to an operator: 1.6 of 8.0 µs forward, 1.3 of 6.5 µs backward on an Emerald Rapids Xeon."""

LAUNCH_S = 4.5e-6
"""Time that launching a kernel adds on CUDA, if it is not measured: 4 to 5 µs."""

STEPS = 7
LEAST_STEPS, MOST_STEPS = 9, 60

RATES: Mapping[Phase, tuple[RateName, RateName]] = {
    "forward": ("operator", "view"),
    "backward": ("operator_backward", "view_backward"),
}


def host(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time operators and views, separately for forward and backward, with the clock of the thread that issues them."""
    shallow, deep = (_narrow(layers, cell.seed, bench.device.type) for layers in DEPTHS)
    taken_s = [_phases_s(each, bench) for each in (shallow, deep)]
    gpu = Gpu("", 1 << 40, (8, 0))
    counted = [{phase.name: phase for phase in trace(each, gpu)[0].phases} for each in (shallow, deep)]
    for phase, (operator, view) in RATES.items():
        operators, views = (
            _count(counted[1][phase], work) - _count(counted[0][phase], work) for work in ("operator", "view")
        )
        launched = len(counted[1][phase].kernels) - len(counted[0][phase].kernels)
        launching_s = launched * LAUNCH_S if bench.device.type == "cuda" else 0.0
        base_s = median(taken_s[0][phase])
        added_s = [max(each - base_s - launching_s, 1e-6) for each in taken_s[1][phase]]
        parts = operators + VIEW_SHARE * views
        case = f"{operators} operators, {views} views in {DEPTHS[1] - DEPTHS[0]} layers"
        yield Timed(operator, f"{phase}: {case}", True, parts, added_s)
        yield Timed(view, f"{phase}: {case}", True, parts / VIEW_SHARE, added_s)


def _count(phase: PhaseTrace, work: str) -> int:
    return int((phase.host == HOST_WORK.index(work)).sum())


def _narrow(layers: int, seed: int, device: str) -> ModelCell:
    return ModelCell(
        size="narrow",
        model=ModelShape(d_model=32, d_ff=64, layers=layers, heads=2, vocab=64),
        ctx=8,
        batch=1,
        precision="fp32",
        device=device,
        attention="naive",
        execution="eager",
        optimizer="foreach",
        seed=seed,
        mode="forward-backward",
    )


def _phases_s(cell: ModelCell, bench: Bench) -> dict[str, list[float]]:
    """Measure the seconds until the host has issued each phase, for the last of the steps that fit into the budget."""
    step, clock = TrainingStep(cell, bench.device), clock_for(bench.device)
    until_s = time.perf_counter() + bench.budget_s / len(DEPTHS)
    taken_s: dict[str, list[float]] = {}
    for number in range(MOST_STEPS):
        if number >= LEAST_STEPS and time.perf_counter() > until_s:
            break
        step.forget()
        for name, sample in clock.measure(step.phases, "phase").phases.items():
            seconds = sample.wall_s if sample.enqueue_s is None else sample.enqueue_s
            taken_s.setdefault(name, []).append(seconds or 0.0)
    return {name: each[-STEPS:] for name, each in taken_s.items()}

"""Recordings that are computed from traced ones, against the trace itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sysbench.commands.fit.spec import FitSpec
from sysbench.predict.simulated_step import SimulatedStep
from sysbench.simulate.family import DEGREES, RecordingFamily
from sysbench.simulate.recording import Recording

SHAPE = {"d_model": (64,), "d_ff": (128,), "layers": (1,), "heads": (2,), "vocab": (4000,), "gpus": ("h100",)}

NAIVE: Mapping[str, Any] = {}
FUSED = {"attention": ("sdpa",), "precision": ("bf16",), "optimizer": ("fused",)}


def family(axis: str, knobs: Mapping[str, Any], *traced: int) -> tuple[RecordingFamily, Callable[[int], Recording]]:
    """Return a family of traced recordings, and the trace of any other."""
    (cell,) = FitSpec(**SHAPE, **knobs, ctx=(256,), batch=(8,)).cells()

    def trace(value: int) -> Recording:
        replay, _ = SimulatedStep(cell.step.model_copy(update={axis: value}), "h100").memory
        return replay.recording

    return RecordingFamily(DEGREES[axis], {value: trace(value) for value in traced}), trace


@pytest.mark.parametrize("knobs", [NAIVE, FUSED])
@pytest.mark.parametrize(
    ("axis", "traced", "values"), [("batch", (16, 32, 128), (17, 96)), ("ctx", (512, 1024, 2048, 4096), (640, 3840))]
)
def test_the_requests_of_a_trace_lie_within_the_computed_bounds(
    axis: str, knobs: Mapping[str, Any], traced: tuple[int, ...], values: tuple[int, ...]
) -> None:
    steps, trace = family(axis, knobs, *traced)
    for value in values:
        bounds, alone = steps.bounds(value), trace(value)
        lower, upper = bounds[0], bounds[-1]
        assert lower.events == upper.events == alone.events
        exact = 0
        for low, request, high in zip(lower.allocations, alone.allocations, upper.allocations, strict=True):
            assert low.size_bytes <= request.size_bytes <= high.size_bytes
            exact += low.size_bytes == high.size_bytes
        assert exact > 0.9 * len(alone.allocations)


def test_nothing_is_computed_beyond_the_traced_steps_or_from_too_few_or_from_others() -> None:
    few, _ = family("batch", NAIVE, 16, 32)
    assert few.bounds(24) == ()
    steps, _ = family("batch", NAIVE, 16, 32, 64)
    assert steps.bounds(80) == ()
    assert steps.bounds(4) == ()
    chunked, _ = family("batch", {"cross_entropy": ("chunked",)}, 16, 32, 64)
    assert chunked.bounds(24) == ()

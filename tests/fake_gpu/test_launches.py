"""Predictions launch what the real dispatcher launches: a sample of `tests/bench/fake_gpu_launches.py`."""

from __future__ import annotations

import pytest

from tests.fake_gpu.fake import FakeGpu
from tests.fake_gpu.launches import Axes, compare

TINY = {"size": "tiny", "batch": "2", "ctx": "64", "mode": "train"}
EXACT: tuple[Axes, ...] = (
    {**TINY, "precision": "fp32"},
    {**TINY, "precision": "bf16", "grad_accum": "2", "optimizer": "fused"},
    {**TINY, "precision": "bf16", "optimizer": "for-loop"},
    {**TINY, "ctx": "160", "precision": "fp32", "attention": "efficient"},
    {**TINY, "precision": "bf16", "mode": "inference"},
)
NEARLY: tuple[Axes, ...] = (
    {**TINY, "precision": "bf16", "attention": "flash"},
    {**TINY, "precision": "bf16", "attention": "math"},
    {**TINY, "precision": "bf16", "attention": "cudnn"},
)
"""A layer's backward has one kernel more or less: a copy that depends on strides, and what cuDNN makes of its plan."""
LAYERS = 4


def test_each_phase_launches_as_many_kernels_and_products_as_predicted(fake_gpu: FakeGpu) -> None:
    off = {}
    for axes, phases in compare(fake_gpu, (*EXACT, *NEARLY)):
        allowed = 0 if axes in EXACT else LAYERS
        for phase in phases:
            assert phase.real_products == phase.traced_products
            if abs(phase.real - phase.traced) > (allowed if phase.name == "backward" else 0):
                off[(*axes.values(), phase.name)] = (phase.real, phase.traced)
    assert off == {}


@pytest.mark.slow  # Inductor compiles real kernels
@pytest.mark.parametrize(
    "axes",
    [
        {"precision": "bf16", "attention": "flash"},
        {"precision": "fp32", "attention": "naive", "mode": "forward-backward"},
    ],
    ids=["bf16-flash", "fp32-naive"],
)
def test_compiled_step_launches_the_kernels_that_inductor_generates(fake_gpu: FakeGpu, axes: Axes) -> None:
    ((_, phases),) = compare(fake_gpu, ({**TINY, "execution": "compiled", **axes},))
    for phase in phases:
        assert phase.real_generated == phase.traced_generated
        assert phase.real_products == phase.traced_products
        assert abs(phase.real - phase.traced) <= (LAYERS if phase.name == "backward" else 0)
    generated = {phase.name: sum(phase.real_generated.values()) for phase in phases}
    assert min(generated["forward"], generated["backward"]) > 2 * LAYERS

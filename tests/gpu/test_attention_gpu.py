"""Attention on an NVIDIA GPU: exact, counted by the allocator, and timed as triton times it."""

from __future__ import annotations

from typing import TypeGuard

import pytest
import torch

from sysbench import formulas as attention_costs
from sysbench import statistics
from sysbench.commands.attention.measure import run
from sysbench.commands.attention.record import AttentionAccounted, AttentionChecked, AttentionMemory, AttentionTimed
from sysbench.commands.attention.simulate import simulate
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.errors import DoesNotFitError
from sysbench.lab.attention_functions import function_for, inputs_for
from sysbench.lab.devices import available_devices
from sysbench.log.events import Compiled
from sysbench.simulate.gpu import Gpu
from sysbench.spec.attention import AttentionCell

pytestmark = pytest.mark.gpu

IMPLEMENTATIONS = ("naive", "compiled", "sdpa-math", "sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "flex")


def cell(implementation: str, **axes: object) -> AttentionCell:
    given = {
        "impl": implementation,
        "dim": "64",
        "seq": "1024",
        "heads": "4",
        "precision": "bf16",
        "repeats": 50,
        **axes,
    }
    (found,) = AttentionSpec(**given).cells()  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_implementation_agrees_with_fp64(implementation: str, causal: bool) -> None:
    events = list(run(cell(implementation, causal=causal), available_devices()[0]))
    checked = next(event for event in events if isinstance(event, AttentionChecked))
    assert all(error.relative < 3e-2 for error in checked.errors.values())
    compiled = [event for event in events if isinstance(event, Compiled)]
    assert not any(event.fell_back for event in compiled)


def test_the_allocator_holds_two_squares_a_row_before_backward() -> None:
    one = cell("naive", precision="fp32", seq="2048").model_copy(update={"heads": None})
    events = run(one, available_devices()[0])
    memory = next(event for event in events if isinstance(event, AttentionMemory))
    assert memory.saved_bytes == pytest.approx(attention_costs.naive_saved_bytes(one), rel=0.01)


@pytest.mark.alone
@pytest.mark.parametrize("implementation", ["naive", "sdpa-flash"])
def test_forward_takes_what_triton_says_it_takes(implementation: str) -> None:
    from triton.testing import do_bench

    one = cell(implementation, seq="4096")
    device = torch.device("cuda:0")
    timed = [
        event.sample.device_s
        for event in run(one, available_devices()[0])
        if isinstance(event, AttentionTimed) and event.phase == "forward" and not event.warmup
    ]
    inputs, function = inputs_for(one, device), function_for(one, device)
    expected_s = do_bench(lambda: function(*inputs), return_mode="median") / 1e3
    ours_s = statistics.summarize([seconds for seconds in timed if seconds is not None]).median
    assert ours_s == pytest.approx(expected_s, rel=0.03)


SIMULATED = ("naive", "sdpa-math", "sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "flex", "flash-attn")
EXACT = ("naive", "sdpa-math", "sdpa-efficient", "sdpa-flash")
"""Everything that these allocate is read in their sources; of the others something is inferred."""


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seq", "heads"), [("256", "4"), ("1000", "1"), ("2048", "16"), ("8192", "2")])
@pytest.mark.parametrize("implementation", SIMULATED)
def test_simulated_memory_is_measured_memory(implementation: str, seq: str, heads: str, causal: bool) -> None:
    """Saved bytes and peaks, at sizes below and above those that the allocator has pools for."""
    if implementation == "flash-attn":
        pytest.importorskip("flash_attn")
    one = cell(implementation, seq=seq, heads=heads, causal=causal, repeats=1, warmup=0)
    device = available_devices()[0]
    assert device.memory_bytes is not None
    measured = next(event for event in run(one, device) if isinstance(event, AttentionMemory))
    simulated = simulate(one, Gpu.like(device, device.memory_bytes))
    tolerance = 0.01 if implementation in EXACT else 0.05
    pairs = {
        "saved": (simulated.saved_bytes, measured.saved_bytes, 4096),
        "before backward": (simulated.before_backward_bytes, measured.before_backward_bytes, 4096),
        "allocated": (simulated.peak_allocated_bytes, measured.peak_allocated_bytes, 2**20),
        "reserved": (simulated.peak_reserved_bytes, measured.peak_reserved_bytes, 22 * 2**20),
    }
    for what, (ours, theirs, absolute) in pairs.items():
        assert ours == pytest.approx(theirs, rel=tolerance, abs=absolute), what


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("implementation", ["naive", "sdpa-math", "sdpa-efficient"])
def test_what_is_simulated_in_other_precisions_is_measured_too(implementation: str, precision: str) -> None:
    one = cell(implementation, precision=precision, repeats=1, warmup=0)
    device = available_devices()[0]
    assert device.memory_bytes is not None
    measured = next(event for event in run(one, device) if isinstance(event, AttentionMemory))
    simulated = simulate(one, Gpu.like(device, device.memory_bytes))
    assert simulated.saved_bytes == pytest.approx(measured.saved_bytes, rel=0.01, abs=4096)
    assert simulated.peak_allocated_bytes == pytest.approx(measured.peak_allocated_bytes, rel=0.01, abs=2**20)


@pytest.mark.alone
def test_a_cell_that_ran_out_of_memory_is_accounted_for() -> None:
    one = cell("naive", precision="fp32", seq="131072", heads="16")
    events = run(one, available_devices()[0])
    accounted = next(event for event in events if isinstance(event, AttentionAccounted))
    assert accounted.reserved_bytes is not None
    assert accounted.available_bytes is not None
    assert accounted.reserved_bytes > accounted.available_bytes
    with pytest.raises(DoesNotFitError):
        next(events)


def test_every_cell_of_a_worker_starts_from_the_same() -> None:
    """cuBLAS keeps its workspaces; the second cell must not seem to need less for it."""
    found = [
        next(event for event in run(cell("naive", repeats=1, warmup=0), available_devices()[0]) if is_memory(event))
        for _ in range(2)
    ]
    assert found[0].model_copy(update={"at_s": 0.0}) == found[1].model_copy(update={"at_s": 0.0})


def is_memory(event: object) -> TypeGuard[AttentionMemory]:
    return isinstance(event, AttentionMemory)

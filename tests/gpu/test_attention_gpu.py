"""Attention on an NVIDIA GPU: exact, counted by the allocator, and timed as triton times it."""

from __future__ import annotations

import pytest
import torch

from sysbench import attention_costs, statistics
from sysbench.events import AttentionChecked, AttentionMemory, AttentionTimed, Compiled
from sysbench.experiments.attention import run
from sysbench.instruments.device import available_devices
from sysbench.specs.attention import AttentionCell, AttentionSpec
from sysbench.workload.attention_call import inputs_for
from sysbench.workload.attention_functions import function_for

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

"""Attention as it is measured: right results, backward alone, what is kept, and everything that can go wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sysbench import attention_costs
from sysbench.errors import BeyondMemoryError, DoesNotFitError, UnavailableError
from sysbench.events import (
    AttentionAccounted,
    AttentionChecked,
    AttentionKernels,
    AttentionMemory,
    AttentionTimed,
    DeviceInfo,
    Event,
)
from sysbench.experiments import attention as experiment
from sysbench.experiments.attention import run
from sysbench.experiments.attention_memory import counted
from sysbench.specs.attention import AttentionCell, AttentionSpec
from sysbench.workload.attention_call import inputs_for
from sysbench.workload.attention_functions import function_for

CPU = DeviceInfo(name="a processor", type="cpu")


def cell(**axes: object) -> AttentionCell:
    given = {
        "impl": "naive",
        "dim": "16",
        "seq": "48",
        "batch": "2",
        "repeats": 3,
        "warmup": 1,
        "device": "cpu",
        **axes,
    }
    (found,) = AttentionSpec(**given).cells()  # type: ignore[arg-type]
    return found


def said(events: list[Event], kind: type) -> list[object]:
    return [event for event in events if isinstance(event, kind)]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's own, where sysbench is started."""
    (tmp_path / "my_attention.py").write_text(
        "import torch\n"
        "def good(q, k, v): return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v\n"
        "def wrong_shape(q, k, v): return q.sum()\n"
        "def nothing(q, k, v): return None\n"
        "def not_finite(q, k, v): return q * float('nan')\n"
        "def detached(q, k, v): return v.detach() * 1\n"
        "def of_v_alone(q, k, v): return v * 1\n"
        "def inexact(q, k, v): return good(q, k, v) * 1.01\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("my_attention", None)


@pytest.mark.parametrize("implementation", ["naive", "sdpa-math", "sdpa-flash"])
@pytest.mark.parametrize("heads", ["", "3"])
@pytest.mark.parametrize("causal", [False, True])
def test_every_implementation_agrees_with_fp64_forward_and_backward(
    implementation: str, heads: str, causal: bool
) -> None:
    one = cell(impl=implementation, causal=causal, **({"heads": heads} if heads else {}))
    events = list(run(one, CPU))
    (checked,) = said(events, AttentionChecked)
    assert isinstance(checked, AttentionChecked)
    assert set(checked.errors) == {"output", "q", "k", "v"}
    assert all(error.relative < 1e-5 for error in checked.errors.values())


def test_a_half_precision_is_as_exact_as_its_digits() -> None:
    (checked,) = said(list(run(cell(precision="bf16"), CPU)), AttentionChecked)
    assert isinstance(checked, AttentionChecked)
    assert all(1e-4 < error.relative < 3e-2 for error in checked.errors.values())


def test_an_inexact_function_of_the_users_own_shows(own: Path) -> None:
    (checked,) = said(list(run(cell(impl="my_attention:inexact"), CPU)), AttentionChecked)
    assert isinstance(checked, AttentionChecked)
    assert checked.errors["output"].relative == pytest.approx(0.01, rel=0.01)


def test_of_a_long_sequence_some_queries_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "LONGEST_CHECKED", 32)
    for causal in (False, True):
        (checked,) = said(list(run(cell(causal=causal), CPU)), AttentionChecked)
        assert isinstance(checked, AttentionChecked)
        assert set(checked.errors) == {"output", "q"}
        assert all(error.relative < 1e-5 for error in checked.errors.values())


def test_all_forwards_come_before_all_backwards_after_their_warm_up() -> None:
    timed = said(list(run(cell(), CPU)), AttentionTimed)
    order = [(each.warmup, each.phase, each.index) for each in timed if isinstance(each, AttentionTimed)]
    assert order == [
        (True, "forward", 0),
        (True, "backward", 0),
        *((False, "forward", number) for number in range(3)),
        *((False, "backward", number) for number in range(3)),
    ]
    assert all(each.sample.wall_s and each.sample.wall_s > 0 for each in timed if isinstance(each, AttentionTimed))


@pytest.mark.parametrize(("seq", "batch"), [(64, 2), (96, 1), (128, 3)])
def test_the_written_out_kind_keeps_two_squares_a_row_and_a_sum_for_every_query(seq: int, batch: int) -> None:
    one = cell(seq=seq, batch=batch)
    (memory,) = said(list(run(one, CPU)), AttentionMemory)
    assert isinstance(memory, AttentionMemory)
    sums = 4 * batch * seq
    squares = attention_costs.naive_saved_bytes(one)
    assert squares == 8 * batch * seq**2
    assert memory.saved_bytes is not None
    assert 0 <= memory.saved_bytes - squares - sums < 4 * 512, "whole blocks of 512 bytes"


def test_a_fused_kernel_keeps_one_number_for_every_query() -> None:
    one = cell(impl="sdpa-flash", seq=256)
    (memory,) = said(list(run(one, CPU)), AttentionMemory)
    assert isinstance(memory, AttentionMemory)
    assert memory.saved_bytes == attention_costs.fused_saved_bytes(one) == 4 * 2 * 256


@pytest.mark.parametrize("implementation", ["naive", "sdpa-math", "sdpa-flash"])
def test_counting_without_data_gives_the_bytes_of_real_tensors(implementation: str) -> None:
    one = cell(impl=implementation, seq=64)
    imagined, real = counted(one), counted(one, real=inputs_for(one, torch.device("cpu")))
    assert imagined is not None
    assert real is not None
    assert (imagined.before_backward_bytes, imagined.saved_bytes, imagined.peak_bytes) == (
        real.before_backward_bytes,
        real.saved_bytes,
        real.peak_bytes,
    )
    assert sum(each.size_bytes for each in imagined.at_peak) == imagined.peak_bytes


def test_a_simulation_says_what_fits_and_accounts_for_what_does_not() -> None:
    fits = list(run(cell(simulate="24GiB", seq=4096, device="auto"), CPU))
    (memory,) = said(fits, AttentionMemory)
    assert isinstance(memory, AttentionMemory)
    assert memory.source == "simulated"
    assert not said(fits, AttentionTimed)
    beyond = run(cell(simulate="24GiB", seq=65536, device="auto"), CPU)
    accounted = next(event for event in beyond if isinstance(event, AttentionAccounted))
    assert [2, 65536, 65536] in [tensor.shape for tensor in accounted.tensors]
    with pytest.raises(DoesNotFitError, match=r"needs .* GiB, and there are 23\.4 GiB"):
        next(beyond)


def test_what_the_host_has_no_memory_for_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "host_available_bytes", lambda: 2**20)
    monkeypatch.setattr(experiment, "inputs_for", lambda *_: pytest.fail("tensors were made"))
    beyond = run(cell(seq=1024), CPU)
    accounted = next(beyond)
    assert isinstance(accounted, AttentionAccounted)
    assert sum(each.size_bytes for each in accounted.tensors) > accounted.available_bytes == 2**20
    with pytest.raises(BeyondMemoryError, match=r"needs .* MiB, and there are 1\.00 MiB of memory"):
        next(beyond)


def test_the_kernel_that_really_ran_is_named() -> None:
    for implementation, expected in (
        ("naive", "aten::bmm"),
        ("sdpa-flash", "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ):
        (kernels,) = said(list(run(cell(impl=implementation), CPU)), AttentionKernels)
        assert isinstance(kernels, AttentionKernels)
        assert kernels.forward == expected


@pytest.mark.parametrize(
    ("implementation", "reason"),
    [
        ("sdpa-cudnn", "No viable backend"),
        ("sdpa-efficient", "No viable backend"),
        ("flex", "no backward on cpu"),
        ("flash-attn", "not installed"),
        ("my_attention:wrong_shape", r"returned \(\) where attention gives \(2, 48, 16\)"),
        ("my_attention:nothing", "returned NoneType"),
        ("my_attention:not_finite", "not finite"),
        ("my_attention:detached", "without a gradient"),
        ("my_attention:of_v_alone", "gives no gradient to q, k and v"),
        ("my_attention:absent", "has no function absent"),
        ("no_such_module:attention", "cannot be imported"),
    ],
)
def test_what_is_not_attention_or_not_here_says_so(own: Path, implementation: str, reason: str) -> None:
    with pytest.raises(UnavailableError, match=reason):
        list(run(cell(impl=implementation), CPU))


def test_a_function_of_the_users_own_is_measured_like_ours(own: Path) -> None:
    events = list(run(cell(impl="my_attention:good"), CPU))
    assert len(said(events, AttentionTimed)) == 8
    assert not said(events, AttentionMemory), "what is not known to be counted right is not counted"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_compiled_kind_is_compiled_apart_and_agrees_with_fp64() -> None:
    from sysbench.events import Compiled

    events = list(run(cell(impl="compiled"), CPU))
    (compiled,) = said(events, Compiled)
    assert isinstance(compiled, Compiled)
    assert not compiled.fell_back
    assert compiled.graphs >= 1
    (checked,) = said(events, AttentionChecked)
    assert isinstance(checked, AttentionChecked)
    assert all(error.relative < 1e-5 for error in checked.errors.values())


def test_the_inputs_are_the_same_for_every_implementation() -> None:
    one, other = (inputs_for(cell(impl=name), torch.device("cpu")) for name in ("naive", "sdpa-flash"))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(tensor.requires_grad and tensor.is_leaf for tensor in one)
    assert function_for(cell(), torch.device("cpu"))(*one).shape == one[0].shape

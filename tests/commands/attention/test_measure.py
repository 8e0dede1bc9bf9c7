"""Attention as it is measured: right results, backward alone, what is kept, and everything that can go wrong."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from sysbench import formulas as attention_costs
from sysbench.commands.attention import fold
from sysbench.commands.attention import measure as experiment
from sysbench.commands.attention.measure import run
from sysbench.commands.attention.measure_memory import count_memory
from sysbench.commands.attention.record import (
    AttentionAccounted,
    AttentionChecked,
    AttentionImported,
    AttentionKernels,
    AttentionMemory,
    AttentionTimed,
    RepeatsReduced,
)
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.errors import BeyondMemoryError, DoesNotFitError, OverBudgetError, UnavailableError
from sysbench.lab.attention_functions import function_for, inputs_for, naive
from sysbench.lab.clocks import Call, StepTimes
from sysbench.log.collect import CellEvents
from sysbench.log.events import Compiled, DeviceInfo, Event, PhaseSample
from sysbench.spec.attention import AttentionCell
from sysbench.spec.steps import Sync

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
    monkeypatch.setattr(experiment, "MAX_CHECKED_LENGTH", 32)
    for causal in (False, True):
        (checked,) = said(list(run(cell(causal=causal), CPU)), AttentionChecked)
        assert isinstance(checked, AttentionChecked)
        assert set(checked.errors) == {"output", "q"}
        assert all(error.relative < 1e-5 for error in checked.errors.values())


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that an operator has returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.untyped_storage().nbytes() // result.element_size())
        return result


def test_checking_a_long_causal_sequence_needs_no_square_of_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "MAX_CHECKED_LENGTH", 64)
    with LargestTensor() as largest:
        (checked,) = said(list(run(cell(impl="sdpa-flash", seq=512, causal=True), CPU)), AttentionChecked)
    assert isinstance(checked, AttentionChecked)
    assert checked.errors["output"].relative < 1e-5
    assert largest.elements < 512 * 512


def test_a_check_that_runs_out_of_memory_leaves_the_cell_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(causal: bool) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.")

    monkeypatch.setattr(experiment, "naive", out_of_memory)  # the reference in fp64, not what is measured
    one = cell(impl="sdpa-flash")
    events = list(run(one, CPU))
    assert len(said(events, AttentionTimed)) == 2 * 4
    (checked,) = said(events, AttentionChecked)
    assert isinstance(checked, AttentionChecked)
    assert checked.errors == {}
    seen = CellEvents(said={AttentionChecked: [checked]})
    assert "not-checked" in {each.code for each in fold._cautions(seen, {}, {})}


def test_a_device_without_fp64_is_compared_on_the_cpu() -> None:
    with FakeTensorMode():
        exact = experiment._exact(torch.empty(2, 3, device="mps"))  # Apple's GPUs refuse float64
        assert (exact.device.type, exact.dtype) == ("cpu", torch.float64)


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
    imagined, real = count_memory(one), count_memory(one, real=inputs_for(one, torch.device("cpu")))
    assert imagined is not None
    assert real is not None
    assert (imagined.before_backward_bytes, imagined.saved_bytes, imagined.peak_allocated_bytes) == (
        real.before_backward_bytes,
        real.saved_bytes,
        real.peak_allocated_bytes,
    )
    assert sum(each.size_bytes for each in imagined.at_peak) == imagined.peak_allocated_bytes


def test_a_simulation_says_what_fits_and_accounts_for_what_does_not() -> None:
    fits = list(run(cell(simulate="24GiB", seq=4096, device="auto"), CPU))
    (memory,) = said(fits, AttentionMemory)
    assert isinstance(memory, AttentionMemory)
    assert memory.source == "simulated"
    assert not said(fits, AttentionTimed)
    beyond = run(cell(simulate="24GiB", seq=65536, device="auto"), CPU)
    accounted = next(event for event in beyond if isinstance(event, AttentionAccounted))
    assert [2, 65536, 65536] in [tensor.shape for tensor in accounted.tensors]
    with pytest.raises(DoesNotFitError, match=r"needs .* GiB, and 23\.4 GiB are available"):
        next(beyond)


def test_what_the_host_has_no_memory_for_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "host_available_bytes", lambda: 2**20)
    monkeypatch.setattr(experiment, "inputs_for", lambda *_: pytest.fail("tensors were made"))
    beyond = run(cell(seq=1024), CPU)
    accounted = next(beyond)
    assert isinstance(accounted, AttentionAccounted)
    assert sum(each.size_bytes for each in accounted.tensors) > accounted.available_bytes == 2**20
    with pytest.raises(BeyondMemoryError, match=r"needs .* MiB, but this process has only 1\.00 MiB of memory"):
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
        ("my_attention:wrong_shape", r"returned \(\) instead of \(2, 48, 16\)"),
        ("my_attention:nothing", "returned NoneType"),
        ("my_attention:not_finite", "non-finite"),
        ("my_attention:detached", "does not require grad"),
        ("my_attention:of_v_alone", "computes no gradient of q, k and v"),
        ("my_attention:absent", "absent is not in my_attention"),
        ("no_such_module:attention", "no module no_such_module"),
    ],
)
def test_what_is_not_attention_or_not_here_says_so(own: Path, implementation: str, reason: str) -> None:
    with pytest.raises(UnavailableError, match=reason):
        list(run(cell(impl=implementation), CPU))


def test_a_function_of_the_users_own_is_measured_like_ours(own: Path) -> None:
    events = list(run(cell(impl="my_attention:good"), CPU))
    assert len(said(events, AttentionTimed)) == 8
    assert not said(events, AttentionMemory), "what is not known to be counted right is not counted"
    (imported,) = said(events, AttentionImported)
    assert isinstance(imported, AttentionImported)
    assert imported.file.path == str(own / "my_attention.py")
    assert imported.file.sha256 == hashlib.sha256((own / "my_attention.py").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="PyTorch compiles no attention without vector instructions ('at::vec' has not been declared)",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_compiled_kind_is_compiled_apart_and_agrees_with_fp64() -> None:
    events = list(run(cell(impl="compiled"), CPU))
    (compiled,) = said(events, Compiled)
    assert isinstance(compiled, Compiled)
    assert not compiled.fell_back
    assert compiled.graphs >= 1
    (checked,) = said(events, AttentionChecked)
    assert isinstance(checked, AttentionChecked)
    assert all(error.relative < 1e-5 for error in checked.errors.values())


@pytest.mark.slow
def test_what_dynamo_gave_up_on_is_no_compiled_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "function_for", lambda cell, device: naive(causal=cell.causal))
    fell_back = Compiled(
        at_s=0.0, cell="", compile_s=1.0, graphs=1, graph_breaks=0, fell_back=True, detail="recompile limit reached"
    )
    monkeypatch.setattr(experiment, "compiled_event", lambda cell, compile_s: fell_back)
    with pytest.raises(UnavailableError, match="fell back to eager execution: recompile limit reached"):
        list(run(cell(impl="compiled"), CPU))


def test_the_inputs_are_the_same_for_every_implementation() -> None:
    one, other = (inputs_for(cell(impl=name), torch.device("cpu")) for name in ("naive", "sdpa-flash"))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(tensor.requires_grad and tensor.is_leaf for tensor in one)
    assert function_for(cell(), torch.device("cpu"))(*one).shape == one[0].shape


# --- time limit


@pytest.fixture
def nothing_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "_SECONDS_PER_FLOP", {})


@pytest.mark.usefixtures("nothing_learnt")
def test_a_cell_that_would_take_too_long_going_by_a_smaller_one_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    list(run(cell(seq=32), CPU))
    monkeypatch.setattr(experiment, "inputs_for", lambda *_: pytest.fail("tensors were made"))
    with pytest.raises(OverBudgetError, match=r"one call takes about .*, longer than --max-time 1e-06s") as raised:
        list(run(cell(seq=2048, max_time=1e-6), CPU))
    assert raised.value.expected_s > 1e-6


@pytest.mark.usefixtures("nothing_learnt")
@pytest.mark.parametrize("other", [{"impl": "sdpa-math"}, {"dim": "8"}, {"causal": True}, {"precision": "bf16"}])
def test_what_one_kind_takes_says_nothing_of_another(other: dict[str, object]) -> None:
    list(run(cell(seq=32), CPU))
    begun: list[Event] = []
    with pytest.raises(OverBudgetError):
        begun.extend(run(cell(seq=48, max_time=1e-9, **other), CPU))
    assert said(begun, AttentionKernels), "it was called before it was given up"


@pytest.mark.usefixtures("nothing_learnt")
def test_a_first_cell_that_takes_too_long_ends_with_its_first_calls() -> None:
    seen: list[Event] = []
    with pytest.raises(OverBudgetError):
        seen.extend(run(cell(max_time=1e-9), CPU))
    assert said(seen, AttentionKernels)
    assert not said(seen, AttentionTimed)


@pytest.mark.usefixtures("nothing_learnt")
def test_repeats_shrink_to_the_time_limit_and_one_call_is_always_measured() -> None:
    events = list(run(cell(seq=64, warmup=1000, repeats=1_000_000, max_time=0.2), CPU))
    reduced = said(events, RepeatsReduced)[0]
    timed = [event for event in said(events, AttentionTimed) if not event.warmup and event.phase == "forward"]
    assert 1 <= len(timed) == reduced.repeats < 100_000
    assert reduced.warmup == pytest.approx(reduced.repeats / 1000, abs=1)
    assert experiment._affordable(cell(max_time=10.0), pair_s=9.0, spent_s=11.0) == (0, 1)


@pytest.mark.usefixtures("nothing_learnt")
def test_without_a_limit_all_repeats_are_measured() -> None:
    assert experiment._affordable(cell(warmup=10, repeats=100, max_time="none"), 1e6, 1e6) == (10, 100)


# --- copies of the input that are taken in turn


class Watch:
    """A clock that stands still and notes what is there when it starts and when it stops."""

    def __init__(self) -> None:
        self.calls: experiment._Calls | None = None
        self.noted: list[tuple[str, bool, bool, bool]] = []

    def measure(self, phases: Iterable[tuple[str, Call]], sync: Sync) -> StepTimes:
        assert self.calls is not None
        assert sync == "phase"
        ((phase, call),) = phases
        before = self.calls.output is not None
        call()
        after, grad = self.calls.output is not None, self.calls.inputs[0].grad is not None
        self.noted.append((phase, before, after, grad))
        sample = PhaseSample(wall_s=1.0)
        return StepTimes({phase: sample}, sample)


def test_every_copy_of_the_input_takes_its_turn_and_holds_a_gradient_only_then() -> None:
    one, watch = cell(), Watch()
    seen: dict[int, list[torch.Tensor]] = {}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.setdefault(q.data_ptr(), []).append(q)
        return (q @ k.mT).softmax(-1) @ v

    inputs = inputs_for(one, torch.device("cpu"))
    calls = experiment._Calls(one, attend, inputs, torch.ones_like(inputs[0]), watch)
    watch.calls = calls
    calls.prepare(3)
    for _ in range(6):
        calls.time("backward")
        assert sum(turns[0].grad is not None for turns in seen.values()) == 1
    assert [len(turns) for turns in seen.values()] == [2, 2, 2]
    assert all(torch.equal(turns[0], inputs[0]) for turns in seen.values())
    calls.forget()
    assert all(turns[0].grad is None for turns in seen.values())


def test_only_the_phase_that_is_asked_for_is_timed() -> None:
    one, watch = cell(), Watch()
    inputs = inputs_for(one, torch.device("cpu"))
    function = function_for(one, torch.device("cpu"))
    calls = experiment._Calls(one, function, inputs, torch.ones_like(inputs[0]), watch)
    watch.calls = calls
    calls.time("forward")
    calls.time("backward")
    assert watch.noted == [("forward", False, True, False), ("backward", True, True, True)]

"""Every kind of attention computes the same function, or says why it is not to be had."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from sysbench.errors import UnavailableError
from sysbench.lab.attention import KINDS, kernel_of, softmax
from sysbench.lab.ranges import visible_to
from sysbench.lab.transformer import build
from sysbench.spec.grid import ModelShape
from sysbench.spec.steps import Attention

CPU = torch.device("cpu")
BATCH, HEADS, CTX, D_HEAD = 2, 3, 33, 8
SHAPE = ModelShape(d_model=HEADS * D_HEAD, d_ff=40, layers=2, heads=HEADS, vocab=23)

TRAINABLE: dict[Attention, str] = {
    "naive": "aten::bmm",
    "sdpa": "aten::_scaled_dot_product_flash_attention_for_cpu",
    "flash": "aten::_scaled_dot_product_flash_attention_for_cpu",
    "math": "aten::bmm",
}
"""Kinds that a CPU can train with, and the operator each of them is."""

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def inputs(dtype: torch.dtype, *, gradients: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (3, BATCH, HEADS, CTX, D_HEAD)
    q, k, v = torch.randn(shape, generator=generator).to(dtype)
    return [each.clone().requires_grad_(gradients) for each in (q, k, v)]


def output_and_gradients(kind: Attention, dtype: torch.dtype) -> Iterator[Tensor]:
    q, k, v = inputs(dtype, gradients=True)
    output = KINDS[kind](CTX)(q, k, v)
    generator = torch.Generator().manual_seed(1)
    output.backward(torch.randn(output.shape, generator=generator).to(dtype))
    yield output
    for each in (q, k, v):
        assert each.grad is not None
        yield each.grad


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", [kind for kind in TRAINABLE if kind != "naive"])
def test_kinds_agree_with_the_written_out_one_in_output_and_gradients(kind: Attention, dtype: torch.dtype) -> None:
    for ours, written_out in zip(output_and_gradients(kind, dtype), output_and_gradients("naive", dtype), strict=True):
        assert ours.dtype == written_out.dtype == dtype
        torch.testing.assert_close(ours, written_out, rtol=0, atol=TOLERANCES[dtype] * written_out.abs().max().item())


@pytest.mark.filterwarnings("ignore:flex_attention called without")  # not fused on a CPU, and known not to be
def test_flex_agrees_where_it_runs() -> None:
    q, k, v = inputs(torch.float32, gradients=False)
    torch.testing.assert_close(KINDS["flex"](CTX)(q, k, v), KINDS["naive"](CTX)(q, k, v), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_names_its_kernel_or_says_why_it_is_not_there(kind: Attention) -> None:
    attention = KINDS[kind](CTX)
    if kind in TRAINABLE:
        assert kernel_of(attention, *inputs(torch.float32, gradients=True)) == TRAINABLE[kind]
        return
    reason = {"flex": "does not support backward on CPU"}.get(kind, "No viable backend")
    with pytest.raises(UnavailableError, match=reason) as refusal:
        kernel_of(attention, *inputs(torch.float32, gradients=True))
    assert re.fullmatch(r"[^\n]{10,200}", str(refusal.value))


def test_flex_names_its_kernel_without_gradients() -> None:
    assert kernel_of(KINDS["flex"](CTX), *inputs(torch.float32, gradients=False)) == "flex_attention"


def test_an_error_that_is_no_refusal_stays_what_it_was() -> None:
    q, k, _ = inputs(torch.float32, gradients=False)
    with pytest.raises(RuntimeError) as error:
        kernel_of(KINDS["naive"](CTX), q, k, torch.zeros(5, HEADS, CTX, D_HEAD))
    assert not isinstance(error.value, UnavailableError)


@pytest.mark.parametrize(
    ("types", "option"), [("{Half, BFloat16}", "; add --bf16"), ("{Half}", "; add --precision fp16")]
)
def test_a_refused_type_names_the_option_that_helps(types: str, option: str) -> None:
    class Refusing(torch.nn.Module):
        """What torch does on CUDA (ATen's sdp_utils.h)."""

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            expected = f"Expected query, key and value to all be of dtype: {types}. Got Query dtype: float"
            warnings.warn(f"{expected} (Triggered internally at sdp_utils.h:92.)", stacklevel=2)
            raise RuntimeError("No available kernel. Aborting execution.")

    with pytest.raises(UnavailableError, match=r"^No available kernel; Expected query.*\}" + re.escape(option) + "$"):
        kernel_of(Refusing(), *inputs(torch.float32, gradients=False))


def test_asking_for_the_kernel_leaves_no_gradients_on_the_model() -> None:
    model = build(SHAPE, CTX, "naive", CPU, seed=0)
    kernel_of(model.attend, *inputs(torch.float32, gradients=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_softmax_survives_scores_beyond_the_range_of_exp() -> None:
    scores = torch.tensor([[1e4, 1e4 - 1, float("-inf")]], requires_grad=True)
    weights = softmax(scores)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1))
    torch.testing.assert_close(weights[0, 1] / weights[0, 0], torch.tensor(0.36787944))
    assert weights[0, 2] == 0


def test_softmax_has_the_gradient_of_torchs() -> None:
    ours = torch.randn((5, 7), generator=torch.Generator().manual_seed(0)).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    upstream = torch.randn((5, 7), generator=torch.Generator().manual_seed(1))
    softmax(ours).backward(upstream)
    torch.softmax(theirs, dim=-1).backward(upstream)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_written_out_kind_saves_two_score_matrices_for_backward() -> None:
    """8·B·heads·T² bytes in fp32: exponentials and weights. A mask is kept once, for all layers."""
    large: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.numel() == BATCH * HEADS * CTX * CTX:
            large[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = KINDS["naive"](CTX)(*inputs(torch.float32, gradients=True))
    assert sum(large.values()) == 8 * BATCH * HEADS * CTX**2
    assert output.requires_grad


@pytest.mark.parametrize("kind", ["naive", "sdpa"])
def test_models_of_all_kinds_are_one_model(kind: Attention) -> None:
    tokens = torch.randint(SHAPE.vocab, (BATCH, CTX), generator=torch.Generator().manual_seed(0))
    written_out, other = (build(SHAPE, CTX, each, CPU, seed=1) for each in ("naive", kind))
    torch.testing.assert_close(other(tokens), written_out(tokens), rtol=1e-5, atol=1e-5)


# --- ranges --------------------------------------------------------------------------------------------------------


def names_in_profile(kind: Attention) -> set[str]:
    model = build(SHAPE, CTX, kind, CPU, seed=1)
    with (
        visible_to("record_function", model),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
    ):
        model(torch.zeros((1, CTX), dtype=torch.long))
    return {event.key for event in profile.key_averages()}


def layer_ranges(number: int) -> set[str]:
    attention, parts = f"layers.{number}.attention", ("q", "k", "v", "rotary", "attend", "output")
    return {f"layers.{number}", attention, f"layers.{number}.feed_forward.w2", *(f"{attention}.{x}" for x in parts)}


def test_a_profiler_sees_modules_by_their_path_in_each_layer_that_shares_them() -> None:
    parts = {f"layers.0.attention.attend.{part}" for part in ("scores", "mask", "softmax", "output")}
    naive, fused = names_in_profile("naive"), names_in_profile("sdpa")
    assert naive >= layer_ranges(0) | layer_ranges(1) | {"embedding", "final_norm", "lm_head"} | parts
    assert fused >= layer_ranges(0) | layer_ranges(1)
    assert not fused & parts


def test_a_model_has_no_ranges_and_no_hooks_once_no_profiler_is_on() -> None:
    model = build(SHAPE, CTX, "naive", CPU, seed=1)
    with visible_to("record_function", model):
        pass
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(torch.zeros((1, CTX), dtype=torch.long))
    assert not any("layers." in event.key or event.key == "scores" for event in profile.key_averages())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

"""The model is the one described: held to a second writing of it, in numpy and float64, one number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from sysbench import formulas
from sysbench.lab.transformer import RMSNorm, RotaryEmbedding, Transformer, build
from sysbench.lab.workload.losses import cross_entropy
from sysbench.spec.grid import SIZES, ModelShape

Array = NDArray[np.float64]

CPU = torch.device("cpu")
SHAPE = ModelShape(d_model=12, d_ff=20, layers=2, heads=3, vocab=11)
CTX = 7
BATCH = 2

PARAMETERS = {  # of a vocabulary of 10,000: all, and without lm_head
    "small": (128_625_408, 120_945_408),
    "medium": (423_183_360, 412_943_360),
    "large": (969_411_840, 956_611_840),
    "xl": (1_998_235_200, 1_982_235_200),
    "2.7b": (3_406_809_600, 3_381_209_600),
    "2026/xl": (3_406_809_600, 3_381_209_600),
}


@pytest.fixture(scope="module")
def model() -> Transformer:
    model = build(SHAPE, CTX, "naive", CPU, seed=3)
    generator = torch.Generator().manual_seed(4)
    for name, parameter in model.named_parameters():
        if name.endswith("gain"):  # drawn as ones, which would hide a gain that is not applied
            parameter.data.uniform_(0.5, 1.5, generator=generator)
    return model


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return torch.randint(SHAPE.vocab, (BATCH, CTX), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def targets() -> Tensor:
    return torch.randint(SHAPE.vocab, (BATCH, CTX), generator=torch.Generator().manual_seed(6))


# --- the second writing ------------------------------------------------------------------------------------------


def weights_of(model: Transformer) -> dict[str, Array]:
    return {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}


def normalised(x: Array, gain: Array) -> Array:
    return np.array([gain * row / math.sqrt(sum(value * value for value in row) / len(row) + 1e-5) for row in x])


def rotated(head: Array) -> Array:
    """Pairs of neighbours as complex numbers, turned by position / 10000^(2i/width)."""
    positions, width = head.shape
    turned = np.empty_like(head)
    for position in range(positions):
        for first in range(0, width, 2):
            angle = position / 10_000 ** (first / width)
            number = complex(head[position, first], head[position, first + 1]) * complex(
                math.cos(angle), math.sin(angle)
            )
            turned[position, first], turned[position, first + 1] = number.real, number.imag
    return turned


def attended(q: Array, k: Array, v: Array) -> Array:
    """Each query over the keys up to its own position, and no mask at all."""
    positions, width = q.shape
    output = np.zeros_like(v)
    for query in range(positions):
        scores = np.array([float(q[query] @ k[key]) / math.sqrt(width) for key in range(query + 1)])
        weights = np.exp(scores) / np.exp(scores).sum()
        for key in range(query + 1):
            output[query] += weights[key] * v[key]
    return output


def reference_logits(weights: dict[str, Array], sequence: NDArray[np.int64], shape: ModelShape) -> Array:
    """Logits (ctx, vocab) of one sequence."""
    width = shape.d_model // shape.heads
    x = weights["embedding.weight"][sequence]
    for layer in range(shape.layers):
        part = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}
        h = normalised(x, part["attention_norm.gain"])
        heads = []
        for head in range(shape.heads):
            rows = slice(head * width, (head + 1) * width)
            q, k, v = (h @ part[f"attention.{name}.weight"][rows].T for name in "qkv")
            heads.append(attended(rotated(q), rotated(k), v))
        x = x + np.concatenate(heads, axis=1) @ part["attention.output.weight"].T
        h = normalised(x, part["feed_forward_norm.gain"])
        gate = h @ part["feed_forward.w1.weight"].T
        gated = gate / (1 + np.exp(-gate)) * (h @ part["feed_forward.w3.weight"].T)
        x = x + gated @ part["feed_forward.w2.weight"].T
    return normalised(x, weights["final_norm.gain"]) @ weights["lm_head.weight"].T


def reference_loss(weights: dict[str, Array], tokens: Tensor, targets: Tensor) -> float:
    losses = []
    for sequence, following in zip(tokens.numpy(), targets.numpy(), strict=True):
        for row, target in zip(reference_logits(weights, sequence, SHAPE), following, strict=True):
            losses.append(math.log(sum(math.exp(value) for value in row)) - row[target])
    return sum(losses) / len(losses)


def test_logits_are_those_of_the_reference(model: Transformer, tokens: Tensor) -> None:
    weights = weights_of(model)
    expected = np.stack([reference_logits(weights, sequence, SHAPE) for sequence in tokens.numpy()])
    np.testing.assert_allclose(model(tokens).detach().numpy(), expected, rtol=2e-5, atol=2e-5)


def test_gradients_of_every_parameter_are_those_of_the_reference(
    model: Transformer, tokens: Tensor, targets: Tensor
) -> None:
    """Central differences of the reference's loss in a random direction of each parameter, one after the other."""
    model.zero_grad()
    cross_entropy(model(tokens), targets).backward()  # type: ignore[no-untyped-call]
    weights = weights_of(model)
    random = np.random.default_rng(7)
    for name, parameter in model.named_parameters():
        direction = random.standard_normal(parameter.shape)
        direction /= np.linalg.norm(direction)
        step, origin = 1e-5, weights[name]
        above = reference_loss({**weights, name: origin + step * direction}, tokens, targets)
        below = reference_loss({**weights, name: origin - step * direction}, tokens, targets)
        assert parameter.grad is not None, name
        along = float((parameter.grad.double().numpy() * direction).sum())
        scale = float(parameter.grad.double().norm())
        assert along == pytest.approx((above - below) / (2 * step), abs=2e-5 * max(scale, 1e-3)), name
    model.zero_grad()


def test_no_position_sees_a_later_one(model: Transformer, tokens: Tensor) -> None:
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % SHAPE.vocab
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=1e-6)
    assert ((before[:, 4:] - after[:, 4:]).abs().amax(dim=-1) > 1e-4).all()


def test_a_shorter_context_is_the_beginning_of_a_longer_one(model: Transformer, tokens: Tensor) -> None:
    torch.testing.assert_close(model(tokens[:, :3]), model(tokens)[:, :3], rtol=0, atol=1e-6)


# --- the parts -----------------------------------------------------------------------------------------------------


def test_rotation_makes_products_depend_on_distance_alone() -> None:
    rotary = RotaryEmbedding(ctx=32, d_head=8)
    q, k = torch.randn((2, 8), generator=torch.Generator().manual_seed(1))
    everywhere_q, everywhere_k = rotary(q.expand(1, 1, 32, 8))[0, 0], rotary(k.expand(1, 1, 32, 8))[0, 0]
    products = everywhere_q @ everywhere_k.T
    for distance in (0, 1, 5):
        along = products.diagonal(offset=distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-5)
    assert abs(products[0, 5] - products[0, 0]) > 1e-2
    torch.testing.assert_close(everywhere_q.norm(dim=-1), q.norm().expand(32))


def test_rmsnorm_computes_in_fp32_and_returns_the_type_it_was_given() -> None:
    x = 300 * torch.randn((3, 64), generator=torch.Generator().manual_seed(1))
    narrow = RMSNorm(64)(x.half())  # squares of 300 and more are beyond fp16
    assert narrow.dtype == torch.float16
    torch.testing.assert_close(narrow.float(), x / x.square().mean(-1, keepdim=True).sqrt(), rtol=2e-3, atol=2e-3)


def test_rmsnorm_has_its_epsilon() -> None:
    x = torch.full((4,), 1e-3)  # mean square 1e-6, ten times less than 1e-5
    torch.testing.assert_close(RMSNorm(4)(x), x / math.sqrt(1e-6 + 1e-5))


def test_weights_are_drawn_from_a_normal_distribution_cut_at_three_deviations() -> None:
    model = build(ModelShape(d_model=128, d_ff=512, layers=1, heads=2, vocab=2000), 4, "naive", CPU, seed=0)
    for weight, deviation in (
        (model.embedding.weight, 1.0),
        (model.lm_head.weight, math.sqrt(2 / 2128)),
        (model.layers[0].feed_forward.w2.weight, math.sqrt(2 / 640)),  # type: ignore[union-attr]
    ):
        # Cut at three, a normal distribution keeps 0.9866 of its deviation, and 68.3 / 99.7 within the first.
        assert weight.std().item() == pytest.approx(0.9866 * deviation, rel=0.02)
        assert weight.mean().item() == pytest.approx(0, abs=0.02 * deviation)
        assert (weight.abs() < deviation).float().mean().item() == pytest.approx(0.6845, abs=0.01)
        assert 2.8 * deviation < weight.abs().max().item() <= 3 * deviation


def test_a_seed_decides_the_weights() -> None:
    first, same, other = (weights_of(build(SHAPE, CTX, "naive", CPU, seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert not np.array_equal(first["lm_head.weight"], other["lm_head.weight"])


# --- the counts ----------------------------------------------------------------------------------------------------


def on_meta(shape: ModelShape, ctx: int = 16) -> Transformer:
    with torch.device("meta"):
        return Transformer(shape, ctx)


def parameter_count(model: Transformer) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("size", PARAMETERS)
def test_named_sizes_have_their_published_parameters(size: str) -> None:
    model = on_meta(SIZES[size])
    total, without_lm_head = PARAMETERS[size]
    assert (parameter_count(model), parameter_count(model) - model.lm_head.weight.numel()) == (total, without_lm_head)
    assert formulas.parameters(SIZES[size]) == total
    assert formulas.parameters_without_lm_head(SIZES[size]) == without_lm_head


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (ModelShape(d_model=3200, d_ff=25_600, layers=8, heads=4), 2_357_814_400),
        (ModelShape(d_model=512, d_ff=1344, layers=4, heads=16), 22_696_448),
    ],
)
def test_custom_shapes_have_the_parameters_of_the_formula(shape: ModelShape, expected: int) -> None:
    assert parameter_count(on_meta(shape)) == formulas.parameters(shape) == expected


def test_a_longer_context_does_not_make_a_larger_model() -> None:
    short, long = on_meta(SIZES["tiny"], 128), on_meta(SIZES["tiny"], 4096)
    assert parameter_count(short) == parameter_count(long)
    assert short.state_dict().keys() == long.state_dict().keys() == dict(long.named_parameters()).keys()


@pytest.mark.parametrize(
    ("size", "batch", "ctx"), [("tiny", 3, 64), ("medium", 4, 512), ("2.7b", 4, 1024)], ids=lambda value: str(value)
)
def test_flops_are_those_that_torch_counts(size: str, batch: int, ctx: int) -> None:
    shape = SIZES[size].model_copy(update={"layers": 3})
    model = on_meta(shape, ctx)
    tokens = torch.zeros((batch, ctx), dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as forward:
        logits = model(tokens)
    expected = formulas.forward_flops(shape, ctx, batch)
    assert forward.get_total_flops() == expected
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert backward.get_total_flops() == formulas.phase_flops(shape, ctx, batch)["backward"] == 2 * expected


class MatmulCount(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func._schema.name in ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layers", [1, 3])
def test_a_forward_pass_is_9_matmuls_per_layer_and_one_and_backward_twice_as_many(layers: int) -> None:
    shape = SHAPE.model_copy(update={"layers": layers})
    model = build(shape, CTX, "naive", CPU, seed=0)
    with MatmulCount() as matmuls:
        logits = model(torch.zeros((BATCH, CTX), dtype=torch.long))
        assert matmuls.count == 9 * layers + 1
        logits.sum().backward()
    assert matmuls.count == 3 * (9 * layers + 1)

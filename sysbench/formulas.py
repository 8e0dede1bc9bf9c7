"""Costs of a Transformer and of attention, computed from dimensions alone: parameters, FLOPs, bytes moved, memory.

One multiply-add is two operations. In the formulas for attention alone, R = batch × heads is the number of attention
matrices, N the number of queries and of keys, d their length, and s the bytes of one number.

The memory of a step is the total size of the live tensors, in bytes, at each moment that can be the peak. S = batch ·
heads · ctx² is the number of attention scores of a layer; d, f and V are the widths of model, feed-forward block and
vocabulary. "Narrow" tensors have autocast's dtype, or fp32 if autocast is off. Tests compare the sums with the live
bytes of real steps of `sysbench.lab.transformer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sysbench.spec.attention import AttentionCell
from sysbench.spec.cell import RunCell
from sysbench.spec.grid import ModelShape
from sysbench.spec.knobs import FP8
from sysbench.spec.model import ModelCell, step_of
from sysbench.spec.steps import PHASES_OF, TRUE_PRECISIONS, AdamW, Attention, Mode, Phase, Precision


def parameters(shape: ModelShape) -> int:
    """Return P = 2·V·d + L·(4d² + 3·d·d_ff + 2d) + d: untied embedding and head, no biases, and d gains a norm."""
    d = shape.d_model
    per_layer = 4 * d * d + 3 * d * shape.d_ff + 2 * d
    return 2 * shape.vocab * d + shape.layers * per_layer + d


def parameters_without_lm_head(shape: ModelShape) -> int:
    """Return the number of parameters without the output projection, as some reports count them."""
    return parameters(shape) - shape.vocab * shape.d_model


def attention_forward_flops(shape: ModelShape, ctx: int, batch: int) -> int:
    """Return the FLOPs of the scores and the weighted sum in all layers, 2·B·T²·d each, ignoring the causal mask."""
    return shape.layers * batch * 4 * ctx * ctx * shape.d_model


def forward_flops(shape: ModelShape, ctx: int, batch: int) -> int:
    """Return the FLOPs of a forward pass, B·[L(8Td² + 4T²d + 6T·d·d_ff) + 2TdV], ignoring the causal mask."""
    d, tokens = shape.d_model, batch * ctx
    projections = shape.layers * tokens * (8 * d * d + 6 * d * shape.d_ff)
    return projections + attention_forward_flops(shape, ctx, batch) + 2 * tokens * d * shape.vocab


def phase_flops(shape: ModelShape, ctx: int, batch: int) -> dict[str, int]:
    """Return the FLOPs of the matrix products by phase: backward has twice those of forward, the optimizer none."""
    forward = forward_flops(shape, ctx, batch)
    return {"forward": forward, "backward": 2 * forward}


def step_flops(mode: Mode, shape: ModelShape, ctx: int, batch: int) -> int:
    """Return the FLOPs of one step in `mode`."""
    by_phase = phase_flops(shape, ctx, batch)
    return sum(by_phase.get(phase, 0) for phase in PHASES_OF[mode])


def step_flops_of(cell: ModelCell) -> int | None:
    """Return the FLOPs of one step of this cell on one rank; None for the user's own model."""
    return None if cell.shape is None else cell.grad_accum * step_flops(cell.mode, cell.shape, cell.ctx, cell.batch)


def residual_stream_bytes(shape: ModelShape, ctx: int, batch: int) -> int:
    """Return the size of the residual stream: batch × ctx × d_model numbers, in fp32 even under autocast."""
    return batch * ctx * shape.d_model * 4


def predicted_bytes(cell: RunCell, device: str | None = None) -> int | None:
    """Return the predicted peak memory of a cell in bytes, biased high; None if the cell has no formula.

    `device` is the device that will run the cell, if known.
    """
    step = step_of(cell)
    if step is None or step.shape is None or step.strategy not in (None, "ddp"):
        return None  # the formula is for a whole model on one device
    turned = step.repeats_forward or step.precision in (*TRUE_PRECISIONS, *FP8)
    turned |= step.optimizer_in_backward == "on" or step.lora > 0
    if turned or step.optimizer not in get_args(AdamW):
        return None  # and for AdamW of all parameters, in fp32, and a step that keeps all activations and logits
    placed = step if device is None else step.model_copy(update={"device": device})
    return predicted_memory(placed, cell.phases, first=cell.is_first_step).total_bytes


def predicted_memory(
    cell: ModelCell, phases: Sequence[Phase] | None = None, *, first: bool = False
) -> MemoryPrediction:
    """Return the predicted peak memory of a step of `cell`: the largest of `peak_candidates`.

    It is biased high, because it is used to reject cells that cannot fit, and does not include workspaces, the CUDA
    context or allocator overhead.
    """
    return max(peak_candidates(cell, phases, first=first), key=lambda moment: moment.total_bytes)


AttentionCostsPhase = Literal["forward", "backward"]

ELEMENT_BYTES: Mapping[Precision, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}

_LOG_SUM_EXP_BYTES = 4
"""Size of the log-sum-exp that a fused kernel keeps for each query, in fp32."""

_PRODUCT_COUNTS: Mapping[AttentionCostsPhase, int] = {"forward": 2, "backward": 4}
"""Number of N × N by d products: q kᵀ and p v; in backward dv, dp, dq and dk. Recomputation is not counted."""

_TENSOR_COUNTS: Mapping[AttentionCostsPhase, int] = {"forward": 4, "backward": 8}
"""Minimum number of N × d tensors moved: q, k, v, o; backward also reads the gradient of o and writes dq, dk, dv."""


def query_key_pairs(cell: AttentionCell) -> int:
    """Return the number of query–key pairs: N² without a mask, N(N + 1)/2 with a causal mask."""
    return cell.seq * (cell.seq + 1) // 2 if cell.causal else cell.seq * cell.seq


def flops(cell: AttentionCell, phase: AttentionCostsPhase) -> int:
    """Return the FLOPs of the matrix products: 4RN²d forward, 8RN²d backward; about half with a causal mask."""
    return _PRODUCT_COUNTS[phase] * 2 * cell.rows * query_key_pairs(cell) * cell.dim


def bytes_moved(cell: AttentionCell, phase: AttentionCostsPhase) -> int:
    """Return the minimum memory traffic in bytes: 4RNds forward, 8RNds backward."""
    return _TENSOR_COUNTS[phase] * cell.rows * cell.seq * cell.dim * ELEMENT_BYTES[cell.precision]


def naive_saved_bytes(cell: AttentionCell) -> int:
    """Return the bytes that naive attention saves for backward, besides inputs and output and mask.

    2RN² numbers: the exponentials and the weights (the exponentials divided by their sum).
    """
    return 2 * cell.rows * cell.seq * cell.seq * ELEMENT_BYTES[cell.precision]


def fused_saved_bytes(cell: AttentionCell) -> int:
    """Return the bytes that a fused kernel saves, besides inputs and output: 4RN, one fp32 number per query."""
    return _LOG_SUM_EXP_BYTES * cell.rows * cell.seq


FULL_BYTES = 4
HALF_BYTES = 2

_MATERIALISED: frozenset[Attention] = frozenset({"naive", "math"})


@dataclass(frozen=True)
class MemoryPrediction:
    """Bytes that a step needs at one moment, by category."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int

    @property
    def total_bytes(self) -> int:
        """Total over all categories."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes


@dataclass(frozen=True)
class _Part:
    """Memory of one part of the model, in bytes: tensors saved for backward, and further live tensors at the peaks."""

    weights: int
    """Parameters, in fp32."""
    saved: int
    """Tensors saved for backward, including copies of weights in autocast's type."""
    forward: int
    """Additional peak in forward with a graph."""
    backward: int
    """Additional peak in backward."""
    without_graph: int
    """Peak in forward without a graph, instead of `saved` and `forward`."""
    cached: int = 0
    """Copies of weights that autocast creates in forward without a graph and keeps until its end."""


def peak_candidates(
    cell: ModelCell, phases: Sequence[Phase] | None = None, *, first: bool = False
) -> Iterator[MemoryPrediction]:
    """Yield the memory needed at each moment that can be the peak of a step of `cell`, in order.

    `phases` are the first phases of a step, if only these run. In the `first` step, the optimizer has no state before
    it runs. With several micro-batches, the moments are those of any but the first, when all gradients exist.
    """
    phases = cell.phases if phases is None else phases
    sizes = _Sizes(cell)
    attention, feed_forward, head = sizes.attention(), sizes.feed_forward(), sizes.head()
    layers = sizes.shape.layers
    layer_saved, layer_weights = attention.saved + feed_forward.saved, attention.weights + feed_forward.weights
    parameters = sizes.embedding_weights + layers * layer_weights + head.weights
    state = 2 * parameters if "optimizer" in phases else 0  # AdamW's two moments
    initial_optimizer = 0 if first else state

    accumulates = cell.grad_accum > 1
    held_gradients = parameters if accumulates else 0

    def moment(activations: int, gradients: int = 0, optimizer: int = initial_optimizer) -> MemoryPrediction:
        return MemoryPrediction(parameters, held_gradients + gradients, optimizer, activations + sizes.constants)

    if cell.mode == "inference":
        cached = (layers - 1) * (attention.cached + feed_forward.cached)
        for part in (attention, feed_forward, head):  # in the last layer, when most weights have been cast
            cached += part.cached
            yield moment(cached + part.without_graph)
        return

    before_head = layers * layer_saved
    yield moment(before_head - feed_forward.saved + attention.forward)
    yield moment(before_head + feed_forward.forward)
    yield moment(before_head + head.saved + head.forward)
    if "backward" not in phases:
        if "loss" in phases:
            yield moment(before_head + head.saved + sizes.logits + sizes.loss)
        return

    # Logits, their log-softmax, and the gradients of both: the peak of cross-entropy.
    yield moment(before_head + head.saved + sizes.logits + 3 * sizes.full_logits)
    yield moment(before_head + head.saved + head.backward, gradients=head.weights)
    # In backward, activations are freed as gradients are allocated: the peak is at the last layer or the first one.
    for layers_done in dict.fromkeys((0, layers - 1)):
        remaining = before_head - layers_done * layer_saved + sizes.logits
        gradients = (0 if accumulates else head.weights + layers_done * layer_weights) + feed_forward.weights
        yield moment(remaining + feed_forward.backward, gradients)
        yield moment(remaining - feed_forward.saved + attention.backward, gradients + attention.weights)
    yield moment(sizes.logits + 2 * sizes.stream, gradients=sizes.embedding_weights if accumulates else parameters)
    if "optimizer" in phases:
        yield moment(sizes.logits, parameters - held_gradients, state + sizes.optimizer_temporaries(parameters))


class _Sizes:
    def __init__(self, cell: ModelCell) -> None:
        assert cell.shape is not None, "formulas are available for the built-in Transformer only"
        shape = self.shape = cell.shape
        self._cell = cell
        self._autocast = cell.precision in ("bf16", "fp16")
        self._compiled = cell.is_compiled
        self._caches_weight_copies = not self._compiled and (cell.simulated is not None or cell.device != "cpu")
        self._narrow_bytes = HALF_BYTES if self._autocast else FULL_BYTES
        self._scores = cell.batch * shape.heads * cell.ctx**2  # S, in elements
        self._narrow = cell.tokens * shape.d_model * self._narrow_bytes
        self._wide = cell.tokens * shape.d_ff * self._narrow_bytes
        self.stream = cell.tokens * shape.d_model * FULL_BYTES
        self.logits = cell.tokens * shape.vocab * self._narrow_bytes
        self.full_logits = cell.tokens * shape.vocab * FULL_BYTES
        self.embedding_weights = shape.vocab * shape.d_model * FULL_BYTES

    @property
    def loss(self) -> int:
        """The log-softmax of the logits and, under autocast, a temporary fp32 copy of the logits."""
        return self.full_logits * (2 if self._autocast else 1)

    @property
    def constants(self) -> int:
        """Token ids and targets, the rotary tables, and the attention mask (bools or fp32, depending on the kind)."""
        cell = self._cell
        mask = cell.ctx**2 * {"naive": 1, "math": FULL_BYTES}.get(cell.attention, 0)
        return 2 * 8 * cell.grad_accum * cell.tokens + cell.ctx * self.shape.d_head * FULL_BYTES + mask

    def optimizer_temporaries(self, parameters: int) -> int:
        # AdamW's denominators (torch/optim/adam.py): `_multi_tensor_adam` has a list of all square roots;
        # `_single_tensor_adam` a square root and its quotient, while the quotient before is still live.
        shape = self.shape
        largest = max(shape.vocab, shape.d_ff, shape.d_model) * shape.d_model * FULL_BYTES
        return {"foreach": parameters, "for-loop": 3 * largest, "fused": 0}[self._cell.optimizer]

    def attention(self) -> _Part:
        d = self.shape.d_model
        products = 4 * d * d
        kernel = self._kernel()
        return _Part(
            weights=(products + d) * FULL_BYTES,
            saved=self._norm_saved(consumers=3) + kernel.saved + self._weight_copies(products),
            forward=kernel.forward,
            backward=kernel.backward + 4 * self.stream + d * d * FULL_BYTES,
            without_graph=2 * self.stream + kernel.without_graph + self._weight_in_use_copy(d * d),
            cached=self._cached_copies(products),
        )

    def _kernel(self) -> _Part:
        return self._materialised() if self._cell.attention in _MATERIALISED else self._fused()

    def _materialised(self) -> _Part:
        full_scores, narrow_scores = self._scores * FULL_BYTES, self._scores * self._narrow_bytes
        if self._cell.attention == "math":
            # Scaled q and k, and v in fp32, and the result of the softmax: aten computes this kind entirely in fp32.
            casts = 3 * self.stream if self._autocast else 0
            return _Part(
                weights=0,
                saved=3 * self.stream + self._narrow + full_scores,
                forward=3 * self._narrow + casts + full_scores,
                backward=2 * full_scores,
                without_graph=5 * self._narrow + casts + 2 * self.stream + 2 * full_scores,
            )
        rows = full_scores // self._cell.ctx
        if self._compiled:  # the softmax is one kernel, which reads and writes the type of the products
            return _Part(
                weights=0,
                saved=4 * self._narrow + 2 * narrow_scores + rows,
                forward=4 * self._narrow + narrow_scores,
                backward=2 * narrow_scores,
                without_graph=5 * self._narrow + 2 * narrow_scores + rows,
            )
        cast = full_scores if self._autocast else 0
        return _Part(
            weights=0,
            # Rotated q and k, v and the output, each in the layout of its product; exponentials, their sums, weights.
            saved=4 * self._narrow + full_scores + rows + narrow_scores,
            # Projections before rotation and layout; masked scores, and weights before they are cast.
            forward=4 * self._narrow + narrow_scores + cast,
            # The quotient's two gradients need five tensors besides the exponentials; the weights have been freed by
            # then.
            backward=5 * full_scores - narrow_scores,
            without_graph=5 * self._narrow + narrow_scores + full_scores + rows + full_scores,
        )

    def _fused(self) -> _Part:
        rows = self._cell.batch * self.shape.heads * self._cell.ctx * FULL_BYTES
        return _Part(
            weights=0,
            saved=5 * self._narrow + rows,  # q, k, v, the output, the output in token layout; log-sums
            forward=2 * self._narrow,
            backward=4 * self._narrow + self.stream,  # gradients of all four; FlashAttention accumulates dq in fp32
            without_graph=6 * self._narrow + rows,
        )

    def feed_forward(self) -> _Part:
        d, f = self.shape.d_model, self.shape.d_ff
        activations = 3 if self._compiled else 4
        return _Part(
            weights=(3 * d * f + d) * FULL_BYTES,
            # w1·x for silu, silu (recomputed if compiled) and w3·x for the product, the product for w2.
            saved=self._norm_saved(consumers=2) + activations * self._wide + self._weight_copies(3 * d * f),
            forward=2 * self.stream,
            backward=2 * self._wide + 2 * self.stream + d * f * FULL_BYTES,
            without_graph=3 * self.stream + 3 * self._wide + self._weight_in_use_copy(d * f),
            cached=self._cached_copies(3 * d * f),
        )

    def head(self) -> _Part:
        d, vocab = self.shape.d_model, self.shape.vocab
        return _Part(
            weights=(vocab * d + d) * FULL_BYTES,
            saved=self._norm_saved(consumers=1) + self._weight_copies(vocab * d),
            forward=self.logits + (self.stream if self._autocast else 0),
            # The weight's gradient exists twice: as the product's result, and in the layout of the weight.
            backward=self.logits + self.full_logits + vocab * d * FULL_BYTES - self._weight_copies(vocab * d),
            without_graph=2 * self.stream + self.logits + self._weight_in_use_copy(vocab * d),
            cached=self._cached_copies(vocab * d),
        )

    def _norm_saved(self, consumers: int) -> int:
        # The residual stream, its normalised form, and the output, of which each consumer has a copy under autocast.
        # Compiled code recomputes the normalised form in backward, and casts the output once.
        rows = self.stream // self.shape.d_model
        if self._compiled:
            return self.stream + rows + self._narrow
        return 2 * self.stream + rows + (consumers * self._narrow if self._autocast else self.stream)

    def _weight_copies(self, elements: int) -> int:
        return elements * HALF_BYTES if self._autocast else 0

    def _cached_copies(self, elements: int) -> int:
        # Autocast caches copies of leaf tensors only (aten/src/ATen/autocast_mode.cpp, `cached_cast`): on CUDA the
        # weights, as arguments of `einsum`; on a CPU the product inside `einsum` has views, so it keeps none. Compiled
        # code casts weights on use.
        return self._weight_copies(elements) if self._caches_weight_copies else 0

    def _weight_in_use_copy(self, elements: int) -> int:
        return 0 if self._caches_weight_copies else self._weight_copies(elements)

"""The cost of a Transformer and of attention, computed from dimensions alone: parameters, FLOPs, bytes.

One multiply-add is two operations. The Transformer is `sysbench.lab.transformer`; tests compare the formulas with it.
For attention alone, R = batch × heads attentions have N queries and N keys, each of d numbers of s bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from sysbench.footprint import MemoryPrediction, moments
from sysbench.spec.cell import RunCell
from sysbench.spec.model import PHASES_OF, Mode, ModelCell, ModelShape, Phase, Precision

if TYPE_CHECKING:
    from sysbench.commands.attention.spec import AttentionCell


def parameters(shape: ModelShape) -> int:
    """P = 2·V·d + L·(4d² + 3·d·d_ff + 2d) + d: untied embedding and head, bias-free, RMSNorm gains."""
    d = shape.d_model
    per_layer = 4 * d * d + 3 * d * shape.d_ff + 2 * d
    return 2 * shape.vocab * d + shape.layers * per_layer + d


def parameters_without_lm_head(shape: ModelShape) -> int:
    """Number of parameters without the output projection, as some reports count them."""
    return parameters(shape) - shape.vocab * shape.d_model


def attention_forward_flops(shape: ModelShape, ctx: int, batch: int) -> int:
    """FLOPs of scores and weighted sum in all layers, 4·B·T²·d each; the causal half is not subtracted."""
    return shape.layers * batch * 4 * ctx * ctx * shape.d_model


def forward_flops(shape: ModelShape, ctx: int, batch: int) -> int:
    """FLOPs of a forward pass: B·[L(8Td² + 4T²d + 6T·d·d_ff) + 2TdV]; causality is not exploited."""
    d, tokens = shape.d_model, batch * ctx
    projections = shape.layers * tokens * (8 * d * d + 6 * d * shape.d_ff)
    return projections + attention_forward_flops(shape, ctx, batch) + 2 * tokens * d * shape.vocab


def phase_flops(shape: ModelShape, ctx: int, batch: int) -> dict[str, int]:
    """Matrix-product FLOPs by phase: backward is twice forward; the optimizer is elementwise and not counted."""
    forward = forward_flops(shape, ctx, batch)
    return {"forward": forward, "backward": 2 * forward}


def step_flops(mode: Mode, shape: ModelShape, ctx: int, batch: int) -> int:
    """FLOPs of one step of `mode`."""
    by_phase = phase_flops(shape, ctx, batch)
    return sum(by_phase.get(phase, 0) for phase in PHASES_OF[mode])


def step_flops_of(cell: ModelCell) -> int | None:
    """FLOPs of one step of one rank of this cell; None for a model of the user's."""
    return None if cell.shape is None else cell.grad_accum * step_flops(cell.mode, cell.shape, cell.ctx, cell.batch)


def residual_stream_bytes(shape: ModelShape, ctx: int, batch: int) -> int:
    """Size of one residual stream: batch × ctx × d_model numbers of 4 bytes, since they stay in fp32 under autocast."""
    return batch * ctx * shape.d_model * 4


def predicted_bytes(cell: RunCell, device: str | None = None) -> int | None:
    """Predicted peak memory of any cell, rather too high than too low.

    None if memory is not a constraint, or if no formula knows the model.

    `device` is the device it runs on, if known; the name `auto` alone does not determine it.
    """
    step = cell.step
    if step is None or step.shape is None or step.strategy not in (None, "ddp"):
        return None  # the formula is for a whole model on one device
    placed = step if device is None else step.model_copy(update={"device": device})
    return predicted_memory(placed, cell.phases, first=cell.is_first_step).total_bytes


def predicted_memory(
    cell: ModelCell, phases: Sequence[Phase] | None = None, *, first: bool = False
) -> MemoryPrediction:
    """Predicted peak of a step of `cell`, or of the first `phases` of it, in bytes of tensors.

    In the `first` step, the optimizer has no state before it runs.

    Meant to refuse cells that cannot fit, so it is rather too high than too low. Workspaces, the CUDA context and
    allocator overhead are not included.
    """
    return max(moments(cell, phases, first=first), key=lambda moment: moment.total_bytes)


AttentionCostsPhase = Literal["forward", "backward"]

ELEMENT_BYTES: Mapping[Precision, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}

_STATISTIC_BYTES = 4
"""A fused kernel keeps the logarithm of each query's sum of exponentials, in fp32."""

_PRODUCTS: Mapping[AttentionCostsPhase, int] = {"forward": 2, "backward": 4}
"""Number of N × N by d products: q kᵀ and p v; in backward dv, dp, dq and dk. Recomputation is not counted."""

_TENSORS: Mapping[AttentionCostsPhase, int] = {"forward": 4, "backward": 8}
"""Minimum number of N × d tensors moved: q, k, v and o; backward reads these and do, and writes dq, dk and dv."""


def pairs(cell: AttentionCell) -> int:
    """Number of query–key pairs: N², or N(N + 1)/2 under a causal mask, about half."""
    return cell.seq * (cell.seq + 1) // 2 if cell.causal else cell.seq * cell.seq


def flops(cell: AttentionCell, phase: AttentionCostsPhase) -> int:
    """FLOPs of the matrix products: 4RN²d forward and 8RN²d backward; half of that with a causal mask."""
    return _PRODUCTS[phase] * 2 * cell.rows * pairs(cell) * cell.dim


def bytes_moved(cell: AttentionCell, phase: AttentionCostsPhase) -> int:
    """Minimum memory traffic: 4RNds forward, 8RNds backward."""
    return _TENSORS[phase] * cell.rows * cell.seq * cell.dim * ELEMENT_BYTES[cell.precision]


def naive_saved_bytes(cell: AttentionCell) -> int:
    """Memory that naive attention keeps for backward besides inputs and output: two N × N tensors, 8RN² bytes in fp32.

    These are the exponentials and the weights, the exponentials divided by their sum; a causal mask is extra.
    """
    return 2 * cell.rows * cell.seq * cell.seq * ELEMENT_BYTES[cell.precision]


def fused_saved_bytes(cell: AttentionCell) -> int:
    """Memory that a fused kernel keeps besides inputs and output: one fp32 number for every query, 4RN bytes."""
    return _STATISTIC_BYTES * cell.rows * cell.seq

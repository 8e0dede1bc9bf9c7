"""What a Transformer and attention cost, from dimensions alone: parameters, floating-point operations, bytes.

One multiply-add is two operations. The Transformer is `sysbench.lab.transformer`; tests compare the formulas with it.
For attention by itself, R = batch × heads attentions have N queries and N keys, each of d numbers of s bytes.
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
    """Parameters less the output projection, as some reports count them."""
    return parameters(shape) - shape.vocab * shape.d_model


def attention_forward_flops(shape: ModelShape, ctx: int, batch: int) -> int:
    """Scores and weighted sum of all layers, 4·B·T²·d each; the causal half is not subtracted."""
    return shape.layers * batch * 4 * ctx * ctx * shape.d_model


def forward_flops(shape: ModelShape, ctx: int, batch: int) -> int:
    """B·[L(8Td² + 4T²d + 6T·d·d_ff) + 2TdV]; causality is not exploited."""
    d, tokens = shape.d_model, batch * ctx
    projections = shape.layers * tokens * (8 * d * d + 6 * d * shape.d_ff)
    return projections + attention_forward_flops(shape, ctx, batch) + 2 * tokens * d * shape.vocab


def phase_flops(shape: ModelShape, ctx: int, batch: int) -> dict[str, int]:
    """Matrix-product FLOPs by phase: backward is twice forward, and the optimizer's are left out as elementwise."""
    forward = forward_flops(shape, ctx, batch)
    return {"forward": forward, "backward": 2 * forward}


def step_flops(mode: Mode, shape: ModelShape, ctx: int, batch: int) -> int:
    """FLOPs of one step of `mode`."""
    by_phase = phase_flops(shape, ctx, batch)
    return sum(by_phase.get(phase, 0) for phase in PHASES_OF[mode])


def step_flops_of(cell: ModelCell) -> int:
    """FLOPs of one step of this cell."""
    return step_flops(cell.mode, cell.model, cell.ctx, cell.batch)


def residual_stream_bytes(shape: ModelShape, ctx: int, batch: int) -> int:
    """One residual stream: batch × ctx × d_model numbers, which stay in fp32 under autocast, 4 bytes each."""
    return batch * ctx * shape.d_model * 4


def predicted_bytes(cell: RunCell, device: str | None = None) -> int | None:
    """What a cell of any kind needs at its peak, erring on the high side; None where memory is no question.

    `device` is the one it lands on, where that is known: `auto` alone does not tell.
    """
    step = cell.step
    if step is None:
        return None
    placed = step if device is None else step.model_copy(update={"device": device})
    return predicted_memory(placed, cell.phases, first=cell.is_first_step).total_bytes


def predicted_memory(
    cell: ModelCell, phases: Sequence[Phase] | None = None, *, first: bool = False
) -> MemoryPrediction:
    """Bytes of tensors that a step of `cell`, or these first of its phases, needs at its peak: the fullest moment.

    Meant for refusing what cannot fit: it errs on the high side. Workspaces and the CUDA context are not in it, and
    neither are the leftovers of an allocator.
    """
    return max(moments(cell, phases, first=first), key=lambda moment: moment.total_bytes)


AttentionCostsPhase = Literal["forward", "backward"]

ELEMENT_BYTES: Mapping[Precision, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}

_STATISTIC_BYTES = 4
"""A fused kernel keeps the logarithm of each query's sum of exponentials, in fp32."""

_PRODUCTS: Mapping[AttentionCostsPhase, int] = {"forward": 2, "backward": 4}
"""Of N × N by d: q kᵀ and p v; backward dv, dp, dq and dk. What a fused kernel computes again is not counted."""

_TENSORS: Mapping[AttentionCostsPhase, int] = {"forward": 4, "backward": 8}
"""Of N × d that cross the memory bus at least: q, k, v and o; backward reads these and do, and writes dq, dk and dv."""


def pairs(cell: AttentionCell) -> int:
    """Query–key pairs that count: N², or N(N + 1)/2 under a causal mask, which is where "half" comes from."""
    return cell.seq * (cell.seq + 1) // 2 if cell.causal else cell.seq * cell.seq


def flops(cell: AttentionCell, phase: AttentionCostsPhase) -> int:
    """Of the matrix products: 4RN²d forward and 8RN²d backward; of the causal half only, where there is a mask."""
    return _PRODUCTS[phase] * 2 * cell.rows * pairs(cell) * cell.dim


def bytes_moved(cell: AttentionCell, phase: AttentionCostsPhase) -> int:
    """The least that has to cross the memory bus: 4RNds forward, 8RNds backward."""
    return _TENSORS[phase] * cell.rows * cell.seq * cell.dim * ELEMENT_BYTES[cell.precision]


def naive_saved_bytes(cell: AttentionCell) -> int:
    """What the written-out kind keeps for backward beside inputs and output: two N × N tensors, 8RN² bytes in fp32.

    They are the exponentials and the weights, which are these over their sum; a causal mask comes on top.
    """
    return 2 * cell.rows * cell.seq * cell.seq * ELEMENT_BYTES[cell.precision]


def fused_saved_bytes(cell: AttentionCell) -> int:
    """What a fused kernel has to keep beside inputs and output: one fp32 number for every query, 4RN bytes."""
    return _STATISTIC_BYTES * cell.rows * cell.seq

"""What attention costs, from its dimensions alone: operations, bytes moved, bytes kept.

R = batch × heads attentions of N queries and N keys, each of d numbers of s bytes. One multiply-add is two operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sysbench.specs.attention import AttentionCell
from sysbench.specs.model import Precision

Phase = Literal["forward", "backward"]

ELEMENT_BYTES: Mapping[Precision, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}

_STATISTIC_BYTES = 4
"""A fused kernel keeps the logarithm of each query's sum of exponentials, in fp32."""

_PRODUCTS: Mapping[Phase, int] = {"forward": 2, "backward": 4}
"""Of N × N by d: q kᵀ and p v; backward dv, dp, dq and dk. What a fused kernel computes again is not counted."""

_TENSORS: Mapping[Phase, int] = {"forward": 4, "backward": 8}
"""Of N × d that cross the memory bus at least: q, k, v and o; backward reads these and do, and writes dq, dk and dv."""


def pairs(cell: AttentionCell) -> int:
    """Query–key pairs that count: N², or N(N + 1)/2 under a causal mask, which is where "half" comes from."""
    return cell.seq * (cell.seq + 1) // 2 if cell.causal else cell.seq * cell.seq


def flops(cell: AttentionCell, phase: Phase) -> int:
    """Of the matrix products: 4RN²d forward and 8RN²d backward; of the causal half only, where there is a mask."""
    return _PRODUCTS[phase] * 2 * cell.rows * pairs(cell) * cell.dim


def bytes_moved(cell: AttentionCell, phase: Phase) -> int:
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

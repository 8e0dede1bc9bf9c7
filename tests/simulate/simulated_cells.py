"""Small cells to simulate, and a CPU to simulate: what real tensors do here, simulated ones can be held to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sysbench.simulate.cuda.autocast import AutocastRules
from sysbench.simulate.platform import Platform
from sysbench.spec.grid import ModelShape
from sysbench.spec.model import ModelCell
from tests.small_cells import SMALL_STEP

SMALL = ModelShape(d_model=64, d_ff=96, layers=2, heads=4, vocab=100)


def cell(**changes: Any) -> ModelCell:
    """A cell that takes no time; its dimensions are all different, and no multiple of a block."""
    return ModelCell.model_validate({**SMALL_STEP, "model": SMALL, "ctx": 30, "batch": 3, **changes})


def _attend_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The CPU has two kernels, and prefers the fused one."""
    if torch.backends.cuda.flash_sdp_enabled():
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        attended: Tensor = fused(query, key, value, dropout_p, is_causal, scale=scale)[0]
    else:
        written_out = torch.ops.aten._scaled_dot_product_attention_math.default
        attended = written_out(query, key, value, None, dropout_p, is_causal, scale=scale)[0]
    return attended


CPU = Platform(
    composites={"scaled_dot_product_attention": _attend_on_cpu},
    # Those of autocast_mode.cpp, TORCH_LIBRARY_IMPL(aten, AutocastCPU, m), that a Transformer meets.
    autocast=AutocastRules(
        lower_precision=frozenset(
            {
                "bmm",
                "mm",
                "baddbmm",
                "addmm",
                "addbmm",
                "linear",
                "matmul",
                "linalg_vecdot",
                "scaled_dot_product_attention",
            }
        ),
        fp32=frozenset({"nll_loss", "cross_entropy_loss", "mse_loss", "prod"}),
        promote=frozenset({"stack", "cat"}),
    ),
    scratch={},
    workspaces=None,
)
"""Real tensors are here what a GPU's are in earnest, so that a run of them says what is right."""

"""Activation checkpointing: blocks whose activations are not kept, but computed again in the backward pass.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. The implementation is torch's
(`torch.utils.checkpoint`, non-reentrant unless asked for); the code here decides which modules it applies to.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from sysbench.errors import UnavailableError, nearest
from sysbench.lab.strategies import block_lists
from sysbench.spec.knobs import REENTRANT, blocks_between_checkpoints, matches_module, module_pattern

_aten = torch.ops.aten
_KEPT = {
    getattr(_aten, name).default
    for name in (
        "mm",
        "addmm",
        "_scaled_mm",
        "_grouped_mm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    )
    if hasattr(_aten, name)
}
"""Operators whose results selective checkpointing keeps: products of linear layers and fused attention."""


def checkpoint_blocks(model: nn.Module, choice: str) -> None:
    """Let the blocks that `choice` names compute their activations again in backward instead of keeping them.

    `selective` keeps the results of linear layers and of fused attention; transformers' models do `full` and
    `reentrant` by their own method. Call this before the model is distributed or compiled.
    """
    enable: Any = getattr(model, "gradient_checkpointing_enable", None)
    is_whole = choice in ("full", REENTRANT)
    if is_whole and callable(enable) and getattr(model, "supports_gradient_checkpointing", False):
        enable(gradient_checkpointing_kwargs={"use_reentrant": choice == REENTRANT})
        if choice == REENTRANT:
            cast("Any", model).enable_input_require_grads()
        return
    keeps = _keeping_products if choice == "selective" else None
    for module in _chosen(model, choice):
        _refuse_running_statistics(module, choice)
        run: Any = partial(checkpoint, module.forward, use_reentrant=choice == REENTRANT)
        if choice == REENTRANT:
            module.register_forward_pre_hook(_require_gradients)
        # The module stays what it is, with its name, its hooks and its class; only its forward is another.
        module.forward = run if keeps is None else partial(run, context_fn=keeps)


def _require_gradients(block: nn.Module, inputs: tuple[object, ...]) -> None:
    """Let the gradient reach a block behind frozen layers: its result requires one only if an input does."""
    for each in inputs:
        if torch.is_grad_enabled() and isinstance(each, Tensor) and each.is_floating_point() and each.is_leaf:
            each.requires_grad_()


def _refuse_running_statistics(block: nn.Module, choice: str) -> None:
    for module in block.modules():
        if getattr(module, "track_running_stats", False):
            raise UnavailableError(
                f"--checkpoint {choice}: {type(module).__name__} would update its running statistics twice in each "
                "step; name modules without it"
            )


def _chosen(model: nn.Module, choice: str) -> list[nn.Module]:
    if (pattern := module_pattern(choice)) is not None:
        return list(_matching(model, pattern))
    lists = list(block_lists(model))
    interval, longest = blocks_between_checkpoints(choice), max(map(len, lists), default=0)
    if not lists:
        raise UnavailableError(
            f"--checkpoint {choice}: {type(model).__name__} has no list of equal blocks; name its modules instead, "
            f"as in --checkpoint '{_named_patterns(model)[0]}'"
        )
    if interval > longest:
        where = " in its longest list" if len(lists) > 1 else ""
        raise UnavailableError(
            f"--checkpoint {choice}: {type(model).__name__} has only {longest} blocks{where}. Nearest: every-{longest}"
        )
    return [block for members in lists for block in members[interval - 1 :: interval]]


def _matching(model: nn.Module, pattern: str) -> Iterator[nn.Module]:
    """Yield the outermost modules whose names match the pattern."""
    matched = ""
    for name, module in model.named_modules():
        if name and matches_module(name, pattern) and not (matched and name.startswith(matched)):
            matched = f"{name}."
            yield module
    if not matched:
        patterns = _named_patterns(model)
        suggestion = nearest(pattern, patterns) or ", ".join(patterns[:3])
        raise UnavailableError(
            f"--checkpoint {pattern} matches no module of {type(model).__name__}. Nearest that does: {suggestion}"
        )


def _named_patterns(model: nn.Module) -> list[str]:
    """Return the names of the model's modules with `*` for numbers, each once: `layers.*`, `layers.*.attention`."""
    numbered = (
        ".".join("*" if part.isdecimal() else part for part in name.split(".")) for name, _ in model.named_modules()
    )
    return list(dict.fromkeys(name for name in numbered if name))


def _keeping_products() -> object:
    return create_selective_checkpoint_contexts(_policy)


def _policy(context: object, operator: object, *arguments: torch.Tensor, **options: object) -> CheckpointPolicy:
    # A linear layer written as an einsum is a batched product of batch 1; other batched products are attention's, whose
    # results grow with the square of the context.
    is_linear = operator is _aten.bmm.default and arguments[0].shape[0] == 1
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT or is_linear else CheckpointPolicy.PREFER_RECOMPUTE

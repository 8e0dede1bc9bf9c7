"""The linear layers of a model, which knobs replace or complement, and operators that stand for their kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sysbench.lab.workload.inputs import vocabulary_size

LIBRARY = torch.library.Library("sysbench", "DEF")
"""Operators that stand for kernels of other libraries where there is no data: they have a name and a shape."""


def linear_layers(model: nn.Module, *, with_output: bool = False) -> dict[nn.Module | None, str]:
    """Return the linear layers that a model calls, with their names, without or with the output layer."""
    name_of: dict[nn.Module | None, str] = {each: name for name, each in model.named_modules() if _is_linear(each)}
    for attention in (module for module in model.modules() if isinstance(module, nn.MultiheadAttention)):
        name_of.pop(attention.out_proj, None)  # it is not called: attention takes its weights
    if not with_output:
        name_of.pop(output_layer(model, vocabulary_size(model)), None)
    return name_of


def _is_linear(module: nn.Module) -> bool:
    kind: Any = type(module)
    if "Router" in kind.__name__:  # such as Llama 4's, which returns more than its product
        return False
    return isinstance(module, nn.Linear) or (kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers."))


def output_layer(model: nn.Module, vocabulary: int | None) -> nn.Module | None:
    """Return the layer that computes a model's logits; None if there is none."""
    getter = getattr(model, "get_output_embeddings", None)
    if callable(getter) and isinstance(layer := getter(), nn.Module):
        return layer
    linear = {
        name: module
        for name, module in model.named_modules()
        if (isinstance(module, nn.Linear) or type(module).__name__ == "Linear")
        and isinstance(weight := getattr(module, "weight", None), Tensor)
        and weight.shape[0] == vocabulary
    }
    # An adapter holds its layer, and linear layers of its own.
    outermost = [name for name in linear if not any(name.startswith(f"{other}.") for other in linear)]
    named_so = [name for name in outermost if "head" in name or "output" in name]
    return linear[(named_so or outermost)[-1]] if linear else None

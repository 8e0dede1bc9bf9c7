"""The linear layers of a model, which knobs replace or complement."""

from __future__ import annotations

from typing import Any

from torch import nn


def linear_layers(model: nn.Module) -> dict[nn.Module | None, str]:
    """Return the linear layers that a model calls, with their names."""
    name_of: dict[nn.Module | None, str] = {each: name for name, each in model.named_modules() if _is_linear(each)}
    for attention in (module for module in model.modules() if isinstance(module, nn.MultiheadAttention)):
        name_of.pop(attention.out_proj, None)  # it is not called: attention takes its weights
    return name_of


def _is_linear(module: nn.Module) -> bool:
    kind: Any = type(module)
    return isinstance(module, nn.Linear) or (kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers."))

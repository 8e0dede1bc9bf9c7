"""LoRA: the model is frozen, and low-rank adapters beside its linear layers are trained.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021. The implementation is peft's, with its defaults
for everything but the rank; the code here decides which layers get adapters.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch
from torch import nn

from sysbench.errors import UnavailableError, nearest
from sysbench.lab.knobs.cross_entropy import output_layer
from sysbench.lab.transformer import Transformer
from sysbench.lab.workload.inputs import vocabulary_size
from sysbench.spec import extras
from sysbench.spec.knobs import ALL_LINEAR, matches_module

_BUILT_IN_TARGETS = "q+v"
"""Queries and values, as peft's default for Llama and most other models."""


def add_adapters(model: nn.Module, rank: int, targets: str | None, device: torch.device, seed: int) -> None:
    """Freeze the model, and put an adapter of `rank` beside each linear layer that `targets` names.

    None        peft's default for the type of a model from transformers; queries and values of the built-in model;
                else `all-linear`
    all-linear  all linear layers except the output layer
    patterns    joined by `+`; each matches the end of a layer's name, part by part: `q_proj`, `layers.*.attention.q`

    Raises UnavailableError if the model has no such layers, or if peft is not installed. Call this before the model is
    distributed or compiled.
    """
    if complaint := extras.missing(*extras.PEFT):
        raise UnavailableError(complaint)
    import peft
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    names: str | None = None  # peft's default
    if targets is None and isinstance(model, Transformer):
        targets = _BUILT_IN_TARGETS
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if targets is not None or model_type not in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
        names = "|".join(map(re.escape, _layers(model, rank, targets or ALL_LINEAR)))
    torch.manual_seed(seed)  # every rank draws the same adapters
    with device, warnings.catch_warnings():
        # GPT-2's Conv1D has its weights transposed, which peft sees, and sets the option.
        warnings.filterwarnings("ignore", "fan_in_fan_out")
        try:
            peft.inject_adapter_in_model(peft.LoraConfig(r=rank, target_modules=names), model)
        except ValueError as error:
            raise UnavailableError(f"--lora {rank}: peft cannot adapt {type(model).__name__}: {error}") from error


def _layers(model: nn.Module, rank: int, targets: str) -> list[str]:
    name_of = {module: name for name, module in model.named_modules() if _is_linear(module)}
    for attention in (module for module in model.modules() if isinstance(module, nn.MultiheadAttention)):
        name_of.pop(attention.out_proj, None)  # it is not called: attention takes its weights
    if targets == ALL_LINEAR:
        name_of.pop(output_layer(model, vocabulary_size(model)), None)
    names = list(name_of.values())
    if not names:
        raise UnavailableError(f"--lora {rank}: {type(model).__name__} has no linear layers that could get adapters")
    if targets == ALL_LINEAR:
        return names
    chosen: dict[str, None] = {}
    for pattern in targets.split("+"):
        matched = [name for name in names if _ends_with(name, pattern)]
        if not matched:
            last_parts = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
            suggestion = nearest(pattern, last_parts) or ", ".join(last_parts[:4])
            raise UnavailableError(
                f"--lora-targets {pattern} matches no linear layer of {type(model).__name__}. Nearest that does: "
                f"{suggestion}"
            )
        chosen |= dict.fromkeys(matched)
    return list(chosen)


def _is_linear(module: nn.Module) -> bool:
    kind: Any = type(module)
    return isinstance(module, nn.Linear) or (kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers."))


def _ends_with(name: str, pattern: str) -> bool:
    return matches_module(".".join(name.split(".")[-len(pattern.split(".")) :]), pattern)

"""LoRA: the model is frozen, and low-rank adapters beside its linear layers are trained.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021. The implementation is peft's, with its defaults
for everything but the rank; the code here decides which layers get adapters.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sysbench import extras
from sysbench.errors import UnavailableError, nearest
from sysbench.lab.knobs.layers import linear_layers
from sysbench.lab.knobs.quantization import PackedLinear
from sysbench.lab.transformer import Transformer
from sysbench.spec.knobs import ALL_LINEAR, matches_module
from sysbench.spec.model import ModelCell

_BUILT_IN_TARGETS = "q+v"
"""Queries and values, as peft's default for Llama and most other models."""


def add_adapters(model: nn.Module, cell: ModelCell, device: torch.device) -> None:
    """Freeze the model, and put an adapter of the rank `cell.lora` beside each linear layer that the cell names.

    `cell.lora_targets` are patterns joined by `+`, each for the end of a layer's name, part by part: `q_proj`; or
    `all-linear`. Some of the usual names may match nothing, as with peft. Without any, the layers are peft's default
    for the type of a model from transformers, queries and values of the built-in model, or else `all-linear`. Call
    this before the model is distributed or compiled.
    """
    if complaint := extras.missing(*extras.PEFT):
        raise UnavailableError(complaint)
    import_peft()
    import peft
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    rank, targets = cell.lora, cell.lora_targets
    if targets is None and isinstance(model, Transformer):
        targets = _BUILT_IN_TARGETS
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    # peft's own default, which it does not find by itself for models whose experts it renames.
    names = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(model_type) if targets is None else None
    if names is None:
        layers, listed = _layers(model, rank, targets or ALL_LINEAR), (targets or "").split("+")
        # Of usual names peft makes what it makes in a trainer: adapters at experts too, none for what is not there.
        names = listed if _USUAL.issuperset(listed) else "|".join(map(re.escape, layers))
    config = peft.LoraConfig(r=rank, target_modules=names, use_dora=cell.adapter == "dora")
    config._register_custom_module({PackedLinear: _adapter_of_packed(peft.tuners.lora.Linear)})
    torch.manual_seed(cell.seed)  # every rank draws the same adapters
    with device, _told_of_quantization(model), _without_bitsandbytes(), warnings.catch_warnings():
        # GPT-2's Conv1D has its weights transposed, which peft sees, and sets the option.
        warnings.filterwarnings("ignore", "fan_in_fan_out")
        try:
            peft.inject_adapter_in_model(config, model)
        except ValueError as error:
            raise UnavailableError(f"--lora {rank}: peft cannot adapt {type(model).__name__}: {error}") from error
    for parameter in model.parameters():
        if parameter.requires_grad:
            # As peft.get_peft_model does (autocast_adapter_dtype), whatever the layers compute in.
            parameter.data = parameter.data.float()


def import_peft() -> None:
    """Import peft without bitsandbytes, which takes a second. Raises ImportError if peft is missing."""
    from transformers.utils import is_bitsandbytes_available

    is_bitsandbytes_available()  # transformers keeps the answer, which must be the true one
    with _without_bitsandbytes():
        import peft  # noqa: F401


@contextmanager
def _without_bitsandbytes() -> Iterator[None]:
    """Context manager in which peft does not find bitsandbytes, unless it is imported already.

    A model has layers of bitsandbytes only if something has imported it before.
    """
    if "bitsandbytes" in sys.modules:
        yield
        return
    sys.modules["bitsandbytes"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["bitsandbytes"]
        if (peft := sys.modules.get("peft.import_utils")) is not None:
            peft.is_bnb_available.cache_clear()
            peft.is_bnb_4bit_available.cache_clear()


@contextmanager
def _told_of_quantization(model: nn.Module) -> Iterator[None]:
    """Context manager in which peft looks for layers of bitsandbytes; transformers would mark its own models so."""
    names = ("is_loaded_in_4bit", "is_loaded_in_8bit")
    for name in names:
        setattr(model, name, True)
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)


def _adapter_of_packed(linear: Any) -> Any:
    """Return peft's adapter for bitsandbytes' layers (tuners/lora/bnb.py), for those that stand for them."""

    class PackedAdapter(linear):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.base_layer(x)
            result = result.clone() if self.base_layer.copied_by_adapter else result
            (name,) = self.active_adapters
            if torch.is_autocast_enabled(x.device.type):
                change: Tensor = self.lora_B[name](self.lora_A[name](x)) * self.scaling[name]
                return result + change
            change = self.lora_B[name](self.lora_A[name](x.to(self.lora_A[name].weight.dtype))) * self.scaling[name]
            return result + change.to(result.dtype)

    return PackedAdapter


_USUAL = {
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("gate", "shared_expert_gate", "w1", "w2", "w3", "in_proj", "out_proj", "x_proj", "in_proj_ba", "in_proj_qkvz"),
    *("fc1", "fc2", "linear_1", "linear_2"),
}
"""Layers of Llama and of most models, then of models with experts, state spaces or encoders of images. People list them
all, though a model may have only some of them, or be built differently by a later version of transformers."""


_STATE_SPACES = ("falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h")
"""Types of models whose `out_proj` peft refuses, since their kernels take its weights
(peft/tuners/tuners_utils.py)."""


def _layers(model: nn.Module, rank: int, targets: str) -> list[str]:
    names = list(linear_layers(model, with_output=targets != ALL_LINEAR).values())
    if not names:
        raise UnavailableError(f"--lora {rank}: {type(model).__name__} has no linear layers that could get adapters")
    if targets == ALL_LINEAR:
        is_refused = getattr(getattr(model, "config", None), "model_type", None) in _STATE_SPACES
        return [name for name in names if not (is_refused and name.endswith("out_proj"))]
    chosen: dict[str, None] = {}
    has_others = any(_ends_with(name, pattern) for pattern in targets.split("+") for name in names)
    for pattern in targets.split("+"):
        matched = [name for name in names if _ends_with(name, pattern)]
        if not matched and not (pattern.rpartition(".")[2] in _USUAL and has_others):
            last_parts = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
            suggestion = nearest(pattern, last_parts) or ", ".join(last_parts[:4])
            raise UnavailableError(
                f"--lora-targets {pattern} matches no linear layer of {type(model).__name__}. Nearest that does: "
                f"{suggestion}"
            )
        chosen |= dict.fromkeys(matched)
    return list(chosen)


def _ends_with(name: str, pattern: str) -> bool:
    return matches_module(".".join(name.split(".")[-len(pattern.split(".")) :]), pattern)

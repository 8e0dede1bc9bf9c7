"""Products of linear layers in fp8, by torchao's `convert_to_float8_training`.

Micikevicius et al., "FP8 Formats for Deep Learning", 2022. Inputs and weights are rounded to e4m3, gradients of outputs
to e5m2, each scaled so that its largest element is the largest of the format. Parameters, gradients and everything
between the products stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sysbench import extras
from sysbench.errors import UnavailableError
from sysbench.lab.knobs.layers import linear_layers
from sysbench.spec.knobs import FP8_MULTIPLE, fp8_refusal, has_fp8
from sysbench.spec.steps import StepPrecision

_RECIPES = {"fp8": "tensorwise", "fp8-rowwise": "rowwise"}


def use_float8(model: nn.Module, precision: StepPrecision, device: torch.device) -> None:
    """Replace all linear layers except the output layer by those of torchao; on a CPU, these emulate fp8."""
    if complaint := extras.missing(*extras.FP8):
        raise UnavailableError(complaint)
    if device.type == "cuda" and not has_fp8(torch.cuda.get_device_capability(device)):
        raise UnavailableError(fp8_refusal(precision, torch.cuda.get_device_name(device)))
    layers = {name: layer for layer, name in linear_layers(model).items() if isinstance(layer, nn.Linear)}
    if not layers:
        raise UnavailableError(f"--precision {precision}: {type(model).__name__} has no linear layers for fp8")
    odd = [
        name
        for name, linear in layers.items()
        if linear.in_features % FP8_MULTIPLE or linear.out_features % FP8_MULTIPLE
    ]
    if odd:
        layer = layers[odd[0]]
        more = f", and {len(odd) - 1} more" if len(odd) > 1 else ""
        raise UnavailableError(
            f"--precision {precision} needs sides divisible by {FP8_MULTIPLE}, but {odd[0]} maps {layer.in_features} "
            f"to {layer.out_features}{more}. Nearest: --precision bf16"
        )
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config: object = Float8LinearConfig.from_recipe_name(_RECIPES[precision])
    if device.type != "cuda" and not next(model.parameters()).is_meta:
        object.__setattr__(config, "emulate", True)  # the configuration is frozen
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name in layers)
    for name in layers:
        # torchao asks only for CUDA's autocast.
        model.get_submodule(name).register_forward_pre_hook(_to_autocast_dtype)


def _to_autocast_dtype(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    kind = inputs[0].device.type
    return (inputs[0].to(torch.get_autocast_dtype(kind)),) if torch.is_autocast_enabled(kind) else inputs

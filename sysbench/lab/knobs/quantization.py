"""QLoRA: frozen weights of linear layers as 4-bit codes, which are dequantized for each product.

Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023. The implementation is bitsandbytes'. It does
not run without data: there, `PackedLinear` stores what bitsandbytes stores, and its products request the same memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sysbench import extras
from sysbench.errors import UnavailableError
from sysbench.lab.knobs.layers import LIBRARY, linear_layers
from sysbench.lab.precision import compute_dtype
from sysbench.spec.model import ModelCell

_BLOCK, _NESTED_BLOCK = 64, 256
"""Number of weights with one scale, and of scales with one scale: scales are 8-bit codes themselves."""


def home_of(cell: ModelCell, device: torch.device) -> torch.device:
    """Return where a model is built: on the host if its weights are packed on their way to a GPU."""
    return torch.device("cpu") if cell.quantize is not None and device.type == "cuda" else device


def quantize(model: nn.Module, cell: ModelCell, device: torch.device) -> None:
    """Store the weights of all linear layers but the output layer as the cell says, and move the model to `device`.

    Products are computed in the dtype of the cell's products. Raises UnavailableError if there are no such layers, or
    if bitsandbytes is not installed. Call this before the model gets adapters.
    """
    if cell.quantize is None:
        return
    layers = {name: module for module, name in linear_layers(model).items() if isinstance(module, nn.Linear)}
    if not layers:
        raise UnavailableError(f"--quantize nf4: {type(model).__name__} has no linear layers with weights to pack")
    has_data = not any(layer.weight.is_meta for layer in layers.values())
    pack = _packed if has_data else _packed_without_data
    for number, (name, layer) in enumerate(layers.items()):
        parent, _, attribute = name.rpartition(".")
        packed = pack(layer, compute_dtype(cell.compute_precision), is_first=number == 0)
        setattr(model.get_submodule(parent), attribute, packed)
    if has_data:
        model.to(device)


def _packed(layer: nn.Linear, dtype: torch.dtype, *, is_first: bool) -> nn.Module:
    """Return a layer of bitsandbytes, which packs its weight when it is moved to a device."""
    if complaint := extras.missing(*extras.BITSANDBYTES):
        raise UnavailableError(complaint)
    from bitsandbytes.nn import Linear4bit, Params4bit

    with torch.device("meta"):  # its weight is replaced
        packed: nn.Linear = Linear4bit(
            layer.in_features, layer.out_features, bias=False, compute_dtype=dtype, quant_type="nf4"
        )
    packed.weight = Params4bit(layer.weight.detach().to(dtype), requires_grad=False, quant_type="nf4", module=packed)
    packed.bias = layer.bias
    return packed.train(layer.training)


def _packed_without_data(layer: nn.Linear, dtype: torch.dtype, *, is_first: bool) -> nn.Module:
    packed = PackedLinear(layer, dtype)
    if is_first:  # bitsandbytes keeps one more table for all layers
        packed.kept.append(torch.empty_like(packed.kept[1]))
    return packed


LIBRARY.define("dequantize_in_blocks(Tensor codes, int rows, int columns, ScalarType dtype) -> Tensor")


@torch.library.impl(LIBRARY, "dequantize_in_blocks", "Meta")
def _shape_of_values(codes: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(rows, columns, dtype=dtype, device="meta")


_dequantize: Any = torch.ops.sysbench.dequantize_in_blocks


class PackedLinear(nn.Linear):
    """Stands for bitsandbytes' Linear4bit where there is no data: it has the same tensors, and computes nothing."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        self.dtype = dtype
        new, size = layer.weight.detach().new_empty, layer.weight.numel()
        self.scales = math.ceil(size / _BLOCK)
        self.weight = nn.Parameter(new((size + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
        # Both tables of values, the mean of the scales, their codes, and the scales of these.
        sizes = (16, 256, 1, self.scales, math.ceil(self.scales / _NESTED_BLOCK))
        self.kept = [new(size, dtype=torch.uint8 if size == self.scales else torch.float32) for size in sizes]

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in_features) to (…, out_features), in the dtype of x."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        product: Tensor = _Product.apply(x.to(self.dtype), bias, self)
        return product.to(x.dtype)

    def values(self) -> Tensor:
        """Return the dequantized weight (out_features, in_features)."""
        values: Tensor = _dequantize(self.weight, self.out_features, self.in_features, self.dtype)
        return values


class _Product(torch.autograd.Function):
    """MatMul4Bit of bitsandbytes (autograd/_functions.py), which dequantizes in forward and again in backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, bias: Tensor | None, layer: PackedLinear) -> Tensor:
        context.layer = layer
        scales = [_dequantize(layer.kept[3], layer.scales, 1, torch.float32) for _ in range(2)]  # then with their mean
        product = functional.linear(x, layer.values(), bias)
        del scales
        return product

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        (gradient,), layer = gradients, context.layer
        of_bias = gradient.flatten(0, -2).sum(0) if context.needs_input_grad[1] else None
        if not context.needs_input_grad[0]:
            return None, of_bias, None
        scales = _dequantize(layer.kept[3], layer.scales, 1, torch.float32)
        values = layer.values()
        del scales
        return gradient @ values, of_bias, None

"""Frozen weights of linear layers in 4 bits (QLoRA), or in 8 bits (LLM.int8).

Codes of 4 bits are dequantized for each product; those of 8 bits are multiplied by inputs that are quantized alike, and
dequantized in backward. Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023, and "LLM.int8(): 8-bit
Matrix Multiplication for Transformers at Scale", 2022. The implementation is bitsandbytes'. It does not run without
data: there, a `PackedLinear` stores what bitsandbytes stores, and its products request the same memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.flop_counter import register_flop_formula

from sysbench import extras
from sysbench.errors import UnavailableError
from sysbench.lab.knobs.layers import LIBRARY, linear_layers
from sysbench.lab.precision import compute_dtype
from sysbench.spec.knobs import WITH_EXPERTS
from sysbench.spec.model import ModelCell

_BLOCK, _NESTED_BLOCK = 64, 256
"""Number of weights with one scale, and of scales with one scale: scales are 8-bit codes themselves."""

_OUTLIER = 6.0
"""From this magnitude of an input on, its column is multiplied in 16 bits: the default of transformers'
BitsAndBytesConfig (llm_int8_threshold)."""


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
        named = f"--quantize {cell.quantize}: {type(model).__name__}"
        raise UnavailableError(f"{named} has no linear layers with weights to pack")
    experts = _experts(model, cell) if cell.quantize == WITH_EXPERTS else []
    has_data = not any(layer.weight.is_meta for layer in layers.values())
    for number, (name, layer) in enumerate(layers.items()):
        parent, _, attribute = name.rpartition(".")
        if cell.quantize == "int8":
            packed = _in_8_bits(layer) if has_data else EightBitLinear(layer)
        elif has_data:
            packed = _in_4_bits(layer, compute_dtype(cell.compute_precision))
        else:
            packed = FourBitLinear(layer, compute_dtype(cell.compute_precision), is_first=number == 0)
        setattr(model.get_submodule(parent), attribute, packed)
    for module, attribute in experts:
        if has_data:
            module.to(device)
            _experts_in_4_bits(module, attribute)
        else:
            _pack_experts(module, attribute, compute_dtype(cell.compute_precision))
    if has_data:
        model.to(device)


def _experts(model: nn.Module, cell: ModelCell) -> list[tuple[nn.Module, str]]:
    """Return the stacked weights of experts, each as a module and the name of its parameter with three dimensions."""
    found = [
        (module, name)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3 and not isinstance(module, nn.modules.conv._ConvNd)
    ]
    if not found:
        raise UnavailableError(
            f"--quantize {cell.quantize}: {type(model).__name__} has no stacked weights of experts. Nearest: nf4"
        )
    return found


def _in_4_bits(layer: nn.Linear, dtype: torch.dtype) -> nn.Module:
    """Return a layer of bitsandbytes, which packs its weight when it is moved to a device."""
    _need_bitsandbytes()
    from bitsandbytes.nn import Linear4bit, Params4bit

    with torch.device("meta"):  # its weight is replaced
        packed: nn.Linear = Linear4bit(
            layer.in_features, layer.out_features, bias=False, compute_dtype=dtype, quant_type="nf4"
        )
    packed.weight = Params4bit(layer.weight.detach().to(dtype), requires_grad=False, quant_type="nf4", module=packed)
    packed.bias = layer.bias
    return packed.train(layer.training)


def _in_8_bits(layer: nn.Linear) -> nn.Module:
    """Return a layer of bitsandbytes, which packs its weight when it is moved to a device."""
    _need_bitsandbytes()
    from bitsandbytes.nn import Int8Params, Linear8bitLt

    with torch.device("meta"):  # its weight is replaced
        packed: nn.Linear = Linear8bitLt(
            layer.in_features, layer.out_features, bias=False, has_fp16_weights=False, threshold=_OUTLIER
        )
    packed.weight = Int8Params(layer.weight.detach(), requires_grad=False, has_fp16_weights=False)
    packed.bias = layer.bias
    return packed.train(layer.training)


def _experts_in_4_bits(module: nn.Module, name: str) -> None:
    """Pack a parameter on the GPU with bitsandbytes, which dequantizes it once in each forward of its module."""
    _need_bitsandbytes()
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    replace_parameter_4bit(module, name, compress_statistics=True)


def _need_bitsandbytes() -> None:
    if complaint := extras.missing(*extras.BITSANDBYTES):
        raise UnavailableError(complaint)


LIBRARY.define("dequantize_in_blocks(Tensor codes, int rows, int columns, ScalarType dtype) -> Tensor")


@torch.library.impl(LIBRARY, "dequantize_in_blocks", "Meta")
def _shape_of_values(codes: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(rows, columns, dtype=dtype, device="meta")


_dequantize: Any = torch.ops.sysbench.dequantize_in_blocks


class PackedLinear(nn.Linear):
    """Stands for a layer of bitsandbytes where there is no data: it has the same tensors, and computes nothing."""

    copied_by_adapter: bool
    """Whether peft's adapter for such a layer copies its result before it adds to it."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias


def _packed(weight: Tensor, *, is_first: bool) -> tuple[nn.Parameter, list[Tensor]]:
    """Return the codes of a weight, and what is kept beside them: both tables of values, the mean of the scales, their
    codes, and the scales of these."""
    new, size = weight.detach().new_empty, weight.numel()
    scales = math.ceil(size / _BLOCK)
    codes = nn.Parameter(new((size + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
    sizes = (16, 256, 1, scales, math.ceil(scales / _NESTED_BLOCK), *[256] * is_first)
    return codes, [new(each, dtype=torch.uint8 if each == scales else torch.float32) for each in sizes]


class FourBitLinear(PackedLinear):
    """Stands for Linear4bit, whose weight is packed as nf4 with scales that are quantized themselves."""

    copied_by_adapter = True

    def __init__(self, layer: nn.Linear, dtype: torch.dtype, *, is_first: bool) -> None:
        """Store the weight of `layer`; products are in `dtype`. The first layer keeps one more table for all."""
        super().__init__(layer)
        self.dtype = dtype
        self.weight, self.kept = _packed(layer.weight, is_first=is_first)
        self.scales = self.kept[3].numel()

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in_features) to (…, out_features), in the dtype of x."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        product: Tensor = _FourBitProduct.apply(x.to(self.dtype), bias, self)
        return product.to(x.dtype)

    def values(self) -> Tensor:
        """Return the dequantized weight (out_features, in_features)."""
        values: Tensor = _dequantize(self.weight, self.out_features, self.in_features, self.dtype)
        return values


class _FourBitValues(nn.Module):
    """Stands for Bnb4bitParametrization (bitsandbytes/nn/parametrize.py), which gives a parameter its values."""

    def __init__(self, shape: torch.Size, kept: list[Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.kept, self.dtype = shape, kept, dtype

    @torch.no_grad()
    def forward(self, codes: Tensor) -> Tensor:
        scales = [_dequantize(self.kept[3], self.kept[3].numel(), 1, torch.float32) for _ in range(2)]
        values: Tensor = _dequantize(codes, self.shape[0] * self.shape[1], self.shape[2], self.dtype)
        del scales
        return values.view(self.shape)


def _pack_experts(module: nn.Module, name: str, dtype: torch.dtype) -> None:
    """Do what replace_parameter_4bit of bitsandbytes does: values are kept while the module runs forward."""
    weight = getattr(module, name)
    codes, kept = _packed(weight, is_first=False)
    setattr(module, name, codes)
    parametrize.register_parametrization(module, name, _FourBitValues(weight.shape, kept, dtype), unsafe=True)
    module.register_forward_pre_hook(_keep_values)
    module.register_forward_hook(_drop_values, always_call=True)


def _keep_values(*_: object) -> None:
    parametrize._cache_enabled += 1


def _drop_values(*_: object) -> None:
    parametrize._cache_enabled = max(0, parametrize._cache_enabled - 1)
    if not parametrize._cache_enabled:
        parametrize._cache.clear()


class _FourBitProduct(torch.autograd.Function):
    """MatMul4Bit of bitsandbytes (autograd/_functions.py), which dequantizes in forward and again in backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, bias: Tensor | None, layer: FourBitLinear) -> Tensor:
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


LIBRARY.define("quantize_rows(Tensor values) -> (Tensor, Tensor)")
LIBRARY.define("multiply_int8(Tensor codes, Tensor weight) -> Tensor")
LIBRARY.define("rescale(Tensor product, Tensor rows, Tensor columns) -> Tensor")


@torch.library.impl(LIBRARY, "quantize_rows", "Meta")
def _shape_of_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.empty(values.numel() // values.shape[-1], dtype=torch.float32, device="meta")
    return torch.empty(values.shape, dtype=torch.int8, device="meta"), rows


@torch.library.impl(LIBRARY, "multiply_int8", "Meta")
def _shape_of_product(codes: Tensor, weight: Tensor) -> Tensor:
    return torch.empty((*codes.shape[:-1], weight.shape[0]), dtype=torch.int32, device="meta")


@torch.library.impl(LIBRARY, "rescale", "Meta")
def _shape_of_rescaled(product: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return torch.empty_like(product, dtype=torch.float16)


@register_flop_formula(torch.ops.sysbench.multiply_int8)
def _product_flops(codes: Any, weight: Any, *_: object, **__: object) -> int:
    return int(2 * math.prod(codes) * weight[0])


_quantize_rows: Any = torch.ops.sysbench.quantize_rows
_multiply: Any = torch.ops.sysbench.multiply_int8
_rescale: Any = torch.ops.sysbench.rescale


class EightBitLinear(PackedLinear):
    """Stands for Linear8bitLt, whose weight is int8 with a scale for each row."""

    copied_by_adapter = False

    def __init__(self, layer: nn.Linear) -> None:
        """Store the weight of `layer`."""
        super().__init__(layer)
        new = layer.weight.detach().new_empty
        self.weight = nn.Parameter(new(layer.weight.shape, dtype=torch.int8), requires_grad=False)
        self.scales = new(layer.out_features, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in_features) to (…, out_features), in the dtype of x."""
        if self.bias is not None and self.bias.dtype != x.dtype:
            self.bias.data = self.bias.data.to(x.dtype)
        product: Tensor = _EightBitProduct.apply(x, self.bias, self)
        return product


def _quantized(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and scales of rows, as int8_vectorwise_quant of bitsandbytes (backends/cuda/ops.py).

    No outliers are assumed: columns that have one are also multiplied in the dtype of the input, and kept in it.
    """
    codes, scales = _quantize_rows(values)
    outliers = values.abs() >= _OUTLIER
    bool(outliers.any())  # the host waits for it
    return codes, scales


class _EightBitProduct(torch.autograd.Function):
    """MatMul8bitLt of bitsandbytes (autograd/_functions.py), with frozen weights.

    It keeps its input as an attribute of the context, not as a saved tensor, though its backward does not need it:
    checkpointing without reentrance does not free that, and backward frees it only with the whole graph.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, bias: Tensor | None, layer: EightBitLinear) -> Tensor:
        shape = x.shape
        rows = x.reshape(-1, shape[-1])
        codes, scales = _quantized(rows.to(torch.float16))
        product = _scaled_product(codes, scales, layer, bias, x.dtype)
        context.layer, context.shape, context.dtype = layer, shape, x.dtype
        context.kept = rows if context.needs_input_grad[0] else None
        return product.reshape(*shape[:-1], layer.out_features)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        (gradient,), layer = gradients, context.layer
        if not context.needs_input_grad[0]:
            return None, None, None
        rows = gradient.reshape(-1, layer.out_features).contiguous()
        values = layer.weight.to(context.dtype, copy=True).mul_(layer.scales.unsqueeze(1).mul(1.0 / 127.0))
        return (rows.to(context.dtype) @ values).view(context.shape), None, None


def _scaled_product(
    codes: Tensor, scales: Tensor, layer: EightBitLinear, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return the product of codes in a dtype: int8_scaled_mm of bitsandbytes, whose kernel writes fp16."""
    product = _multiply(codes, layer.weight)
    values: Tensor = _rescale(product, scales, layer.scales)
    if bias is not None and bias.dtype != torch.float16:
        values.add_(bias)
    return values.to(dtype)

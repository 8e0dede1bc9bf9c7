"""The CUDA kernels that each ATen operator launches, and the work of each kernel.

Sources, PyTorch 2.11 to 2.13, under aten/src/ATen/native: cuda/Loops.cuh (vectorized if all tensors have the same
layout, otherwise an offset for each element), cuda/Blas.cpp, cuda/SoftMax.cu, cuda/Reduce.cuh, cuda/Embedding.cu,
cuda/NLLLoss2d.cu, cuda/ForeachFunctors.cuh and MultiTensorApply.cuh, cuda/fused_adam_utils.cuh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import _resolve_process_group

from sysbench.extras import installed_torch
from sysbench.lab.dispatch import Arguments, Operator, Options
from sysbench.lab.memory.accounting import tensors_in
from sysbench.lab.workload.workload import flops
from sysbench.predict.trace import Dtype, HostWork, Kernel, Kind
from sysbench.simulate.compiler.generated import Launch
from sysbench.simulate.tensors import HostTensor, SimulatedTensor
from sysbench.spec.ranks import NODE_RANKS

Kernels = tuple[Kernel, ...]

_DTYPES: Mapping[torch.dtype, Dtype] = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FREE = _names(
    "empty empty_like empty_strided new_empty new_empty_strided lift_fresh resize_ set_ record_stream _unsafe_view "
    "_reshape_alias _amp_update_scale_ wait_tensor unsafe_split unsafe_chunk as_strided_ "
    "_wrap_tensor_autograd"
)
"""Operators that launch no kernel, or at most a tiny one per step."""

_FILLS = _names(
    "zeros zeros_like ones ones_like full full_like fill_ zero_ new_zeros new_ones new_full scalar_tensor arange "
    "uniform_ normal_ random_ bernoulli_ eye tril triu tril_ triu_ rand randn rand_like randn_like bernoulli linspace"
)

_REDUCTIONS = _names(
    "sum mean amax amin max min logsumexp any all norm var std linalg_vector_norm prod argmax argmin var_mean aminmax "
    "cumsum"
)

_ROW_WISE = _names(
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm _fused_rms_norm "
    "_fused_rms_norm_backward"
)

_ELEMENTWISE = _names(
    "copy_ clone _to_copy masked_fill_ native_dropout native_dropout_backward constant_pad_nd repeat slice_backward "
    "select_backward roll flip index_fill floor_divide glu glu_backward "
    "hardswish hardswish_ hardswish_backward hardsigmoid_backward hardtanh_backward leaky_relu_backward elu_backward "
    "softplus_backward prelu _prelu_kernel _prelu_kernel_backward masked_scatter masked_scatter_ reciprocal_"
)
"""Elementwise operators, in addition to those that torch itself tags as pointwise."""

_GATHERING = _names(
    "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward "
    "avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward "
    "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward upsample_nearest1d upsample_nearest1d_backward "
    "upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward "
    "upsample_bicubic2d upsample_bicubic2d_backward im2col col2im reflection_pad1d reflection_pad2d replication_pad2d"
)
"""Operators whose kernel computes an offset for each element, or several."""

_COPIES = _names("copy_ clone _to_copy")
_FUSED_ATTENTION = ("flash", "efficient", "cudnn")

_CHUNK = 65_536
_LARGER_ARGUMENTS = 7 if installed_torch() >= (2, 12) else 1
"""By how much kernel arguments may be larger since PyTorch 2.12, as its dispatcher showed on the fake GPU."""
_CHUNKS_PER_LAUNCH = 320 * _LARGER_ARGUMENTS
_TENSORS_PER_LAUNCH = {
    lists: count * _LARGER_ARGUMENTS for lists, count in {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}.items()
}
"""Number of tensors per launch by number of lists, limited by the size of kernel arguments (MultiTensorApply.cuh)."""


_UPDATE_OPERATORS: Mapping[bool, Sequence[HostWork]] = {True: ("operator",) * 4, False: ("operator",) * 16}
"""Operators that AdamW issues on the host for one parameter, fused or not, with the work of `Optimizer.step` itself."""

_UNFUSED_UPDATE_BYTES = 5 * 28
"""Bytes per element of an update on the host that is not fused, at the rate of a fused one: it takes 4.5 to 5.7 times
as long in fp32, and a little longer in bf16 (32 million elements, 2 cores of a Xeon, torch 2.15)."""

_UNFUSED_SLOWDOWN = _UNFUSED_UPDATE_BYTES / 84
"""The same relative to the 84 bytes that its operators read and write."""


@dataclass(frozen=True)
class Call:
    """A call of one operator on the simulated device."""

    func: Operator
    args: Arguments
    options: Options
    result: Any

    @cached_property
    def name(self) -> str:
        """Return the operator's name without namespace or overload: `bmm`."""
        return str(self.func._schema.name).partition("::")[2]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Return all tensors among the arguments, including those in lists, but not one that is to be written."""
        return list(tensors_in([*self.args, *(value for name, value in self.options.items() if name != "out")]))

    @cached_property
    def results(self) -> list[Tensor]:
        """Return all tensors among the results."""
        return list(tensors_in([self.result]))

    @property
    def lists(self) -> list[list[Tensor]]:
        """Return the distinct lists of tensors among the arguments."""
        given = [each for each in self.args if isinstance(each, list | tuple) and each and isinstance(each[0], Tensor)]
        return list({id(each[0]): list(each) for each in given}.values())

    @cached_property
    def is_on_device(self) -> bool:
        """Return whether any argument or result is a tensor on the simulated device."""
        return any(type(tensor) is SimulatedTensor for tensor in [*self.tensors, *self.results])

    @property
    def host(self) -> tuple[HostWork, ...]:
        """Return the host work of issuing the operator."""
        if not self.is_on_device and self.name.startswith("_foreach_"):
            return tuple("scalar" for _ in self.lists[0])
        if self.name == "_local_scalar_dense":
            return ("scalar",)
        if self.name == "update_on_host":
            return tuple(_UPDATE_OPERATORS[self.flag("fused")])
        return ("view",) if self._is_free else ("operator",)

    @property
    def host_bytes(self) -> int:
        """Return the bytes that the host moves itself, for an update of a parameter on the host."""
        if self.name == "update_on_host":
            (parameter,) = self.tensors
            return _bytes(parameter) * 7 if self.flag("fused") else parameter.numel() * _UNFUSED_UPDATE_BYTES
        if self.func.is_view or self.is_on_device or not self._on_host:
            return 0
        if self.name.startswith("_fused_adam"):
            return 7 * sum(map(_bytes, self.lists[0]))
        written = self.results or [tensor for changed in self.lists[:1] for tensor in changed]
        return round(_UNFUSED_SLOWDOWN * sum(map(_bytes, [*self._on_host, *written])))

    @property
    def kernels(self) -> Kernels:
        """Return the kernels that the operator launches on the device, in order."""
        if self.name == "_to_copy" and (self._on_host or any(type(result) is HostTensor for result in self.results)):
            return _copy(self, "host_to_device" if self._on_host else "device_to_host")
        if self._is_free or self.name in ("_local_scalar_dense", "update_on_host"):
            return ()
        if self.name in _RULES:
            return _RULES[self.name](self)
        if self.name.startswith("_foreach_"):
            return _foreach(self)
        if self.name.startswith("_fused_adam"):
            return _multi_tensor(self, "optimizer", passes=7, lists=4)  # parameters, gradients, and two moments
        kernels = _elementwise(self)
        if torch.Tag.pointwise in self.func.tags or self.name in _ELEMENTWISE:
            return kernels
        work = flops(self.func, self.args, self.options, self.result)
        return tuple(kernel._replace(kind="unknown", flops=work) for kernel in kernels)

    @cached_property
    def _on_host(self) -> list[Tensor]:
        return [tensor for tensor in self.tensors if type(tensor) is HostTensor]

    @property
    def _is_free(self) -> bool:
        return self.func.is_view or self.name in _FREE or not self.is_on_device

    def argument(self, name: str) -> Any:
        """Return the value of the argument `name`; None if it is omitted."""
        position = next(
            (i for i, argument in enumerate(self.func._schema.arguments) if argument.name == name), len(self.args)
        )
        return self.options.get(name, self.args[position] if position < len(self.args) else None)

    def flag(self, name: str) -> bool:
        """Return the value of the Boolean argument `name`; False if it is omitted."""
        return bool(self.argument(name))

    def kernel(self, kind: Kind, of: Tensor, moved_bytes: int, **more: Any) -> Kernel:
        """Return a kernel that moves this many bytes, with the dtype and number of elements of the tensor `of`."""
        return Kernel(kind, self.name, _dtype(of), moved_bytes, of.numel(), **more)


def generated(launch: Launch) -> Kernel:
    """Return a kernel that a compiler has generated, for one of its launches."""
    kind: Kind = "softmax" if launch.is_reduction else "map"
    dims = (launch.rows, launch.width) if launch.is_reduction else ()
    dtype = _DTYPES.get(launch.dtype, "other")
    return Kernel(kind, launch.name, dtype, launch.moved_bytes, launch.rows * launch.width, dims=dims)


def attention(name: str, layout: str, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Kernel:
    """Return a fused attention kernel for tensors of shape (batch, heads, seq, d_head)."""
    batch, heads, queries, width = query.shape
    products, passes = (5, 4) if "backward" in layout else (2, 2)
    return Kernel(
        kind="attention",
        name=name,
        dtype=_dtype(query),
        bytes=passes * (_bytes(query) + _bytes(key)),
        elements=query.numel(),
        flops=products * batch * heads * queries * key.shape[-2] * (width + value.shape[-1]),
        dims=(batch, heads, queries, key.shape[-2], width),
        layout=f"{layout} causal" if causal else layout,
    )


def _product(call: Call) -> Kernels:
    first, second = call.tensors[-2:]
    batch = first.shape[0] if first.dim() == 3 else 1
    (m, k), n = first.shape[-2:], second.shape[-1]
    layout = ("N" if second.stride(-1) == 1 and n > 1 else "T") + ("N" if first.stride(-1) == 1 else "T")
    moved_bytes = first.element_size() * batch * (m * k + k * n + m * n)
    kernel = call.kernel("gemm", call.result, moved_bytes, flops=2 * batch * m * n * k, dims=(batch, m, n, k))
    return (kernel._replace(dtype=_dtype(first), layout=layout),)


def _scaled_product(call: Call) -> Kernels:
    first, second = call.tensors[:2]
    (m, k), n = first.shape, second.shape[-1]
    moved_bytes = first.element_size() * (m * k + k * n) + _bytes(call.result)
    kernel = call.kernel("gemm", call.result, moved_bytes, flops=2 * m * n * k, dims=(1, m, n, k), layout="TN")
    return (kernel._replace(dtype=_dtype(first)),)


def _grouped_product(call: Call) -> Kernels:
    """Return one kernel with a product per expert, assuming that every expert has the same number of tokens.

    The rows of the result (2-D by 3-D) or the inner dimension (2-D by 2-D) are divided among the experts.
    """
    first, second, ends = call.tensors[:3]
    batch = ends.shape[0]
    by_expert = first.dim() == second.dim() == 2
    m, k, n = first.shape[-2], first.shape[-1], second.shape[-1]
    dims = (batch, m, n, math.ceil(k / batch)) if by_expert else (batch, math.ceil(m / batch), n, k)
    moved_bytes = sum(map(_bytes, (first, second, *call.results)))
    kernel = call.kernel("gemm", call.result, moved_bytes, flops=2 * m * n * k, dims=dims)
    return (kernel._replace(dtype=_dtype(first), layout="NT" if by_expert else "TN"),)


def _fill(call: Call) -> Kernels:
    out = call.results[0]
    return (call.kernel("map", out, _bytes(out)),)


def _reduction(call: Call) -> Kernels:
    """Return a row-wise reduction if the summed elements are adjacent in memory, otherwise a column-wise one."""
    source, out = call.tensors[0], call.results[0]
    rows = max(1, out.numel())
    fastest = _innermost_dimension(source)
    within = out.dim() < source.dim() or (fastest >= 0 and out.shape[fastest] != source.shape[fastest])
    summed = fastest == source.dim() - 1 if out.dim() < source.dim() and rows > 1 else within
    return (
        call.kernel(
            "reduce",
            source,
            bytes_touched(source) + sum(map(_bytes, call.results)),
            dims=(rows, source.numel() // rows),
            layout="rows" if summed else "columns",
        ),
    )


def _row_wise(call: Call) -> Kernels:
    source = call.tensors[0]
    width = source.shape[-1]
    moved_bytes = sum(map(bytes_touched, call.tensors)) + sum(map(_bytes, call.results))
    return (call.kernel("softmax", source, moved_bytes, dims=(source.numel() // max(1, width), width)),)


def _layer_norm_backward(call: Call) -> Kernels:
    """Return two kernels: the gradient of the input, and those of gain and bias, which are sums over rows."""
    gradient = call.tensors[0]
    rows, width = gradient.numel() // max(1, gradient.shape[-1]), gradient.shape[-1]
    return (
        call.kernel("softmax", gradient, 3 * _bytes(gradient), dims=(rows, width)),
        call.kernel("reduce", gradient, 2 * _bytes(gradient), dims=(width, rows), layout="columns"),
    )


def _gather(call: Call) -> Kernels:
    return (call.kernel("embedding", call.result, 2 * _bytes(call.result)),)


def _scatter(call: Call) -> Kernels:
    """Return the kernels that compute the gradient of a table: fill it with zeros, sort the indices, add rows.

    Source: cuda/Embedding.cu.
    """
    gradient = call.tensors[0]
    return *_fill(call), call.kernel("embedding", gradient, 3 * bytes_touched(gradient))


_SECTOR_BYTES = 32
"""Minimum size of a DRAM access."""


def _loss_forward(call: Call) -> Kernels:
    rows = call.tensors[0].shape[0]
    return (call.kernel("loss", call.tensors[1], _SECTOR_BYTES * rows),)


def _loss_backward(call: Call) -> Kernels:
    return *_fill(call), call.kernel("loss", call.tensors[2], _SECTOR_BYTES * call.result.shape[0])


MAX_BATCHED_DIMENSIONS = 4
"""Largest number of dimensions for which one kernel copies all inputs (CAT_ARRAY_MAX_INPUT_DIMS in cuda/Shape.cu)."""


def _concatenation(call: Call) -> Kernels:
    """Return the copy of all inputs, or a copy of each if they have too many dimensions for one kernel.

    Tensors are stacked by concatenating them, with a dimension more only if they are stacked along a new last one
    (native/TensorShape.cpp).
    """
    dimensions = call.tensors[0].dim()
    if call.name == "stack" and (call.argument("dim") or 0) in (-1, dimensions):
        dimensions += 1
    if dimensions <= MAX_BATCHED_DIMENSIONS:
        return (call.kernel("indexed", call.result, 2 * _bytes(call.result)),)
    return tuple(call.kernel("indexed", tensor, 2 * _bytes(tensor)) for tensor in call.tensors)


def _filled_copy(call: Call) -> Kernels:
    return (call.kernel("map", call.result, 2 * _bytes(call.result)), *_elementwise(call))


def _safe_softmax(call: Call) -> Kernels:
    """Return the softmax, and the search for rows without a finite score, whose result is 0 (native/SoftMax.cpp)."""
    scores, out = call.tensors[0], call.result
    rows = out.numel() // max(1, out.shape[-1])
    return (
        *_row_wise(call),
        call.kernel("map", scores, _bytes(scores) + scores.numel()),
        call.kernel("reduce", out, out.numel(), dims=(rows, out.shape[-1]), layout="rows"),
        call.kernel("map", out, _SECTOR_BYTES),
        call.kernel("indexed", out, 2 * _bytes(out)),
    )


def _attention_forward(call: Call) -> Kernels:
    query, key, value = call.tensors[:3]
    implementation = _implementation(call)
    kernel = attention(call.name, f"{implementation} forward", query, key, value, causal=call.flag("is_causal"))
    if implementation == "efficient" and not call.argument("dropout_p") and installed_torch() >= (2, 14):
        clear = call.kernel("map", query, 2 * _SECTOR_BYTES)._replace(elements=1)
        return clear, clear, kernel  # the seed and the offset of the random generator
    return (kernel,)


def _attention_backward(call: Call) -> Kernels:
    """Return the row sums of gradient × output, all other work, and what each implementation launches besides.

    Flash attention converts the gradient of the queries from fp32; efficient attention in fp32 copies the gradient,
    multiplies and sums it in kernels of their own, and clears a counter (cuda/attention_backward.cu).
    """
    gradient, query, key, value = call.tensors[:4]
    implementation, width = _implementation(call), gradient.shape[-1]
    sums = call.kernel("reduce", gradient, 2 * _bytes(gradient), dims=(gradient.numel() // width, width), layout="rows")
    kernel = attention(call.name, f"{implementation} backward", query, key, value, causal=call.flag("is_causal"))
    if implementation == "flash":
        return sums, kernel, call.kernel("map", query, _bytes(query) + 4 * query.numel())
    if implementation == "efficient" and gradient.dtype is torch.float32:
        copy, product = (call.kernel("map", gradient, passes * _bytes(gradient)) for passes in (2, 3))
        clear = call.kernel("map", gradient, _SECTOR_BYTES)._replace(elements=1)
        return copy, product, sums._replace(bytes=_bytes(gradient)), clear, kernel
    return sums, kernel


def _implementation(call: Call) -> str:
    return call.name.removeprefix("_scaled_dot_product_").partition("_")[0]


def _convolution(call: Call) -> Kernels:
    """Return a convolution as an implicit matrix product; with one channel a group, each output sums its few inputs."""
    source, weight, bias = call.args[:3]
    kernel = _products_of_convolution(call, source, weight, call.result, "TN")
    added = 0 if bias is None or kernel[-1].kind != "gemm" else 2 * _bytes(call.result)
    return (*kernel, call.kernel("indexed", call.result, added)) if added else kernel


def _convolution_backward(call: Call) -> Kernels:
    """Return the products for the gradients of the input and of the weights, and the sum for that of the bias."""
    gradient, source, weight = call.args[:3]
    kernels: Kernels = ()
    for wanted, layout in zip(call.args[-1], ("NN", "NT"), strict=False):
        if wanted:
            kernels += _products_of_convolution(call, source, weight, gradient, layout)
    if call.args[-1][2]:
        size = gradient.shape[1], gradient.numel() // gradient.shape[1]
        kernels += (call.kernel("reduce", gradient, _bytes(gradient), dims=size, layout="columns"),)
    return kernels


def _products_of_convolution(call: Call, source: Tensor, weight: Tensor, out: Tensor, layout: str) -> Kernels:
    """Return the kernels of a convolution from `source` to `out`, or of a gradient, by the product's layout."""
    groups = call.argument("groups")
    dense = source if call.flag("transposed") else out
    positions = dense.numel() // dense.shape[1]
    moved_bytes = sum(map(_bytes, (source, weight, out)))
    wide, narrow = weight.shape[0] // groups, weight.numel() // weight.shape[0]
    if groups > 1 and min(wide, weight.shape[1]) == 1:
        elements = positions * weight.numel() // _TAPS_PER_OFFSET
        return (Kernel("indexed", call.name, _dtype(out), moved_bytes, elements),)
    dims = {"TN": (positions, wide, narrow), "NN": (positions, narrow, wide), "NT": (wide, narrow, positions)}[layout]
    product = call.kernel(
        "gemm", out, moved_bytes, flops=2 * positions * weight.numel(), dims=(groups, *dims), layout=layout
    )
    return (_in_tf32(product),)


_TAPS_PER_OFFSET = 8
"""Number of products of a depthwise convolution that take as long as the offset of an element; chosen on training steps
of ConvNeXt-T, EfficientNet-B0 and MobileNetV2 on an RTX 3090 (results of pytorch-image-models)."""


def _recurrent(call: Call) -> Kernels:
    """Return cuDNN's kernels for recurrent layers: a product with all inputs, then one step after the other in time."""
    backward = call.name.endswith("_backward")
    source, weights, stride = call.args[:3]
    steps = len(call.argument("batch_sizes")) or source.shape[1 if call.flag("batch_first") else 0]
    rows = source.numel() // source.shape[-1]
    batch = max(1, rows // steps)
    kernels: list[Kernel] = []
    for first in range(0, len(weights), stride):
        of_input, *of_states = (weight for weight in weights[first : first + stride] if weight.dim() == 2)
        gates_bytes = batch * of_states[0].shape[0] * of_states[0].element_size()
        each_step = [_step_product(call, weight, batch, backward=backward, reads=1 / steps) for weight in of_states]
        kernels.append(_step_product(call, of_input, rows, backward=backward))
        kernels += [*each_step, call.kernel("map", of_states[0], 2 * gates_bytes)] * steps
        if backward:
            kernels += [_step_product(call, weight, rows, of_weight=True) for weight in (of_input, *of_states)]
    return tuple(kernels)


def _step_product(
    call: Call, weight: Tensor, rows: int, *, backward: bool = False, of_weight: bool = False, reads: float = 1
) -> Kernel:
    """Return the product of `rows` inputs and a weight matrix, or of a gradient with the weights or with the inputs."""
    wide, narrow = weight.shape
    dims, layout = ((rows, narrow, wide), "NN") if backward else ((rows, wide, narrow), "TN")
    if of_weight:
        dims, layout = (wide, narrow, rows), "NT"
    moved_bytes = weight.element_size() * int(rows * (wide + narrow) + reads * wide * narrow)
    return _in_tf32(
        call.kernel("gemm", weight, moved_bytes, flops=2 * rows * wide * narrow, dims=(1, *dims), layout=layout)
    )


def _in_tf32(product: Kernel) -> Kernel:
    """Return the product as cuDNN computes it: fp32 in tf32, unless torch.backends.cudnn.allow_tf32 is off."""
    return product._replace(dtype="tf32") if product.dtype == "fp32" else product


def _normalization(call: Call, passes: int) -> Kernels:
    """Return a normalization over channels, which reads and writes the whole tensor in several passes."""
    if call.name == "native_batch_norm" and not call.argument("training"):
        return _elementwise(call)
    source = call.tensors[0]
    channels = source.shape[1] if source.dim() > 1 else 1
    dims = (channels, source.numel() // max(1, channels))
    return (call.kernel("reduce", source, passes * _bytes(source), dims=dims, layout="columns"),)


def _found_positions(call: Call) -> Kernels:
    mask = call.tensors[0]
    counted = call.kernel("reduce", mask, _bytes(mask), dims=(1, mask.numel()), layout="rows")
    return counted, call.kernel("indexed", mask, _bytes(mask) + _bytes(call.result))


def _gathered(call: Call) -> Kernels:
    return tuple(kernel._replace(kind="indexed") for kernel in _elementwise(call))


def _elementwise(call: Call) -> Kernels:
    if not call.results:
        return ()
    out = call.results[0]
    in_place = call.name.endswith("_") and call.name != "copy_"
    sources = [tensor for tensor in call.tensors if tensor.dim() and (in_place or tensor is not out)]
    moved_bytes = sum(map(bytes_touched, sources)) + sum(map(bytes_touched, call.results))
    return (call.kernel(_elementwise_kind(call.name, sources, out), out, moved_bytes),)


def _elementwise_kind(name: str, sources: list[Tensor], out: Tensor) -> Kind:
    if (
        name in _COPIES
        and sources
        and sources[-1].shape == out.shape
        and _innermost_dimension(sources[-1]) != _innermost_dimension(out)
    ):
        return "transpose"
    alike = all(source.shape == out.shape and source.stride() == out.stride() for source in sources)
    return "map" if alike else "indexed"


def _foreach(call: Call) -> Kernels:
    """Return the kernels of an operator on lists of tensors, which reads every list and writes one list."""
    lists = call.lists
    return _multi_tensor(call, "foreach", passes=len(lists) + 1, lists=len(lists) + (not call.name.endswith("_")))


def _update_in_blocks(call: Call) -> Kernels:
    """Return the kernels of AdamW with moments in blocks: for 8 bits one, which reads and writes all but the gradient.

    For 4 bits, it writes temporaries, of which one more kernel for each moment makes the codes.
    """
    parameter, gradient, moments, temporaries = call.args
    buffers = sum(map(_bytes, temporaries))
    moved_bytes = 2 * _bytes(parameter) + _bytes(gradient) + 2 * sum(map(_bytes, moments)) + buffers
    packing = call.kernel("map", parameter, (buffers + sum(map(_bytes, moments))) // 2)
    return call.kernel("optimizer", parameter, moved_bytes), *((packing, packing) if temporaries else ())


def _copy(call: Call, link: str) -> Kernels:
    (copied,) = call.tensors
    return (call.kernel("copy", copied, _bytes(copied))._replace(name=link),)


def _converted(call: Call) -> Kernels:
    """Return a kernel that reads all arguments and writes all results."""
    return (call.kernel("map", call.results[0], sum(map(_bytes, [*call.tensors, *call.results]))),)


def _int8_product(call: Call) -> Kernels:
    """Return a product of codes at the rate of one in fp16, which such products reach without being tuned."""
    first, second = call.tensors
    (m, k), n = first.shape, second.shape[0]
    moved_bytes = sum(map(_bytes, (first, second, call.result)))
    kernel = call.kernel("gemm", call.result, moved_bytes, flops=2 * m * n * k, dims=(1, m, n, k), layout="TN")
    return (kernel._replace(dtype="fp16"),)


def _multi_tensor(call: Call, kind: Kind, *, passes: int, lists: int) -> Kernels:
    tensors = call.lists[0]
    count = sum(tensor.numel() for tensor in tensors)
    chunks = sum(math.ceil(tensor.numel() / _CHUNK) for tensor in tensors)
    most = _TENSORS_PER_LAUNCH[min(5, max(1, lists))]
    launches = max(1, math.ceil(chunks / _CHUNKS_PER_LAUNCH), math.ceil(len(tensors) / most))
    moved_bytes = passes * tensors[0].element_size() * count // launches
    return (Kernel(kind, call.name, _dtype(tensors[0]), moved_bytes, count // launches),) * launches


_COLLECTIVES: Mapping[str, str] = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "broadcast_": "broadcast",
}
"""By operator of torch.distributed: the collective that it calls."""


def _collective(call: Call) -> Kernels:
    """Return the kernel of a collective, with the bytes of the whole buffer, which is the largest tensor."""
    whole = max([*call.tensors, *call.results], key=_bytes)
    ranks = _ranks_of(call)
    nodes = len({rank // NODE_RANKS for rank in ranks})
    kernel = call.kernel("collective", whole, _bytes(whole), dims=(len(ranks), nodes))
    return (kernel._replace(name=_COLLECTIVES[call.name]),) if len(ranks) > 1 else ()


def _ranks_of(call: Call) -> Sequence[int]:
    for each in call.args:
        if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each._type()):
            return distributed.get_process_group_ranks(distributed.ProcessGroup.unbox(each))
        if isinstance(each, str) and each not in _REDUCTION_NAMES:
            return distributed.get_process_group_ranks(_resolve_process_group(each))  # type: ignore[arg-type]
    raise ValueError(f"{call.name} has no process group")


_REDUCTION_NAMES = _names("sum avg min max product")


def _copy_between_shards(call: Call) -> Kernels:
    shards, passes = (call.args[0], 2) if call.name == "all_gather_copy_in" else (call.tensors, 1)
    moved_bytes = passes * sum(map(_bytes, shards))
    return (call.kernel("map", call.tensors[0], moved_bytes),)


_RULES: Mapping[str, Callable[[Call], Kernels]] = {
    **dict.fromkeys(_COLLECTIVES, _collective),
    **dict.fromkeys(("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat"), _copy_between_shards),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    "_grouped_mm": _grouped_product,
    **dict.fromkeys(_FILLS, _fill),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_ROW_WISE, _row_wise),
    "native_layer_norm_backward": _layer_norm_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(("_cudnn_rnn", "_cudnn_rnn_backward"), _recurrent),
    "nonzero": _found_positions,
    **dict.fromkeys(("native_batch_norm", "native_group_norm"), partial(_normalization, passes=3)),
    **dict.fromkeys(("native_batch_norm_backward", "native_group_norm_backward"), partial(_normalization, passes=5)),
    **dict.fromkeys(_GATHERING, _gathered),
    **dict.fromkeys(("embedding", "index_select", "index", "gather", "take"), _gather),
    **dict.fromkeys(
        (
            "embedding_dense_backward",
            "index_add_",
            "index_add",
            "index_put_",
            "index_put",
            "_index_put_impl_",
            "scatter_add_",
            "scatter_add",
            "scatter",
        ),
        _scatter,
    ),
    "nll_loss_forward": _loss_forward,
    "nll_loss_backward": _loss_backward,
    **dict.fromkeys(("cat", "stack"), _concatenation),
    "masked_fill": _filled_copy,
    "_safe_softmax": _safe_softmax,
    "_amp_foreach_non_finite_check_and_unscale_": partial(_multi_tensor, kind="foreach", passes=2, lists=1),
    "update_in_blocks_": _update_in_blocks,
    **dict.fromkeys(("dequantize_in_blocks", "quantize_rows", "rescale"), _converted),
    "multiply_int8": _int8_product,
    "_scaled_mm": _scaled_product,
    "copy_to_host": partial(_copy, link="device_to_host"),
    "copy_to_device_": partial(_copy, link="host_to_device"),
    **{f"_scaled_dot_product_{kind}_attention": _attention_forward for kind in _FUSED_ATTENTION},
    **{f"_scaled_dot_product_{kind}_attention_backward": _attention_backward for kind in _FUSED_ATTENTION},
}
"""Rules by operator name. Other operators work on lists, are fused optimizers or elementwise, or are unknown."""


def _dtype(tensor: Tensor) -> Dtype:
    return _DTYPES.get(tensor.dtype, "other")


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def bytes_touched(tensor: Tensor) -> int:
    """Return the number of bytes moved by reading a whole tensor."""
    steps = _steps(tensor)
    spacing = min((step for step, _ in steps), default=1)
    size_bytes = math.prod(tensor.shape[d] for _, d in steps) * tensor.dtype.itemsize
    return size_bytes * min(spacing, _SECTOR_BYTES // tensor.dtype.itemsize)


def _innermost_dimension(tensor: Tensor) -> int:
    return min(_steps(tensor), default=(0, -1))[1]


def _steps(tensor: Tensor) -> Sequence[tuple[int, int]]:
    """Return (stride, dimension) for every dimension that is longer than 1 and not broadcast."""
    shape, stride = tensor.shape, tensor.stride()
    return [(stride[d], d) for d in range(len(shape)) if shape[d] > 1 and stride[d]]

"""Measures FLOP/s of matrix products and of fused attention by precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sysbench.commands.calibrate.record import RateName
from sysbench.commands.calibrate.spec import CalibrateCell
from sysbench.commands.calibrate.timing import Bench, Timed
from sysbench.lab import allocator
from sysbench.lab.precision import compute_dtype, matmul_precision
from sysbench.log.events import DeviceInfo
from sysbench.spec.cell import DeviceType
from sysbench.spec.model import Precision

PRECISIONS: Mapping[DeviceType, tuple[Precision, ...]] = {
    "cuda": ("fp32", "tf32", "bf16", "fp16"),
    "mps": ("fp32", "bf16", "fp16"),
    "cpu": ("fp32", "bf16"),
}

TENSOR_CORES_FOR_TF32_AND_BF16 = (8, 0)
"""First compute capability with units for both."""

RATE_OF: Mapping[Precision, RateName] = {
    "fp32": "matmul_fp32",
    "tf32": "matmul_tf32",
    "bf16": "matmul_half",
    "fp16": "matmul_half",
}

LAYOUTS: Mapping[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "TN": lambda left, right: (left, right.t()),
    "NN": lambda left, right: (left, right),
    "NT": lambda left, right: (left.t(), right),
}
"""cuBLAS's names of layouts, weights first: TN is a linear layer's forward, NN the gradient of its input, NT that of
its weights. The operands are square, so that any of them can be transposed."""

SIZES: Mapping[DeviceType, int] = {"cuda": 4096, "mps": 2048, "cpu": 1024}
"""Side of a large product, which keeps the device busy for milliseconds."""

SMALL = (512, 256, 256)
"""m, n, k of a product of a narrow model."""

BATCHED = (64, 256, 256, 64)
"""batch, m, n, k of attention's scores: 64 heads, 256 positions, heads 64 wide."""


def available(device: DeviceInfo) -> tuple[Precision, ...]:
    """Return the precisions of a device, without emulated ones if there are others."""
    found = PRECISIONS[device.type]
    if device.type == "cuda":
        major, _, minor = (device.compute_capability or "8.0").partition(".")
        if (int(major), int(minor)) < TENSOR_CORES_FOR_TF32_AND_BF16:
            return tuple(each for each in found if each in ("fp32", "fp16"))
    return found


def matmul(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time large products in three layouts, which set the rate, and a small and a batched one for comparison."""
    precisions = cell.precisions or available(bench.info)
    generator = torch.Generator().manual_seed(cell.seed)
    size = SIZES[bench.info.type]
    share = 1 / (len(precisions) * (len(LAYOUTS) + 2))
    for precision in precisions:
        rate, dtype = RATE_OF[precision], compute_dtype(precision)

        def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.rand(shape, generator=generator).sub_(0.5).to(bench.device, dtype)

        with matmul_precision(precision):
            left, right = random(size, size), random(size, size)
            for name, laid_out in LAYOUTS.items():
                operands = laid_out(left, right)
                samples_s = bench.seconds(partial(torch.mm, *operands), share)
                yield Timed(rate, f"{precision} {name} {size} × {size} × {size}", True, 2.0 * size**3, samples_s)
            m, n, k = SMALL
            operands = random(m, k), random(n, k).t()
            samples_s = bench.seconds(partial(torch.mm, *operands), share)
            yield Timed(rate, f"{precision} TN {m} × {n} × {k}", False, 2.0 * m * n * k, samples_s)
            batch, m, n, k = BATCHED
            operands = random(batch, m, k), random(batch, n, k).mT
            samples_s = bench.seconds(partial(torch.bmm, *operands), share)
            yield Timed(rate, f"{precision} TN {batch} of {m} × {n} × {k}", False, 2.0 * batch * m * n * k, samples_s)
        allocator.release(bench.device)


ATTENTION: Mapping[DeviceType, tuple[int, int, int, int]] = {
    "cuda": (4, 16, 4096, 128),
    "mps": (2, 8, 1024, 128),
    "cpu": (1, 4, 1024, 128),
}
"""batch, heads, positions, width of a head."""


def attention(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time the fused attention that PyTorch chooses, not causal, on 16-bit inputs: forward with graph, and backward."""
    shape = ATTENTION[bench.info.type]
    batch, heads, ctx, width = shape
    dtype = torch.bfloat16 if "bf16" in available(bench.info) else torch.float16
    q, k, v = (torch.rand(shape, device=bench.device, dtype=dtype).requires_grad_() for _ in "qkv")
    gradient = torch.rand(shape, device=bench.device, dtype=dtype)
    output = scaled_dot_product_attention(q, k, v)

    def backward() -> None:
        torch.autograd.grad(output, (q, k, v), gradient, retain_graph=True)

    # Forward has two products; backward repeats the first of them and has two more for each.
    forward_flops = 2 * 2.0 * batch * heads * ctx * ctx * width
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    case = f"{name} {batch} × {heads} × {ctx} × {width}"
    forward_s = bench.seconds(lambda: scaled_dot_product_attention(q, k, v), 0.4)
    yield Timed("attention_forward", case, True, forward_flops, forward_s)
    yield Timed("attention_backward", case, True, 2.5 * forward_flops, bench.seconds(backward, 0.6))

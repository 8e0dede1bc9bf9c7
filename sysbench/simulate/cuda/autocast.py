"""CUDA's autocast rules for simulated tensors, so that every result has the same dtype as on a GPU.

`torch.autocast("cpu")` normally follows the rules for CPUs, and applies only to real CPU tensors. Inside
`cuda_autocast`, `torch.autocast("cpu")` applies CUDA's rules to simulated tensors. Source:
aten/src/ATen/autocast_mode.{h,cpp}, PyTorch 2.11 to 2.13, where `CastPolicy` lists the policies.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeGuard

import torch
from torch import Tensor

from sysbench.lab.dispatch import Operator
from sysbench.simulate.tensors import SimulatedTensor

_KEY = torch._C.DispatchKey.AutocastCPU
_KEY_SET = torch._C.DispatchKeySet(_KEY)


@dataclass(frozen=True)
class AutocastRules:
    """Names of operators by autocast policy; all other operators use their arguments unchanged.

    lower_precision  all arguments are cast to autocast's dtype
    fp32             all arguments are cast to fp32
    fp32_result      the result is fp32 unless the caller requests a dtype; the operator converts internally
    fp32_appended    like fp32_result, for operators that take the dtype in another overload
    promote          all arguments are cast to the widest dtype among them
    banned           the operator raises RuntimeError under autocast
    """

    lower_precision: frozenset[str]
    fp32: frozenset[str]
    fp32_result: frozenset[str] = frozenset()
    fp32_appended: frozenset[str] = frozenset()
    promote: frozenset[str] = frozenset()
    banned: frozenset[str] = frozenset()


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CUDA_RULES = AutocastRules(
    lower_precision=_names(
        "_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
        "conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr "
        "matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot "
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
        "_scaled_dot_product_flash_attention scaled_dot_product_attention"
    ),
    fp32=_names(
        "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
        "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim "
        "nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
        "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
        "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
        "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d "
        "_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d "
        "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa "
        "upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
    ),
    fp32_result=_names(
        "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
        "linalg_matrix_norm.str_ord sum sum.dim_IntList"
    ),
    fp32_appended=_names("norm.Scalar norm.ScalarOpt_dim"),
    promote=_names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"),
    banned=_names("binary_cross_entropy"),
)
"""Rules of CUDA (AT_FORALL_LOWER_PRECISION_FP etc. in autocast_mode.h); operators that this torch lacks are skipped."""

_OVERLOADS_WITH_TYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

Kernel = Callable[..., object]


class Autocast:
    """Autocast for simulated tensors, with a cache of cast parameters like torch's own."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def clear(self) -> None:
        """Forget the casts."""
        self._casts.clear()

    def cast(self, value: object, dtype: torch.dtype) -> object:
        """Cast a tensor, or each tensor in a list, to `dtype` if autocast may cast it (cached_cast)."""
        if isinstance(value, list | tuple):
            return [self.cast(each, dtype) for each in value]
        if not _is_eligible(value) or value.dtype == dtype:
            return value
        if not _is_cacheable(value, dtype):
            return value.to(dtype)
        cached = self._casts.get(id(value))
        if cached is None or cached[0]() is not value:
            cached = self._casts[id(value)] = (weakref.ref(value), value.to(dtype))
        return cached[1]

    def kernels(self, rules: AutocastRules) -> dict[str, Kernel]:
        """Return a dispatcher kernel for each operator in `rules`, by operator name."""
        policies: dict[Callable[[str], Kernel], frozenset[str]] = {
            self._casting_policy(lambda values: torch.get_autocast_dtype("cpu")): rules.lower_precision,
            self._casting_policy(lambda values: torch.float32): rules.fp32,
            self._fp32_result: rules.fp32_result,
            self._fp32_appended: rules.fp32_appended,
            self._casting_policy(_promoted_dtype): rules.promote,
            _banned: rules.banned,
        }
        return {
            name: policy(name)
            for policy, names in policies.items()
            for name in names
            if torch._C._dispatch_has_kernel(f"aten::{name}")
        }

    def _casting_policy(self, dtype_for: Callable[[Sequence[object]], torch.dtype]) -> Callable[[str], Kernel]:
        def policy(name: str) -> Kernel:
            operator = _operator(name)

            def kernel(*args: object, **kwargs: object) -> object:
                with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
                    dtype = dtype_for([*args, *kwargs.values()])
                    # The last argument first, as the compiler of PyTorch evaluates them.
                    converted = {key: self.cast(value, dtype) for key, value in reversed(kwargs.items())}
                    cast = [self.cast(value, dtype) for value in reversed(args)]
                    return operator(*reversed(cast), **converted)

            return kernel

        return policy

    def _fp32_result(self, name: str) -> Kernel:
        operator = _operator(name)
        position = [argument.name for argument in operator._schema.arguments].index("dtype")

        def kernel(*args: object, **kwargs: object) -> object:
            is_open = kwargs.get("dtype") is None and (len(args) <= position or args[position] is None)
            if is_open and _is_eligible(args[0]):
                args, kwargs = args[:position], {**kwargs, "dtype": torch.float32}
            with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
                return operator(*args, **kwargs)

        return kernel

    def _fp32_appended(self, name: str) -> Kernel:
        operator = _operator(_OVERLOADS_WITH_TYPE[name])

        def kernel(*args: Any, **kwargs: Any) -> object:
            dtype = torch.float32 if _is_eligible(args[0]) else args[0].dtype
            with torch._C._ExcludeDispatchKeyGuard(_KEY_SET):
                return operator(*args, **kwargs, dtype=dtype)

        return kernel


def _banned(name: str) -> Kernel:
    def kernel(*args: object, **kwargs: object) -> object:
        raise RuntimeError(f"{name} is unsafe to autocast; {name}_with_logits is safe")

    return kernel


@contextmanager
def cuda_autocast(rules: AutocastRules = CUDA_RULES) -> Iterator[None]:
    """Context manager in which `torch.autocast("cpu", …)`, or "cuda", applies `rules` to simulated tensors.

    On exit, all changes to torch and its dispatcher are undone.
    """
    autocast = Autocast()
    clear_real_cache = torch.clear_autocast_cache

    def clear_caches() -> None:
        clear_real_cache()
        autocast.clear()

    named = {place: (getattr(*place), function) for place, function in _named_functions().items()}
    library = torch.library.Library("aten", "IMPL")
    kernels = autocast.kernels(rules)
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(_KEY.name)
    # Packages such as torchvision register operators of their own, which other rules do not concern.
    others = {name.removeprefix("aten::") for name in registered if name.startswith("aten::")}
    try:
        with warnings.catch_warnings():
            # "Overriding a previously registered kernel for the same operator": intended, and temporary.
            warnings.simplefilter("ignore", UserWarning)
            for name, kernel in kernels.items():
                library.impl(name, kernel, _KEY.name)
            for name in others - kernels.keys():
                library.impl(name, torch.library.fallthrough_kernel, _KEY.name)
        torch.clear_autocast_cache = clear_caches  # called where the outermost `torch.autocast` ends
        for (owner, name), (_, function) in named.items():
            setattr(owner, name, function)
        with torch._C._IncludeDispatchKeyGuard(_KEY):  # `meta` tensors do not have this key themselves
            yield
    finally:
        torch.clear_autocast_cache = clear_real_cache
        for (owner, name), (original, _) in named.items():
            setattr(owner, name, original)
        autocast.clear()
        library._destroy()


_TAKE_NAME = ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype")
"""Functions of torch with the name of a device as their first argument; the first two have "cuda" as its default."""


def _named_functions() -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return functions that take the name of a device for autocast, by their owner and name, such that "cuda" is "cpu".

    "cpu" is the name of simulated tensors for torch.
    """
    create = torch.autocast.__init__

    def created(
        self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **options: Any
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        create(self, device_type, dtype, *args, **options)

    def named(function: Callable[..., object], has_default: bool) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            name = options.pop("device_type", None)
            if name is None and args and isinstance(args[0], str):
                name, *args = args  # type: ignore[assignment]
            if name is None and not has_default:
                return function(*args, **options)
            return function("cpu" if name in (None, "cuda", "meta") else name, *args, **options)

        return call

    functions: dict[tuple[Any, str], Callable[..., Any]] = {
        (torch, name): named(getattr(torch, name), "enabled" in name) for name in _TAKE_NAME
    }
    functions[torch, "get_autocast_gpu_dtype"] = lambda: torch.get_autocast_dtype("cpu")
    for function in functions.values():
        function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # else the compiler would divide the code
    return {**functions, (torch.autocast, "__init__"): wraps(create)(created)}


def _operator(name: str) -> Operator:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _is_eligible(value: object) -> TypeGuard[Tensor]:
    """Return whether autocast may cast the value: a floating-point tensor other than fp64 (is_eligible).

    It is a simulated tensor, or one on `meta`, which stands for it while the compiler traces.
    """
    local = getattr(value, "_local_tensor", value)
    if not isinstance(local, Tensor) or not (isinstance(local, SimulatedTensor) or local.is_meta):
        return False
    return local.is_floating_point() and local.dtype != torch.float64


def _is_cacheable(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Return whether to cache the cast: as in torch, only casts of fp32 parameters to autocast's dtype are cached."""
    return (
        dtype == torch.get_autocast_dtype("cpu")
        and tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
    )


def _promoted_dtype(values: Sequence[object]) -> torch.dtype:
    """Return fp32 if any floating-point argument is fp32, otherwise autocast's dtype (promote_type)."""
    flat = [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
    found = any(_is_eligible(tensor) and tensor.dtype == torch.float32 for tensor in flat)
    return torch.float32 if found else torch.get_autocast_dtype("cpu")

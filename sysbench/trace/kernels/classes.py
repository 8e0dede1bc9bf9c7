"""The class of a kernel and its number format, by patterns of its name.

The names are those of cuBLAS and cuBLASLt (from Ampere's `ampere_sgemm` and `sm80_xmma_gemm` to Blackwell's `nvjet`),
CUTLASS, cuDNN, FlashAttention, PyTorch's own kernels, Triton as Inductor names what it generates, NCCL, rocBLAS, and of
operators of ATen, which stand for kernels on the CPU. No name says everything: a name that no pattern knows is placed
nowhere, and shown.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from sysbench.trace.summary import KernelClass

_READ: Final = 4000
"""Number of characters of a name that are examined."""


def _any(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_KERNELS: Final[tuple[tuple[KernelClass, re.Pattern[str]], ...]] = (
    (
        "communication",
        _any(
            r"^nccl",
            r"ncclDevKernel",
            r"ncclKernel",
            r"nvshmem",
            r"^c10d::",
            r"^gloo:",
            r"^ucc:",
            r"\brccl",
            r"(one|two)_shot_all_?reduce",
            r"multimem_",
            r"cross_device_reduce",
            r"_symmetric_memory",
            r"\b(deep_)?ep::(inter|intra)node",
        ),
    ),
    (
        "copy",
        _any(
            r"^Mem(cpy|set)\b",
            r"^\[CUDA mem",
            r"CatArrayBatchedCopy",
            r"\w*copy_kernel",
            r"_copy_functor",
            r"CopyFunctor",
            r"FillFunctor",
            r"\bfill_kernel",
            r"batched_?transpose",
            r"transpose_readWrite",
            r"nchwToNhwc",
            r"nhwcToNchw",
            r"tensorTransformGeneric",
            r"split_with_sizes_copy",
            r"chunk_cat",
            r"DeviceMemcpy",
            r"batch_memcpy",
        ),
    ),
    (
        "optimizer",
        _any(
            r"multi_tensor_apply",
            r"multi_tensor_\w+",
            r"fused_?adam",
            r"fused_?(sgd|lamb|adagrad|lion)",
            r"adam_?w?_",
            r"_foreach_",
            r"_fused_(adamw?|sgd|adagrad)",
            r"amp_(non_finite|update_scale)",
            r"lpnorm_cleanup",
            r"_amp_foreach",
            r"^Optimizer\.",
        ),
    ),
    (
        "attention",
        _any(
            r"flash_(fwd|bwd|attn|attention)",
            r"pytorch_flash::",
            r"\bflash::",
            r"FlashAttn",
            r"fmha",
            r"_sdpa_",
            r"attention_kernel(_backward)?_batched",
            r"\bAttention(Backward)?Kernel<",
            r"flex_attention",
            r"scaled_dot_product",
            r"(efficient|flash|cudnn)_attention",
            r"\b_?attn_(fwd|bwd)",
            r"compute_dot_do_o",
            r"paged_attention",
            r"mha_(fwd|bwd|varlen)",
            r"_native_multi_head_attention",
        ),
    ),
    ("softmax", _any(r"softmax")),
    (
        "normalisation",
        _any(
            r"layer_?norm",
            r"rms_?norm",
            r"batch_?norm",
            r"group_?norm",
            r"instance_?norm",
            r"GammaBeta",
            r"RowwiseMoments",
            r"bn_(fw|bw)_",
            r"ComputeGradientFusedParams",
            r"ComputeInternalGradients",
            r"fused_\w*mean\w*rsqrt",
            r"fused_\w*rsqrt\w*mean",
        ),
    ),
    (
        "embedding",
        _any(
            r"embedding",
            r"index_?(select|put|add|copy|fill|get)",
            r"indexSelect",
            r"indexFunc",
            r"indexing_backward",
            r"index_elementwise_kernel",
            r"index_kernel",
            r"gather_kernel",
            r"scatter_gather",
            r"compute_grad_weight",
            r"krn_partial",
            r"partial_segments",
            r"segment_offsets",
            r"sum_and_scatter",
        ),
    ),
    # Inductor puts all fused operations into a kernel's name; the kind of kernel that it generates takes precedence.
    ("matmul", _any(r"triton_(tem|mm|bmm)(_|\b)", r"triton_\w*_tem_fused")),
    ("reduction", _any(r"triton_(red|per|spl)_fused")),
    ("elementwise", _any(r"triton_(poi|for)_fused", r"cpp_fused_")),
    (
        "matmul",
        _any(
            r"gemm",
            r"gemv",
            r"^nvjet",
            r"splitKreduce",
            r"splitk_?reduce",
            r"xmma_",
            r"cutlass_\d+",
            r"cutlass3x",
            r"tensorop_",
            r"(implicit_)?convolve",
            r"_(fprop|dgrad|wgrad)_",
            r"cudnn::cnn",
            r"winograd",
            r"cublas",
            r"conv_depthwise",
            r"conv\dd_",
            r"scudnn",
            r"^Cijk_",
            r"fused_moe",
            r"magma_\w*(mm|mv)",
            r"\btrsm",
            r"dot_kernel<",
            r"triton_\w*matmul",
            r"matmul_kernel",
        ),
    ),
    (
        "reduction",
        _any(
            r"reduce_kernel",
            r"\breduce",
            r"Device(Segmented)?Reduce",
            r"DeviceScan",
            r"tensor_kernel_scan",
            r"nll_loss",
            r"cross_entropy",
            r"scan_(inner|outer)most",
            r"cumsum",
            r"argm(ax|in)",
            r"norm_?(two|one)_?ops",
        ),
    ),
    (
        "elementwise",
        _any(
            r"elementwise",
            r"pointwise",
            r"dropout",
            r"triu_tril",
            r"(masked_(fill|scale))",
            r"gelu",
            r"silu",
            r"swiglu",
            r"\brope\b",
            r"rotary",
            r"CompareFunctor",
            r"glu_kernel",
            r"where_kernel",
            r"RangeFactories",
            r"random_",
        ),
    ),
    ("other", _any(r"RadixSort", r"DeviceMergeSort", r"bitonicSort", r"gatherTopK", r"sbtopk", r"mbtopk")),
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPERATORS: Final[tuple[tuple[KernelClass, frozenset[str]], ...]] = (
    (
        "matmul",
        _words(
            """
            mm bmm addmm baddbmm addbmm addmv mv dot vdot linear bilinear inner
            outer ger addr _scaled_mm _int_mm _grouped_mm _scaled_grouped_mm mkldnn_linear
            _addmm_activation linear_backward conv1d conv2d conv3d convolution _convolution
            convolution_backward mkldnn_convolution cudnn_convolution thnn_conv2d _slow_conv2d_forward
            """
        ),
    ),
    (
        "reduction",
        _words(
            """
            sum mean amax amin max min prod std var var_mean std_mean norm linalg_vector_norm argmax argmin
            any all cumsum cumprod logsumexp nansum count_nonzero nll_loss nll_loss_nd nll_loss_forward
            nll_loss_backward cross_entropy_loss aminmax median mse_loss mse_loss_backward logcumsumexp
            cummax bincount
            """
        ),
    ),
    (
        "elementwise",
        _words(
            """
            add sub rsub mul div true_divide floor_divide remainder pow square sqrt rsqrt reciprocal exp
            exp2 expm1 log log2 log1p sin cos tan tanh sigmoid relu gelu silu neg abs sign where masked_fill
            clamp clamp_min clamp_max erf erfinv maximum minimum addcmul addcdiv lerp eq ne lt le gt ge
            logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not isnan isinf
            isfinite dropout native_dropout bernoulli triu tril arange silu_backward gelu_backward
            tanh_backward sigmoid_backward threshold_backward native_dropout_backward softplus hardtanh
            leaky_relu elu round floor ceil trunc fmod atan2 normal uniform random nan_to_num ones_like full
            full_like polar view_as_complex_copy softplus_backward glu mish ScalarTensor scalar_tensor
            linspace trunc_normal xlogy heaviside
            """
        ),
    ),
    (
        "copy",
        _words(
            """
            copy clone to _to_copy contiguous cat concat stack fill zero zeros zeros_like ones repeat flip
            roll constant_pad_nd pad new_zeros new_ones new_full repeat_interleave _pin_memory
            slice_backward select_backward embedding_renorm narrow_copy unfold_backward type_as float half
            bfloat16
            """
        ),
    ),
    (
        "embedding",
        _words(
            """
            index gather gather_backward scatter scatter_add scatter_reduce take masked_select
            take_along_dim index_backward nonzero _unsafe_index _unsafe_index_put _index_put_impl
            value_selecting_reduction_backward masked_scatter
            """
        ),
    ),
    (
        "other",
        _words(
            """
            view reshape _reshape_alias expand expand_as transpose permute t numpy_T mT slice select squeeze
            unsqueeze as_strided detach empty empty_like empty_strided resize result_type item
            _local_scalar_dense set unbind chunk split split_with_sizes alias lift_fresh flatten unflatten
            movedim swapaxes narrow diagonal real imag view_as view_as_real view_as_complex is_nonzero
            requires_grad_ _unsafe_view broadcast_to new_empty new_empty_strided expand_copy sym_size
            is_same_size _has_compatible_shallow_copy_type can_cast ravel swapdims resolve_conj resolve_neg
            _conj conj unfold meshgrid broadcast_tensors atleast_1d positive record_stream is_pinned data
            sort topk stride size dim numel unsafe_split unsafe_chunk output_nr _version retain_grad
            tensor_split hsplit vsplit dsplit sym_numel sym_stride promote_types scaled_grouped
            empty_permuted equal allclose isclose local_scalar matmul einsum tensordot chain_matmul
            """
        ),
    ),
)
"""By the operator's own name, without a trailing underscore. Operators that only call others (`matmul`, `einsum`)
multiply nothing themselves: their own time is overhead.
"""

_BY_OPERATOR: Final[dict[str, KernelClass]] = {name: kind for kind, names in _OPERATORS for name in names}

_NO_ARITHMETIC: Final = re.compile(
    r"autograd::.*|torch::autograd::.*|.*Backward\d*|Torch-Compiled Region.*|## Call .*|CompiledFunction.*|"
    r"TorchDynamo.*|Pregraph bytecode|AOTDispatcher.*|inductor_codecache.*|Runtime .*|ProfilerStep.*|"
    r"detach_?|enumerate\(DataLoader\).*|DataParallel\..*|DistributedDataParallel\..*|torch/.*|(aten|prim)::(is_|sym_|_assert).*",
    re.DOTALL,
)
"""Names that only call operators and do no work themselves."""

_PRECISIONS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("fp4", _any(r"e2m1", r"nvf4", r"mxf4", r"fp4")),
    ("fp8", _any(r"e4m3", r"e5m2", r"fp8", r"^nvjet_(sm\d+_)?qq", r"_qgmma_")),
    ("tf32", _any(r"tf32")),
    ("bf16", _any(r"bf16", r"bfloat16", r"^nvjet_(sm\d+_)?t[st]t_")),
    (
        "fp16",
        _any(
            r"fp16",
            r"_f16f16",
            r"^(?!cudnn_generated).*_f16_",
            r"hgemm",
            r"h(884|1688|16816)gemm",
            r"s884gemm",
            r"half",
            r"^nvjet_(sm\d+_)?h[sh]h_",
        ),
    ),
    ("tf32", _any(r"s1688gemm", r"s161688gemm", r"s1688cudnn")),
    ("int8", _any(r"i8816gemm", r"i16832gemm", r"_s8s8", r"igemm", r"int8")),
    ("fp64", _any(r"dgemm", r"d884gemm", r"_f64f64", r"\bdouble\b")),
    ("fp32", _any(r"sgemm", r"f32f32_f32f32", r"_f32_", r"\bfloat\b", r"simt_s", r"scudnn")),
)
"""The first match counts. TF32 kernels take fp32 numbers and name both; shapes of tensor core instructions (`s1688`)
mean TF32 if no 16-bit format is named. cuDNN's generated kernels use `f16` for both 16-bit formats.
"""


@lru_cache(maxsize=65_536)
def classified(name: str) -> KernelClass | None:
    """The class of a kernel or operator by its name; None where no pattern matches."""
    text = name[:_READ]
    if text.startswith(("aten::", "prims::")):
        return _operator(text)
    if _NO_ARITHMETIC.fullmatch(text):
        return "other"
    return next((kind for kind, pattern in _KERNELS if pattern.search(text)), None)


def _operator(text: str) -> KernelClass | None:
    bare = text.rpartition("::")[2].split(".")[0]
    known = _BY_OPERATOR.get(bare) or _BY_OPERATOR.get(bare.rstrip("_"))
    if known is not None:
        return known
    if _NO_ARITHMETIC.fullmatch(text):
        return "other"
    return next((kind for kind, pattern in _KERNELS if pattern.search(text)), None)


@lru_cache(maxsize=65_536)
def precision(name: str) -> str | None:
    """Return the input format of a matrix product according to its name; None if the name does not contain it."""
    return next((format_ for format_, pattern in _PRECISIONS if pattern.search(name[:_READ])), None)

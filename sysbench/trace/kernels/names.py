"""Short form, class and number format of a kernel, derived from its name.

A C++ kernel's name contains every template argument: `void at::native::vectorized_elementwise_kernel<4,
at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, …)`. Its short form keeps the informative parts, the
function and its functor: `vectorized_elementwise_kernel<CUDAFunctor_add<float>>`.

Class and number format are derived from phrases in the name, of NVIDIA's, AMD's and Intel's libraries, PyTorch,
Inductor's Triton kernels, and others (tests/fixtures/kernel_names.txt), and of ATen operators, which stand for kernels
on the CPU. A name is first split into words (`CatArrayBatchedCopy` becomes `cat array batched copy`), so that `fbgemm`
does not match `gemm`. A name that matches no phrase has the class `other`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from sysbench.trace.kernels.demangling import demangled
from sysbench.trace.summary import KernelClass, KernelName

MAX_LENGTH: Final = 72
"""Maximum length of a shortened name in characters; the middle of longer names is elided."""

_MAX_READ: Final = 4000
"""Number of characters of a name that are examined."""
_MAX_DEPTH: Final = 8
"""Maximum depth to which nested templates are examined."""
_SHOWN_ARGUMENTS: Final = 3
_LONGEST_DIFFERENCE: Final = 24

_NOISE: Final = (
    (re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::"), ""),
    (re.compile(r"\{lambda\([^{}]*\)#\d+\}|\[lambda\([^\[\]]*\) \(instance \d+\)\]|\{unnamed type#\d+\}"), ""),
    (re.compile(r"operator\s*\(\)"), "operator"),
    (re.compile(r"\((?:bool|int|unsigned int|long|unsigned long|char)\)(?=-?\d)"), ""),
    (re.compile(r"\s+"), " "),
)
_CODE: Final = re.compile(r"<|\S\(")
"""Brackets of C++; brackets after a space, as in `Memcpy DtoD (Device -> Device)`, are ordinary text."""
_ENGINE: Final = "autograd::engine::"
"""Prefix of all operators that autograd's engine runs; it carries no information."""
_LITERAL: Final = re.compile(r"-?\d+[a-z]*|true|false|\(.*")
_TYPE: Final = re.compile(
    r"(float|double|int|long|short|bool|char|unsigned.*|signed.*|u?int\d+_t|c10::\w+|__nv_\w+|__half2?|void|at::\w+)"
    r"( const)?[*& ]*"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WRAPPERS: Final = _words(
    """
    gpu_kernel_impl gpu_kernel_impl_nocast BinaryFunctor AUnaryFunctor BUnaryFunctor ReduceOp func_wrapper_t Kernel
    Kernel2 device_kernel GemmUniversal
    """
)
"""Templates that are replaced by their argument, which is more informative."""
_UNINFORMATIVE: Final = _words(
    """
    array Array OffsetCalculator TrivialOffsetCalculator LoadWithCast LoadWithoutCast StoreWithCast StoreWithoutCast
    TensorListMetadata TensorListScalarListMetadata FusedOptimizerTensorListMetadata integral_constant
    """
)


def short_name(name: str) -> str:
    """Return the short form of a kernel's name, at most MAX_LENGTH characters long."""
    text = demangled(name)[:_MAX_READ].removeprefix(_ENGINE)
    if _CODE.search(text):
        text = _function(_without_noise(text), 0) or text
    return elide_middle(" ".join(text.split()) or "(no name)", MAX_LENGTH)


def distinct_short_names(names: Sequence[KernelName]) -> list[str]:
    """Return the short form of each name; those that look alike also show the template arguments in which they differ.

    For example, two instances of `f<float>` become `f<float> [64]` and `f<float> [128]`.
    """
    alike: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        alike[name.short].append(place)
    shown = [name.short for name in names]
    for places in alike.values():
        if len(places) > 1:
            arguments = [_template_arguments(names[place].name[:_MAX_READ]) for place in places]
            columns = [column for column in zip(*arguments, strict=False) if len(set(column)) > 1]
            for place, differing in zip(places, zip(*columns, strict=True), strict=False):
                shown[place] += f" [{elide_middle(', '.join(differing), _LONGEST_DIFFERENCE)}]"
    return shown


def _template_arguments(name: str) -> list[str]:
    text = _without_return_type(_without_noise(name))
    opening = next(_outside_brackets(text, "<("), len(text))
    return list(_arguments(text[opening + 1 :])) if text[opening : opening + 1] == "<" else []


def _without_noise(text: str) -> str:
    for pattern, replacement in _NOISE:
        text = pattern.sub(replacement, text)
    return text.strip()


def elide_middle(text: str, longest: int) -> str:
    """Replace the middle of a string longer than `longest` with an ellipsis; kernel names differ at both ends."""
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def _function(text: str, depth: int) -> str:
    text = _without_return_type(text)
    opening = next(_outside_brackets(text, "<("), len(text))
    base = text[:opening].rstrip(":& *").rpartition("::")[2].strip() or text[:opening].strip()
    if depth >= _MAX_DEPTH or text[opening : opening + 1] != "<":
        return base
    # Functors are the informative arguments. If there are none, types are.
    arguments = [argument for argument in _arguments(text[opening + 1 :]) if not _LITERAL.fullmatch(argument)]
    functors = [argument for argument in arguments if not _TYPE.fullmatch(argument)]
    shortened = [_function(argument, depth + 1) for argument in functors or arguments]
    informative = [each for each in shortened if each and re.split(r"[<( ]", each)[0] not in _UNINFORMATIVE]
    shown = list(dict.fromkeys(informative))[:_SHOWN_ARGUMENTS]
    if base in _WRAPPERS and shown:
        return shown[0]
    return f"{base}<{', '.join(shown)}>" if shown else base


def _without_return_type(text: str) -> str:
    """Remove the return type of a function: all before the last space of the part before its parameters."""
    text = text.removeprefix("void ")
    declarator = text[: next(_outside_brackets(text, "("), 0)].rstrip()
    return text[max(_outside_brackets(declarator, " "), default=-1) + 1 :]


def _arguments(text: str) -> Iterator[str]:
    """Yield the template arguments up to the bracket that closes their list."""
    text = text[: next(_outside_brackets(text, ">"), len(text))]
    begin = 0
    for end in (*_outside_brackets(text, ","), len(text)):
        if argument := text[begin:end].strip():
            yield argument
        begin = end + 1


def _outside_brackets(text: str, wanted: str) -> Iterator[int]:
    """Yield the positions of the wanted characters outside all brackets of C++.

    In parentheses, `<` and `>` may be operators, as in `((8)>(0))`: these open and close nothing.
    """
    opened: list[str] = []
    for position, character in enumerate(text):
        if not opened and character in wanted:
            yield position
        if character in "<(":
            opened.append(character)
        elif character == ">" and opened and opened[-1] == "<":
            opened.pop()
        elif character == ")":
            while opened and opened.pop() != "(":
                pass


# --- words

_CAMEL_CASE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")
_LENGTHS: Final = re.compile(r"(?<=[A-Za-z_])\d+(?=[A-Za-z])")
"""Matches the lengths of identifiers in a mangled name, and some other numbers."""


def words(name: str) -> str:
    """Return the words of a name in lower case, with underscores around and between them: `_cat_array_copy_`."""
    if name.startswith("_Z"):  # it cannot be demangled
        name = _LENGTHS.sub(" ", name)
    return f"_{_SEPARATORS.sub('_', _CAMEL_CASE.sub('_', name).lower()).strip('_')}_"


def _phrases(text: str) -> re.Pattern[str]:
    return re.compile(f"_(?:{'|'.join(text.split())})(?=_)")


# --- classes of kernels

_GEMM: Final = r"(?:[a-z0-9]*[0-9]|[bcdhiqswz]|batch(?:ed)?|deep|group(?:ed)?|tiny|splitk)?gemms?[a-z0-9]{0,3}"
"""`gemm`, `sgemm`, `s16816gemm`, `bf16gemm`, `gemmk1`; not `fbgemm`."""

_CONTENT: Final[tuple[tuple[KernelClass, re.Pattern[str]], ...]] = (
    ("softmax", _phrases(r"[a-z]*softmax[a-z0-9]* soft_max")),
    (
        "normalisation",
        _phrases(
            r"""
            (?:layer|rms|batch|group|instance|weight)_?norm(?:alization)?[a-z0-9]* gamma_beta rowwise_moments
            ln_[fb]wd bn_[fb]w compute_gradient_fused_params compute_internal_gradients
            fused_(?:\w+_)?mean_(?:\w+_)?rsqrt fused_(?:\w+_)?rsqrt_(?:\w+_)?mean qk_norm[a-z]*
            """
        ),
    ),
    (
        "embedding",
        _phrases(
            r"""
            (?<!rotary_)(?<!rotary_pos_)(?<!rope_)embeddings? tbe index_(?:select|put|add|copy|fill|get|func|reduce)
            index_(?:elementwise_)?kernel[a-z]* indexing_backward (?:vectorized_)?gather_(?:kernel|functor|fwd)
            scatter_(?:gather|add|kernel|functor|fwd) compute_grad_weight krn_partials? partial_segments
            segment_offsets sum_and_scatter device_select masked_select write_indices nonzero bounds_check_indices
            lxu_cache l[rf]u_cache linearize_(?:cache_indices|index)
            """
        ),
    ),
)
"""Classes by content. For Inductor's kernels they take precedence over the kind of kernel."""

_INDUCTOR: Final = re.compile(
    r"_(?:triton|cpp)(?:_(poi|for|red|per|spl|mix|tem))?_fused(?=_)|_triton_(mm|bmm|tem)(?=_)"
)
_INDUCTOR_CLASSES: Final[dict[str | None, KernelClass]] = {
    **dict.fromkeys((None, "poi", "for"), "elementwise"),
    **dict.fromkeys(("red", "per", "spl", "mix"), "reduction"),
}
"""Inductor names a kernel after all operators that it fuses, and after the template that generates it. A pointwise
kernel that is named after a matrix product or attention only prepares the inputs or processes the results."""
_ATTENTION: Final = re.compile(r"_flex_(?:attention|decoding)(?=_)")

_KERNELS: Final[tuple[tuple[KernelClass, re.Pattern[str]], ...]] = (
    (
        "communication",
        _phrases(
            r"""
            [nrhm]s?ccl[a-z]* oneccl nvshmem[a-z]* rocshmem[a-z]* c10d gloo ucc deep_ep (?:inter|intra)node multimem
            all_?reduce[a-z]* all_?gather[a-z]* reduce_?scatter[a-z]* all_?(?:to|2)_?all[a-z]* cross_device_reduce
            symm(?:etric)?_mem(?:ory)? quick_?reduce record_param_comms send_recv
            """
        ),
    ),
    (
        "copy",
        _phrases(
            r"""
            (?:batch_|device_)?memcpy[a-z0-9]* memset[a-z0-9]* cat_array_batched_copy (?<!index_)copy_kernel
            copy_functor fill_functor (?<!index_)(?<!masked_)fill_kernel (?:copy|fill)_buffer[a-z]*
            batched_?transpose[a-z0-9]* transpose_read_write transpose_kernel nchw_to_nhwc nhwc_to_nchw
            nhwc_add_padding tensor_transform_generic split_with_sizes_copy chunk_cat reshape_and_cache
            concat_and_cache[a-z]* (?:copy|swap)_blocks im2col[a-z]* col2im[a-z]* vol2col col2vol
            set_tensor[0-9a-z]* sub_tensor_op
            """
        ),
    ),
    ("embedding", _phrases("split_embedding embedding_codegen")),
    (
        "optimizer",
        _phrases(
            r"""
            multi_tensor[a-z]* foreach fused_(?:sgd|lamb|adagrad|lion) adamw? lamb distributed_lamb sgd
            amp_(?:non_finite|update_scale|foreach) lpnorm_cleanup optimizer_(?:step|zero_grad)
            """
        ),
    ),
    (
        "attention",
        _phrases(
            r"""
            (?:pytorch_)?flash_(?:fwd|bwd|attn|attention|decode|mla|sparse|prepare)[a-z0-9]* flash_?mla
            fmha[a-z0-9]* flash_?attn[a-z0-9]* sdpa mha (?:mla|mqa) attention attn attn_[fb]wd scaled_dot_product
            compute_dot_do_o prepare_varlen_num_blocks (?:batch|single|batched)_(?:prefill|decode)_with[a-z]*
            pa_a[0-9]+_?w[0-9]+ pa_(?:prefill|decode) bwd_kernel_d[kqv](?:_d[kqv])?
            fwd_(?:grouped_)?kernel_stage[12] merge_attn_states mem_eff_attention
            persistent_variable_length_merge_states
            """
        ),
    ),
    (
        "permutation",
        _phrases(
            r"""
            permute_(?:[12]d|sparse|pooled|multi|lengths|indices|embeddings|duplicate|kernel|tokens?)
            (?:invert|jagged)_permute unpermute[a-z]* token_permutation block_bucketize[a-z]* reorder_batched[a-z]*
            jagged_to_padded[a-z]* (?:padded_)?dense_to_jagged pack_segments
            moe_(?:align|sort|permute|dev_routing|dev_finalize)[a-z]* (?:pre|post)_reorder src2dst
            ep_(?:scatter|gather) expand_input_rows finalize_moe_routing
            compute_(?:seg_indptr|expert_offsets|masked_m) count_and_sort_expert_tokens
            """
        ),
    ),
    *_CONTENT,
    (
        "matmul",
        _phrases(
            rf"""
            {_GEMM} gemv[a-z0-9]* nvjet xmma cutlass3x tensorop split_?k_?reduce[a-z]* cijk cublas[a-z]*
            [a-z0-9]*convolve[a-z]* conv(?:olution)?(?:[0-9]d)? conv_?depthwise[0-9a-z]* fprop dgrad wgrad
            winograd[a-z0-9]* cudnn_cnn [a-z0-9]+cudnn fmoe[a-z0-9]* fused_moe moe_stage[12] [bs]gmv mfma_moe[0-9]*
            (?:batched_|scaled_|grouped_)?matmul[a-z0-9]* b?mm addmm baddbmm [sdcz]?trsm[a-z]* marlin[a-z]*
            wv_split_[a-z]* machete dot_kernel mfma
            """
        ),
    ),
    (
        "quantisation",
        _phrases(
            r"""
            (?:de)?quanti[sz]\w*? (?:de|re)?quant(?:ized)?
            float_to_(?:fused\w*?|fp8\w*?|hfp8|msfp|bfloat16|paddedfp8\w*?)
            (?:fused\w*?|fp8\w*?|hfp8|msfp|bfloat16|paddedfp8\w*?)_to_float qparams? cast_transpose[a-z]* amax[a-z]*
            (?:cast|scaled)_(?:to_)?(?:fp8|mxfp8|nvfp4)
            """
        ),
    ),
    ("permutation", _phrases("permute[a-z]* permutation")),
    (
        "other",
        _phrases(
            r"[a-z]*radix_?sort[a-z]* merge_sort bitonic_sort gather_top_k [sm]btopk topk top_k sort[a-z]* sampling"
        ),
    ),
    (
        "reduction",
        _phrases(
            r"""
            reduce[a-z]* reduction device_(?:segmented_)?reduce[a-z]* device_scan[a-z]* scan_(?:inner|outer)most
            tensor_kernel_scan (?:nll|ctc)_(?:loss[a-z0-9]*|criterion) nrm2 asum cross_entropy cumsum cumprod
            arg_?m(?:ax|in) norm_?(?:two|one)_?ops segment_sum[a-z]* moe_sum histogram[a-z0-9]*
            (?:max|avg|average|adaptive)_?pool[a-z0-9]* pooling[a-z]*
            """
        ),
    ),
    (
        "elementwise",
        _phrases(
            r"""
            elementwise pointwise dropout upsample[a-z0-9]* interpolate[a-z0-9]* grid_sampler[a-z0-9]* triu_tril
            masked_(?:fill|scale) gelu silu swiglu geglu relu sigmoid tanh rope mrope rotary compare_functor glu
            where_kernel range_factories random act_and_mul do_activation bias_act op_(?:generic_)?tensor[a-z0-9]*
            cast_[a-z0-9]+_to (?:add|mult?|sub|div|exp|pow)_(?:kernel|fwd|native|tensor_kernel)
            (?:scal|axpy|axpby)_kernel broadcast_kernel offsets_range philox
            """
        ),
    ),
    ("copy", _phrases("transpose[a-z0-9]* (?:reflection|replication|constant|zero)_pad[a-z0-9]*")),
)
"""The first class with a matching phrase wins, so specific classes precede general ones: a reduction within a matrix
product belongs to the product, and a norm that quantises is a norm."""

# --- classes of operators


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
"""Classes of ATen operators, by name without a trailing underscore. Operators that only call others (`matmul`,
`einsum`) multiply nothing themselves: their self time is overhead."""

_BY_OPERATOR: Final[dict[str, KernelClass]] = {name: kind for kind, names in _OPERATORS for name in names}

_NO_ARITHMETIC: Final = re.compile(
    r"autograd::.*|torch::autograd::.*|.*Backward\d*|Torch-Compiled Region.*|## Call .*|CompiledFunction.*|"
    r"TorchDynamo.*|Pregraph bytecode|AOTDispatcher.*|inductor_codecache.*|Runtime .*|ProfilerStep.*|"
    r"detach_?|enumerate\(DataLoader\).*|DataParallel\..*|DistributedDataParallel\..*|torch/.*|(aten|prim)::(is_|sym_|_assert).*",
    re.DOTALL,
)
"""Names of functions and ranges that only call operators and do no work themselves."""

# --- number formats

_PRECISIONS: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("fp4", r"e2m1|nvf4|mxf4|fp4"),
        ("fp8", r"e4m3|e5m2|fp8|^nvjet_(sm\d+_)?qq|_qgmma_"),
        ("tf32", r"tf32"),
        ("bf16", r"bf16|bfloat16|^nvjet_(sm\d+_)?t[st]t_"),
        ("fp16", r"fp16|_f16f16|^(?!cudnn_generated).*_f16_|hgemm|h(884|1688|16816)gemm|s884gemm|half"),
        ("fp16", r"^nvjet_(sm\d+_)?h[sh]h_"),
        ("tf32", r"s1688gemm|s161688gemm|s1688cudnn"),
        ("int8", r"i8816gemm|i16832gemm|_s8s8|igemm|int8"),
        ("fp64", r"dgemm|d884gemm|_f64f64|\bdouble\b"),
        ("fp32", r"sgemm|f32f32_f32f32|_f32_|\bfloat\b|simt_s|scudnn"),
    )
)
"""The first match wins. TF32 kernels take fp32 inputs, and their names contain both formats. The shape of a tensor core
instruction (`s1688`) means TF32 if the name contains no 16-bit format. cuDNN's generated kernels use `f16` for both
16-bit formats."""


@lru_cache(maxsize=65_536)
def classify(name: str) -> KernelClass:
    """Return the class of a kernel or operator, judging by its name; `other` if no phrase matches."""
    text = demangled(name)[:_MAX_READ]
    if text.startswith(("aten::", "prims::")):
        bare = text.rpartition("::")[2].split(".")[0]
        known = _BY_OPERATOR.get(bare) or _BY_OPERATOR.get(bare.rstrip("_"))
        if known is not None:
            return known
    if _NO_ARITHMETIC.fullmatch(text):
        return "other"
    found = words(text)
    made = _INDUCTOR.match(found)
    if made is None:
        return next((kind for kind, phrases in _KERNELS if phrases.search(found)), "other")
    template = made[1] or made[2]
    if template in ("tem", "mm", "bmm"):
        return "attention" if _ATTENTION.search(found) else "matmul"
    return next((kind for kind, phrases in _CONTENT if phrases.search(found)), _INDUCTOR_CLASSES[template])


def precision(name: str) -> str | None:
    """Return the input format of a matrix product, judging by the kernel's name; None if it contains no format."""
    text = demangled(name)[:_MAX_READ]
    return next((format_ for format_, pattern in _PRECISIONS if pattern.search(text)), None)


def kernel_name(name: str) -> KernelName:
    """Return the class, the number format and the short form of a kernel or operator."""
    kind = classify(name)
    format_ = precision(name) if kind in ("matmul", "attention") else None
    return KernelName(name=demangled(name), short=short_name(name), kernel_class=kind, precision=format_)

"""Configs of torchtitan (https://github.com/pytorch/torchtitan), TOML.

Weights are fp32. `mixed_precision_param` is the dtype in which FSDP gathers shards; without FSDP it is autocast.
"""

from __future__ import annotations

import re

from sysbench.commands.check.readers import hugging_face, shared
from sysbench.commands.check.understanding import CannotTellError, Format, Settings, Understanding, keys
from sysbench.errors import Refusal
from sysbench.spec import published

_FAMILIES = {"llama2": "llama-2", "llama3": "llama-3.1", "gpt_oss": "gpt-oss", "qwen3_next": "qwen3-next"}
"""Names in the catalogue of published models."""

_FLAVORS = {
    "deepseek_v3-16b": "deepseek-v2-lite",
    "deepseek_v3-671b": "deepseek-v3",
    "llama4-17bx16e": "llama-4-scout-17b-16e-text",
    "llama4-17bx128e": "llama-4-maverick-17b-128e-text",
    "nemotron3-nano-30b": "nemotron-3-nano-30b-a3b",
}
"""Models of torchtitan that the catalogue calls otherwise."""

_VARIANT = re.compile(r"_(varlen|flex|flex_flash|flex_attn|sdpa)$")
"""What names of flavors add for another kernel of attention."""


def _read(settings: Settings, understanding: Understanding) -> None:
    _model(settings, understanding)
    batch = _first_number(settings, "training.local_batch_size", "training.batch_size")
    understanding.say("batch", batch or 8, "training.local_batch_size")
    if batch is None:
        understanding.assumed.append("training.local_batch_size is not given: 8, torchtitan's default")
    length = settings.number("training.seq_len")
    understanding.say("ctx", length or 2048, *["training.seq_len"] * (length is not None))
    if length is None:
        understanding.assumed.append("training.seq_len is not given: 2,048 tokens, torchtitan's default")
    understanding.steps = settings.number("training.steps")
    understanding.say("attention", "sdpa")
    understanding.assumed.append("torchtitan's model is computed as that of transformers")
    _optimizer(settings, understanding)
    _checkpointing(settings, understanding)
    replicas = _parallelism(settings, understanding)
    whole = settings.number("training.global_batch_size", -1)
    if (whole or 0) > 0 and understanding.word("ranks") is None:  # then the number of replicas is open
        understanding.global_batch = whole
    parts = (whole or 0) // ((batch or 8) * replicas)
    understanding.say("grad_accum", max(1, parts), *["training.global_batch_size"] * (parts > 0))
    only = settings.words("compile.components")
    if only and "model" not in only:
        understanding.assumed.append(f"only {' and '.join(only)} compiled: computed uncompiled")
    elif settings.switch("training.compile") or settings.switch("compile.enable"):
        key = "training.compile" if settings.given("training.compile") else "compile.enable"
        understanding.say("execution", "compiled", key)
    if settings.text("model.attn_mask_type") not in (None, "causal"):
        understanding.leave_out(settings, "model.attn_mask_type", "either", "the mask is computed as causal here")
    _float8(settings, understanding)
    if "lora" in settings.words("model.converters"):
        understanding.say("lora", settings.number("lora.rank") or 8, "model.converters")
        understanding.say("lora_targets", "all-linear")
    elif converters := settings.words("model.converters"):
        is_fp8 = any("float8" in name for name in converters)
        reason = "products in fp8; here in bf16" if is_fp8 else "layers are converted after building"
        understanding.leave_out(settings, "model.converters", "either", reason)


def _float8(settings: Settings, understanding: Understanding) -> None:
    if settings.switch("float8.enable_float8_linear"):
        reason = "products in fp8; here in bf16"
        understanding.leave_out(settings, "float8.enable_float8_linear", "either", reason)
    if settings.switch("float8.enable_fsdp_float8_all_gather"):
        understanding.leave_out(settings, "float8.enable_fsdp_float8_all_gather", "less", "weights are gathered in fp8")


def _model(settings: Settings, understanding: Understanding) -> None:
    if settings.given("inference") or "rl" in (settings.text("job.custom_config_module") or "").split("."):
        hugging_face.refuse_generation(settings, "reinforcement learning", "inference", "job.custom_config_module")
    if (repository := settings.text("hf_transformers.model")) is not None:
        shared.model(settings, understanding, "hf_transformers.model", repository)
        return
    family, flavor = settings.text("model.name") or "llama3", settings.text("model.flavor") or "debugmodel"
    flavor = _VARIANT.sub("", flavor).lower()
    slug = _FLAVORS.get(f"{family}-{flavor}", f"{_FAMILIES.get(family, family)}-{flavor}".replace("_", "-"))
    if published.catalogued(slug) is None:
        near = published.nearest_name(slug)
        reason = f"torchtitan's {family} {flavor} is no published model with a known config"
        line = settings.file.entries["model.flavor"].line if settings.given("model.flavor") else 1
        where = f"{settings.file.path}, line {line}:"
        raise CannotTellError(Refusal(reason, f"nearest of sysbench models: {near}" if near else "", where))
    shared.model(settings, understanding, "model.flavor", slug, is_text=True)


def _optimizer(settings: Settings, understanding: Understanding) -> None:
    name, kind = settings.text("optimizer.name") or "AdamW", settings.text("optimizer.implementation") or "fused"
    if kind not in ("fused", "foreach", "for-loop"):
        settings.refuse("optimizer.implementation", "is none of torch's", "known: fused, foreach, for-loop")
    if settings.given("optimizer.fused"):
        kind = "fused" if settings.switch("optimizer.fused") else "foreach"
    if name not in ("AdamW", "Adam"):
        understanding.leave_out(settings, "optimizer.name", "either", f"{name} is computed as AdamW here")
    understanding.say("optimizer", kind, "optimizer.name", "optimizer.implementation")
    if settings.switch("optimizer.early_step_in_backward"):
        understanding.say("optimizer_in_backward", "on", "optimizer.early_step_in_backward")


def _checkpointing(settings: Settings, understanding: Understanding) -> None:
    mode = settings.text("activation_checkpoint.mode")
    every = settings.text("activation_checkpoint.selective_ac_option") or "2"
    if mode not in (None, "none", "full", "selective", "memory_budget"):
        settings.refuse("activation_checkpoint.mode", "is no mode of torchtitan", "known: none, full, selective")
    if mode is None:
        understanding.assumed.append("activation_checkpoint.mode is not given: selective, torchtitan's default")
    if mode in ("none", "full"):
        understanding.say("checkpoint", mode, "activation_checkpoint.mode")
    elif mode == "memory_budget":
        understanding.leave_out(settings, "activation_checkpoint.mode", "either", "a budget; here selective")
        understanding.say("checkpoint", "selective", "activation_checkpoint.mode")
    elif every.isdecimal():
        word = "full" if every == "1" else f"every-{every}"
        understanding.say("checkpoint", word, "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option")
    else:
        understanding.say("checkpoint", "selective", "activation_checkpoint.mode")


def _parallelism(settings: Settings, understanding: Understanding) -> int:
    """Take how the model is distributed; return the number of data-parallel ranks, one if the file leaves it open."""
    shard = _degree(settings, "data_parallel_shard_degree", _degree(settings, "data_parallel_degree", -1))
    replicate = _degree(settings, "data_parallel_replicate_degree", 1)
    key = "parallelism.data_parallel_shard_degree"
    understanding.say("strategy", "ddp" if shard == 1 else "hsdp" if replicate > 1 else "fsdp2", key)
    sharing = 1
    for name in ("tensor", "pipeline", "context", "expert"):
        for each in (f"{section}.{name}_parallel_degree" for section in _SECTIONS):
            if (degree := settings.number(each) or 1) > 1:
                understanding.leave_out(settings, each, "less", shared.SHARING)
                sharing *= 1 if name == "expert" else degree  # whose ranks are those of the shards
    if shard > 0:
        understanding.say("ranks", shard * replicate * sharing, key)
    _precision(settings, understanding, is_sharded=shard != 1)
    policy = settings.text("parallelism.fsdp_reshard_after_forward")
    if shard != 1 and policy in ("always", "never"):
        understanding.say("reshard", "on" if policy == "always" else "off", "parallelism.fsdp_reshard_after_forward")
    if settings.switch("training.enable_cpu_offload"):
        understanding.say("offload", "parameters", "training.enable_cpu_offload")
    return shard * replicate if shard > 0 else 1


def _precision(settings: Settings, understanding: Understanding, *, is_sharded: bool) -> None:
    key, reduced = "training.mixed_precision_param", "training.mixed_precision_reduce"
    for name in (key, reduced, "training.dtype"):
        if settings.given(name) and settings.text(name) not in _DTYPES:
            settings.refuse(name, "is no dtype of torchtitan", f"known: {', '.join(_DTYPES)}")
    gathered, weights = settings.text(key) or "bfloat16", settings.text("training.dtype") or "float32"
    said = [key] * settings.given(key)
    if weights == "bfloat16":
        understanding.say("precision", "bf16-true", "training.dtype")
        if is_sharded:
            word = _DTYPES[settings.text(reduced) or "float32"]
            understanding.say("param_dtype", "bf16", *said)
            understanding.say("reduce_dtype", word, *[reduced] * settings.given(reduced))
    else:
        understanding.say("precision", "bf16" if gathered == "bfloat16" else "fp32", *said)
        if is_sharded and gathered == "bfloat16":
            understanding.say("param_dtype", "bf16", *said)
            word = _DTYPES[settings.text(reduced) or "float32"]
            understanding.say("reduce_dtype", word, *[reduced] * settings.given(reduced))


_DTYPES = {"bfloat16": "bf16", "float32": "fp32"}

_SECTIONS = ("parallelism", "training", "experimental")
"""Where versions of torchtitan have their degrees of parallelism."""


def _degree(settings: Settings, name: str, default: int) -> int:
    keys_of_it = (f"{section}.{name}" for section in _SECTIONS)
    return next((degree for key in keys_of_it if (degree := settings.number(key, -1)) is not None), default)


def _first_number(settings: Settings, *names: str) -> int | None:
    return next((number for name in names if (number := settings.number(name)) is not None), None)


FORMAT = Format(
    "torchtitan",
    keys(
        """
        job profiling metrics model optimizer lr_scheduler training parallelism checkpoint activation_checkpoint
        experimental float8 comm compile validation fault_tolerance memory_estimation mx debug
        """
    ),
    _read,
    keys(
        """
        job profiling metrics checkpoint comm memory_estimation validation debug lr_scheduler fault_tolerance
        optimizer.lr optimizer.beta? optimizer.eps optimizer.weight_decay optimizer.lr_multipliers
        optimizer.weight_decay_multipliers training.data training.pack_samples training.add_bos_eos dataset
        optimizer.implementation float8 mx quantize compile experimental
        model.tokenizer_path model.hf_assets_path model.print_after_conversion model.norm_type training.dataset*
        training.max_norm training.gc_* training.seed training.deterministic training.warmup_steps
        training.enable_*detection training.debug_* activation_checkpoint
        parallelism.context_parallel_* parallelism.pipeline_parallel_* parallelism.disable_loss_parallel
        parallelism.enable_async_tensor_parallel parallelism.enable_compiled_autograd parallelism.expert_*
        parallelism.module_fqns_per_model_part
        """
    ),
    {
        "fault_tolerance.enable": ("either", "replicas that may fail, by torchft"),
        "model.use_flex_attn": ("either", "flex attention is computed as sdpa here"),
        "training.fp8_linear": ("either", "products in fp8; here in bf16"),
        "optimizer.cpu_offload": ("less", "state is on the host"),
        "peft": ("less", "only adapters are trained"),
        "encoder": ("more", "an encoder is left out"),
        "lora": ("either", "adapters at all linear layers here"),
        "ema": ("more", "an average of the weights is kept, too"),
    },
    keep=("ranks",),
    suffix=".toml",
)

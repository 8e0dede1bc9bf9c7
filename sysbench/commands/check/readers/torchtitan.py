"""Configs of torchtitan (https://github.com/pytorch/torchtitan), TOML.

Weights are fp32: with one way of data parallelism alone `mixed_precision_param` is autocast, with FSDP it is the dtype
in which shards are gathered.
"""

from __future__ import annotations

from sysbench.commands.check.readers import shared
from sysbench.commands.check.understanding import CannotTellError, Format, Settings, Understanding, keys
from sysbench.errors import Refusal
from sysbench.spec import published

_FAMILIES = {"llama2": "llama-2", "llama3": "llama-3.1", "qwen3": "qwen3"}
"""Names in the catalogue of published models."""


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
    parts = (whole or 0) // ((batch or 8) * replicas)
    understanding.say("grad_accum", max(1, parts), *["training.global_batch_size"] * (parts > 0))
    if settings.switch("training.compile") or settings.switch("compile.enable"):
        key = "training.compile" if settings.given("training.compile") else "compile.enable"
        understanding.leave_out(settings, key, "less", "a compiled step needs less memory and time")
    if any(str(name).startswith("float8") for name in _list(settings, "model.converters")):
        understanding.leave_out(settings, "model.converters", "either", "products in fp8; here in bf16")
    elif _list(settings, "model.converters"):
        understanding.leave_out(settings, "model.converters", "either", "layers that are converted after building")


def _model(settings: Settings, understanding: Understanding) -> None:
    family, flavor = settings.text("model.name") or "llama3", settings.text("model.flavor") or "debugmodel"
    slug = f"{_FAMILIES.get(family, family)}-{flavor}".lower()
    if published.catalogued(slug) is None:
        near = published.nearest_name(slug)
        reason = f"torchtitan's {family} {flavor} is no published model with a known config"
        where = str(settings.file.path)
        raise CannotTellError(Refusal(reason, f"nearest of sysbench models: {near}" if near else "", f"{where}:"))
    shared.model(settings, understanding, "model.flavor", slug)


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
    shard = _degree(settings, "data_parallel_shard_degree", "training.data_parallel_shard_degree", -1)
    replicate = _degree(settings, "data_parallel_replicate_degree", "training.data_parallel_replicate_degree", 1)
    key = "parallelism.data_parallel_shard_degree"
    understanding.say("strategy", "ddp" if shard == 1 else "hsdp" if replicate > 1 else "fsdp2", key)
    if shard > 0:
        understanding.say("ranks", shard * replicate, key)
    else:
        understanding.assumed.append("data_parallel_shard_degree is -1: all GPUs that torchrun starts")
    for name in ("tensor", "pipeline", "context", "expert"):
        if _degree(settings, f"{name}_parallel_degree", f"experimental.{name}_parallel_degree", 1) > 1:
            places = ("parallelism", "training", "experimental")
            written = [f"{place}.{name}_parallel_degree" for place in places]
            found = next(each for each in written if settings.given(each))
            understanding.leave_out(settings, found, "less", "its ranks share what one has here")
    named = settings.text("training.mixed_precision_param") or "bfloat16"
    weights = settings.text("training.dtype") or "float32"
    if named not in ("bfloat16", "float32") or weights not in ("bfloat16", "float32"):
        settings.refuse("training.mixed_precision_param", "is no dtype of torchtitan", "known: bfloat16, float32")
    said = ["training.mixed_precision_param"] * settings.given("training.mixed_precision_param")
    if weights == "bfloat16":
        understanding.say("precision", "bf16-true", "training.dtype")
    else:
        understanding.say("precision", "bf16" if named == "bfloat16" else "fp32", *said)
        if shard != 1 and named == "bfloat16":
            understanding.say("param_dtype", "bf16", *said)
            understanding.say("reduce_dtype", "fp32", "training.mixed_precision_reduce")
    settings.used.add("training.mixed_precision_reduce")
    policy = settings.text("parallelism.fsdp_reshard_after_forward")
    if shard != 1 and policy in ("always", "never"):
        understanding.say("reshard", "on" if policy == "always" else "off", "parallelism.fsdp_reshard_after_forward")
    if settings.switch("training.enable_cpu_offload"):
        understanding.say("offload", "parameters", "training.enable_cpu_offload")
    return shard * replicate if shard > 0 else 1


def _degree(settings: Settings, name: str, older: str, default: int) -> int:
    for key in (f"parallelism.{name}", older, f"training.{name}", f"experimental.{name}"):
        if (degree := settings.number(key, -1)) is not None:
            return degree
    return default


def _first_number(settings: Settings, *names: str) -> int | None:
    return next((number for name in names if (number := settings.number(name)) is not None), None)


def _list(settings: Settings, name: str) -> list[str]:
    return settings.words(name)


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
        optimizer.lr optimizer.beta? optimizer.eps optimizer.weight_decay float8 mx quantize compile experimental
        model.tokenizer_path model.hf_assets_path model.print_after_conversion model.norm_type training.dataset*
        training.max_norm training.gc_* training.seed training.deterministic training.warmup_steps
        training.enable_*detection training.debug_* activation_checkpoint
        parallelism.context_parallel_* parallelism.pipeline_parallel_* parallelism.disable_loss_parallel
        parallelism.enable_async_tensor_parallel parallelism.enable_compiled_autograd parallelism.expert_*
        parallelism.module_fqns_per_model_part
        """
    ),
    {"fault_tolerance.enable": ("either", "replicas that may fail, by torchft")},
    keep=("ranks",),
)

"""Configs of accelerate (https://huggingface.co/docs/accelerate): how `accelerate launch` starts a training."""

from __future__ import annotations

from sysbench.commands.check.readers import named, shared
from sysbench.commands.check.understanding import Format, Settings, Understanding, keys


def _read(settings: Settings, understanding: Understanding) -> None:
    kind = (settings.text("distributed_type") or "NO").upper()
    if kind not in ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED"):
        settings.refuse("distributed_type", "is not modelled", "modelled: NO, MULTI_GPU, FSDP, DEEPSPEED")
    _refuse_others(settings)
    if kind == "NO":
        understanding.say("ranks", 1, "distributed_type")
        settings.used.add("num_processes")
    elif (ranks := settings.number("num_processes", -1)) is not None and ranks > 0:
        understanding.say("ranks", ranks, "num_processes")
    _precision(settings, understanding)
    if kind == "MULTI_GPU":
        understanding.say("strategy", "ddp", "distributed_type")
    elif kind == "FSDP":
        settings.used.add("fsdp_config.fsdp_version")
        shared.fsdp(settings, understanding, "distributed_type", "fsdp_config.")
    elif kind == "DEEPSPEED":
        _deepspeed(settings, understanding)
    _parallelism(settings, understanding)
    if (settings.number("num_machines", 0) or 1) > 1:
        understanding.assumed.append("GPUs of several machines are computed as those of one, with a faster network")
    _compilation(settings, understanding)


def _refuse_others(settings: Settings) -> None:
    if settings.switch("use_cpu"):
        settings.refuse("use_cpu", "trains on the CPU; the answer is about GPUs")
    if settings.switch("kt_config.enabled"):
        settings.refuse("kt_config.enabled", "trains experts in the host's memory by KTransformers: not modelled")


def _compilation(settings: Settings, understanding: Understanding) -> None:
    key = "dynamo_backend" if settings.given("dynamo_backend") else "dynamo_config.dynamo_backend"
    backend = (settings.text(key) or "no").upper()
    if backend == "INDUCTOR":
        understanding.say("execution", "compiled", key)
    elif backend != "NO":
        understanding.leave_out(settings, key, "either", f"compiled by {backend.lower()}, of which nothing is known")


def _parallelism(settings: Settings, understanding: Understanding) -> None:
    """Take how ranks are divided into groups, of which some share one sequence."""

    shared.sharing(settings, understanding, *(f"{_PARALLELISM}{name}_size" for name in ("tp", "cp", "sp")))
    replicated, sharded = (f"{_PARALLELISM}dp_{name}_size" for name in ("replicate", "shard"))
    if (settings.number(replicated, 0) or 1) > 1 and (settings.number(sharded, 0) or 1) > 1:
        understanding.say("strategy", "hsdp", replicated)


_PARALLELISM = "parallelism_config.parallelism_config_"


def _precision(settings: Settings, understanding: Understanding) -> None:
    name = (settings.text("mixed_precision") or "no").lower()
    if name == "fp8":
        understanding.leave_out(settings, "mixed_precision", "either", "products in fp8; here in bf16")
        shared.launched_precision(settings, understanding, "mixed_precision", "bf16")
    elif name in ("bf16", "fp16"):
        shared.launched_precision(settings, understanding, "mixed_precision", name)


def _deepspeed(settings: Settings, understanding: Understanding) -> None:
    prefix = "deepspeed_config."
    if (path := settings.text(f"{prefix}deepspeed_config_file")) is not None:
        named.deepspeed_file(settings, understanding, f"{prefix}deepspeed_config_file", path)
        return
    given = settings.number(f"{prefix}zero_stage", 0)
    stage = 2 if given is None else given  # accelerate's default
    shared.zero(settings, understanding, "distributed_type" if given is None else f"{prefix}zero_stage", stage)
    if stage in (1, 2):
        shared.zero_buckets(settings, understanding, prefix)
    parameters, state = (f"{prefix}offload_{name}_device" for name in ("param", "optimizer"))
    shared.zero_offload(settings, understanding, stage, parameters, state)
    accumulated, said = settings.text(f"{prefix}gradient_accumulation_steps"), understanding.word("grad_accum")
    if accumulated not in (None, "auto", said) and said is not None:
        understanding.assumed.append(f"gradient_accumulation_steps is the training config's, {said}")


FORMAT = Format(
    "accelerate",
    keys(
        """
        compute_environment distributed_type num_processes num_machines machine_rank main_training_function
        mixed_precision fsdp_config deepspeed_config use_cpu gpu_ids rdzv_backend same_network downcast_bf16 debug
        tpu_env tpu_use_cluster tpu_use_sudo enable_cpu_affinity dynamo_config
        """
    ),
    _read,
    keys(
        """
        compute_environment debug downcast_bf16 gpu_ids machine_rank main_training_function num_machines rdzv_backend
        same_network tpu_* use_cpu enable_cpu_affinity main_process_ip main_process_port command_file commands
        mpirun_config mpirun_* ipex_config dynamo_config num_cpu_threads_per_process megatron_lm_config fsdp_config
        deepspeed_config fp8_config mixed_precision ec2_* iam_* image_uri profile region base_job_name py_version
        pytorch_version transformers_version parallelism_config
        """
    ),
    keep=("ranks",),
    launches=True,
)

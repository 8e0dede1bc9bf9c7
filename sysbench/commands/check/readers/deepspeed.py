"""DeepSpeed's JSON (https://www.deepspeed.ai/docs/config-json); `auto` is what the trainer's own config says."""

from __future__ import annotations

from sysbench.commands.check.readers import shared
from sysbench.commands.check.understanding import Format, Settings, Understanding, keys


def _read(settings: Settings, understanding: Understanding) -> None:
    _precision(settings, understanding)
    key = "zero_optimization.stage"
    stage = _number(settings, key, 0)
    shared.zero(settings, understanding, key, stage or 0)
    if stage in (1, 2):
        shared.zero_buckets(settings, understanding, "zero_optimization.")
    older = "zero_optimization.cpu_offload"
    if settings.switch(older):
        understanding.say("offload", "parameters" if stage == 3 else "optimizer", older)
    parameters, state = (f"zero_optimization.offload_{name}.device" for name in ("param", "optimizer"))
    shared.zero_offload(settings, understanding, stage or 0, parameters, state)
    _agree(settings, understanding, "batch", "train_micro_batch_size_per_gpu")
    _agree(settings, understanding, "grad_accum", "gradient_accumulation_steps")
    if (kind := settings.text("optimizer.type")) is not None:
        if kind.lower() not in ("adam", "adamw", "fusedadam"):
            understanding.leave_out(settings, "optimizer.type", "either", f"{kind} is computed as AdamW here")
        understanding.say("optimizer", "fused", "optimizer.type")
    if any(name.startswith("compile.") for name in settings.file.entries):
        if not settings.switch("compile.disable"):
            key = next(name for name in settings.file.entries if name.startswith("compile."))
            understanding.leave_out(settings, key, "less", "a compiled step needs less memory and time")
        settings.used.add("compile")
    within = "zero_optimization."
    settings.used |= {
        name for name, entry in settings.file.entries.items() if name.startswith(within) and entry.value == "auto"
    }


def _precision(settings: Settings, understanding: Understanding) -> None:
    for name in ("bf16", "fp16"):
        key = f"{name}.enabled"
        older = "bfloat16.enabled" if name == "bf16" else key
        key = older if settings.given(older) else key
        if settings.value(key) == "auto" or not settings.switch(key):
            continue
        shared.launched_precision(settings, understanding, key, name)


def _agree(settings: Settings, understanding: Understanding, option: str, key: str) -> None:
    """Take a number; the Trainer refuses one that its own config contradicts."""
    number, before = _number(settings, key, 1), understanding.options.get(option)
    if number is None:
        return
    if before is None or not before.keys:
        understanding.say(option, number, key)
    elif before.value != str(number) and len(before.keys) == 1:
        settings.refuse(key, f"contradicts {before.keys[0]}: {before.value} of the training config", "write auto")


def _number(settings: Settings, key: str, least: int) -> int | None:
    return None if settings.value(key) == "auto" else settings.number(key, least)


FORMAT = Format(
    "DeepSpeed",
    keys(
        """
        zero_optimization bf16 fp16 bfloat16 train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
        gradient_clipping wall_clock_breakdown steps_per_print zero_allow_untested_optimizer optimizer scheduler compile
        activation_checkpointing zero_force_ds_cpu_optimizer
        """
    ),
    _read,
    keys(
        """
        train_batch_size gradient_clipping wall_clock_breakdown steps_per_print zero_allow_untested_optimizer
        zero_force_ds_cpu_optimizer scheduler fp16 bf16 bfloat16 dump_state prescale_gradients
        gradient_predivide_factor communication_data_type optimizer
        tensorboard wandb csv_monitor comet comms_logger comms_config monitor_config _* flops_profiler checkpoint
        data_types elasticity seq_parallel_communication_data_type disable_allgather memory_breakdown data_efficiency
        zero_optimization.overlap_comm zero_optimization.contiguous_gradients zero_optimization.round_robin_gradients
        zero_optimization.*gather_16bit_weights_on_model_save zero_optimization.*gather_fp16_weights_on_model_save
        zero_optimization.offload_optimizer zero_optimization.offload_param zero_optimization.ignore_unused_parameters
        zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint zero_optimization.log_trace_cache*
        zero_optimization.memory_efficient_linear activation_checkpointing
        zero_optimization.*max_reuse_distance zero_optimization.*param_persistence_threshold
        zero_optimization.sub_group_size zero_optimization.allgather_partitions zero_optimization.reduce_scatter
        zero_optimization.*module_granularity_threshold
        """
    ),
    {
        "zero_optimization.*bucket_size": ("either", "buckets of DeepSpeed; here those of torch"),
        "zero_optimization.*max_live_parameters": ("more", "up to so many gathered parameters are kept"),
        "zero_optimization.zero_hpz_partition_size": ("more", "a second copy of the shards within a node"),
        "zero_optimization.zero_quantized_*": ("either", "weights or gradients are exchanged in 8 bits"),
        "zero_optimization.mics_*": ("more", "shards within groups of ranks"),
        "tensor_parallel": ("less", shared.SHARING),
        "sequence_parallel_size": ("less", shared.SHARING),
        "autotuning": ("either", "DeepSpeed looks for other values"),
        "amp": ("either", "Apex's mixed precision"),
        "torch_autocast": ("either", "autocast over the engine's weights"),
        "sparse_attention": ("less", "attention over a part of the tokens"),
        "compression_training": ("either", "compressed weights"),
        "data_efficiency": ("less", "fewer tokens in some steps"),
    },
    keep=("ranks",),
    launches=True,
)

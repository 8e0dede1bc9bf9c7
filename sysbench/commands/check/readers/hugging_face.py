"""What configs of transformers' Trainer and of trainers built on it say alike: its TrainingArguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

from sysbench.commands.check.readers import named, shared
from sysbench.commands.check.understanding import (
    CannotTellError,
    Change,
    Direction,
    Lines,
    Settings,
    Understanding,
    keys,
)
from sysbench.errors import Refusal
from sysbench.spec.steps import StepPrecision

BATCH, ACCUMULATION, OPTIMIZER = "per_device_train_batch_size", "gradient_accumulation_steps", "optim"
_OLDER_BATCH = "per_gpu_train_batch_size"

OPTIMIZERS = {
    "adamw_torch": "foreach",
    "adamw_hf": "foreach",
    "adamw_torch_fused": "fused",
    **dict.fromkeys(("adamw_torch_8bit", "adamw_bnb_8bit", "adamw_8bit"), "adamw-8bit"),
    "adamw_torch_4bit": "adamw-4bit",
    "paged_adamw_8bit": "adamw-8bit-paged",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
"""Optimizers by their names in transformers. Unless it is paged, bitsandbytes' state lies in the allocator as torchao's
does, and is as large."""

WRITTEN_OPTIMIZERS = {
    "fused": "adamw_torch_fused",
    "foreach": "adamw_torch",
    "adamw-8bit": "adamw_torch_8bit",
    "adamw-4bit": "adamw_torch_4bit",
    "adafactor": "adafactor",
}

ATTENTION = {
    **dict.fromkeys(("flash_attention_2", "flash_attention_3", "fa2", "fa3"), "flash"),
    **dict.fromkeys(("kernels-community/flash-attn", "kernels-community/flash-attn2"), "flash"),
    **dict.fromkeys(("kernels-community/flash-attn3", "kernels-community/vllm-flash-attn3"), "flash"),
    "sdpa": "sdpa",
    "flex_attention": "flex",
    **dict.fromkeys(("eager", "disabled"), "naive"),
}
"""Kernels of attention by their names in transformers; flash-attn's kernels of any version allocate alike."""


def common(settings: Settings, understanding: Understanding, pairs: str | None = None) -> None:
    """Take the batch, the optimizer and the number of steps.

    `pairs` is the key that says that each example is two sequences of one batch, chosen and rejected.
    """
    key = _OLDER_BATCH if settings.given(_OLDER_BATCH) and not settings.given(BATCH) else BATCH
    batch = settings.number(key)
    if batch is None:
        batch, key = 8, ""
        understanding.assumed.append(f"{BATCH} is not given: 8, the Trainer's default")
    understanding.say("batch", batch * (2 if pairs else 1), *filter(None, (key, pairs)))
    accumulated = settings.number(ACCUMULATION)
    understanding.say("grad_accum", accumulated or 1, *([ACCUMULATION] if accumulated else []))
    shared.optimizer(settings, understanding, OPTIMIZER, OPTIMIZERS, "adamw_torch_fused")
    if not settings.given(OPTIMIZER):
        understanding.assumed.append("optim is not given: adamw_torch_fused, the Trainer's default")
    understanding.steps = shared.steps(settings, "max_steps")
    settings.used.add("num_train_epochs")
    compiled(settings, understanding)


def compiled(settings: Settings, understanding: Understanding) -> None:
    """Take whether the step is compiled, which a backend or a mode says, too."""
    backend, mode = settings.text("torch_compile_backend"), settings.text("torch_compile_mode")
    is_on = settings.value("torch_compile") == "auto" or settings.switch("torch_compile")
    said = ["torch_compile"] if is_on else []
    said += ["torch_compile_backend"] * (backend is not None) + ["torch_compile_mode"] * (mode is not None)
    if said and backend in (None, "inductor"):
        understanding.say("execution", "compiled", *said)
    elif said:
        reason = f"compiled by {backend}, of which nothing is known"
        understanding.leave_out(settings, "torch_compile_backend", "either", reason)


def single_quantization(settings: Settings, understanding: Understanding, key: str) -> None:
    """Note that the scales of 4-bit weights are not quantized themselves, as they are here."""
    understanding.leave_out(settings, key, "more", "scales of 4-bit weights stay fp32, 0.4 bits more for each weight")


def liger(settings: Settings, understanding: Understanding, *names: str) -> None:
    """Take Liger's kernels, of which one computes the loss of a plain step with the output layer."""
    key = next((name for name in names if settings.switch(name)), None)
    if key is not None:
        shared.fused_loss(settings, understanding, key, "no logits and fewer activations")


def trained_beside(settings: Settings, understanding: Understanding, key: str) -> None:
    """Note the modules that are trained in full beside the adapters."""
    if names := settings.words(key):
        understanding.leave_out(settings, key, "more", f"{', '.join(names)} train in full beside the adapters")


def dora(settings: Settings, understanding: Understanding, key: str) -> None:
    """Take DoRA; over quantized weights it is computed as LoRA."""
    if settings.switch(key) and understanding.word("quantize") is not None:
        understanding.leave_out(settings, key, "more", "DoRA's lengths of rows, over quantized weights, are left out")
    elif settings.switch(key):
        understanding.say("adapter", "dora", key)


def true_precision(name: str) -> str:
    """Return the precision of a step whose weights are 16 bits wide, `bf16-true` or `fp16-true`, if there is such."""
    return f"{name}-true" if f"{name}-true" in get_args(StepPrecision) else name


def sharding(settings: Settings, understanding: Understanding) -> None:
    """Take what the Trainer's own keys say of FSDP and DeepSpeed; the precision is known before."""
    options = settings.value("fsdp")
    if options:
        shared.fsdp(settings, understanding, "fsdp", "fsdp_config.")
    else:
        named.deepspeed(settings, understanding, "deepspeed")


def refuse_generation(settings: Settings, method: str, *names: str) -> None:
    """Refuse a method that generates text within a step, if one of the keys that it alone has is set."""
    for name in names:
        if settings.given(name) and settings.file.entries[name].value is not False:
            entry = settings.file.entries[name]
            where = f"{settings.file.path}, line {entry.line}: {name}:"
            raise CannotTellError(
                Refusal(f"{method} generates text within a step, which is not modelled", option=where)
            )


def lines_of(
    change: Change,
    understanding: Understanding,
    known: Mapping[tuple[str, object], Lines],
    lora: Lines,
    rank: str,
    names: tuple[str, str, str] = (BATCH, ACCUMULATION, OPTIMIZER),
) -> Lines | None:
    """Return the keys of a change: of the batch, the optimizer, or one that is known; None if one of them has no key.

    `lora` are the keys that add adapters, without the key of their rank; `names` are the keys of batch, accumulation
    and optimizer.
    """
    batch, accumulation, optimizer = names
    lines: dict[str, object] = {}
    for name, value in change.items():
        match name, value:
            case "batch", int() if value % (per_example := _sequences_per_example(understanding, batch)) == 0:
                lines[batch] = value // per_example
            case "grad_accum", int():
                lines[accumulation] = value
            case "optimizer", str() if value in WRITTEN_OPTIMIZERS:
                lines[optimizer] = WRITTEN_OPTIMIZERS[value]
            case "lora", int() if value:
                lines |= {**lora, rank: value}
            case _ if (name, value) in known:
                lines |= known[name, value]
            case _:
                return None
    return lines


def _sequences_per_example(understanding: Understanding, batch: str) -> int:
    return 2 if any(key not in (batch, _OLDER_BATCH) for key in understanding.options["batch"].keys) else 1


def prequantized(settings: Settings, understanding: Understanding, key: str) -> None:
    """Note that the repository of the model has quantized weights, where its name says so."""
    found = re.search(r"(gptq|awq|aqlm|bnb-4bit|bnb-nf4|int4|fp8|nvfp4|mxfp4)", (settings.text(key) or "").lower())
    if found is None or understanding.word("quantize") is not None:
        return
    if found[1].startswith("bnb"):
        if understanding.word("lora") is None:
            settings.refuse(key, "has quantized weights, which are not trained without adapters")
        understanding.say("quantize", "nf4", key)
    else:
        understanding.leave_out(
            settings, key, "less", f"weights are stored as {found[1].upper()}; here in 16 or 32 bits"
        )


WITHOUT_EFFECT = keys(
    """
    output_dir overwrite_output_dir run_name project trackio_* seed data_seed full_determinism debug
    do_train do_eval do_predict resume_from_checkpoint local_rank no_cuda use_cpu use_ipex use_mps_device jit_mode_eval
    save_* load_best_model_at_end metric_for_best_model greater_is_better enable_jit_checkpoint restore_callback_*
    logging_* log_* report_to disable_tqdm skip_memory_metrics include_num_input_tokens_seen include_tokens_per_second
    eval_* evaluation_strategy per_device_eval_batch_size per_gpu_eval_batch_size prediction_loss_only bf16_full_eval
    fp16_full_eval include_inputs_for_metrics include_for_metrics batch_eval_metrics predict_with_generate
    generation_* sortish_sampler
    push_to_hub* hub_* learning_rate lr_* warmup_* weight_decay adam_* max_grad_norm optim_args optim_target_modules
    num_train_epochs label_smoothing_factor neftune_noise_alpha average_tokens_across_devices
    dataloader_* remove_unused_columns label_names group_by_length length_column_name ignore_data_skip
    train_sampling_strategy past_index accelerator_config ddp_timeout ddp_backend ddp_broadcast_buffers
    ddp_find_unused_parameters ddp_static_graph dispatch_batches split_batches use_cache half_precision_backend
    fp16_backend fp16_opt_level tpu_num_cores tpu_metrics_debug mp_parameters ray_scope xpu_backend torchdynamo
    gradient_checkpointing_kwargs activation_checkpointing_kwargs
    liger_kernel_config fsdp_config fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap
    """
)
"""TrainingArguments that change neither memory nor time of a training step."""

LIGER: tuple[Direction, str] = ("less", "Liger's fused kernels keep fewer activations")
UNSLOTH: tuple[Direction, str] = ("less", "Unsloth's kernels keep fewer activations")
WORST_CASE = "every sequence is taken as full, which is the worst case"
WEIGHTED_TOKENS: tuple[Direction, str] = ("more", "weights of the tokens are computed from all logits")

UNMODELLED: Mapping[str, tuple[Direction, str]] = {
    "use_liger_kernel": LIGER,
    "use_liger": LIGER,
    "use_liger_loss": ("less", "Liger's loss keeps no logits"),
    "torch_empty_cache_steps": ("less", "the allocator's cache is emptied between steps"),
    "auto_find_batch_size": ("less", "the Trainer halves the batch when memory runs out"),
    "ddp_bucket_cap_mb": ("either", "buckets of another size than DDP's default"),
    "tp_size": ("less", "further ranks share what one has here"),
}
"""TrainingArguments with an effect that is left out."""

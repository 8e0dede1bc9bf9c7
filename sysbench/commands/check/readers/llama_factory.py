"""Configs of LLaMA-Factory (https://llamafactory.readthedocs.io).

It loads weights in the dtype that `bf16` and `fp16` name. Trained ones become fp32 except with `pure_bf16`; frozen ones
keep theirs. Blocks are checkpointed except with `disable_gradient_checkpointing`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sysbench.commands.check.readers import hugging_face, shared
from sysbench.commands.check.understanding import (
    CannotTellError,
    Change,
    Direction,
    Format,
    Lines,
    Settings,
    Understanding,
    keys,
)
from sysbench.errors import Refusal

_STAGES = ("pt", "sft", "rm", "dpo", "kto", "ppo")

_MEGATRON = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
    *("virtual_pipeline_model_parallel_size", "use_distributed_optimizer", "recompute_granularity"),
)
"""Keys of training by Megatron-Core, which has its own parallelism and layers."""

_LENGTH = 2048

_ELSEWHERE = {
    "use_kt": "trains experts in the host's memory by KTransformers, which is not modelled",
    "use_habana": "trains on Gaudi; the answer is about GPUs",
    "use_hyper_parallel": "is for HyperParallel, whose parallelism is not modelled",
}
"""Keys of training in ways that have no answer, with the reason."""


def _read(settings: Settings, understanding: Understanding) -> None:
    if not settings.switch("do_train"):
        where = str(settings.file.path)
        raise CannotTellError(Refusal("has no do_train: true, so LLaMA-Factory trains nothing", option=where))
    _refuse_others(settings)
    shared.model(settings, understanding, "model_name_or_path")
    _tuning(settings, understanding)
    hugging_face.prequantized(settings, understanding, "model_name_or_path")
    pairs = _stage(settings, understanding)
    hugging_face.common(settings, understanding, pairs)
    _optimizer(settings, understanding)
    if settings.text("stage") in (None, "sft", "pt"):
        hugging_face.liger(settings, understanding, "enable_liger_kernel")
    length(settings, understanding)
    _precision(settings, understanding)
    _checkpointing(settings, understanding)
    shared.reentrant(settings, understanding, "use_reentrant_gc", default=True)
    attention(settings, understanding)
    hugging_face.sharding(settings, understanding)
    _ranks(settings, understanding)


def _refuse_others(settings: Settings) -> None:
    """Refuse training by other means than PyTorch's on GPUs."""
    for key in _MEGATRON:
        if settings.given(key):
            settings.refuse(key, "is for Megatron-Core, whose parallelism and layers are not modelled")
    for key, reason in _ELSEWHERE.items():
        if settings.switch(key):
            settings.refuse(key, reason)


def _checkpointing(settings: Settings, understanding: Understanding) -> None:
    if settings.switch("disable_gradient_checkpointing"):
        understanding.say("checkpoint", "none", "disable_gradient_checkpointing")
    else:
        is_said = settings.given("disable_gradient_checkpointing")
        understanding.say("checkpoint", "full", *["disable_gradient_checkpointing"] * is_said)
        if not is_said:
            understanding.assumed.append("gradient checkpointing is on, LLaMA-Factory's default")
    if settings.switch("gradient_checkpointing") is False and understanding.word("checkpoint") == "full":
        understanding.assumed.append("gradient_checkpointing: false does not turn it off in LLaMA-Factory")


def _ranks(settings: Settings, understanding: Understanding) -> None:
    names = ("context_parallel_size", "ulysses_context_parallel_size", "cp_size", "sequence_parallel_size")
    shared.sharing(settings, understanding, *names)
    if (workers := settings.number("ray_num_workers")) is not None and workers > 1:
        understanding.say("ranks", workers, "ray_num_workers")


def _tuning(settings: Settings, understanding: Understanding) -> None:
    if settings.switch("freeze_language_model"):
        understanding.leave_out(settings, "freeze_language_model", "less", "only what encodes images is trained")
    kind = settings.text("finetuning_type") or "lora"
    if kind not in ("lora", "full", "freeze"):
        settings.refuse("finetuning_type", "is a method that is not modelled", "modelled: lora, full")
    if kind == "freeze":
        understanding.leave_out(settings, "finetuning_type", "less", "only some layers are trained; here all")
    if kind == "lora":
        _adapters(settings, understanding)
    else:
        if settings.given("quantization_bit"):
            settings.refuse("quantization_bit", "needs adapters: quantized weights are not trained")
        settings.used |= {"lora_rank", "lora_target", "additional_target", "use_dora", "quantization_bit"}


def _adapters(settings: Settings, understanding: Understanding) -> None:
    rank = settings.number("lora_rank")
    said = [key for key in ("finetuning_type", "lora_rank") if settings.given(key)]
    understanding.say("lora", rank or 8, *said)
    if settings.given("lora_target"):
        shared.lora_targets(settings, understanding, "lora_target")
    else:
        understanding.say("lora_targets", "all-linear")
    hugging_face.trained_beside(settings, understanding, "additional_target")
    quantized(settings, understanding, "quantization_bit")
    hugging_face.dora(settings, understanding, "use_dora")


def quantized(settings: Settings, understanding: Understanding, key: str) -> None:
    """Take the bits of frozen weights."""
    bits = settings.number(key)
    if bits == 4:
        understanding.say("quantize", "nf4", key)
    elif bits == 8:
        understanding.say("quantize", "int8", key)
    elif bits is not None:
        settings.refuse(key, "is a format of frozen weights that is not modelled", "modelled: 4, 8")
    if settings.text("quantization_method") in ("hqq", "eetq"):
        understanding.leave_out(settings, "quantization_method", "either", "computed as bitsandbytes' format here")
    double = key.replace("quantization_bit", "double_quantization")
    if bits == 4 and settings.switch(double) is False:
        hugging_face.single_quantization(settings, understanding, double)


def _stage(settings: Settings, understanding: Understanding) -> str | None:
    """Take the method; return the key that says that a batch has two sequences for each example, None for one."""
    stage = settings.text("stage") or "sft"
    if stage not in _STAGES:
        settings.refuse("stage", "is no stage of LLaMA-Factory", f"known: {', '.join(_STAGES)}")
    if stage == "ppo":
        settings.refuse("stage", "generates text within a step, which is not modelled")
    if settings.switch("use_asft_loss"):
        reason = "a frozen reference model, and what its logits are compared by, are left out"
        understanding.leave_out(settings, "use_asft_loss", "more", reason)
    loss = settings.text("pref_loss")
    if stage == "rm":
        shared.reward_head(settings, understanding, "stage")
    if stage not in ("rm", "dpo", "kto"):
        return None
    has_reference = loss not in ("orpo", "simpo") and understanding.word("lora") is None
    return shared.preference(settings, understanding, "stage", stage, has_reference=has_reference)


def _optimizer(settings: Settings, understanding: Understanding) -> None:
    if settings.switch("use_muon"):
        understanding.say("optimizer", "muon", "use_muon")
    for key, reason in (
        ("use_galore", "GaLore's state has fewer values than AdamW's"),
        ("use_apollo", "APOLLO's state has fewer values than AdamW's"),
        ("use_badam", "BAdam updates one block at a time"),
        ("use_adam_mini", "Adam-mini's state has fewer values than AdamW's"),
    ):
        if settings.switch(key):
            understanding.leave_out(settings, key, "less", reason)


def length(settings: Settings, understanding: Understanding) -> None:
    """Take the context length."""
    given = settings.number("cutoff_len")
    understanding.say("ctx", given or _LENGTH, *["cutoff_len"] * (given is not None))
    if given is None:
        understanding.assumed.append(f"cutoff_len is not given: {_LENGTH:,} tokens, LLaMA-Factory's default")


def _precision(settings: Settings, understanding: Understanding) -> None:
    bf16, fp16, pure = (settings.switch(key) for key in ("bf16", "fp16", "pure_bf16"))
    if fp16 and (bf16 or pure):
        settings.refuse("fp16", "contradicts bf16", "drop one of them")
    is_frozen = understanding.word("lora") is not None
    key = next((name for name in ("pure_bf16", "bf16", "fp16") if settings.switch(name)), None)
    settings.used.add("tf32")
    if key is None and settings.switch("fp8"):
        understanding.say("precision", "bf16", "fp8")
        understanding.leave_out(settings, "fp8", "either", "products in fp8; here in bf16")
        return
    if key is None:
        understanding.say("precision", "bf16-true" if is_frozen else "fp32")
        dtype = "frozen weights have their checkpoint's, bf16" if is_frozen else "trained weights are fp32"
        understanding.assumed.append(f"neither bf16 nor fp16 is given: {dtype}")
        return
    name = "fp16" if key == "fp16" else "bf16"
    # whose weights BAdam leaves in 16 bits (model/adapter.py)
    is_true = is_frozen or key == "pure_bf16" or bool(settings.switch("use_badam"))
    understanding.say("precision", hugging_face.true_precision(name) if is_true else name, key)


def attention(settings: Settings, understanding: Understanding) -> None:
    """Take the kernel of attention."""
    if shared.config(understanding).get("model_type") == "gpt_oss":  # whatever the file says (model_utils/attention.py)
        understanding.say("attention", "flash", *["flash_attn"] * settings.given("flash_attn"))
        settings.used.add("flash_attn")
        return
    name = (settings.text("flash_attn") or "auto").lower()
    if name == "auto":
        understanding.say("attention", "sdpa", *["flash_attn"] * settings.given("flash_attn"))
        if not settings.given("flash_attn"):
            understanding.assumed.append("flash_attn is not given: sdpa, transformers' default")
        return
    if name not in hugging_face.ATTENTION:
        understanding.leave_out(settings, "flash_attn", "either", f"{name} is computed as flash here")
    understanding.say("attention", hugging_face.ATTENTION.get(name, "flash"), "flash_attn")


_LINES: dict[tuple[str, object], Lines] = {
    ("checkpoint", "full"): {"disable_gradient_checkpointing": False},
    ("checkpoint", "none"): {"disable_gradient_checkpointing": True},
    ("precision", "bf16"): {"bf16": True, "fp16": False},
    ("precision", "bf16-true"): {"pure_bf16": True, "bf16": False, "fp16": False},
    ("lora_targets", "all-linear"): {"lora_target": "all"},
    ("quantize", "nf4"): {"quantization_bit": 4, "quantization_method": "bnb"},
    ("attention", "sdpa"): {"flash_attn": "sdpa"},
    ("attention", "flash"): {"flash_attn": "fa2"},
}


def _lines(change: Change, understanding: Understanding) -> Lines | None:
    return hugging_face.lines_of(change, understanding, _LINES, {"finetuning_type": "lora"}, "lora_rank")


_MODEL = keys(
    """
    adapter_name_or_path adapter_folder cache_dir use_fast_tokenizer split_special_tokens model_revision
    low_cpu_mem_usage use_kv_cache infer_* offload_folder hf_hub_token ms_hub_token om_hub_token print_param_status
    trust_remote_code init_special_tokens new_special_tokens_config use_reentrant_gc train_from_scratch
    moe_aux_loss_coef quantization_type double_quantization quantization_device_map quantization_method vllm_* sglang_*
    use_megatron_bridge kt_* enable_torch_profiler profile_* profiler_* include_mfu mfu_*
    export_* try_dequantize
    """
)
_DATA = keys(
    """
    template dataset eval_dataset dataset_dir media_dir train_on_prompt mask_history streaming data_shared_file_system
    buffer_size mix_strategy interleave_probs overwrite_cache preprocessing_* max_samples eval_num_beams
    ignore_pad_token_for_loss val_size eval_on_each_dataset tool_format tokenized_path default_system enable_thinking
    image_min_pixels image_resolution video_min_pixels video_resolution video_fps video_maxlen audio_*
    use_audio_in_video crop_to_patches max_length reserved_label_len packing_* reasoning_effort
    preserve_thinking custom_chat_template cp_mode hyper_parallel_* gaudi_config_name use_lazy_mode use_hpu_*
    """
)
_LEARNING = keys(
    """
    lora_alpha lora_dropout loraplus_* use_rslora pissa_* create_new_adapter pref_* dpo_label_smoothing
    kto_chosen_weight kto_rejected_weight simpo_gamma ld_alpha ref_model_quantization_bit ref_model_adapters
    galore_* apollo_* badam_* swanlab_* use_swanlab oft_* module_dropout use_dft_loss use_asft_loss asft_alpha
    compute_accuracy disable_shuffling early_stopping_steps plot_loss include_effective_tokens_per_second
    freeze_trainable_* freeze_extra_modules freeze_vision_tower freeze_multi_modal_projector ppo_* reward_model* ray_*
    resources_per_worker placement_strategy master_addr master_port temperature top_p top_k skip_special_tokens
    use_mca muon_* eaft_alpha
    """
)

WITHOUT_EFFECT = hugging_face.WITHOUT_EFFECT | _MODEL | _DATA | _LEARNING

UNMODELLED: Mapping[str, tuple[Direction, str]] = {
    **hugging_face.UNMODELLED,
    "image_*": ("more", "images and what computes them are left out"),
    "video_*": ("more", "images and what computes them are left out"),
    "enable_liger_kernel": hugging_face.LIGER,
    "packing": ("less", f"packed or not, {hugging_face.WORST_CASE}"),
    "neat_packing": ("less", f"packed or not, {hugging_face.WORST_CASE}"),
    "use_unsloth": hugging_face.UNSLOTH,
    "use_unsloth_gc": ("less", "the inputs of checkpointed blocks are kept in the host's memory"),
    "use_v1_kernels": ("either", "other kernels for some layers"),
    "shift_attn": ("less", "attention within groups of tokens"),
    "mixture_of_depths": ("less", "some layers compute only a part of the tokens"),
    "upcast_layernorm": ("more", "norms' weights are fp32"),
    "upcast_lmhead_output": ("more", "logits are copied to fp32"),
    "rope_scaling": ("either", "other position embeddings"),
    "resize_vocab": ("more", "rows are added to the embeddings"),
    "add_tokens": ("more", "rows are added to the embeddings"),
    "add_special_tokens": ("more", "rows are added to the embeddings"),
    "fp8": ("either", "products in fp8; here in bf16"),
    "fp8_backend": ("either", "products in fp8; here in bf16"),
    "fp8_enable_fsdp_float8_all_gather": ("less", "weights are gathered in fp8"),
    "use_llama_pro": ("less", "only expanded blocks are trained"),
    "use_eaft_loss": ("more", "the entropy of each token is computed from the logits"),
    "ref_model": ("more", "a frozen reference model is left out"),
    "mtp_*": ("more", "heads that predict further tokens are left out"),
    "num_mtp_layers": ("more", "heads that predict further tokens are left out"),
    "chunk_loss_*": ("less", "the loss is computed in parts"),
    "use_cce": ("less", "no logits are stored"),
    "enable_qat": ("more", "fake quantization keeps further activations"),
}

FORMAT = Format(
    "LLaMA-Factory",
    keys(
        """
        model_name_or_path stage do_train finetuning_type lora_rank lora_target lora_alpha lora_dropout dataset template
        cutoff_len max_samples overwrite_cache preprocessing_num_workers output_dir logging_steps save_steps plot_loss
        overwrite_output_dir per_device_train_batch_size gradient_accumulation_steps learning_rate num_train_epochs
        lr_scheduler_type warmup_ratio bf16 fp16 pure_bf16 ddp_timeout val_size eval_dataset flash_attn quantization_bit
        deepspeed report_to dataloader_num_workers trust_remote_code resume_from_checkpoint pref_loss pref_beta
        infer_backend export_dir adapter_name_or_path optim save_only_model dataset_dir neat_packing
        """
    ),
    _read,
    WITHOUT_EFFECT,
    UNMODELLED,
    _lines,
    ("optimizer-in-backward", "allocator", "offload", "cross-entropy", "ranks"),
    needs=keys("model_name_or_path stage finetuning_type do_train"),
)

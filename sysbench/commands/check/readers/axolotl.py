"""Configs of axolotl (https://docs.axolotl.ai/docs/config-reference.html).

axolotl loads weights in the dtype that `bf16` and `fp16` name, so training is in 16 bits throughout; adapters are
fp32.
"""

from __future__ import annotations

from sysbench.commands.check.readers import hugging_face, named, shared
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

_OPTIMIZERS = {**hugging_face.OPTIMIZERS, "adamw": "foreach", "muon": "muon"}

_ATTENTION = {"flash_attention_2": "flash", "flash_attention": "flash", "sdpa": "sdpa", "eager": "naive"}
"""Kernels that allocate alike."""

_CHECKPOINTING = "gradient_checkpointing_kwargs"

_ONLY_WITH_REINFORCEMENT = ("grpo", "gdpo", "ebft")


def _read(settings: Settings, understanding: Understanding) -> None:
    shared.model(settings, understanding, "base_model")
    pairs = _method(settings, understanding)
    batch = settings.number("micro_batch_size") or 1
    understanding.say("batch", batch * (2 if pairs else 1), "micro_batch_size", *filter(None, [pairs]))
    accumulated = settings.number("gradient_accumulation_steps")
    if accumulated is None and (whole := settings.number("batch_size")):
        accumulated = max(1, whole // (settings.number("micro_batch_size") or 1))
    understanding.say("grad_accum", accumulated or 1, "gradient_accumulation_steps")
    if settings.number("sequence_len") is None:
        understanding.assumed.append("sequence_len is not given: axolotl's default of 512 tokens")
    understanding.say("ctx", settings.number("sequence_len") or 512, "sequence_len")
    _precision(settings, understanding)
    shared.optimizer(settings, understanding, "optimizer", _OPTIMIZERS, "adamw_torch_fused")
    _checkpointing(settings, understanding)
    # axolotl's default (utils/config/__init__.py): without other arguments, and without preferences
    is_default = not any(name.startswith(_CHECKPOINTING) for name in settings.file.entries) and not settings.given("rl")
    shared.reentrant(settings, understanding, f"{_CHECKPOINTING}.use_reentrant", default=is_default)
    _attention(settings, understanding)
    _sharding(settings, understanding)
    if settings.switch("chunked_cross_entropy"):
        understanding.say("cross_entropy", "chunked", "chunked_cross_entropy")
    understanding.steps = settings.number("max_steps")
    if any("CutCrossEntropy" in name for name in settings.words("plugins")) and not settings.given("cut_cross_entropy"):
        understanding.leave_out(settings, "plugins", *_NO_LOGITS)
    if settings.switch("torch_compile"):
        understanding.say("execution", "compiled", "torch_compile")


def _method(settings: Settings, understanding: Understanding) -> str | None:
    """Take the method; return the key that says that a batch has two sequences for each example, None for one."""
    _adapters(settings, understanding)
    if settings.switch("reward_model"):
        understanding.leave_out(settings, "reward_model", "less", "a head of one value in place of the vocabulary")
        return "reward_model"
    if (learning := settings.text("rl")) is not None:
        if learning in _ONLY_WITH_REINFORCEMENT:
            reason = f"{learning} generates text within a step, which is not modelled"
            raise CannotTellError(Refusal(reason, option=f"rl: {learning}:"))
        has_reference = not settings.given("adapter")
        return shared.preference(settings, understanding, "rl", learning, has_reference=has_reference)
    return None


def _adapters(settings: Settings, understanding: Understanding) -> None:
    adapter = settings.text("adapter")
    if adapter is None:
        return
    if adapter not in ("lora", "qlora"):
        settings.refuse("adapter", "is an adapter that is not modelled", "modelled: lora, qlora")
    understanding.say("lora", settings.number("lora_r") or 8, "adapter", "lora_r")
    if settings.switch("lora_target_linear"):
        understanding.say("lora_targets", "all-linear", "lora_target_linear")
    else:
        shared.lora_targets(settings, understanding, "lora_target_modules")
    if settings.switch("load_in_4bit") or adapter == "qlora":
        understanding.say("quantize", "nf4", "load_in_4bit")
    elif settings.switch("load_in_8bit"):
        understanding.say("quantize", "int8", "load_in_8bit")
    if settings.given("lora_modules_to_save"):
        modules = ", ".join(settings.words("lora_modules_to_save"))
        understanding.leave_out(settings, "lora_modules_to_save", "more", f"{modules} train in full")


def _precision(settings: Settings, understanding: Understanding) -> None:
    for name, precision in (("bf16", "bf16-true"), ("bfloat16", "bf16-true"), ("fp16", "fp16"), ("float16", "fp16")):
        value = settings.value(name)
        if value in (True, "true", "auto", "full"):
            understanding.say("precision", precision, name)
            if precision == "fp16":
                assumed = "fp16 trains fp32 weights under autocast; axolotl stores frozen weights in fp16"
                understanding.assumed.append(assumed)
            break
    else:
        if settings.switch("fp8"):
            understanding.leave_out(settings, "fp8", "either", "products in fp8; here in bf16")
            understanding.say("precision", "bf16", "fp8")
        else:
            understanding.say("precision", "tf32" if settings.switch("tf32") else "fp32", "tf32")
    settings.used |= {"tf32", "fp16", "float16"}  # without effect on products in bf16


def _checkpointing(settings: Settings, understanding: Understanding) -> None:
    for name in ("gradient_checkpointing", "fsdp_config.activation_checkpointing"):
        if settings.value(name) not in (None, False):
            understanding.say("checkpoint", "full", name)
            if str(settings.value(name)).startswith("offload"):
                understanding.leave_out(settings, name, "less", "activations are kept in the host's memory")
            return
    if settings.switch("fsdp_config.fsdp_activation_checkpointing"):
        understanding.say("checkpoint", "full", "fsdp_config.fsdp_activation_checkpointing")


def _attention(settings: Settings, understanding: Understanding) -> None:
    named = settings.text("attn_implementation")
    if named is not None:
        if named not in _ATTENTION:
            understanding.leave_out(settings, "attn_implementation", "either", f"{named} is computed as flash here")
        understanding.say("attention", _ATTENTION.get(named, "flash"), "attn_implementation")
        return
    for name, kind in (("flash_attention", "flash"), ("xformers_attention", "efficient"), ("sdp_attention", "sdpa")):
        if settings.switch(name):
            understanding.say("attention", kind, name)
            return
    if settings.switch("eager_attention"):
        understanding.say("attention", "naive", "eager_attention")


def _sharding(settings: Settings, understanding: Understanding) -> None:
    for name in ("context_parallel_size", "sequence_parallel_degree", "tensor_parallel_size", "expert_parallel_size"):
        if (settings.number(name, 0) or 1) > 1:
            understanding.leave_out(settings, name, "less", "its ranks share what one has here")
    if settings.words("fsdp") or any(name.startswith("fsdp_config.") for name in settings.file.entries):
        shared.fsdp(settings, understanding, "fsdp" if settings.given("fsdp") else "fsdp_config", "fsdp_config.")
    elif (path := settings.text("deepspeed")) is not None:
        named.deepspeed_file(settings, understanding, "deepspeed", path)


_LINES: dict[tuple[str, object], Lines] = {
    ("checkpoint", "full"): {"gradient_checkpointing": True},
    ("checkpoint", "none"): {"gradient_checkpointing": False},
    ("cross_entropy", "chunked"): {"chunked_cross_entropy": True},
    ("precision", "bf16-true"): {"bf16": True},
    ("quantize", "nf4"): {"adapter": "qlora", "load_in_4bit": True, "load_in_8bit": False},
}


def _lines(change: Change, understanding: Understanding) -> Lines | None:
    lora = {"adapter": "lora", "lora_alpha": change.get("lora"), "lora_target_linear": True}
    return hugging_face.lines_of(change, understanding, _LINES, lora, "lora_r", _NAMES)


_NAMES = ("micro_batch_size", "gradient_accumulation_steps", "optimizer")


_WITHOUT_EFFECT = keys(
    """
    output_dir save_* saves_per_epoch hub_* push_dataset_to_hub resume_from_checkpoint wandb_* use_wandb
    swanlab_* use_swanlab trackio_* mlflow_* use_mlflow comet_* logging_steps debug loss_watchdog_*
    early_stopping_patience report_to datasets test_datasets dataset_* val_set_size chat_template*
    pretraining_dataset tokens special_tokens train_on_inputs eot_tokens group_by_length shuffle_merged_datasets
    dataloader_* skip_prepare_dataset remove_unused_columns tokenizer_* processor_type streaming* min_sample_len
    default_system_message is_*_derived_model model_type trust_remote_code learning_rate lr_* warmup_*
    weight_decay num_epochs adam_* max_grad_norm seed cosine_* eta_min optim_args lora_alpha lora_dropout
    peft_use_rslora lora_fan_in_fan_out neftune_noise_alpha eaft_* label_smoothing_factor beta rl_beta
    orpo_alpha eval* do_bench_eval generate_samples do_eval strict local_rank ddp_* ddp torchdistx_path
    lora_model_dir base_model_config use_ray ray_num_workers device_map experimental_skip_move_to_device
    model_config revision_of_model gradient_checkpointing_kwargs plugins flex_attn_compile_kwargs
    flash_attn_cross_entropy fsdp_version dp_shard_size dp_replicate_size context_parapllel_size
    accelerator_config model_config_type resize_token_embeddings_to_32x center_rewards_coefficient
    vllm trl ebft provider project_name secrets gpu gpu_count node_count cls_model_config hf_use_auth_token
    fsdp_config load_in_4bit load_in_8bit lora_r lora_target_modules lora_target_linear gptq_groupsize gptq_model_v1
    bnb_config_kwargs nvfp4_merge_aware reinit_weights float16 adapter torch_dtype
    auto_resume_from_checkpoints push_to_hub load_best_model_at_end metric_for_best_model greater_is_better
    use_tensorboard use_comet use_trackio hf_mlflow_* use_otel_metrics otel_* gradio_* logging_* log_* profiler_*
    include_* bench_* do_causal_lm_eval lm_eval_* num_generation_samples generation_*
    exact_deduplication test_value excess_length_strategy max_prompt_len curriculum_sampling
    shuffle_before_merging_datasets num_dataset_shards_to_save pretraining_* pretrain_multipack_buffer_size
    sample_packing_* use_pose pose_* added_tokens_overrides mean_resizing_embeddings fix_untrained_tokens
    noisy_embedding_alpha image_size image_resize_algorithm is_preprocess is_multimodal total_*
    embedding_lr* dion_* loraplus_* peft_init_lora_weights grokfast_alpha rpo_alpha simpo_gamma cpo_alpha kto_*
    dpo_label_smoothing dpo_norm_loss dpo_generate_during_eval
    device world_size ray_run_name resources_per_worker gc_steps low_cpu_mem_usage max_memory gpu_memory_limit
    lora_weights lora_modules_to_save lora_on_cpu merge_lora qlora_sharded_model_loading type_of_model
    fsdp_final_state_dict_type ring_attn_func heads_k_stride torch_compile_backend torch_compile_mode
    tiled_mlp_num_shards tiled_mlp_use_original_mlp
    """
)
"""Keys about data, learning rates, logging, saving, and the start of processes; * stands for any letters."""

_WORST_CASE = "sequences are taken as full, which is the worst case"
_NO_LOGITS: tuple[Direction, str] = ("less", "no logits are stored")
_OTHER_TRAINING: tuple[Direction, str] = ("either", "another way of training than a plain step")
_FEWER_PARAMETERS: tuple[Direction, str] = ("less", "only some parameters are trained")

FORMAT = Format(
    "axolotl",
    frozenset({"base_model", "micro_batch_size", "sequence_len", "adapter", "datasets", "val_set_size", "lora_r"})
    | {"gradient_accumulation_steps", "num_epochs", "sample_packing", "wandb_project", "dataset_prepared_path"}
    | {"saves_per_epoch", "evals_per_epoch", "lr_scheduler", "special_tokens", "rl", "load_in_4bit", "load_in_8bit"},
    _read,
    _WITHOUT_EFFECT,
    {
        "sample_packing": ("less", f"packed or not, {_WORST_CASE}"),
        "pad_to_sequence_len": ("less", _WORST_CASE),
        "max_packed_sequence_len": ("less", _WORST_CASE),
        "pretrain_multipack_attn": ("less", _WORST_CASE),
        "liger_*": hugging_face.LIGER,
        "chunked_cross_entropy_num_chunks": ("either", "parts of 1,024 tokens here"),
        "cut_cross_entropy": _NO_LOGITS,
        "unsloth_*": hugging_face.UNSLOTH,
        "lora_*_kernel": ("less", "fused kernels of adapters keep fewer activations"),
        "activation_offloading": ("less", "activations are kept in the host's memory"),
        "layer_offloading": ("less", "layers are kept in the host's memory"),
        "tiled_mlp": ("less", "feed-forward blocks compute a part of the tokens at a time"),
        "flash_attn_*": ("less", "fused kernels keep fewer activations"),
        "fused_attn_kernel": ("less", "fused kernels keep fewer activations"),
        "use_kernels": ("either", "other kernels of the hub"),
        "use_scattermoe": ("either", "experts computed by other kernels"),
        "use_sonicmoe": ("either", "experts computed by other kernels"),
        "experts_implementation": ("either", "experts computed by other kernels"),
        "gemma4_hybrid_attn_impl": ("either", "other attention kernels in some layers"),
        "quantize_moe_experts": ("less", "experts are stored in 4 or 8 bits; here as trained layers or nf4"),
        "llama4_linearized_experts": ("either", "experts as single linear layers"),
        "lora_target_parameters": ("more", "adapters at parameters that are no linear layers"),
        "unfrozen_parameters": _FEWER_PARAMETERS,
        "spectrum_*": _FEWER_PARAMETERS,
        "peft_layer*": ("less", "adapters at some layers only"),
        "peft_autocast_adapter_dtype": ("either", "adapters of another width"),
        "embeddings_skip_upcast": ("less", "embeddings stay 16 bits wide"),
        "shrink_embeddings": ("less", "embeddings of a smaller vocabulary"),
        "overrides_of_model_*": ("either", "the model's config is changed"),
        "dpo_padding_free": ("less", _WORST_CASE),
        "dpo_use_logits_to_keep": ("less", "logits of the answers alone"),
        "dpo_use_weighting": hugging_face.WEIGHTED_TOKENS,
        "multipack_real_batches": ("less", _WORST_CASE),
        "batch_flattening": ("less", _WORST_CASE),
        "deepcompile": ("less", "a compiled step needs less memory and time"),
        "flash_optimum": ("either", "other attention kernels"),
        "s2_attention": ("either", "attention within shifted groups of tokens"),
        "scaling_softmax": ("either", "another attention"),
        "optim_target_modules": ("less", "the optimizer has less state for some layers"),
        "auto_find_batch_size": hugging_face.UNMODELLED["auto_find_batch_size"],
        "kd_*": ("more", "a teacher's logits are kept, too"),
        "relora*": _OTHER_TRAINING,
        "trainer_cls": _OTHER_TRAINING,
        "freeze_mm_modules": ("less", "modules of images are frozen"),
        "model_quantization_config*": ("either", "weights are loaded in another format"),
        "qat": ("more", "fake quantization keeps further activations"),
        "use_onebitllms": ("either", "weights of one bit"),
        "gptq": ("less", "weights are stored in 4 bits"),
        "fp8": ("either", "products in fp8"),
        "fp8_enable_fsdp_float8_all_gather": ("less", "weights are gathered in fp8"),
        "peft": ("either", "initialization of adapters from quantized weights"),
        "use_eaft": ("more", "entropy of each token is computed from the logits"),
        "process_reward_model": ("either", "a loss for each reasoning step"),
        "num_labels": ("less", "a head of few classes in place of the vocabulary"),
        "diffusion": ("either", "a diffusion loss"),
        "chunked_*": ("less", "computed in parts"),
    },
    _lines,
    ("attention", "allocator", "optimizer-in-backward", "offload", "ranks"),
    decided_by=frozenset({"base_model"}),
)

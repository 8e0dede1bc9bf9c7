"""Configs of axolotl (https://docs.axolotl.ai/docs/config-reference.html).

axolotl loads weights in the dtype that `bf16` and `fp16` name, so training is in 16 bits throughout; adapters are
fp32. So are trained weights under FSDP 1 and DeepSpeed.
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
from sysbench.spec.knobs import WITH_EXPERTS

_OPTIMIZERS = {
    **hugging_face.OPTIMIZERS,
    "adamw": "foreach",
    "muon": "muon",
    "ao_adamw_8bit": "adamw-8bit",
    "ao_adamw_4bit": "adamw-4bit",
}

_ATTENTION = {**hugging_face.ATTENTION, "flash_attention": "flash", "xformers": "efficient"}

_OLDER_ATTENTION = {
    "flash_attention": "flash",
    "xformers_attention": "efficient",
    "sdp_attention": "sdpa",
    "eager_attention": "naive",
    "flex_attention": "flex",
}
"""Keys that older versions have in place of `attn_implementation`."""

_CHECKPOINTING = "gradient_checkpointing_kwargs"

_PREFERENCES = ("dpo", "ipo", "kto", "orpo", "simpo")

_ONLY_WITH_REINFORCEMENT = ("grpo", "gdpo", "ebft")


def _read(settings: Settings, understanding: Understanding) -> None:
    shared.model(settings, understanding, "base_model")
    if settings.value("gkd_lmbda") != 0:
        hugging_face.refuse_generation(settings, "on-policy distillation", "gkd_trainer")
    pairs = _method(settings, understanding)
    hugging_face.prequantized(settings, understanding, "base_model")
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
    is_default &= not settings.given("unfrozen_parameters")
    is_default &= not str(shared.config(understanding).get("model_type")).startswith("gemma4")
    shared.reentrant(settings, understanding, f"{_CHECKPOINTING}.use_reentrant", default=is_default)
    _attention(settings, understanding)
    _sharding(settings, understanding)
    _wider_layers(settings, understanding)
    _loss(settings, understanding)
    understanding.steps = shared.steps(settings, "max_steps")
    hugging_face.compiled(settings, understanding)


def _loss(settings: Settings, understanding: Understanding) -> None:
    is_plugged = any("CutCrossEntropy" in name for name in settings.words("plugins"))
    fused = [key for key in ("cut_cross_entropy", "liger_fused_linear_cross_entropy") if settings.switch(key)]
    if is_plugged and not settings.given("cut_cross_entropy"):
        fused.append("plugins")
    is_plain = not settings.given("rl") and not settings.switch("reward_model")
    if fused and is_plain:  # others need the logits
        shared.fused_loss(settings, understanding, fused[0])
    elif settings.switch("chunked_cross_entropy"):
        understanding.say("cross_entropy", "chunked", "chunked_cross_entropy")


def _method(settings: Settings, understanding: Understanding) -> str | None:
    """Take the method; return the key that says that a batch has two sequences for each example, None for one."""
    _adapters(settings, understanding)
    if settings.switch("reward_model"):
        shared.reward_head(settings, understanding, "reward_model")
        return "reward_model"
    if (learning := settings.text("rl")) is not None:
        if learning in _ONLY_WITH_REINFORCEMENT:
            reason = f"{learning} generates text within a step, which is not modelled"
            raise CannotTellError(Refusal(reason, option=f"rl: {learning}:"))
        if learning not in _PREFERENCES:
            settings.refuse("rl", "is no method that is modelled", f"modelled: {', '.join(_PREFERENCES)}")
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
    _quantization(settings, understanding, adapter)
    hugging_face.trained_beside(settings, understanding, "lora_modules_to_save")
    hugging_face.dora(settings, understanding, "peft_use_dora")
    is_fused = not any(name.startswith("lora_") and name.endswith("_kernel") for name in settings.file.entries)
    is_fused &= understanding.word("quantize") != "int8"
    is_fused &= not settings.given("rl") and not settings.given("fsdp") and not settings.switch("trust_remote_code")
    if is_fused:
        understanding.leave_out(settings, "adapter", "less", "fused kernels of adapters, on by default, keep less")


def _quantization(settings: Settings, understanding: Understanding, adapter: str) -> None:
    if settings.switch("load_in_4bit") or adapter == "qlora":
        understanding.say("quantize", "nf4", "load_in_4bit")
        if adapter == "lora":
            reason = "axolotl since 0.13 loads 4 bits only with adapter: qlora"
            understanding.leave_out(settings, "load_in_4bit", "more", reason)
    elif settings.switch("load_in_8bit"):
        understanding.say("quantize", "int8", "load_in_8bit")
    elif (dtype := settings.text("peft.weight_dtype")) in ("nf4", "int4", "int8"):
        understanding.say("quantize", "int8" if dtype == "int8" else "nf4", "peft.weight_dtype")
    for key in ("quantize_moe_experts", "llama4_linearized_experts"):
        if settings.switch(key) and understanding.word("quantize") == "nf4":
            understanding.say("quantize", WITH_EXPERTS, *understanding.options["quantize"].keys, key)
    if settings.switch(double := "bnb_config_kwargs.bnb_4bit_use_double_quant") is False:
        hugging_face.single_quantization(settings, understanding, double)


_FLOAT16 = {"fp16": "fp16", "float16": "fp16-true"}
"""Keys of fp16: autocast over weights, or all weights in fp16."""


def _precision(settings: Settings, understanding: Understanding) -> None:
    is_said = [name for name in ("bf16", "bfloat16") if settings.value(name) in (True, "true", "auto", "full")]
    half = next((name for name in _FLOAT16 if settings.switch(name)), None)
    if half is not None and (not is_said or (half == "fp16" and settings.value("bf16") == "auto")):
        is_frozen = understanding.word("lora") is not None
        understanding.say("precision", "fp16-true" if is_frozen else _FLOAT16[half], half)
    elif is_said:
        understanding.say("precision", "bf16-true", is_said[0])
    elif settings.switch("fp8"):
        understanding.leave_out(settings, "fp8", "either", "products in fp8; here in bf16")
        understanding.say("precision", "bf16", "fp8")
    elif not any(name in settings.file.entries for name in ("bf16", "bfloat16", *_FLOAT16)):
        understanding.say("precision", "bf16-true")
        understanding.assumed.append("bf16 is not given: auto, axolotl's default, which is bf16")
    else:
        understanding.say("precision", "tf32" if settings.switch("tf32") else "fp32", "tf32")
    settings.used |= {"tf32", *_FLOAT16}  # without effect on products in bf16


def _wider_layers(settings: Settings, understanding: Understanding) -> None:
    """Note that embeddings and norms stay fp32 in full fine-tuning of one process without flash attention."""
    is_plain = understanding.word("lora") is None and understanding.word("strategy") is None
    is_plain &= (understanding.word("precision") or "").endswith("-true")
    is_plain &= understanding.word("attention") not in ("flash", "flex")
    is_plain &= shared.config(understanding).get("model_type") != "gpt2"  # whose layers have other names
    if is_plain and not settings.switch("embeddings_skip_upcast") and not settings.switch("cut_cross_entropy"):
        understanding.leave_out(settings, "base_model", "more", "embeddings and norms are fp32 without flash attention")


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
    settings.used.update(_OLDER_ATTENTION)
    named = settings.text("attn_implementation")
    if named is not None:
        if named not in _ATTENTION and "flash" not in named:
            understanding.leave_out(settings, "attn_implementation", "either", f"{named} is computed as flash here")
        understanding.say("attention", _ATTENTION.get(named, "flash"), "attn_implementation")
    elif (key := next((name for name in _OLDER_ATTENTION if settings.switch(name)), None)) is not None:
        understanding.say("attention", _OLDER_ATTENTION[key], key)


_SHARING = ("context_parallel_size", "context_parallel.size", "sequence_parallel_degree", "tensor_parallel_size")
_OF_EXPERTS = "expert_parallel_size"
"""Numbers of ranks that share one sequence, and of those that share the experts."""


def _sharding(settings: Settings, understanding: Understanding) -> None:
    sharded, replicated = (settings.number(f"dp_{name}_size", 0) or 1 for name in ("shard", "replicate"))
    sharing = shared.sharing(settings, understanding, *_SHARING)
    of_experts = shared.sharing(settings, understanding, _OF_EXPERTS)
    if settings.words("fsdp") or any(name.startswith("fsdp_config.") for name in settings.file.entries):
        # axolotl's own FSDP 2 leaves weights as they were loaded (monkeypatch/accelerate/fsdp2.py).
        is_second = any(str(settings.value(name)) == "2" for name in ("fsdp_version", "fsdp_config.fsdp_version"))
        widens = not is_second or bool(settings.switch("fp32_master_weights"))
        key = "fsdp" if settings.given("fsdp") else "fsdp_config"
        shared.fsdp(settings, understanding, key, "fsdp_config.", widens=widens)
        if replicated > 1:
            understanding.say("strategy", "hsdp" if sharded > 1 else "ddp", "dp_replicate_size")
    else:
        named.deepspeed(settings, understanding, "deepspeed")
    ranks = max(of_experts, sharded * replicated * sharing)  # experts are on the ranks of the shards
    if ranks > 1:
        names = ("dp_shard_size", "dp_replicate_size", *_SHARING, _OF_EXPERTS)
        understanding.say("ranks", ranks, *(name for name in names if (settings.number(name, 0) or 1) > 1))


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
    flash_attn_cross_entropy context_parapllel_size context_parallel
    accelerator_config model_config_type resize_token_embeddings_to_32x center_rewards_coefficient
    vllm trl ebft provider project_name secrets gpu gpu_count node_count cls_model_config hf_use_auth_token
    fsdp_config load_in_4bit load_in_8bit lora_r lora_target_modules lora_target_linear gptq_groupsize gptq_model_v1
    bnb_config_kwargs nvfp4_merge_aware reinit_weights torch_dtype fp32_master_weights embeddings_skip_upcast gkd_*
    base_model_ignore_patterns eos_token_id bos_token_id pad_token_id merge_method
    peft_ensure_weight_tying dpo_beta float32 bfloat16 quantization gptq_disable_exllama
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
    fsdp_final_state_dict_type ring_attn_func heads_k_stride
    tiled_mlp_num_shards tiled_mlp_use_original_mlp cut_cross_entropy
    """
)
"""Keys about data, learning rates, logging, saving, and the start of processes; * stands for any letters."""

_WORST_CASE = "sequences are taken as full, which is the worst case"
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
        "quantize_moe_experts": ("less", "experts are stored in 4 or 8 bits; here in 16"),
        "llama4_linearized_experts": ("less", "experts are linear layers, which are quantized one by one"),
        "lora_target_parameters": ("more", "adapters at parameters that are no linear layers"),
        "unfrozen_parameters": _FEWER_PARAMETERS,
        "spectrum_*": _FEWER_PARAMETERS,
        "peft_layer*": ("less", "adapters at some layers only"),
        "peft_autocast_adapter_dtype": ("either", "adapters of another width"),
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
        "gkd_trainer": ("more", "a teacher and its logits are left out"),
        "rl_adapter_ref_model": ("more", "a second model is the reference"),
        "use_dft": _OTHER_TRAINING,
        "lisa_*": ("less", "few layers are trained at a time"),
        "diffusion_*": _OTHER_TRAINING,
        "nvfp4_training.quantize_base": ("less", "frozen weights are stored in 4 bits"),
        "nvfp4_training": ("either", "products in fp4"),
        "ternary": ("more", "fake quantization keeps further activations"),
        "llmcompressor": ("either", "sparse weights"),
        "selective_checkpointing": ("more", "some activations are kept"),
        "fp32_norms": ("more", "norms are fp32"),
        "sdpa_varlen": ("either", "another kernel of attention"),
        "large_head_attention": ("either", "another kernel of attention"),
        "block_diffusion": _OTHER_TRAINING,
        "moe_kernels": ("either", "experts computed by other kernels"),
        "dsv4_fp4_grouped_mode": ("either", "experts computed by other kernels"),
        "use_dsv4_kernels": ("either", "experts and attention computed by other kernels"),
        "nsa_*": ("either", "sparse attention"),
        "sage_attention": ("either", "another kernel of attention"),
        "lora_rank_pattern": ("either", "adapters of other ranks at some layers"),
        "lora_exclude_modules": ("less", "no adapters at some layers"),
        "peft_trainable_token_indices": ("more", "some rows of the embeddings are trained"),
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

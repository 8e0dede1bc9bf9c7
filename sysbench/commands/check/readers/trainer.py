"""Configs of TRL (https://huggingface.co/docs/trl) and of transformers' TrainingArguments, in YAML or JSON.

The recipes of alignment-handbook have the same form. The scripts that read these files load weights in `dtype` (or
`torch_dtype`), in fp32 without it; `bf16: true` is autocast over them.
"""

from __future__ import annotations

import re

from sysbench.commands.check.readers import hugging_face, shared
from sysbench.commands.check.understanding import (
    Change,
    Format,
    Lines,
    Settings,
    Understanding,
    keys,
)

_OF_TRL = keys(
    """
    max_length max_seq_length max_prompt_length max_completion_length dataset_name dataset_mixer dataset_mixture
    use_peft lora_r lora_target_modules load_in_4bit packing loss_type beta dataset_text_field chat_template
    dataset_num_proc dataset_kwargs dataset_train_split eval_packing padding_free
    """
)
"""Keys that scripts of TRL and the alignment-handbook have; they use TRL's defaults."""

_METHODS = {
    "undesirable_weight": "kto",
    "desirable_weight": "kto",
    "cpo_alpha": "cpo",
    **dict.fromkeys(("simpo_gamma", "gamma_beta_ratio"), "cpo"),
    "center_rewards_coefficient": "reward",
    **dict.fromkeys(("precompute_ref_log_probs", "ref_model_init_kwargs", "reference_free", "rpo_alpha"), "dpo"),
    **dict.fromkeys(("sync_ref_model", "f_divergence_type", "use_logits_to_keep", "ref_adapter_name"), "dpo"),
}
"""Keys that a single preference method has."""

_NAMED_METHODS = ("orpo", "cpo", "kto", "reward", "dpo")
"""Methods that the file's path may name, where `beta` does not say of which it is."""

_NESTED = ("use_bnb_nested_quant", "bnb_4bit_use_double_quant")

_LENGTHS = ("max_length", "max_seq_length", "max_seq_len", "block_size", "model_max_length")

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "auto": "bf16"}


_OF_OPEN_INSTRUCT = ("with_tracking", "hf_metadata_dataset", "add_bos")


def _read(settings: Settings, understanding: Understanding) -> None:
    if (other := next((key for key in _OF_OPEN_INSTRUCT if settings.given(key)), None)) is not None:
        settings.refuse(other, "is a key of open-instruct, whose scripts have defaults of their own")
    hugging_face.refuse_generation(settings, "online training", "num_generations", "reward_funcs", "use_vllm")
    hugging_face.refuse_generation(settings, "online training", "response_length", "num_ppo_epochs", "max_new_tokens")
    model = next((key for key in ("model_name_or_path", "model_name", "model_id") if settings.given(key)), None)
    shared.model(settings, understanding, model or "model_name_or_path")
    is_trl = any(settings.given(key) for key in _OF_TRL)
    _adapters(settings, understanding)
    hugging_face.prequantized(settings, understanding, model or "model_name_or_path")
    pairs = _preference(settings, understanding)
    hugging_face.common(settings, understanding, pairs)
    _length(settings, understanding)
    _precision(settings, understanding, is_trl)
    _checkpointing(settings, understanding, is_trl)
    shared.reentrant(settings, understanding, "gradient_checkpointing_kwargs.use_reentrant", default=False)
    _attention(settings, understanding)
    if pairs is None:
        hugging_face.liger(settings, understanding, "use_liger_kernel", "use_liger")
    if settings.value("loss_type") == "chunked_nll":
        understanding.say("cross_entropy", "chunked", "loss_type")
    elif is_trl and pairs is None and not settings.given("loss_type") and understanding.word("cross_entropy") is None:
        understanding.assumed.append("the loss is computed from full logits; recent TRL does so in chunks")
    hugging_face.sharding(settings, understanding)


def _adapters(settings: Settings, understanding: Understanding) -> None:
    if settings.switch("use_peft"):
        understanding.say("lora", settings.number("lora_r") or 16, "use_peft", *_given(settings, "lora_r"))
        shared.lora_targets(settings, understanding, "lora_target_modules")
        if settings.switch("load_in_4bit"):
            understanding.say("quantize", "nf4", "load_in_4bit")
            nested = next((key for key in _NESTED if settings.given(key)), "load_in_4bit")
            if nested == "load_in_4bit" or not settings.switch(nested):
                hugging_face.single_quantization(settings, understanding, nested)
        elif settings.switch("load_in_8bit"):
            understanding.say("quantize", "int8", "load_in_8bit")
        hugging_face.trained_beside(settings, understanding, "lora_modules_to_save")
        hugging_face.dora(settings, understanding, "use_dora")
    elif settings.switch("load_in_4bit") or settings.switch("load_in_8bit"):
        key = "load_in_4bit" if settings.switch("load_in_4bit") else "load_in_8bit"
        settings.refuse(key, "needs adapters: quantized weights are not trained", "add use_peft: true")
    # without use_peft, nothing reads them
    settings.used |= {"lora_r", "lora_target_modules", "lora_modules_to_save", "use_dora", "load_in_4bit"}
    settings.used |= {"load_in_8bit", *_NESTED}


def _preference(settings: Settings, understanding: Understanding) -> str | None:
    """Take the method; return the key that says that a batch has two sequences for each example, None for one."""
    key = next((name for name in _METHODS if settings.given(name)), None)
    method = _METHODS.get(key or "")
    if method is None and settings.given("beta"):
        words = re.split(r"[^a-z]+", str(settings.file.path).lower())
        key, method = "beta", next((name for name in _NAMED_METHODS if name in words), "dpo")
    if key is None or method is None:
        return None
    if method == "reward":
        shared.reward_head(settings, understanding, key)
    precomputed = settings.switch("precompute_ref_log_probs") or settings.switch("reference_free")
    settings.used.add(key)
    has_reference = understanding.word("lora") is None and not precomputed
    return shared.preference(settings, understanding, key, method, has_reference=has_reference)


def _length(settings: Settings, understanding: Understanding) -> None:
    key = next((key for key in _LENGTHS if settings.given(key)), None)
    settings.used.update(_LENGTHS)
    if key is not None:
        understanding.say("ctx", settings.number(key), key)
    elif any(name in settings.file.entries for name in _LENGTHS[:2]):
        given = next(name for name in _LENGTHS[:2] if name in settings.file.entries)
        settings.refuse(given, "sets no limit, so the longest text of the data decides", "give a length to answer for")
    else:
        understanding.say("ctx", 1024)
        understanding.assumed.append("max_length is not given: 1,024 tokens, TRL's default")


def _precision(settings: Settings, understanding: Understanding, is_trl: bool) -> None:
    key = next((key for key in ("dtype", "torch_dtype") if settings.given(key)), None)
    named = str(settings.value(key)).removeprefix("torch.") if key else "float32"
    if named not in _DTYPES:
        settings.refuse(key or "dtype", "is no dtype of weights", f"known: {', '.join(_DTYPES)}")
    if named == "auto":
        understanding.assumed.append(f"{key}: auto is bfloat16, as in almost all checkpoints")
    weights = _DTYPES[named]
    bf16, fp16 = settings.switch("bf16"), settings.switch("fp16")
    if bf16 and fp16:
        settings.refuse("fp16", "contradicts bf16: true", "drop one of them")
    if bf16 is None and not fp16 and is_trl:
        bf16 = True
        understanding.assumed.append("bf16 is not given: true, TRL's default")
    is_tf32 = settings.switch("tf32")
    autocast = "bf16" if bf16 else "fp16" if fp16 else None
    said = _given(settings, *(name for name in ("bf16", "fp16") if settings.value(name)), *([key] if key else []))
    if understanding.word("quantize") is not None and autocast is not None:
        understanding.say("precision", autocast, *said)
        understanding.assumed.append("weights that are not quantized are fp32, as prepare_model_for_kbit_training does")
    elif weights == "fp32":
        understanding.say("precision", autocast or ("tf32" if is_tf32 else "fp32"), *said)
        if key is None and autocast is not None:
            understanding.assumed.append("dtype is not given: weights are fp32, under autocast")
    elif autocast is not None and autocast != weights:
        settings.refuse(key or "dtype", f"contradicts {autocast}: true", "give both the same type")
    else:
        understanding.say("precision", hugging_face.true_precision(weights), *said)


def _checkpointing(settings: Settings, understanding: Understanding, is_trl: bool) -> None:
    for key in ("gradient_checkpointing", "activation_checkpointing"):
        if (is_on := settings.switch(key)) is not None:
            understanding.say("checkpoint", "full" if is_on else "none", key)
            return
    understanding.say("checkpoint", "full" if is_trl else "none")
    if is_trl:
        understanding.assumed.append("gradient_checkpointing is not given: true, TRL's default")


def _attention(settings: Settings, understanding: Understanding) -> None:
    if settings.switch("use_flash_attention_2"):
        understanding.say("attention", "flash", "use_flash_attention_2")
    elif (named := settings.text("attn_implementation")) is not None:
        if named not in hugging_face.ATTENTION:
            understanding.leave_out(settings, "attn_implementation", "either", f"{named} is computed as flash here")
        understanding.say("attention", hugging_face.ATTENTION.get(named, "flash"), "attn_implementation")
    else:
        understanding.say("attention", "sdpa")
        understanding.assumed.append("attn_implementation is not given: sdpa, transformers' default")


def _given(settings: Settings, *names: str) -> list[str]:
    return [name for name in names if settings.given(name)]


def _lines(change: Change, understanding: Understanding) -> Lines | None:
    dtype = "torch_dtype" if "torch_dtype" in understanding.options["precision"].keys else "dtype"
    is_int8 = understanding.word("quantize") == "int8"
    known: dict[tuple[str, object], Lines] = {
        ("checkpoint", "full"): {"gradient_checkpointing": True},
        ("checkpoint", "none"): {"gradient_checkpointing": False},
        ("precision", "bf16"): {"bf16": True, "fp16": False},
        ("precision", "bf16-true"): {"bf16": True, "fp16": False, dtype: "bfloat16"},
        ("cross_entropy", "chunked"): {"loss_type": "chunked_nll"},
        ("lora_targets", "all-linear"): {"lora_target_modules": "all-linear"},
        ("quantize", "nf4"): {"load_in_4bit": True, **({"load_in_8bit": False} if is_int8 else {})},
        ("attention", "sdpa"): {"attn_implementation": "sdpa"},
        ("attention", "flash"): {"attn_implementation": "flash_attention_2"},
    }
    return hugging_face.lines_of(change, understanding, known, {"use_peft": True}, "lora_r")


_MODEL = keys(
    """
    model_revision model_code_revision base_model_revision tokenizer_name* config_name trust_remote_code cache_dir
    use_fast_tokenizer token use_auth_token low_cpu_mem_usage config_overrides model_type tokenizer_revision
    chat_template* eos_token pad_token lora_alpha lora_dropout lora_task_type lora_bias use_rslora
    bnb_4bit_quant_type bnb_4bit_quant_storage bnb_4bit_compute_dtype
    system_prompt auto_insert_empty_system_msg user_defined_symbols base_model_attribute_name benchmarks callbacks
    overwrite_hub_revision wandb_*
    """
)
_DATA = keys(
    """
    dataset_* datasets* dataset train_file validation_file test_file train_split test_split eval_split streaming
    max_train_samples max_eval_samples preprocessing_num_workers overwrite_cache validation_split_percentage
    text_column shuffle_dataset truncation_* padding_value label_pad_token_id max_prompt_length max_target_length
    max_completion_length completion_only_loss assistant_only_loss ignore_bias_buffers append_concat_token
    add_special_tokens keep_linebreaks pad_to_multiple_of is_encoder_decoder num_of_sequences chars_per_token
    eval_packing packing_strategy preprocess_*
    """
)
_LOSS = keys(
    """
    beta loss_type label_smoothing loss_weights f_* rpo_alpha ld_alpha discopop_tau ref_* disable_dropout
    generate_during_eval concatenate gradient_checkpointing_use_reentrant
    """
)

FORMAT = Format(
    "TRL / transformers",
    keys(
        """
        model_name_or_path torch_dtype dtype attn_implementation dataset_name dataset_mixer dataset_mixture max_length
        max_seq_length use_peft lora_r lora_target_modules load_in_4bit bf16 fp16 per_device_train_batch_size
        gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs learning_rate output_dir
        num_train_epochs max_steps optim logging_steps save_strategy eval_strategy lr_scheduler_type warmup_ratio
        overwrite_output_dir save_steps save_only_model ddp_timeout deepspeed fsdp dataloader_num_workers do_train
        trust_remote_code resume_from_checkpoint preprocessing_num_workers overwrite_cache weight_decay
        per_device_eval_batch_size report_to hub_model_id push_to_hub seed beta packing remove_unused_columns tf32
        """
    ),
    _read,
    hugging_face.WITHOUT_EFFECT | _MODEL | _DATA | _LOSS,
    {
        **hugging_face.UNMODELLED,
        "packing": ("less", f"packed or not, {hugging_face.WORST_CASE}"),
        "padding_free": ("less", f"padded or not, {hugging_face.WORST_CASE}"),
        "activation_offloading": ("less", "activations are kept in the host's memory"),
        "model_init_kwargs": ("either", "further arguments of the model"),
        "precompute_ref_log_probs": ("less", "the reference model is gone before training"),
        "lora_target_parameters": ("more", "adapters at parameters that are no linear layers"),
        "spectrum_config_path": ("less", "only some parameters are trained"),
        "force_use_ref_model": ("more", "a frozen reference model is left out"),
        "use_weighting": hugging_face.WEIGHTED_TOKENS,
        "rope_scaling*": ("either", "other position embeddings"),
        "use_unsloth": hugging_face.UNSLOTH,
    },
    _lines,
    ("optimizer-in-backward", "allocator", "offload", "ranks"),
    needs=keys("model_name_or_path model_name model_id output_dir per_device_train_batch_size max_steps"),
)

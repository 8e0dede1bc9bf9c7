"""Configs of LLaMA-Factory's `v1` trainer: plugins, each with a name and its own keys.

Trained weights are fp32, and bf16 is what FSDP computes in; frozen weights keep the dtype of their checkpoint
(core/model_engine.py).
"""

from __future__ import annotations

from sysbench.commands.check.readers import hugging_face, llama_factory, named, shared
from sysbench.commands.check.understanding import Change, Format, Lines, Settings, Understanding, keys


def _read(settings: Settings, understanding: Understanding) -> None:
    shared.model(settings, understanding, "model")
    _tuning(settings, understanding)
    _method(settings, understanding)
    batch, whole = settings.number("micro_batch_size") or 1, settings.number("global_batch_size")
    understanding.say("batch", batch, "micro_batch_size")
    understanding.say("grad_accum", max(1, (whole or batch) // batch), *["global_batch_size"] * (whole is not None))
    understanding.global_batch = whole
    llama_factory.length(settings, understanding)
    _precision(settings, understanding)
    is_muon = settings.text("optim_config.name") == "muon"
    understanding.say("optimizer", "muon" if is_muon else "foreach", *["optim_config.name"] * is_muon)
    _checkpointing(settings, understanding)
    llama_factory.attention(settings, understanding)
    understanding.steps = shared.steps(settings, "max_steps")
    _sharding(settings, understanding)


def _tuning(settings: Settings, understanding: Understanding) -> None:
    kind = settings.text("peft_config.name")
    if kind not in (None, "lora", "freeze"):
        settings.refuse("peft_config.name", "is a method that is not modelled", "modelled: lora")
    if kind == "freeze":
        understanding.leave_out(settings, "peft_config.name", "less", "only some layers are trained; here all")
    if kind != "lora":
        if settings.given("quant_config.name"):
            settings.refuse("quant_config.name", "needs adapters: quantized weights are not trained")
        return
    understanding.say("lora", settings.number("peft_config.r") or 8, "peft_config.name", "peft_config.r")
    shared.lora_targets(settings, understanding, "peft_config.target_modules")
    hugging_face.dora(settings, understanding, "peft_config.use_dora")
    hugging_face.trained_beside(settings, understanding, "peft_config.modules_to_save")
    if settings.given("quant_config.quantization_bit"):
        llama_factory.quantized(settings, understanding, "quant_config.quantization_bit")
    elif settings.text("quant_config.name") == "bnb":
        understanding.say("quantize", "nf4", "quant_config.name")


def _method(settings: Settings, understanding: Understanding) -> None:
    if settings.text("model_class") == "cls":
        shared.reward_head(settings, understanding, "model_class")
    for key in ("pref_loss", "pref_beta"):
        if settings.given(key):
            understanding.leave_out(settings, key, "more", "DPO's second forward and its reference model are left out")
            break
    if settings.text("kernel_config.name") == "liger_kernel":
        understanding.leave_out(settings, "kernel_config.name", *hugging_face.LIGER)


def _precision(settings: Settings, understanding: Understanding) -> None:
    is_frozen, is_distributed = understanding.word("lora") is not None, settings.given("dist_config.name")
    is_wide = settings.switch("bf16") is False or not (is_frozen or is_distributed)
    understanding.say("precision", "fp32" if is_wide else "bf16-true", *["bf16"] * settings.given("bf16"))
    if is_frozen and not is_wide:
        understanding.assumed.append("frozen weights have the dtype of their checkpoint, bf16")


def _checkpointing(settings: Settings, understanding: Understanding) -> None:
    key = "enable_activation_checkpointing"
    is_off = settings.switch(key) is False
    understanding.say("checkpoint", "none" if is_off else "full", *[key] * settings.given(key))
    if not settings.given(key):
        understanding.assumed.append("activation checkpointing is on, the default of LLaMA-Factory's v1 trainer")


def _sharding(settings: Settings, understanding: Understanding) -> None:
    kind = settings.text("dist_config.name")
    if kind in ("fsdp2", "fsdp"):
        understanding.say("strategy", "fsdp2", "dist_config.name")
        shared.master_weights(understanding, "dist_config.name")
        if understanding.word("param_dtype") == "bf16":
            understanding.say("reduce_dtype", "fp32", "dist_config.name")
        if settings.switch("dist_config.reshard_after_forward") is False:
            understanding.say("reshard", "off", "dist_config.reshard_after_forward")
        if settings.switch("dist_config.offload_params"):
            understanding.say("offload", "parameters", "dist_config.offload_params")
    elif kind == "deepspeed" and (path := settings.text("dist_config.config_file")) is not None:
        named.deepspeed_file(settings, understanding, "dist_config.config_file", path)
    elif kind is not None:
        reason = "is a way to distribute the model that is not modelled"
        settings.refuse("dist_config.name", reason, "modelled: fsdp2, deepspeed")
    shared.sharing(settings, understanding, "dist_config.cp_size", "cp_size")


def _lines(change: Change, understanding: Understanding) -> Lines | None:
    batch = change.get("batch")
    if set(change) != {"batch", "grad_accum"} or not isinstance(batch, int):
        return None
    return {"micro_batch_size": batch, "global_batch_size": batch * int(str(change["grad_accum"]))}


FORMAT = Format(
    "LLaMA-Factory v1",
    keys(
        """
        model model_class kernel_config quant_config dist_config peft_config init_config optim_config train_dataset
        sample_backend micro_batch_size global_batch_size max_new_tokens cutoff_len template flash_attn
        batching_strategy enable_activation_checkpointing trust_remote_code
        """
    ),
    _read,
    llama_factory.WITHOUT_EFFECT
    | keys(
        """
        kernel_config init_config dist_config quant_config peft_config sample_backend max_new_tokens batching_workers
        data_config train_dataset optim_config disable_dropout dist_timeout
        """
    ),
    {
        **llama_factory.UNMODELLED,
        "batching_strategy": ("less", f"padded or not, {hugging_face.WORST_CASE}"),
        "mp_*_size": ("less", shared.SHARING),
        "dp_size": ("less", shared.SHARING),
    },
    _lines,
    ("optimizer-in-backward", "allocator", "offload", "cross-entropy", "ranks"),
    decided_by=frozenset({"dist_config", "peft_config", "kernel_config", "init_config", "sample_backend"}),
    needs=keys("model"),
)

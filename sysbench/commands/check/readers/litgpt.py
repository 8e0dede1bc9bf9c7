"""Configs of LitGPT (https://github.com/Lightning-AI/litgpt), for finetune_full, finetune_lora and pretrain.

On several GPUs, fine-tuning shards the model with FSDP and checkpoints its blocks; on one it does neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sysbench.commands.check.readers import hugging_face, shared
from sysbench.commands.check.understanding import Change, Format, Lines, Settings, Understanding, keys

_PRECISIONS = {"bf16-true": "bf16-true", "bf16-mixed": "bf16", "32-true": "fp32", "16-mixed": "fp16"}

_OF_GPT_NEOX = {
    **dict.fromkeys(("query", "key", "value"), ("query_key_value",)),
    "projection": ("dense",),
    "mlp": ("dense_h_to_4h", "dense_4h_to_h"),
}

_ATTENTION_LAYERS = {part: (f"{part[0]}_proj",) for part in ("query", "key", "value")}

_TARGETS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "phi3": {
        **dict.fromkeys(("query", "key", "value"), ("qkv_proj",)),
        "projection": ("o_proj",),
        "mlp": ("gate_up_proj", "down_proj"),
    },
    "gpt_neox": _OF_GPT_NEOX,
    "falcon": _OF_GPT_NEOX,
    "phi": {**_ATTENTION_LAYERS, "projection": ("dense",), "mlp": ("fc1", "fc2")},
}
"""Names of linear layers in transformers, by type of model and by LitGPT's `lora_…` keys."""

_USUAL_TARGETS = {
    **_ATTENTION_LAYERS,
    "projection": ("o_proj",),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}

_DEFAULT_PARTS = {"query": True, "key": False, "value": True, "projection": False, "mlp": False}


def _read(settings: Settings, understanding: Understanding) -> None:
    is_pretraining = any(settings.given(key) for key in ("model_name", "model_config.name", "initial_checkpoint_dir"))
    _model(settings, understanding)
    _adapters(settings, understanding)
    devices = _devices(settings, understanding)
    batch = _size(settings, understanding, "train.micro_batch_size", 4 if is_pretraining else 1)
    understanding.say("batch", batch, "train.micro_batch_size")
    whole = _size(settings, understanding, "train.global_batch_size", 512 if is_pretraining else 16)
    understanding.say("grad_accum", max(1, whole // devices // batch), "train.global_batch_size")
    understanding.global_batch = whole
    _length(settings, understanding)
    _precision(settings, understanding)
    _optimizer(settings, understanding, is_fused=is_pretraining)
    understanding.say("attention", "sdpa")
    understanding.assumed.append("LitGPT's model is computed as that of transformers, whose loss needs more")
    if is_pretraining:
        understanding.say("execution", "compiled")  # which `litgpt pretrain` does by default
    if devices > 1:
        understanding.say("strategy", "fsdp2", "devices")
        understanding.say("checkpoint", "none" if is_pretraining else "full")
        if not is_pretraining:
            understanding.assumed.append("litgpt finetune checkpoints blocks on several GPUs, and on one it does not")
    _steps(settings, understanding, whole)


def _size(settings: Settings, understanding: Understanding, key: str, default: int) -> int:
    size = settings.number(key)
    if size is None:
        understanding.assumed.append(f"{key} is not given: {default}, LitGPT's default")
    return default if size is None else size


def _model(settings: Settings, understanding: Understanding) -> None:
    if settings.given("model_config.n_layer"):
        _own_model(settings, understanding)
        return
    key = next((key for key in ("checkpoint_dir", "model_name", "initial_checkpoint_dir") if settings.given(key)), None)
    if key is None:
        shared.model(settings, understanding, "checkpoint_dir")
        return
    named = str(settings.text(key)).rstrip("/")
    parts = named.split("/")
    shared.model(settings, understanding, key, "/".join(parts[-2:]) if "checkpoint" in key else named, is_text=True)
    settings.used |= {"checkpoint_dir", "model_name", "initial_checkpoint_dir"}
    config = shared.config(understanding)
    is_tied = config.get("tie_word_embeddings", str(config.get("model_type")).startswith(_TIED))
    if is_tied and not settings.switch("train.tie_embeddings"):
        reason = "LitGPT's output layer has weights of its own; here they are those of the embedding"
        understanding.leave_out(settings, key, "more", reason)


_TIED = ("gemma", "falcon")
"""Types of models whose output layer has the embedding's weights in transformers, without saying so."""


def _own_model(settings: Settings, understanding: Understanding) -> None:
    """Take a Llama-like model by its dimensions, as the built-in model has them."""

    def dimension(name: str) -> int:
        if (size := settings.number(f"model_config.{name}")) is None:
            settings.refuse("model_config.n_layer", f"has no {name} beside it, so the model is not known")
        return size

    heads = dimension("n_head")
    if settings.text("model_config.mlp_class_name") != "LLaMAMLP" or settings.number(_GROUPS) not in (None, heads):
        settings.refuse(
            "model_config.n_layer", "is of a model of its own", "modelled: LLaMAMLP, and a key for each query"
        )
    vocabulary = "padded_vocab_size" if settings.given("model_config.padded_vocab_size") else "vocab_size"
    sizes = {"layers": "n_layer", "heads": "n_head", "d_model": "n_embd", "d_ff": "intermediate_size"}
    for option, name in {**sizes, "vocab": vocabulary}.items():
        understanding.say(option, dimension(name), f"model_config.{name}")
    settings.used |= {"checkpoint_dir", "model_name", "initial_checkpoint_dir"}
    understanding.model = settings.text("model_config.name") or settings.text("model_name") or "a model of its own"


_GROUPS = "model_config.n_query_groups"


def _adapters(settings: Settings, understanding: Understanding) -> None:
    rank = settings.number("lora_r")
    quantized = settings.text("quantize")
    if rank is None and not any(name.startswith("lora_") for name in settings.file.entries):
        if quantized is not None:
            settings.refuse("quantize", "needs adapters: quantized weights are not trained")
        return
    understanding.say("lora", rank or 8, *["lora_r"] * (rank is not None))
    parts = {}
    for part, default in _DEFAULT_PARTS.items():
        is_on = settings.switch(f"lora_{part}")
        parts[part] = default if is_on is None else is_on
    said = [f"lora_{part}" for part in parts if settings.given(f"lora_{part}")]
    if all(parts.values()):
        understanding.say("lora_targets", "all-linear", *said)
    else:
        named = _TARGETS.get(str(shared.config(understanding).get("model_type")), _USUAL_TARGETS)
        targets = dict.fromkeys(name for part, is_on in parts.items() if is_on for name in named[part])
        understanding.say("lora_targets", "+".join(targets) or "q_proj", *said)
    if settings.switch("lora_head"):
        understanding.leave_out(settings, "lora_head", "more", "adapters at the output layer are left out")
    if quantized is not None:
        _quantization(settings, understanding, quantized)


def _quantization(settings: Settings, understanding: Understanding, quantized: str) -> None:
    if (settings.number("devices") or 1) > 1:
        settings.refuse("quantize", "is for one GPU in LitGPT", "write devices: 1")
    if quantized.startswith(("bnb.nf4", "bnb.fp4")):
        understanding.say("quantize", "nf4", "quantize")
        if not quantized.endswith("-dq"):
            hugging_face.single_quantization(settings, understanding, "quantize")
    elif quantized == "bnb.int8":
        understanding.say("quantize", "int8", "quantize")
    elif quantized == "bnb.int8-training":
        understanding.leave_out(settings, "quantize", "more", "weights in 16 bits have copies in 8 bits, left out here")
    else:
        settings.refuse("quantize", "is a format of frozen weights that is not modelled")


def _devices(settings: Settings, understanding: Understanding) -> int:
    nodes, given = settings.number("num_nodes") or 1, settings.value("devices")
    if given in (None, "auto", -1, "-1"):  # a default of 1, or all GPUs of the machine
        return nodes
    devices = (settings.number("devices") or 1) * nodes
    understanding.say("ranks", devices, "devices")
    return devices


def _length(settings: Settings, understanding: Understanding) -> None:
    given = settings.number("train.max_seq_length")
    longest = shared.config(understanding).get("max_position_embeddings")
    if given is not None:
        understanding.say("ctx", min(given, int(longest or given)), "train.max_seq_length")
        return
    if longest is None:
        understanding.say("ctx", 2048)
        understanding.assumed.append("train.max_seq_length is not given: 2,048 tokens")
        return
    understanding.say("ctx", longest)
    understanding.assumed.append(f"train.max_seq_length is not given: the model's limit, {longest:,} tokens")


def _precision(settings: Settings, understanding: Understanding) -> None:
    named = settings.text("precision")
    if named is None:
        understanding.say("precision", "bf16")
        understanding.assumed.append("precision is not given: bf16-mixed, LitGPT's default")
    elif named == "16-true":
        understanding.say("precision", hugging_face.true_precision("fp16"), "precision")
    elif named in _PRECISIONS:
        understanding.say("precision", _PRECISIONS[named], "precision")
    else:
        settings.refuse("precision", "is no precision of LitGPT", f"known: {', '.join(_PRECISIONS)}, 16-true")


_OPTIMIZERS = {"AdamW": "foreach", "Adam": "foreach", "SGD": "sgd", "Adafactor": "adafactor", "Muon": "muon"}


def _optimizer(settings: Settings, understanding: Understanding, *, is_fused: bool) -> None:
    key = "optimizer.class_path" if settings.given("optimizer.class_path") else "optimizer"
    name = (settings.text(key) or "AdamW").rpartition(".")[2]
    kind = _OPTIMIZERS.get(name)
    if kind is None:
        understanding.leave_out(settings, key, "either", f"{name} is computed as AdamW here")
    if understanding.word("quantize") is not None:
        understanding.assumed.append("quantized fine-tuning pages the optimizer's state, which needs less when full")
    said = [key] * settings.given(key)
    understanding.say("optimizer", "fused" if is_fused and kind in (None, "foreach") else kind or "foreach", *said)


def _steps(settings: Settings, understanding: Understanding, whole: int) -> None:
    understanding.steps = shared.steps(settings, "train.max_steps")
    tokens, ctx = settings.value("train.max_tokens"), understanding.word("ctx")
    if understanding.steps is None and isinstance(tokens, int | float) and tokens > 0 and ctx is not None:
        understanding.steps = math.ceil(tokens / (whole * int(ctx)))


def _lines(change: Change, understanding: Understanding) -> Lines | None:
    lines: dict[str, object] = {}
    batch, accumulated = change.get("batch"), change.get("grad_accum")
    if batch is not None:
        lines["train.micro_batch_size"] = batch
    if accumulated is not None:
        micro = int(str(batch or understanding.word("batch")))
        whole = micro * int(str(accumulated)) * int(understanding.word("ranks") or 1)
        lines["train.global_batch_size"] = whole
    for name, value in change.items():
        match name, value:
            case (("batch" | "grad_accum"), _):
                continue
            case "precision", ("bf16-true" | "bf16"):
                lines["precision"] = {"bf16-true": "bf16-true", "bf16": "bf16-mixed"}[str(value)]
            case "quantize", "nf4":
                lines["quantize"] = "bnb.nf4"
            case "lora", int() if understanding.word("lora") is not None:
                lines["lora_r"] = value
            case "lora_targets", "all-linear":
                lines |= {f"lora_{part}": True for part in _DEFAULT_PARTS}
            case _:
                return None
    return lines


FORMAT = Format(
    "LitGPT",
    keys(
        """
        checkpoint_dir out_dir precision quantize devices num_nodes lora_r lora_alpha lora_dropout lora_query lora_key
        lora_value lora_projection lora_mlp lora_head data train eval logger_name seed optimizer model_name model_config
        initial_checkpoint_dir resume tokenizer_dir
        """
    ),
    _read,
    keys(
        """
        out_dir data eval logger_name seed resume tokenizer_dir optimizer.init_args access_token log lora_alpha
        lora_dropout train.save_interval train.log_interval train.lr_warmup_* train.epochs train.max_norm train.min_lr
        train.max_tokens train.max_additional_tokens optimizer.lr optimizer.weight_decay optimizer.betas model_config
        train.max_time train.learning_rate train.weight_decay train.beta? train.lr_warmup_fraction
        """
    ),
    {"train.tie_embeddings": ("less", "the output layer shares the weights of the embedding")},
    _lines,
    ("checkpoint", "attention", "cross-entropy", "optimizer", "optimizer-in-backward", "allocator", "offload", "ranks"),
    needs=keys("checkpoint_dir model_name initial_checkpoint_dir model_config lora_r out_dir"),
)

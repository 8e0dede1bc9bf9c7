"""What configs of several trainers say alike: models by name, adapters, optimizers, sharding."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any

from sysbench.commands.check.understanding import CannotTellError, Direction, Settings, Understanding, keys
from sysbench.errors import Refusal
from sysbench.spec import published
from sysbench.spec.knobs import REENTRANT
from sysbench.spec.ranks import MAX_BUCKET_MB

_TUNED = re.compile(
    r"[-_.](instruct|chat|base|it|hf|sft|dpo|qlora|lora|thinking|reasoning|bf16|fp16|gptq|awq|bnb-4bit|bnb-nf4|nvfp4"
    r"|aqlm-2bit-1x16|dequantized|preview|2\d\d\d|v0\.\d|v1\.\d|0324|source|converted|text|linearized|safeguard"
    r"|unsloth|full|checkpoints"
    r")(?=[-_.]|$)"
)
"""What names of fine-tuned, quantized and mirrored models add to the name of the model whose dimensions they have."""

_SIZE = re.compile(r"\d[bm](?![a-z])")
"""A number of parameters in a name: 8b, 350m."""

_OTHER_SHAPE = keys(
    "llava vl vision audio omni video pro pruned minitron expanded upscaled moe draft mtp eagle reranker"
)
"""Words in names of models that have more or less than the model whose name theirs begins or ends with."""


def model(
    settings: Settings, understanding: Understanding, key: str, name: str | None = None, *, is_text: bool = False
) -> None:
    """Take the model from the value of a key, or its `name` in it; raises CannotTellError if nothing has its config.

    `is_text` says that the trainer takes the text part alone.
    """
    name = settings.text(key) if name is None else name
    if name is None:
        raise CannotTellError(Refusal(f"has no {key}, so the model is not known", option=str(settings.file.path)))
    understanding.model = name
    directory = "."  # trainers resolve a path from where they are started
    is_here = published.config_file(name, directory).is_file()
    alike = None if is_here else same_dimensions(name)
    if alike is not None:
        understanding.assumed.append(f"{name} has the dimensions of {alike}, by its name")
    elif not is_here and (refusal := published.problem(name, directory)) is not None:
        entry = settings.file.entries[key]
        where = f"{settings.file.path}, line {entry.line}: {key}: {name}:"
        raise CannotTellError(Refusal(refusal.reason, refusal.remedy, where))
    understanding.say("model", f"hf:{alike or name}", key)
    if not is_text:
        _without_media(settings, understanding, key)


_TEXT_PART = "-text"
"""How names of the catalogue end that have only the text part of a model."""


def _without_media(settings: Settings, understanding: Understanding, key: str) -> None:
    """Note that a step has text alone, for a model that takes images or sound too."""
    known = published.catalogued((understanding.word("model") or "").removeprefix("hf:"))
    if known is not None and known.slug.endswith(_TEXT_PART):
        understanding.leave_out(settings, key, "more", "what encodes images or sound is left out, with its weights")
    elif not config(understanding).keys().isdisjoint(("vision_config", "audio_config")):
        reason = "every token is text: images and sound would be encoded, and their encoder may be trained"
        understanding.leave_out(settings, key, "more", reason)


def config(understanding: Understanding) -> dict[str, Any]:
    """Return the published config of the model; empty if it cannot be read."""
    file = published.config_file((understanding.word("model") or "").removeprefix("hf:"), ".")
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def same_dimensions(name: str) -> str | None:
    """Return the catalogue's model that a fine-tuned, quantized or mirrored one is made of, None if no name says so.

    Names are compared without the organisation and without words such as `Instruct`. A name may also end or begin with
    the model's, with its size: `OpenHermes-2.5-Mistral-7B`. Nothing is guessed beyond them.
    """
    words, names = _plain_words(name), _plain_names()
    whole = "".join(words)
    if whole in names or not _OTHER_SHAPE.isdisjoint(words):
        return names.get(whole)
    ends = ["".join(words[start:]) for start in range(1, len(words))]
    begins = ["".join(words[:stop]) for stop in range(len(words) - 1, 0, -1)]
    return next((names[part] for part in (*ends, *begins) if part in names and _SIZE.search(part)), None)


def _plain_words(name: str) -> list[str]:
    last = re.split(r"[/\\]", name)[-1].lower()
    found = "-" + last.replace("_", "-").replace("meta-llama", "llama")
    while (shorter := _TUNED.sub("", found)) != found:
        found = shorter
    return [word.replace(".", "") for word in found.removeprefix("-").split("-")]


@cache
def _plain_names() -> Mapping[str, str]:
    names: dict[str, str] = {}
    for each in reversed(published.catalogue()):
        names |= {"".join(_plain_words(name)): each.slug for name in (each.slug, *each.repositories)}
    return names


_LEANER_OPTIMIZERS = ("lion", "galore", "apollo", "came", "lomo", "adam_mini", "rmsprop")
"""Parts of names of optimizers whose state is smaller than AdamW's."""


def optimizer(
    settings: Settings, understanding: Understanding, key: str, known: Mapping[str, str], default: str
) -> None:
    """Take the optimizer from the value of a key; one that is not known is computed as AdamW, and noted."""
    name = (settings.text(key) or default).lower()
    is_paged = name in ("paged_adamw", "paged_adamw_32bit")
    if is_paged:
        understanding.leave_out(settings, key, "less", "state that moves to the host when memory runs out")
    elif name not in known:
        direction: Direction = "less" if any(part in name for part in _LEANER_OPTIMIZERS) else "either"
        understanding.leave_out(settings, key, direction, f"{name} is computed as fused AdamW here")
    elif name in ("adamw_bnb_8bit", "adamw_8bit") and understanding.word("lora") is None:
        found = config(understanding)
        sizes = found.get("text_config", found)
        more_bytes = 6 * int(sizes.get("vocab_size", 0)) * int(sizes.get("hidden_size", 0))
        reason = f"the Trainer keeps 32-bit state for embeddings, {more_bytes / 2**30:.1f} GiB more than here"
        understanding.leave_out(settings, key, "more", reason)
    understanding.say(
        "optimizer", known.get(name, "foreach" if is_paged else "fused"), *([key] if settings.given(key) else [])
    )


_CHUNK = 256
"""Tokens whose logits stand for a loss that stores none: fewer save little more."""


def fused_loss(settings: Settings, understanding: Understanding, key: str, saved: str = "no logits") -> None:
    """Take a loss that is computed with the output layer; `saved` names what its kernels do not store."""
    understanding.say("cross_entropy", f"chunked-{_CHUNK}", key)
    understanding.leave_out(settings, key, "less", f"{saved} are stored; here the logits of {_CHUNK} tokens at a time")


def steps(settings: Settings, key: str) -> int | None:
    """Return the number of optimizer steps, None where it is not given or -1, which leaves it to the epochs."""
    count = settings.number(key, -1)
    return count if count is not None and count > 0 else None


def lora_targets(settings: Settings, understanding: Understanding, key: str) -> None:
    """Take the layers with adapters from a list of names, or `all-linear`; without any, peft decides by the model."""
    value = settings.value(key)
    if isinstance(value, str) and (value in ("all", "all-linear") or not re.fullmatch(r"[\w.,\s-]+", value)):
        understanding.say("lora_targets", "all-linear", key)
        if value not in ("all", "all-linear"):
            understanding.leave_out(settings, key, "less", "a pattern of layers: adapters at all linear layers here")
    elif names := settings.words(key):
        understanding.say("lora_targets", "+".join(dict.fromkeys(map(_last_parts, names))), key)


def _last_parts(name: str) -> str:
    """Return the last part of a layer's name, with the one before if there are two: `shared_expert.up_proj`."""
    parts = name.split(".")
    return name if len(parts) == 2 and all(map(str.isidentifier, parts)) else parts[-1]


def reentrant(settings: Settings, understanding: Understanding, key: str, *, default: bool) -> None:
    """Take whether checkpointing is reentrant, as a key says or the trainer does without it, where that decides.

    Layers of 8 bits keep their inputs on the context of their product, which is freed only with its graph
    (MatMul8bitLt in bitsandbytes/autograd/_functions.py). Reentrant checkpointing builds none in forward.
    """
    said = settings.switch(key)
    if understanding.word("quantize") != "int8" or understanding.word("checkpoint") != "full":
        return
    if default if said is None else said:
        keys = understanding.options["checkpoint"].keys
        understanding.say("checkpoint", REENTRANT, *keys, *([key] if said else []))
    else:
        understanding.assumed.append("layers of 8 bits keep their inputs, which only reentrant checkpointing frees")


WITH_REFERENCE = ("dpo", "ipo", "kto")
"""Preference methods that compare the model with a frozen copy of itself; without adapters, a second model is it."""


def reward_head(settings: Settings, understanding: Understanding, key: str) -> None:
    """Note that a reward model has another output layer."""
    understanding.leave_out(settings, key, "less", "a head of one value in place of the vocabulary")


def _reference_model(understanding: Understanding) -> str:
    """Name the frozen copy of the model, with the size of its weights in 16 bits if the catalogue knows it."""
    known = published.catalogued((understanding.word("model") or "").removeprefix("hf:"))
    size = "" if known is None else f" of {2 * known.parameters / 2**30:.1f} GiB"
    return f"frozen reference model{size}"


def preference(
    settings: Settings, understanding: Understanding, key: str, method: str, *, has_reference: bool
) -> str | None:
    """Note what a step of a preference method has beside the model's; return the key that doubles the batch, if any.

    Chosen and rejected answers are one batch, two sequences for each example; KTO's are not in pairs.
    """
    left_out = []
    if method in WITH_REFERENCE and has_reference:
        left_out.append(f"{method.upper()}'s {_reference_model(understanding)}")
    elif method in WITH_REFERENCE and understanding.word("lora") is not None:
        left_out.append(f"{method.upper()}'s forward without adapters, its reference")
    if method == "kto":
        left_out.append("KTO's second forward over mismatched answers")
    if left_out:
        verb = "are" if len(left_out) > 1 else "is"
        understanding.leave_out(settings, key, "more", f"{' and '.join(left_out)} {verb} left out")
    return None if method == "kto" else key


SHARING = "its ranks share what one has here"
"""What is left out of ranks that work on one sequence, or hold parts of a layer."""


def sharing(settings: Settings, understanding: Understanding, *names: str) -> int:
    """Note the numbers of ranks that share one sequence, or hold parts of a layer; return their product."""
    degrees = {name: settings.number(name, 0) or 1 for name in names}
    for name, degree in degrees.items():
        if degree > 1:
            understanding.leave_out(settings, name, "less", SHARING)
    return prod(degrees.values())


def fsdp(settings: Settings, understanding: Understanding, key: str, prefix: str, *, widens: bool = True) -> None:
    """Take FSDP 1's and 2's options, with or without the prefix `fsdp_` that accelerate writes.

    `widens` says that trained weights become fp32, as with accelerate.
    """

    def given(name: str) -> str | None:
        return next((each for each in (f"{prefix}fsdp_{name}", f"{prefix}{name}") if settings.given(each)), None)

    options = settings.value("fsdp")
    words = options.split() if isinstance(options, str) else options if isinstance(options, list) else []
    sharding = given("sharding_strategy")
    strategy = str(settings.value(sharding)).upper() if sharding else "FULL_SHARD"
    if strategy in ("NO_SHARD", "3"):
        understanding.say("strategy", "ddp", sharding or key)
    else:
        understanding.say("strategy", "hsdp" if strategy in ("HYBRID_SHARD", "4") else "fsdp2", sharding or key)
    if (reshard := given("reshard_after_forward")) is not None:
        value = str(settings.value(reshard)).upper()
        understanding.say("reshard", "off" if value in ("FALSE", "SHARD_GRAD_OP") else "on", reshard)
    elif strategy in ("SHARD_GRAD_OP", "2"):
        understanding.say("reshard", "off", sharding or key)
    offloaded = given("offload_params")
    if "hybrid_shard" in words:
        understanding.say("strategy", "hsdp", key)
    if "shard_grad_op" in words:
        understanding.say("reshard", "off", key)
    if (offloaded and settings.switch(offloaded)) or "offload" in words:
        understanding.say("offload", "parameters", offloaded or key)
    _fsdp_blocks(settings, understanding, given("auto_wrap_policy"), given("activation_checkpointing"))
    if understanding.word("strategy") != "ddp":
        master_weights(understanding, key, widens=widens)
    settings.used.add(key)
    settings.used.update(name for name in settings.file.entries if name.startswith(prefix))


def _fsdp_blocks(settings: Settings, understanding: Understanding, wrapped: str | None, recomputed: str | None) -> None:
    if wrapped is not None and "TRANSFORMER" not in str(settings.value(wrapped)).upper():
        understanding.leave_out(settings, wrapped, "more", "larger parts than a block are gathered at a time")
    if recomputed is not None and settings.switch(recomputed):
        understanding.say("checkpoint", "full", recomputed)


def zero(settings: Settings, understanding: Understanding, key: str, stage: int) -> None:
    """Take a stage of ZeRO."""
    if stage == 3:
        understanding.say("strategy", "fsdp2", key)
        master_weights(understanding, key)
        if understanding.word("precision") == "fp16":
            understanding.leave_out(settings, key, "less", "weights are gathered in fp16; here in fp32")
        understanding.assumed.append("ZeRO-3 is computed as FSDP2")
        return
    if stage == 0:
        understanding.say("strategy", "ddp", key)
        master_weights(understanding, key)
        return
    understanding.say("strategy", f"zero{stage}", key)
    precision = understanding.options.get("precision")
    if precision is not None and precision.value in ("bf16", "fp16"):  # the engine converts the whole model
        understanding.say("precision", f"{precision.value}-true", *precision.keys)


def zero_buckets(settings: Settings, understanding: Understanding, prefix: str) -> None:
    """Take the size of the buckets in which ZeRO-1 and ZeRO-2 reduce gradients, and whether there are two."""
    key = f"{prefix}reduce_bucket_size"
    if settings.value(key) == "auto":  # the Trainer's: hidden_size²
        elements = int(config(understanding).get("hidden_size", 0)) ** 2 or None
    else:
        elements = settings.number(key)
    if elements is not None:
        size_bytes = elements * (2 if (understanding.word("precision") or "").endswith("-true") else 4)
        understanding.say("bucket_mb", max(1, min(MAX_BUCKET_MB, round(size_bytes / 2**20))), key)
    settings.used.add(f"{prefix}allgather_bucket_size")  # since DeepSpeed gathers into the parameters themselves
    overlaps = f"{prefix}overlap_comm"
    if not settings.switch(overlaps):
        reason = "without overlap_comm, one bucket of gradients is enough; here there are two"
        if settings.given(overlaps):
            understanding.leave_out(settings, overlaps, "less", reason)
        else:
            understanding.assumed.append(reason)
    contiguous = f"{prefix}contiguous_gradients"
    if settings.switch(contiguous) is False:
        understanding.leave_out(settings, contiguous, "either", "gradients are reduced without buckets")


def zero_offload(settings: Settings, understanding: Understanding, stage: int, parameters: str, state: str) -> None:
    """Take what the keys of two devices say of ZeRO: whether parameters, or their state alone, are on the host."""
    on_host = [key for key in (parameters, state) if (settings.text(key) or "none").lower() != "none"]
    if parameters in on_host and stage == 3:
        understanding.say("offload", "parameters", *on_host)
    elif state in on_host and stage == 3:
        reason = "the shards' optimizer state is kept in the host's memory, here on the GPU"
        understanding.leave_out(settings, state, "less", reason)
    elif state in on_host:
        understanding.say("offload", "optimizer", state)


def master_weights(understanding: Understanding, key: str, *, widens: bool = True) -> None:
    """Store trained weights in fp32, as FSDP by accelerate and DeepSpeed do; shards are gathered in bf16.

    Frozen weights keep the dtype in which they were loaded, and so do all unless the trainer `widens` them.
    """
    if (precision := understanding.options.get("precision")) is None or not precision.value.startswith("bf16"):
        return
    if understanding.word("strategy") != "ddp":
        understanding.say("param_dtype", "bf16", key)
    if understanding.word("lora") is None and widens:
        understanding.say("precision", "bf16", *precision.keys)


def launched_precision(settings: Settings, understanding: Understanding, key: str, name: str) -> None:
    """Take the precision that a launcher sets, `bf16` or `fp16`, where the training config does not.

    Raises CannotTellError if both do, and differ.
    """
    before = understanding.options.get("precision")
    if before is not None and before.keys and before.value.startswith(("bf16", "fp16")):
        if not before.value.startswith(name):
            settings.refuse(key, f"contradicts {before.keys[0]} of the training config", "give both the same type")
        return
    understanding.say("precision", name, key)

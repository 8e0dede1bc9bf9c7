"""Knobs that people turn when a step does not fit or is too slow; `lab/knobs` applies them to the built step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from sysbench.errors import Refusal, nearest
from sysbench.spec.axes import choices, integers, split_words

if TYPE_CHECKING:
    from sysbench.spec.model import GridCell

NONE = "none"
"""Value of a knob that is not turned."""

_EVERY = re.compile(r"every-([1-9]\d{0,3})")
CHECKPOINTS = (NONE, "full", "every-2", "selective")
_PATTERN = re.compile(r"[\w*.?\[\]-]+")


def _names_blocks(word: str) -> bool:
    """Return whether a word is `every-N` or a pattern of module names, and not a mistyped choice."""
    is_mistyped = not set(word) & {"*", "."} and nearest(word, CHECKPOINTS) is not None
    return bool(_EVERY.fullmatch(word) or (not is_mistyped and _PATTERN.fullmatch(word)))


def blocks_between_checkpoints(choice: str) -> int:
    """Return N for `every-N`; 1 for any other choice."""
    found = _EVERY.fullmatch(choice)
    return int(found[1]) if found else 1


def module_pattern(choice: str) -> str | None:
    """Return the pattern of module names if the choice is one; None for a word such as `full`."""
    return None if choice in CHECKPOINTS or _EVERY.fullmatch(choice) else choice


def matches_module(name: str, pattern: str) -> bool:
    """Return whether a module's name matches a pattern, part by part: `layers.*` is `layers.3`, not `layers.3.norm`."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


parse_checkpoints = choices(
    "a choice of blocks", CHECKPOINTS, _names_blocks, "or a pattern of module names such as 'layers.*'"
)

CROSS_ENTROPIES = ("full", "chunked", "linear")
_CHUNKED = re.compile(r"chunked-([1-9]\d{0,8})")
DEFAULT_CHUNK = 1024


def tokens_per_chunk(choice: str) -> int | None:
    """Return N for `chunked-N`, 1,024 for `chunked`; None for the others."""
    found = _CHUNKED.fullmatch(choice)
    return int(found[1]) if found else DEFAULT_CHUNK if choice == "chunked" else None


parse_cross_entropies = choices("a way to compute cross-entropy", (*CROSS_ENTROPIES, "chunked-512"), _CHUNKED.fullmatch)

ALLOCATORS = ("default", "expandable")
_SETTINGS = re.compile(r"\w+:[\w.:\[\]>]+(\+\w+:[\w.:\[\]>]+)*")


def allocator_options(choice: str) -> str | None:
    """Return the choice as PYTORCH_CUDA_ALLOC_CONF; None for `default`, which leaves that variable in force."""
    return {"default": None, "expandable": "expandable_segments:True"}.get(choice, choice.replace("+", ","))


parse_allocators = choices(
    "an allocator",
    ALLOCATORS,
    _SETTINGS.fullmatch,
    "or options of PYTORCH_CUDA_ALLOC_CONF joined by +, such as max_split_size_mb:128",
)


def parse_adapter_ranks(value: object) -> tuple[int, ...]:
    """Parse an axis of ranks, of which `none` is 0; raises ValueError."""
    return integers(0)(",".join("0" if word == NONE else word for word in split_words(value)))


ALL_LINEAR = "all-linear"
ADAPTED = (ALL_LINEAR,)


parse_adapter_targets = choices(
    "a choice of layers",
    ADAPTED,
    lambda word: all(map(_PATTERN.fullmatch, word.split("+"))),
    "or names of linear layers joined by +, such as q_proj+v_proj",
)

OFFLOADS = (NONE, "optimizer", "parameters")
ADAPTERS = ("lora", "dora")
"""Kinds of adapters: low-rank ones, and those that also train the length of each row of a weight (DoRA)."""

QUANTIZED = (NONE, "nf4")


FP8: tuple[Literal["fp8"], Literal["fp8-rowwise"]] = ("fp8", "fp8-rowwise")
"""Precisions in which products of linear layers have operands in fp8."""

FP8_MULTIPLE = 16
"""What every side of a product in fp8 must be divisible by."""

FP8_SPEEDUP = 2
"""Peak of products in fp8, relative to 16-bit products, in the data sheet of every GPU that has them."""

_FIRST_WITH_FP8 = (8, 9)
"""Compute capability of the first GPUs with products in fp8: Ada, then Hopper and Blackwell."""


def has_fp8(capability: tuple[int, int]) -> bool:
    """Return whether GPUs of this compute capability have products in fp8."""
    return capability >= _FIRST_WITH_FP8


def fp8_refusal(precision: str, title: str) -> Refusal:
    """Return the refusal of a GPU that has no products in fp8."""
    needed = ".".join(map(str, _FIRST_WITH_FP8))
    reason = f"needs a GPU of compute capability {needed} or newer; {title} is older"
    return Refusal(reason, "nearest: bf16", f"--precision {precision}")


PAGED = "adamw-8bit-paged"
LOW_BIT = ("adamw-8bit", "adamw-4bit", PAGED)
"""Optimizers of torchao and bitsandbytes, whose code cannot run without data."""


def modelled_parts(cell: GridCell) -> list[str]:
    """Return what a simulation of this cell follows by a description instead of running the code of a library."""
    is_low_bit = cell.optimizer in LOW_BIT and "optimizer" in cell.phases
    return [
        *["the optimizer (state as the library stores it, time by bytes moved)"] * is_low_bit,
        *["frozen weights (as bitsandbytes stores and dequantizes them)"] * (cell.quantize == "nf4"),
    ]


def knobs_device_problem(cell: GridCell, device: str) -> Refusal | None:
    """Return why a type of device does not support a knob of this cell, or None if it supports all."""
    if device == "cuda":
        return None
    if cell.execution == "compiled-graphs":
        given = "--execution compiled-graphs"
        return Refusal(f"records CUDA graphs, which {device} lacks", "nearest: compiled", given)
    if cell.allocator != "default":
        return Refusal(
            f"is for CUDA; {device} has no caching allocator of torch", option=f"--allocator {cell.allocator}"
        )
    if cell.offload != NONE:
        given = f"--offload {cell.offload}"
        return Refusal("moves state from a GPU to the host: it needs CUDA", option=given)
    if cell.optimizer == PAGED:
        needs_cuda = "moves state between a GPU and the host: it needs CUDA"
        return Refusal(needs_cuda, "nearest: adamw-8bit", f"--optimizer {PAGED}")
    return None


def knobs_problem_of(cell: GridCell) -> Refusal | None:
    """Return why a knob has no meaning in the mode of this cell, or None if all have."""
    checks = (_micro_batches, _adapters, _fp8, _sharding, _in_backward, _offload, _recomputation)
    return next((refusal for check in checks for refusal in check(cell)), None)


def _micro_batches(cell: GridCell) -> Iterator[Refusal]:
    given = f"--grad-accum {cell.grad_accum}"
    if cell.grad_accum > 1 and "backward" not in cell.phases:
        yield Refusal(
            "adds up the gradients of several backward passes, but this mode has no backward pass",
            "nearest: --mode forward-backward",
            given,
        )
    if cell.grad_accum > 1 and cell.uses_cuda_graphs:
        yield Refusal(
            f"adds up gradients, but with --execution {cell.execution} they are in the memory of a CUDA "
            "graph, which the next micro-batch overwrites",
            "nearest: --execution compiled",
            given,
        )


def _recomputation(cell: GridCell) -> Iterator[Refusal]:
    if cell.checkpoint != NONE and cell.step is not None and "backward" not in cell.step.phases:
        yield Refusal(
            "computes activations again in the backward pass, but this mode has no backward pass",
            "nearest: --mode forward-backward",
            f"--checkpoint {cell.checkpoint}",
        )
    if cell.cross_entropy != "full" and "loss" not in cell.phases:
        yield Refusal(
            "computes the loss in another way, but this mode has no loss",
            "nearest: --mode forward-backward",
            f"--cross-entropy {cell.cross_entropy}",
        )


def _adapters(cell: GridCell) -> Iterator[Refusal]:
    given = f"--lora {cell.lora}"
    if cell.lora and cell.step is not None and cell.step.mode == "inference":
        no_training = "adds parameters to train, but this mode trains none"
        yield Refusal(no_training, "nearest: --mode forward-backward", given)
    if cell.lora and cell.adapter == "dora" and cell.quantize == "nf4":
        packed = "needs the lengths of weights, which --quantize nf4 packs: not modelled"
        yield Refusal(packed, "nearest: --adapter lora, which needs less memory", "--adapter dora")
    if cell.lora and cell.strategy == "tp":
        yield Refusal("does not support --strategy tp", "nearest: --strategy ddp", given)


def _fp8(cell: GridCell) -> Iterator[Refusal]:
    if cell.precision not in FP8:
        return
    given, nearest, shape = f"--precision {cell.precision}", "nearest: --precision bf16", cell.shape
    if cell.lora:
        frozen = f"trains whole weights, but --lora {cell.lora} freezes them"
        yield Refusal(frozen, nearest, given)
    sides = {"d_model": shape.d_model, "d_ff": shape.d_ff} if shape is not None else {}
    sides["tokens (batch × ctx)"] = cell.tokens
    if odd := [f"{name} {size}" for name, size in sides.items() if size % FP8_MULTIPLE]:
        yield Refusal(f"needs sides divisible by {FP8_MULTIPLE}, but has {' and '.join(odd)}", nearest, given)


def _sharding(cell: GridCell) -> Iterator[Refusal]:
    if cell.strategy not in ("fsdp2", "hsdp", "tp"):
        return
    unsupported = f"does not support the sharded parameters of {cell.strategy}"
    if cell.precision in FP8:
        yield Refusal(unsupported, "nearest: --strategy ddp", f"--precision {cell.precision}")
    if cell.quantize == "nf4":
        yield Refusal(unsupported, "nearest: ddp", "--quantize nf4")
    if cell.optimizer == PAGED:
        yield Refusal(unsupported, "nearest: adamw-8bit", f"--optimizer {PAGED}")


def _in_backward(cell: GridCell) -> Iterator[Refusal]:
    if cell.optimizer_in_backward != "on":
        return
    given = "--optimizer-in-backward on"
    if "optimizer" not in cell.phases:
        yield Refusal("updates parameters, but this mode has no optimizer", "nearest: --mode train", given)
    if cell.grad_accum > 1:
        several = f"frees each gradient at once, but --grad-accum {cell.grad_accum} adds up several"
        yield Refusal(several, "drop one of them", given)
    if cell.precision == "fp16":
        unchecked = "updates before all gradients could be checked for infinities, as fp16 needs"
        yield Refusal(unchecked, "nearest: --precision bf16", given)
    if cell.ranks > 1:
        not_exchanged = f"updates before the {cell.ranks} ranks have exchanged gradients"
        yield Refusal(not_exchanged, "use --ranks 1", given)
    if ":" in cell.optimizer:
        all_at_once = f"takes one parameter at a time, but {cell.optimizer} takes them all"
        yield Refusal(all_at_once, "nearest: --optimizer foreach", given)


def _offload(cell: GridCell) -> Iterator[Refusal]:
    if cell.offload == NONE:
        return
    given = f"--offload {cell.offload}"
    if "optimizer" not in cell.phases:
        no_optimizer = "moves optimizer state to the host, but this mode has no optimizer"
        yield Refusal(no_optimizer, "nearest: --mode train", given)
    if cell.offload == "parameters" and cell.strategy not in ("fsdp2", "hsdp"):
        remedy = "add --ranks 2 --strategy fsdp2. Nearest without shards: --offload optimizer"
        yield Refusal("moves shards to the host", remedy, given)
    if cell.optimizer_in_backward == "on":
        elsewhere = "and --optimizer-in-backward on update parameters in different places"
        yield Refusal(elsewhere, "drop one of them", given)
    if cell.precision == "fp16":
        unscaled = "copies gradients before they are unscaled, as fp16 needs"
        yield Refusal(unscaled, "nearest: --precision bf16", given)
    if cell.offload == "optimizer" and cell.ranks > 1:
        one_process = f"runs one process, but the step has {cell.ranks} ranks"
        yield Refusal(one_process, "use --ranks 1, or --strategy fsdp2 --offload parameters", given)
    if cell.optimizer not in ("for-loop", "foreach", "fused"):
        yield Refusal(f"runs AdamW on the host, not {cell.optimizer}", "nearest: --optimizer fused", given)

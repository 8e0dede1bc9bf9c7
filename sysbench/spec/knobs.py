"""Knobs that people turn when a step does not fit or is too slow; `lab/knobs` applies them to the built step."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Literal

from sysbench.errors import Refusal, nearest
from sysbench.spec.axes import choices, integers, split_words

NONE = "none"
"""Value of a knob that is not turned."""

_EVERY = re.compile(r"every-([1-9]\d{0,3})")
REENTRANT = "reentrant"
"""Checkpointing of every block whose first forward builds no graph (`use_reentrant=True`)."""

CHECKPOINTS = (NONE, "full", "every-2", "selective", REENTRANT)
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

WITH_EXPERTS = "nf4-experts"
QUANTIZED = (NONE, "nf4", "int8", WITH_EXPERTS)
"""Formats of frozen linear layers; the last one also of stacked experts, which are no layers."""


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

"""The parts of attention that is written out, recognised by the names of ranges."""

from __future__ import annotations

import re
from typing import Final

PARTS: Final = ("scores", "mask", "softmax", "output")
"""q·kᵀ, hiding later positions, softmax, and weights·v, in order."""

_OURS: Final = re.compile(r"(?:.*\.)?attend\.(scores|mask|softmax|output)(?:\..*)?")
_OTHERS: Final = (
    ("scores", re.compile(r"(comput\w+ |calculat\w+ )?(attention|attn)[ _-](scores|logits)( matmul)?", re.IGNORECASE)),
    ("mask", re.compile(r"(causal |attention |apply\w* )?mask(ing)?", re.IGNORECASE)),
    ("softmax", re.compile(r"(comput\w+ |attention |attn[ _])?softmax", re.IGNORECASE)),
    ("output", re.compile(r"final matmul|attention (output|values)|weighted sum|attn[ _]output", re.IGNORECASE)),
)
"""As people call them in programs of their own, which say only what they are."""


def part_of(module: str) -> str | None:
    """The part of attention that a module's path names, or None."""
    ours = _OURS.fullmatch(module)
    if ours is not None:
        return ours[1]
    last = module.rpartition(".")[2]
    if last == module or last == "softmax" or " " in last or "_" in last:
        return next((part for part, name in _OTHERS if name.fullmatch(last)), None)
    return None

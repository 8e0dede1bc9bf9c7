"""How a finding begins and ends, whichever words it is put together from."""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"[a-z]+(?=[,;:.)]?(?:\s|$))")
"""A word of letters alone: what has digits, hyphens or underscores in it (`bf16`, `sdpa-math`, `d_model`) is a name."""

_NAMES: Final = frozenset({"xl", "ctx", "cpu", "cuda", "mps", "sdpa", "rsqrt"})
"""Words of letters alone that are names nevertheless, and are written as they are typed."""


def sentence(text: str) -> str:
    """The text with a capital letter at its beginning and a full stop at its end, where these are missing.

    A name keeps its letters: bf16 begins a sentence as bf16.
    """
    first = _WORD.match(text)
    if first and first[0] not in _NAMES and (len(first[0]) > 1 or first[0] == "a"):
        text = text[0].upper() + text[1:]
    return text if not text or text[-1] in ".!?:…" else f"{text}."

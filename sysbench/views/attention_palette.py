"""How implementations are told apart in pictures: a colour, a marker and a dash each, the same in every picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Look:
    """Of one implementation's line."""

    colour: str
    marker: str
    dashes: Any = "-"
    """As matplotlib takes them."""


_LOOKS: Final = {
    "naive": Look("#000000", "o"),
    "compiled": Look("#d55e00", "s"),
    "sdpa-math": Look("#56b4e9", "v"),
    "sdpa-efficient": Look("#009e73", "D"),
    "sdpa-flash": Look("#0072b2", "^"),
    "sdpa-cudnn": Look("#cc79a7", "P"),
    "flex": Look("#e69f00", "X"),
    "flash-attn": Look("#7b4fa3", "p"),
}
"""Okabe and Ito's colours, which stay distinct under all common colour blindness, and a violet; markers differ too."""

_OTHERS: Final = (
    Look("#882255", "h", (0, (4, 2))),
    Look("#117733", "*", (0, (4, 2))),
    Look("#999933", "<", (0, (4, 2))),
    Look("#888888", ">", (0, (4, 2))),
)
"""For functions of the user's own, in the order in which they come."""


def look(implementation: str, everything: Sequence[str]) -> Look:
    """How an implementation of a run is drawn."""
    if implementation in _LOOKS:
        return _LOOKS[implementation]
    own = [name for name in everything if name not in _LOOKS]
    return _OTHERS[own.index(implementation) % len(_OTHERS)]

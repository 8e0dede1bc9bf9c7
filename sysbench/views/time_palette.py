"""Colours of phases and of what is held against each other, the same in every picture of times."""

from __future__ import annotations

from typing import Final

from sysbench.views.attention_palette import Look

PHASES: Final = {
    "zero_grad": "#bbbbbb",
    "forward": "#66ccee",
    "loss": "#aa3377",
    "backward": "#4477aa",
    "optimizer": "#ccbb44",
}
"""In the order in which a step runs them: Paul Tol's bright scheme (personal.sron.nl/~pault), which stays distinct
under all common colour blindness, in the hues that the dashboard has them in."""

SERIES: Final = (
    Look("#0072b2", "o"),
    Look("#d55e00", "s"),
    Look("#009e73", "D"),
    Look("#cc79a7", "^"),
    Look("#56b4e9", "v"),
    Look("#e69f00", "P"),
    Look("#000000", "X"),
)
"""Okabe and Ito's colours, the ones that contrast most first; markers differ too."""

_DASHES: Final = ("-", (0, (4, 2)), (0, (1, 1.5)))


def series(number: int) -> Look:
    """The look of the `number`-th of those held against each other, from 0 on: beyond the colours, dashes differ."""
    look = SERIES[number % len(SERIES)]
    return Look(look.colour, look.marker, _DASHES[number // len(SERIES) % len(_DASHES)])

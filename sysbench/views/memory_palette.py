"""Colours and order of memory by category, the same in the figure and on the page."""

from __future__ import annotations

from typing import Final

from sysbench.analysis.timeline import CATEGORIES

COLOURS: Final = {
    "parameters": "#4477aa",
    "optimizer state": "#66ccee",
    "unknown": "#8c8c8c",
    "workspace": "#bbbbbb",
    "inputs": "#228833",
    "activations": "#ccbb44",
    "gradients": "#ee6677",
    "temporaries": "#aa3377",
}
"""In the order in which categories are stacked, from the bottom: what stays below what comes and goes,
and activations, which backward releases from the top, below the gradients that appear meanwhile.

Paul Tol's bright scheme, which stays distinct under all common colour blindness (personal.sron.nl/~pault), and a
second grey.
"""

STACKING: Final = tuple(CATEGORIES.index(name) for name in COLOURS)
"""Positions in CATEGORIES, from the bottom."""

_DARKER: Final = frozenset({"zero_grad", "loss", "backward"})


def darker(phase: str) -> bool:
    """Which of two shades stands behind a phase: those that follow each other for long have different ones."""
    return phase in _DARKER

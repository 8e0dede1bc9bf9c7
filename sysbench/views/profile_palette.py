"""Colours of classes of kernels and of phases, the same in the figure and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sysbench.profile_summary import KernelClass

CLASSES: Final[Mapping[KernelClass, str]] = {
    "matmul": "#4477aa",
    "attention": "#66ccee",
    "softmax": "#ee6677",
    "normalisation": "#aa3377",
    "elementwise": "#ccbb44",
    "reduction": "#228833",
    "embedding": "#999933",
    "optimizer": "#cc8844",
    "copy": "#bbbbbb",
    "communication": "#882255",
    "other": "#8c8c8c",
}
"""Paul Tol's bright and muted schemes (personal.sron.nl/~pault), which stay distinct under colour blindness."""

PARTS: Final[Mapping[str, str]] = {
    "scores": "#4477aa",
    "mask": "#ccbb44",
    "softmax": "#ee6677",
    "output": "#66ccee",
}
"""Of attention that is written out, in order."""

PHASES: Final[Mapping[str, str]] = {
    "zero_grad": "#d6dbe1",
    "forward": "#cfe3f2",
    "loss": "#ead9ee",
    "backward": "#d5d9f0",
    "optimizer": "#f0e5cf",
}
"""Light, since modules are named upon them."""

NEUTRAL: Final = "#e4e7eb"
"""Of the step itself, and of phases that nothing tells."""

INK: Final = "#1b1f24"


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better: by relative luminance, WCAG 2.2."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return INK if luminance > 0.22 else "#ffffff"

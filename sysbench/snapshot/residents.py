"""Categories of allocations that are live throughout a trace: parameters, their gradients, and optimizer state.

Nothing is recorded about these allocations but their sizes, so their numbers are compared with those of the gradients
that backward allocates: each trained parameter has a gradient of the same size, and perhaps state of the optimizer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sysbench.snapshot import CATEGORIES
from sysbench.snapshot.layout import Column

LARGE_SHARE = 0.001
"""Sizes whose allocations make up a smaller share of all bytes are ignored when numbers are compared."""
LEAST_GRADIENTS_SHARE = 0.1
"""Where what lives past backward is a smaller share of what backward releases with sizes of parameters, it is not the
gradients but the last results of backward: they too are released after its last allocation."""
MOST_STATES = 2
"""State tensors per parameter: Adam has two, and momentum one. More copies are parameters that are not trained."""

_PARAMETERS, _GRADIENTS, _STATE = map(CATEGORIES.index, ("parameters", "gradients", "optimizer state"))
_NONE: Final = np.zeros(0, np.int64)


def resident_categories(size_bytes: Column, gradients_bytes: Column = _NONE, added_bytes: Column = _NONE) -> Column:
    """Infer the categories of allocations that are live throughout the trace, in the order in which they were made.

    `gradients_bytes` are the sizes of the gradients of one step. If there are none, gradients may be among the
    allocations, because `zero_grad` kept them: backward then allocates each gradient, adds it to the kept one, and
    releases it. `added_bytes` are the sizes of all allocations that one backward pass releases.

    The first allocations of each size are parameters, then come gradients, then optimizer state. Allocations of twice
    the size of a gradient are optimizer state too: fp32 copies for 16-bit gradients. Without any evidence, allocations
    are parameters and Adam's state if the number of allocations of every large size is a multiple of three, and also
    gradients if it is a multiple of four.
    """
    sizes, counts = np.unique(size_bytes, return_counts=True)
    is_large = sizes * counts >= LARGE_SHARE * size_bytes.sum()
    added_bytes = added_bytes[np.isin(added_bytes, sizes)]
    if gradients_bytes.sum() < LEAST_GRADIENTS_SHARE * added_bytes.sum():
        added_bytes = np.concatenate([added_bytes, gradients_bytes])
        gradients_bytes = gradients_bytes[:0]
    stay = not len(gradients_bytes)
    trained = _count(sizes, added_bytes if stay else gradients_bytes)
    copies = _copies(sizes[is_large], counts[is_large], trained[is_large])
    if stay and copies < 2:
        # No evidence. Try 3 first: zero_grad has released gradients since torch 2.0.
        copies = next((each for each in (3, 4) if is_large.any() and not (counts[is_large] % each).any()), 1)
        stay, trained = copies == 4, counts
    trained = np.minimum(trained, counts // copies)
    parameters = counts - min(copies - 1, MOST_STATES + stay) * trained
    is_copy = is_large & (trained == 0) & np.isin(sizes, 2 * gradients_bytes)
    if is_copy.any():
        # The fp32 copy of one parameter can have the size of another parameter.
        parameters = np.where(trained > 0, np.minimum(trained, counts), np.where(is_copy, 0, counts))
    category = np.full(len(size_bytes), _PARAMETERS, np.uint8)
    for size, first, gradients in zip(sizes, parameters, trained * stay, strict=True):
        same_size = np.flatnonzero(size_bytes == size)
        category[same_size[first:]] = _STATE
        category[same_size[first : first + gradients]] = _GRADIENTS
    return category


def _copies(sizes: Column, counts: Column, trained: Column) -> int:
    """Return how many allocations each trained parameter has: itself, its state and perhaps its gradient; at least 1.

    The sizes that make up most bytes decide, because other allocations can have the size of some parameters. More
    allocations of a size are parameters that are not trained.
    """
    ratios = counts[trained > 0] // trained[trained > 0]
    weights = np.bincount(ratios, weights=(sizes * counts)[trained > 0])
    return max(int(weights.argmax()), 1) if len(weights) else 1


def _count(sizes: Column, size_bytes: Column) -> Column:
    return np.searchsorted(np.sort(size_bytes), sizes, side="right") - np.searchsorted(np.sort(size_bytes), sizes)

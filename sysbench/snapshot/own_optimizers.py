"""Functions of a program that are its optimizer, although they are not torch's: known by the memory that they leave.

A hand-written optimizer often replaces its state in every step (`m = beta * m + (1 - beta) * grad`), instead of
changing it in place. Its function then allocates tensors of the parameters' sizes after backward, and keeps them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sysbench.frames import owner
from sysbench.snapshot.layout import NONE, Column, Frame, Stacks

LEAST_SHARE: Final = 0.5
"""Share of the parameters' bytes whose sizes an optimizer's state must have."""


def stacks_of_own_optimizers(
    stacks: Stacks, stack: Column, size_bytes: Column, *, is_parameter: Column, is_training: Column, is_state: Column
) -> Column:
    """Return for each of `stacks` whether it passes through a function that is an optimizer.

    `stack` and `size_bytes` are those of all allocations, of which the others say what is known: `is_parameter` may be
    a parameter, `is_training` is part of forward or backward, and `is_state` is kept and newer than a backward. A
    function that takes part in forward or backward, or in everything, is not an optimizer.
    """
    function = _functions(stacks.frames)[stacks.frame]
    in_stack = np.repeat(np.arange(len(stacks)), np.diff(stacks.start))
    function, in_stack = function[function != NONE], in_stack[function != NONE]
    known = stack != NONE
    is_excluded = np.isin(function, function[np.isin(in_stack, stack[known & is_training])])
    sizes, counts = np.unique(size_bytes[is_parameter], return_counts=True)
    least_bytes = LEAST_SHARE * (sizes * counts).sum()
    optimizers = []
    candidates = known & is_state & np.isin(size_bytes, sizes)
    for each in np.unique(function[~is_excluded & np.isin(in_stack, stack[candidates])]):
        within = np.unique(in_stack[function == each])
        found = np.isin(sizes, size_bytes[candidates & np.isin(stack, within)])
        if (sizes * counts)[found].sum() >= least_bytes > 0 and len(within) < len(np.unique(in_stack)):
            optimizers.append(each)
    return np.isin(np.arange(len(stacks)), in_stack[np.isin(function, optimizers)])


def _functions(frames: tuple[Frame, ...]) -> Column:
    """Return a number for the function of each frame; NONE for functions of libraries and of C++."""
    numbers: dict[tuple[str, str], int] = {}
    return np.array(
        [
            numbers.setdefault((frame.filename, frame.name), len(numbers))
            if frame.filename.endswith(".py") and not owner(frame.filename).is_library
            else NONE
            for frame in frames
        ],
        np.int64,
    )

"""Sequences that grow with a model's depth: what each further layer adds is found by comparing two depths.

A layer adds its elements in several places: in forward, in backward, in each loop of the optimizer over its parameters.
The sequences of two depths, one layer apart, are equal but for one repetition in each of these places. With more
layers, there are more repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

NUMBER = re.compile(r"\d+")
"""A number in the name of a module, which may be that of its layer."""


class Loop(NamedTuple):
    """Elements that are repeated once more in the deeper sequence."""

    small_end: int
    """Position after them in the shallower sequence."""
    large_end: int
    """Position after the same ones in the deeper sequence, where their repetition begins."""
    length: int


def loops(small: Sequence[Hashable], large: Sequence[Hashable]) -> list[Loop] | None:
    """Return the loops by which `large` is longer than `small`; None if it is not `small` with repetitions."""
    found: list[Loop] = []
    i = j = 0
    while True:
        alike = _alike(small[i:], large[j:])
        i, j = i + alike, j + alike
        if i == len(small) and j == len(large):
            return found
        longest = min(alike, (len(large) - j) - (len(small) - i))
        lengths = (length for length in range(1, longest + 1) if large[j - length : j] == large[j : j + length])
        # The repetition after which most is alike: the shortest of them, but at the end all that is left.
        sign = 1 if i == len(small) else -1
        length = max(lengths, key=lambda length: (_alike(small[i:], large[j + length :]), sign * length), default=0)
        if not length:
            return None
        found.append(Loop(i, j, length))
        j += length


def _alike(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return how many elements at the beginning of both are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((count for count, (left, right) in pairs if left != right), min(len(one), len(other)))


class Element(NamedTuple):
    """An element of the grown sequence, by the positions of elements of the two that it was found by."""

    small: int
    large: int
    """Of the same element as `small`, in the deeper sequence."""
    next: int
    """Of its repetition, in the deeper sequence; `large` if it is not in a loop."""
    repetition: int

    def number(self, small: int, large: int, following: int, more: int) -> int:
        """Return a number of this element, such as that of its layer, `more` layers deeper than the shallower sequence.

        It is linear in the depth and in the repetition, and given for the elements at `small`, `large` and `next`.
        """
        return small + more * (large - small) + self.repetition * (following - large)

    def name(self, small: str, large: str, following: str, more: int) -> str:
        """Return the name of this element, such as that of its module, in which numbers grow."""
        of_each = [map(int, NUMBER.findall(name)) for name in (small, large, following)]
        found = (str(self.number(*numbers, more)) for numbers in zip(of_each[0], of_each[1], of_each[2], strict=True))
        return NUMBER.sub(lambda _: next(found), following)


def grown(found: Sequence[Loop], small_length: int, more: int) -> Iterator[Element]:
    """Yield the elements of a sequence that is `more` layers deeper than the shallower one, which has this length."""
    i = j = 0
    for small_end, large_end, length in [*found, Loop(small_length, -1, 0)]:
        yield from (Element(at, at - i + j, at - i + j, 0) for at in range(i, small_end))
        for repetition in range(1, more + 1) if length else ():
            for back in range(length, 0, -1):
                yield Element(small_end - back, large_end - back, large_end - back + length, repetition)
        i, j = small_end, large_end + length

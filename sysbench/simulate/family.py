"""Recordings of one step at many batch sizes or context lengths, most of them computed from a few that were traced.

A step makes the same requests at nearly every batch size and context length; only the sizes differ. The size of nearly
every request is linear in the batch size and quadratic in the context length. Sizes that are not, such as scratch
memory that stops growing, lie between those of the next smaller and the next larger traced step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from sysbench.simulate.recording import Recording

DEGREES = {"batch": 1, "ctx": 2}
"""Degree in an axis of the polynomial that most request sizes are."""


_Patterns = tuple[list[tuple[int, ...]], list[int]]
"""Tuples of sizes, and the number of the tuple of each allocation."""


@dataclass
class RecordingFamily:
    """Recordings of a step on one GPU, by the value of one axis.

    degree  degree of the polynomial that most request sizes are
    traced  recordings that were traced, by value
    """

    degree: int
    traced: dict[int, Recording] = field(default_factory=dict)
    _patterns: dict[tuple[int, ...], _Patterns] = field(default_factory=dict, init=False)

    def bounds(self, value: int) -> tuple[Recording, ...]:
        """Return the recordings between which that of a value lies; it is known for certain if there is only one.

        There is none if too few traced steps make the same requests, on either side of the value or overall.
        """
        if value in self.traced:
            return (self.traced[value],)
        values = sorted(self.traced)
        position = bisect_left(values, value)
        if position in (0, len(values)):
            return ()
        below, above = values[position - 1 : position + 1]
        base = self.traced[below]

        def distance(node: int) -> int:
            return abs(node - value)

        alike = sorted((each for each in values if self.traced[each].events == base.events), key=distance)
        if above not in alike or len(alike) < self.degree + 2:
            return ()
        nodes = tuple(sorted({below, above, *alike[: self.degree + 2]}, key=distance))
        if nodes not in self._patterns:
            self._patterns[nodes] = _size_patterns([self.traced[node] for node in nodes])
        patterns, numbers = self._patterns[nodes]
        sizes = [_size_bounds(nodes, pattern, value, self.degree) for pattern in patterns]
        ends = (0,) if all(low == high for low, high in sizes) else (0, 1)
        return tuple(_with_sizes(base, [sizes[number][end] for number in numbers]) for end in ends)


def _size_patterns(recordings: Sequence[Recording]) -> _Patterns:
    """Return the distinct sizes that an allocation has in these recordings, and which of them each allocation has."""
    found: dict[tuple[int, ...], int] = {}
    allocations = zip(*(recording.allocations for recording in recordings), strict=True)
    numbers = [found.setdefault(tuple(one.size_bytes for one in allocation), len(found)) for allocation in allocations]
    return list(found), numbers


def _size_bounds(nodes: Sequence[int], sizes: Sequence[int], value: int, degree: int) -> tuple[int, int]:
    """Return the lower and the upper bound of a size; they are equal if the sizes at all nodes fit one polynomial."""
    if len(set(sizes)) == 1:
        return sizes[0], sizes[0]
    count = degree + 1
    points = nodes[:count], sizes[:count]
    others = zip(nodes[count:], sizes[count:], strict=True)
    if all(_polynomial(*points, node) == size for node, size in others):
        size = _polynomial(*points, value)
        if size.denominator == 1:
            return int(size), int(size)
    below, above = max(node for node in nodes if node < value), min(node for node in nodes if node > value)
    low, high = sorted((sizes[nodes.index(below)], sizes[nodes.index(above)]))
    return low, high


def _polynomial(nodes: Sequence[int], sizes: Sequence[int], value: int) -> Fraction:
    total = Fraction(0)
    for node, size in zip(nodes, sizes, strict=True):
        term = Fraction(size)
        for other in nodes:
            if other != node:
                term *= Fraction(value - other, node - other)
        total += term
    return total


def _with_sizes(recording: Recording, sizes: Sequence[int]) -> Recording:
    allocations = (
        allocation if allocation.size_bytes == size else allocation._replace(size_bytes=size)
        for allocation, size in zip(recording.allocations, sizes, strict=True)
    )
    return replace(recording, allocations=tuple(allocations))

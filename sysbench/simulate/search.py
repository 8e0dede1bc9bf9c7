"""The largest batch or context that fits on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal

from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import SimulatedMemory, simulate
from sysbench.simulate.protocols import Protocol
from sysbench.spec.model import ModelCell

Axis = Literal["batch", "ctx"]

AT_MOST = 2**20
"""Nothing larger is looked at."""


@dataclass(frozen=True)
class Largest:
    """What the search has found.

    value     the largest that fits, a multiple of what was asked for; 0 if not even that does
    result    of that value; None if there is none
    beyond    of the next one, which does not fit; None if the search ended before anything did not
    tried     every value that was simulated, and whether it fits
    """

    axis: Axis
    value: int
    result: SimulatedMemory | None
    beyond: SimulatedMemory | None
    tried: tuple[tuple[int, bool], ...]

    @property
    def monotone(self) -> bool:
        """Whether more never fitted where less did not."""
        fitting = [value for value, fits in self.tried if fits]
        return all(value > max(fitting, default=0) for value, fits in self.tried if not fits)


def find_largest(
    cell: ModelCell,
    axis: Axis,
    gpu: Gpu,
    protocol: Protocol = "train",
    settings: AllocatorSettings | None = None,
    *,
    multiple_of: int = 1,
    at_most: int = AT_MOST,
    on_try: Callable[[int, SimulatedMemory], None] | None = None,
) -> Largest:
    """The largest value of `axis` with which `cell` fits on `gpu`, in multiples of `multiple_of` and up to `at_most`.

    From the cell's own value it doubles until something does not fit, then closes in, by what the values next to it
    need and by halves in turns: no more than twice the binary logarithm of `at_most` simulations. `on_try` is told of
    each. Raises as `simulate` does.
    """
    search = searching(cell, axis, gpu, protocol, settings, multiple_of=multiple_of, at_most=at_most)
    while True:
        try:
            value, result = next(search)
        except StopIteration as end:
            largest: Largest = end.value
            return largest
        if on_try is not None:
            on_try(value, result)


def searching(
    cell: ModelCell,
    axis: Axis,
    gpu: Gpu,
    protocol: Protocol,
    settings: AllocatorSettings | None = None,
    *,
    multiple_of: int = 1,
    at_most: int = AT_MOST,
) -> Generator[tuple[int, SimulatedMemory], None, Largest]:
    """As `find_largest`, a value at a time: yields each that was tried, and returns what is found."""
    search = _Search(cell, axis, gpu, protocol, settings, multiple_of)
    limit = at_most // multiple_of
    fits, fails = 0, limit + 1
    guess = min(limit, max(1, getattr(cell, axis) // multiple_of))
    while fails > limit and fits < limit:
        yield guess * multiple_of, search.tried(guess)
        if search.fits(guess):
            fits, guess = guess, min(limit, 2 * guess)
        else:
            fails = guess
    turn = 0
    while fails - fits > 1 and fails <= limit:
        guess = search.between(fits, fails) if turn % 2 == 0 else (fits + fails) // 2
        yield guess * multiple_of, search.tried(guess)
        if search.fits(guess):
            fits = guess
        else:
            fails = guess
        turn += 1
    return search.outcome(fits, fails)


class _Search:
    """The simulations of one search, by value in multiples."""

    def __init__(
        self,
        cell: ModelCell,
        axis: Axis,
        gpu: Gpu,
        protocol: Protocol,
        settings: AllocatorSettings | None,
        multiple_of: int,
    ) -> None:
        self._cell = cell
        self._axis = axis
        self._gpu = gpu
        self._protocol = protocol
        self._settings = settings
        self._multiple_of = multiple_of
        self._tried: dict[int, SimulatedMemory] = {}

    def tried(self, multiple: int) -> SimulatedMemory:
        """The result of a value, which is simulated if it was not yet."""
        if multiple not in self._tried:
            self._tried[multiple] = self._simulate(multiple, origins=False)
        return self._tried[multiple]

    def fits(self, multiple: int) -> bool:
        """Whether a value fits."""
        return self.tried(multiple).verdict.fits

    def between(self, fits: int, fails: int) -> int:
        """Where the margin would be used up if it shrank evenly from one value to the other."""
        if not fits:
            return (fits + fails) // 2
        left_bytes, missing_bytes = (self._tried[multiple].verdict.margin_bytes for multiple in (fits, fails))
        share = left_bytes / max(1, left_bytes - missing_bytes)
        return min(fails - 1, max(fits + 1, fits + int(share * (fails - fits))))

    def outcome(self, fits: int, fails: int) -> Largest:
        """What is found, with the stacks and modules of the largest that fits."""
        return Largest(
            axis=self._axis,
            value=fits * self._multiple_of,
            result=self._simulate(fits, origins=True) if fits else None,
            beyond=self._tried.get(fails),
            tried=tuple((multiple * self._multiple_of, each.verdict.fits) for multiple, each in self._tried.items()),
        )

    def _simulate(self, multiple: int, *, origins: bool) -> SimulatedMemory:
        cell = self._cell.model_copy(update={self._axis: multiple * self._multiple_of})
        return simulate(cell, self._protocol, self._gpu, self._settings, origins=origins)

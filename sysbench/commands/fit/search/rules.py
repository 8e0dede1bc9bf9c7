"""The search for changes with which a step fits on some GPUs, or with which it is faster.

Effects are never added up: every combination that is reported was simulated. These rules decide which are simulated.

1. Changes that may make a step faster come first, in all combinations. A combination with a smaller and faster one
   beside it is not continued.
2. Changes that only cost time follow: single ones, then pairs, then triples. A combination is skipped where it fits
   without some of these changes or with milder ones, and where it is slower than one that fits: it cannot be faster
   than it is with fewer of these changes.
3. Where weights, gradients and optimizer state alone exceed the memory, only changes that can shrink them are tried.
4. More ranks, if allowed, are tried only where the step fits on no single GPU.
5. Changes of what the model learns are tried one at a time, with the fastest combination of the first rule, and with
   changes that cost time where the step does not fit. Two at once are tried where nothing else fits.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sysbench.commands.fit.search.changes import Change, Combination

MAX_CHANGES = 3
"""Largest number of changes that only cost time in one combination."""


@dataclass(frozen=True)
class Outcome:
    """What the search must know of a simulated step on a GPU.

    fits         whether it fits, and the margin is larger than the uncertainty of the simulation
    needed_bytes memory of the GPU that it needs
    step_s       seconds by which combinations are ordered
    state_fits   whether weights, gradients and optimizer state alone would fit
    tensors_fit  whether the tensors alone would fit, without what the allocator keeps in its cache
    """

    fits: bool
    needed_bytes: int
    step_s: float
    state_fits: bool
    tensors_fit: bool

    def is_better(self, other: Outcome) -> bool:
        """Return whether this step is smaller or faster, and neither larger nor slower."""
        mine, theirs = (self.needed_bytes, self.step_s), (other.needed_bytes, other.step_s)
        return mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]


Strand = Generator[tuple[Combination, str], Outcome | None, None]
"""A part of a search. It yields a combination and a GPU, and is sent the outcome; None if that is not possible."""


@dataclass
class Search:
    """A search; its strands are run by whoever simulates.

    gpus     names of the GPUs
    changes  the changes that may be combined, in the order of `changes_of`
    faster   whether to search also on GPUs on which the step fits as asked
    """

    gpus: Sequence[str]
    changes: Sequence[Change]
    faster: bool = False
    _outcomes: dict[tuple[Combination, str], Outcome | None] = field(default_factory=dict, init=False)

    def stages(self) -> Iterator[list[Strand]]:
        yield [_in_turns(self._try((), gpu) for gpu in self.gpus)]
        asked = {gpu: self._outcomes[(), gpu] for gpu in self.gpus}
        gpus = [gpu for gpu, outcome in asked.items() if outcome and (self.faster or not outcome.fits)]
        if not gpus:
            return
        speedups = [change for change in self._plain if not change.costs_time]
        for count in range(1, len(speedups) + 1):  # what fewer of them keep may rule out the combination of more
            combinations = [combination for combination in _combinations(speedups, count) if len(combination) == count]
            yield [_in_turns([self._try(combination, gpu) for gpu in gpus]) for combination in combinations]
        starts = {gpu: self._starts(speedups, gpu) for gpu in gpus}
        # Backwards, because adapters come last, and their library takes seconds to import.
        relearning = [change for change in reversed(self.changes) if change.relearns]
        yield [
            _in_turns([self._search_plain(starts[gpu], gpu) for gpu in gpus]),
            *(
                _in_turns([self._search_relearning(starts[gpu], (change,), gpu) for gpu in gpus])
                for change in relearning
            ),
        ]
        unfit = [
            gpu for gpu in gpus if not any(where == gpu and self.fits(tried, gpu) for tried, where in self._outcomes)
        ]
        yield [
            _in_turns([self._search_relearning(starts[gpu], pair, gpu) for gpu in unfit])
            for pair in _combinations(relearning, 2)
            if len(pair) == 2
        ]

    def fits(self, combination: Combination, gpu: str) -> bool:
        outcome = self._outcomes.get((combination, gpu))
        return outcome is not None and outcome.fits

    @property
    def _plain(self) -> list[Change]:
        return [change for change in self.changes if not change.relearns and change.group != "ranks"]

    @property
    def _costly(self) -> list[Change]:
        return [change for change in self._plain if change.costs_time and not change.replays]

    def _search_plain(self, starts: Sequence[Combination], gpu: str) -> Strand:
        if not self.fits((), gpu):
            for start in starts:
                yield from self._try_more(start, self._costly, gpu, MAX_CHANGES)
        if not self._any_fits(gpu):
            yield from self._try_ranks(starts, gpu)

    def _search_relearning(self, starts: Sequence[Combination], changes: Combination, gpu: str) -> Strand:
        start = min(starts, key=lambda each: outcome.step_s if (outcome := self._outcomes.get((each, gpu))) else 0.0)
        groups = {change.group for change in changes}
        combination = (*(change for change in start if change.group not in groups), *changes)
        yield from self._try(combination, gpu)
        if not self._fits_somehow(combination, gpu):
            yield from self._try_more(combination, self._costly, gpu, MAX_CHANGES - 1)

    def _starts(self, speedups: Sequence[Change], gpu: str) -> list[Combination]:
        outcomes = {
            combination: outcome
            for combination in [(), *_combinations(speedups, len(speedups))]
            if (outcome := self._outcomes.get((combination, gpu))) is not None
        }
        if not any(outcome.state_fits for outcome in outcomes.values()):
            return [tuple({change.group: change for change in reversed(speedups)}.values())[::-1]]
        return [
            combination
            for combination, outcome in outcomes.items()
            if not any(other.is_better(outcome) for other in outcomes.values())
        ]

    def _try_ranks(self, starts: Sequence[Combination], gpu: str) -> Strand:
        """Try more and more ranks until the step fits; if it never does, also with changes that cost time."""
        more = [change for change in self.changes if change.group == "ranks"]
        for change, start in itertools.product(more, starts):
            yield from self._try((*start, change), gpu)
            if self._any_fits(gpu):
                return
        for start in starts if more else ():
            others = [change for change in self._costly if change.group != "batch"]
            yield from self._try_more((*start, more[-1]), others, gpu, MAX_CHANGES - 1)

    def _try_more(self, start: Combination, changes: Sequence[Change], gpu: str, most: int) -> Strand:
        for more in _combinations(changes, most):
            if not self._fits_with_less(start, more, gpu) and not self._is_too_slow(start, more, gpu):
                yield from self._try((*start, *more), gpu)

    def _fits_with_less(self, start: Combination, more: Combination, gpu: str) -> bool:
        if len(more) > 1 and self._fits_somehow(start, gpu):
            return True
        return any(
            self._fits_somehow((*start, *less), gpu) or self._fits_with_less(start, less, gpu)
            for less in _with_less(more)
        )

    def _is_too_slow(self, start: Combination, more: Combination, gpu: str) -> bool:
        """Return whether the step is known to be slower than one that fits and is alike in learning and ranks."""
        fastest_s = min(
            (
                outcome.step_s
                for (combination, where), outcome in self._outcomes.items()
                if where == gpu and outcome is not None and outcome.fits and _kind(combination) == _kind(start)
            ),
            default=None,
        )
        return fastest_s is not None and self._at_least_s(start, more, gpu) >= fastest_s

    def _at_least_s(self, start: Combination, more: Combination, gpu: str) -> float:
        outcome = self._outcomes.get(((*start, *more), gpu))
        if outcome is not None:
            return outcome.step_s
        return max((self._at_least_s(start, less, gpu) for less in _with_less(more)), default=0.0)

    def _try(self, combination: Combination, gpu: str) -> Strand:
        """Try a combination, and again with each change that needs no other trace where it does not fit."""
        if (combination, gpu) in self._outcomes or self._is_hopeless(combination, gpu):
            return
        outcome = self._outcomes[combination, gpu] = yield combination, gpu
        if outcome is None or outcome.fits or not outcome.tensors_fit:
            return
        for change in self.changes:
            if change.replays:
                self._outcomes[(*combination, change), gpu] = yield (*combination, change), gpu

    def _is_hopeless(self, combination: Combination, gpu: str) -> bool:
        """Return whether what the step keeps for good exceeds the memory, and the changes cannot shrink it."""
        kept = tuple(change for change in combination if change.frees_state)
        outcome = self._outcomes.get((kept, gpu))
        return kept != combination and outcome is not None and not outcome.state_fits

    def _fits_somehow(self, combination: Combination, gpu: str) -> bool:
        replays = [change for change in self.changes if change.replays]
        return any(self.fits(each, gpu) for each in (combination, *((*combination, change) for change in replays)))

    def _any_fits(self, gpu: str) -> bool:
        return any(
            where == gpu and self.fits(combination, where) and not any(change.relearns for change in combination)
            for combination, where in self._outcomes
        )


def _kind(combination: Combination) -> Combination:
    return tuple(change for change in combination if change.relearns or change.group == "ranks")


def _in_turns(strands: Iterable[Strand]) -> Strand:
    waiting: deque[tuple[Strand, Outcome | None]] = deque((strand, None) for strand in strands)
    while waiting:
        strand, outcome = waiting.popleft()
        try:
            wanted = strand.send(outcome)
        except StopIteration:
            continue
        waiting.append((strand, (yield wanted)))


def _with_less(more: Combination) -> Iterator[Combination]:
    """Yield the combination without each of its changes, unless it has only one, and with each milder one."""
    for number, change in enumerate(more):
        if len(more) > 1:
            yield (*more[:number], *more[number + 1 :])
        if change.milder is not None:
            yield (*more[:number], change.milder, *more[number + 1 :])


def _combinations(changes: Sequence[Change], most: int) -> Iterator[Combination]:
    for size in range(1, most + 1):
        for combination in itertools.combinations(changes, size):
            if len({change.group for change in combination}) == size:
                yield combination

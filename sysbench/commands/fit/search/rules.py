"""The search for the fastest combinations of changes with which a step fits on a GPU.

It tries combinations in the order of their times, and stops at the first one that fits, so that those it leaves out are
slower. It rests on one assumption: a change that only costs time (`Change.costs_time`) never makes a step faster. The
combinations that it stands for are these:

1. Changes that may make a step faster, in all combinations; those that another one beats in time, with no more memory,
   are not continued. To each of the others, up to three changes are added that only cost time.
2. With one change of what the model learns, the fastest combination of the first kind is continued, with one change
   that costs time, or two where one never suffices. Two changes of learning are tried where nothing else fits.
3. More ranks are tried where the step fits on no single GPU without a change of learning: as few as suffice; the
   largest number also with up to two changes that cost time.
4. A change of the allocator, which needs no other trace, is added where the step fits only with it.
5. A change that takes long to simulate is tried at last: alone, and added to the first row.

The first row for a GPU is the fastest combination that fits. Each further row is the fastest one that needs less memory
than the one before, by a share of the GPU's memory. So no combination is both faster and smaller than a row.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sysbench.commands.fit.search.changes import Change, Combination
from sysbench.commands.fit.spec import MAX_PLAIN_ROWS, MAX_ROWS, next_limit_bytes

MAX_CHANGES = 3
"""Largest number of changes that only cost time in one combination, without changes of learning or of ranks."""

MAX_FURTHER_CHANGES = 2
"""The same with changes of learning or of ranks."""

_NOTICEABLE_SHARE = 0.001
"""Share of the memory that does not matter in a choice of changes that may make a step faster."""


@dataclass(frozen=True)
class Outcome:
    """What the search must know of a step on a GPU: simulated, or at least what it needs.

    needed_bytes   memory of the GPU that it needs; more than the GPU has if it does not fit
    tensors_bytes  memory of its tensors alone, without what the allocator keeps in its cache
    state_bytes    memory of weights, gradients and optimizer state, which few changes can shrink
    step_s         seconds by which combinations are ordered
    is_simulated   whether the numbers are those of the whole step, and not bounds from below
    """

    needed_bytes: int
    tensors_bytes: int
    state_bytes: int
    step_s: float
    is_simulated: bool

    def is_better(self, other: Outcome) -> bool:
        """Return whether this step is faster, and not noticeably larger."""
        return self.step_s < other.step_s and self.needed_bytes <= other.needed_bytes * (1 + _NOTICEABLE_SHARE)


@dataclass(frozen=True)
class Memory:
    """Bytes of a GPU that a step may use: all of them, and all but the uncertainty of a simulation."""

    whole_bytes: int
    safe_bytes: int


Request = tuple[Combination, str, bool]
"""A combination, a GPU, and whether the whole step must be simulated, or bounds suffice."""

Strand = Generator[Request, Outcome | None, None]
"""A part of a search. It is sent the outcome of each request; None if the combination is not possible."""

_Found = Generator[Request, Outcome | None, Combination | None]


@dataclass
class Search:
    """A search; its strands are run by whoever simulates.

    gpus     by name of a GPU: its memory
    changes  the changes that may be combined, in the order of `changes_of`
    faster   whether to search also on GPUs on which the step fits as asked
    last     a change that takes long to simulate, and is tried at last
    """

    gpus: Mapping[str, Memory]
    changes: Sequence[Change]
    faster: bool = False
    last: Change | None = None
    _outcomes: dict[tuple[Combination, str], Outcome | None] = field(default_factory=dict, init=False)
    _rows: dict[str, list[Combination]] = field(default_factory=dict, init=False)
    """Rows of each GPU without changes of learning."""
    _relearned: dict[str, list[Combination]] = field(default_factory=dict, init=False)

    def stages(self) -> Iterator[list[Strand]]:
        """Yield strands that may run side by side; each list of them begins where the one before has ended."""
        yield [self._asked()]
        gpus = [gpu for gpu in self.gpus if self._is_searched(gpu)]
        if not gpus or not (self.changes or self.last):
            return
        self._rows = {gpu: [] for gpu in gpus}
        self._relearned = {gpu: [] for gpu in gpus}
        speedups = [change for change in self._plain if not change.costs_time]
        combinations = [(), *_combinations(speedups, len(speedups))]
        yield [self._bounded(combination, gpus) for combination in combinations]
        starts = {gpu: self._starts(combinations, gpu) for gpu in gpus}
        relearning = [(change,) for change in self.changes if change.relearns]
        yield [
            self._first_answers(starts, relearning),
            _one_by_one(self._find_rows(starts[gpu], gpu) for gpu in gpus),
            _one_by_one(self._relearn(starts[gpu], relearning, MAX_ROWS - MAX_PLAIN_ROWS, gpu) for gpu in gpus),
        ]
        yield [
            _one_by_one(self._share(starts[gpu], gpu) for gpu in gpus if not self._rows[gpu]),
            _one_by_one(self._relearn(starts[gpu], relearning, MAX_ROWS - len(self._rows[gpu]), gpu) for gpu in gpus),
        ]
        unfit = [gpu for gpu in gpus if not self._rows[gpu] and not self._relearned[gpu]]
        pairs = [pair for pair in _combinations([change for (change,) in relearning], 2) if len(pair) == 2]
        yield [_one_by_one(self._relearn(starts[gpu], pairs, MAX_ROWS, gpu) for gpu in unfit)]
        yield [self._nearest_miss(gpu) for gpu in unfit if not self._relearned[gpu]]
        if self.last is not None:
            yield [self._tried_last(self.last, combination, gpu) for gpu in gpus for combination in self._firsts(gpu)]

    @property
    def _plain(self) -> list[Change]:
        return [change for change in self.changes if not change.relearns and change.group != "ranks"]

    @property
    def _costly(self) -> list[Change]:
        return [change for change in self._plain if change.costs_time and not change.replays]

    def _is_searched(self, gpu: str) -> bool:
        outcome = self._outcomes[(), gpu]
        return outcome is not None and (self.faster or outcome.needed_bytes > self.gpus[gpu].safe_bytes)

    def _asked(self) -> Strand:
        for gpu in self.gpus:
            yield from self._outcome((), gpu, simulate=True)

    def _bounded(self, combination: Combination, gpus: Iterable[str]) -> Strand:
        for gpu in gpus:
            yield from self._outcome(combination, gpu)

    def _starts(self, combinations: Iterable[Combination], gpu: str) -> list[Combination]:
        """Return the combinations that no other one beats, the fastest first."""
        outcomes = {each: outcome for each in combinations if (outcome := self._outcomes[each, gpu]) is not None}
        return sorted(
            (each for each in outcomes if not any(other.is_better(outcomes[each]) for other in outcomes.values())),
            key=lambda each: outcomes[each].step_s,
        )

    def _first_answers(self, starts: Mapping[str, Sequence[Combination]], relearning: Sequence[Combination]) -> Strand:
        """Try one combination that frees much memory on each GPU, so that there is an answer before the best one."""
        checkpoints = [change for change in self._costly if change.group == "checkpoint"][-1:]
        for gpu, (fastest, *_) in starts.items():
            for learned in ((), *relearning[:1]):
                combination = self._joined(fastest, (*learned, *checkpoints))
                outcome = yield from self._outcome(combination, gpu)
                if outcome is not None and outcome.needed_bytes <= self.gpus[gpu].safe_bytes:
                    yield from self._outcome(combination, gpu, simulate=True)
                    break

    def _find_rows(self, starts: Sequence[Combination], gpu: str) -> Strand:
        asked = self._outcomes[(), gpu]
        is_enough = asked is not None and asked.needed_bytes <= self.gpus[gpu].safe_bytes
        below_s = asked.step_s if is_enough and asked is not None else math.inf
        rows = self._rows[gpu]
        limit_bytes = self.gpus[gpu].safe_bytes
        while len(rows) < MAX_PLAIN_ROWS:
            found = yield from self._fastest(starts, self._costly, MAX_CHANGES, gpu, limit_bytes, lambda: below_s)
            if found is None and not rows and limit_bytes < self.gpus[gpu].whole_bytes:
                limit_bytes = self.gpus[gpu].whole_bytes
                continue
            if found is None:
                return
            rows.append(found)
            limit_bytes = next_limit_bytes(self.gpus[gpu].whole_bytes, self._known(found, gpu).needed_bytes)

    def _relearn(
        self, starts: Sequence[Combination], relearning: Sequence[Combination], count: int, gpu: str
    ) -> Strand:
        """Find the fastest combination with each of some changes of learning, until there are enough."""
        found = self._relearned[gpu]
        left = [learned for learned in relearning if not any(set(learned) <= set(each) for each in found)]
        for limit_bytes in (self.gpus[gpu].safe_bytes, self.gpus[gpu].whole_bytes):
            for most in range(1, MAX_FURTHER_CHANGES + 1):
                while left and len(found) < count:
                    first = yield from self._fastest(
                        [self._joined(starts[0], learned) for learned in left],
                        self._costly,
                        most,
                        gpu,
                        limit_bytes,
                        lambda: self._fastest_row_s(gpu),
                    )
                    if first is None:
                        break
                    found.append(first)
                    left = [learned for learned in left if not set(learned) <= set(first)]
                if found:
                    return

    def _fastest_row_s(self, gpu: str) -> float:
        rows = (self._known(row, gpu) for row in self._rows[gpu] or [()])
        return min((row.step_s for row in rows if row.needed_bytes <= self.gpus[gpu].safe_bytes), default=math.inf)

    def _share(self, starts: Sequence[Combination], gpu: str) -> Strand:
        """Try more and more ranks until the step fits; with the most ranks also changes that cost time."""
        more = [change for change in self.changes if change.group == "ranks"]
        others = [change for change in self._costly if change.group != "batch"]
        for change in more:
            costly, most = (others, MAX_FURTHER_CHANGES) if change is more[-1] else ((), 0)
            shared = [self._joined(start, (change,)) for start in starts]
            found = yield from self._fastest(shared, costly, most, gpu, self.gpus[gpu].safe_bytes)
            if found is not None:
                self._rows[gpu].append(found)
                return

    def _firsts(self, gpu: str) -> list[Combination]:
        """Return the step as asked, and the first row, unless it has more ranks."""
        rows = (self._rows[gpu] or self._relearned[gpu])[:1]
        return [(), *(row for row in rows if not any(change.group == "ranks" for change in row))]

    def _tried_last(self, last: Change, combination: Combination, gpu: str) -> Strand:
        yield from self._outcome((*combination, last), gpu, simulate=True)

    def _nearest_miss(self, gpu: str) -> Strand:
        known = {each: outcome for (each, where), outcome in self._outcomes.items() if where == gpu and outcome}
        yield from self._outcome(min(known, key=lambda each: known[each].needed_bytes), gpu, simulate=True)

    def _fastest(
        self,
        starts: Iterable[Combination],
        costly: Collection[Change],
        most: int,
        gpu: str,
        limit_bytes: int,
        below_s: Callable[[], float] = lambda: math.inf,
    ) -> _Found:
        """Find the fastest combination of a start and up to `most` changes that needs at most `limit_bytes`.

        Combinations wait in the order of the least time that they may take: at first that of one with fewer changes.
        """
        waiting = _Waiting(starts)
        while waiting.queue:
            least_s, combination = waiting.first()
            if least_s >= below_s():
                return None
            if (known_s := self._least_s(combination, costly, gpu)) > least_s:
                waiting.put(combination, known_s)
                continue
            outcome = yield from self._outcome(combination, gpu)
            if outcome is None:
                continue
            if outcome.step_s > least_s:
                waiting.put(combination, outcome.step_s)
            elif outcome.needed_bytes > limit_bytes:
                waiting.add(self._continued(combination, outcome, costly, most, limit_bytes), least_s)
            elif outcome.is_simulated:
                return combination
            else:
                yield from self._outcome(combination, gpu, simulate=True)
                waiting.put(combination, least_s)
        return None

    def _least_s(self, combination: Combination, costly: Collection[Change], gpu: str) -> float:
        """Return the seconds that a combination is known to take at least: its own, or with one costly change less."""
        with_less = (
            tuple(each for each in combination if each != change) for change in combination if change in costly
        )
        outcomes = (self._outcomes.get((each, gpu)) for each in (combination, *with_less))
        return max((outcome.step_s for outcome in outcomes if outcome is not None), default=0.0)

    def _continued(
        self, combination: Combination, outcome: Outcome, costly: Collection[Change], most: int, limit_bytes: int
    ) -> Iterator[Combination]:
        """Yield the combinations with one more change, or with a stronger one, that may need less memory."""
        if any(change.replays for change in combination):
            return
        if outcome.is_simulated and outcome.tensors_bytes <= limit_bytes:
            yield from (self._joined(combination, (change,)) for change in self._plain if change.replays)
        groups = {change.group for change in combination}
        count = sum(change in costly for change in combination)
        for change in costly:
            if outcome.state_bytes > limit_bytes and not change.frees_state:
                continue  # no change but those of the state can make the step fit
            is_next = change.group not in groups and change.milder not in costly and count < most
            if is_next or change.milder in combination:
                yield self._joined(combination, (change,))

    def _joined(self, combination: Combination, more: Combination) -> Combination:
        """Return the combination with more changes, in place of those of their groups; costly ones are last."""
        groups = {change.group for change in more}
        kept = (change for change in combination if change.group not in groups)
        return tuple(
            sorted((*kept, *more), key=lambda each: (each.costs_time, each.relearns, self.changes.index(each)))
        )

    def _outcome(
        self, combination: Combination, gpu: str, *, simulate: bool = False
    ) -> Generator[Request, Outcome | None, Outcome | None]:
        simulate |= any(change.replays for change in combination)
        key = combination, gpu
        if key not in self._outcomes or (simulate and (known := self._outcomes[key]) and not known.is_simulated):
            self._outcomes[key] = yield combination, gpu, simulate
        return self._outcomes[key]

    def _known(self, combination: Combination, gpu: str) -> Outcome:
        outcome = self._outcomes[combination, gpu]
        assert outcome is not None
        return outcome


class _Waiting:
    """Combinations in the order of the least seconds that they may take; of equal ones, first those of few changes."""

    def __init__(self, starts: Iterable[Combination]) -> None:
        self.queue: list[tuple[float, int, int, Combination]] = []
        self._numbers = itertools.count()
        self._seen: set[Combination] = set()
        self.add(starts, 0.0)

    def add(self, combinations: Iterable[Combination], least_s: float) -> None:
        """Add those that have never waited here."""
        for combination in combinations:
            if combination not in self._seen:
                self._seen.add(combination)
                self.put(combination, least_s)

    def put(self, combination: Combination, least_s: float) -> None:
        heapq.heappush(self.queue, (least_s, len(combination), next(self._numbers), combination))

    def first(self) -> tuple[float, Combination]:
        least_s, _, _, combination = heapq.heappop(self.queue)
        return least_s, combination


def _one_by_one(strands: Iterable[Strand]) -> Strand:
    for strand in strands:
        yield from strand


def _combinations(changes: Sequence[Change], most: int) -> Iterator[Combination]:
    for size in range(1, most + 1):
        for combination in itertools.combinations(changes, size):
            if len({change.group for change in combination}) == size:
                yield combination

"""Several ranks of one run compared: all data of the tables and figures, of bounded size.

Times are whole nanoseconds over all steps that the ranks have in common, so that totals are exact. Message sizes and
bandwidths of collectives are those that nccl-tests defines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal, get_args

from pydantic import Field

from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Amount, Bytes, Count, Nanoseconds, Share, Signed
from sysbench.trace.summary import ProfileSource

Kind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
    "other",
]
"""Collectives of torch.distributed. `send_recv` stands for all point-to-point messages."""

ENDS_TOGETHER: Final[frozenset[Kind]] = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
)
"""Collectives that no rank can leave before every rank has entered them."""

_PHRASES: Final[tuple[tuple[str, Kind], ...]] = (
    *((kind.replace("_", ""), kind) for kind in get_args(Kind)[:5]),
    ("sendrecv", "send_recv"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
)
"""The first that a name contains counts: `reduce` is also a part of `allreduce`."""


class RankStep(Frozen):
    """One step on one rank: window = compute + exposed + other + idle."""

    rank: Count
    step: str
    """Name of the range that marks it; empty if no steps are marked."""
    window_ns: Nanoseconds
    compute_ns: Nanoseconds
    """Time in which at least one kernel, or on a CPU one operator, computes."""
    communication_ns: Nanoseconds
    """Time in which at least one collective runs."""
    exposed_ns: Nanoseconds
    """Communication during which nothing computes."""
    other_ns: Nanoseconds
    """Copies and sets during which nothing computes or communicates."""
    idle_ns: Nanoseconds


class CollectiveStatistics(Frozen):
    """Collectives of one kind, message size and group size, over all common steps."""

    kind: Kind
    bytes: Bytes | None
    """Message size as nccl-tests counts it; None if the sizes were not recorded."""
    group_size: Count | None
    calls: Count
    """Number of collectives; one that several ranks carry out counts once."""
    events: Count
    """Number of collectives, each counted on every rank."""
    duration_ns: Nanoseconds
    """Sum of the durations of all events."""
    matched: Count
    """Number of calls that were found on all ranks of their group, and for which transfer and waiting are known."""
    transfer_ns: Nanoseconds
    """Sum of the least durations over the ranks of each matched call."""
    waits: Count
    """Number of events of the matched calls."""
    waiting_ns: Nanoseconds
    """Sum of the waiting of all events of matched calls."""


class CollectiveCall(Frozen):
    """One collective of the last common step; means are over the ranks of which there are traces."""

    number: Count
    """In order of launch among those of its kind and group, from 1: with DDP, all-reduces are its buckets."""
    kind: Kind
    bytes: Bytes | None
    group_size: Count | None
    start_ns: Signed
    """From the start of the step until the first rank launches it."""
    duration_ns: Amount
    """Mean."""
    exposed_ns: Amount
    """Mean of the part during which nothing computes."""
    transfer_ns: Nanoseconds | None
    """Least duration over the ranks; None if it is not known."""
    last: Count | None
    """The rank that arrives last."""


class Arrivals(Frozen):
    """How one rank arrives at the collectives that it shares with others."""

    rank: Count
    collectives: Count
    """Number of matched collectives of this rank."""
    last: Count
    """Number of those at which this rank arrives last."""
    caused_ns: Nanoseconds
    """Waiting of the others for this rank, summed over them; what they wait for at the same time counts once."""
    waited_ns: Nanoseconds
    """This rank's own waiting."""


class Clock(Frozen):
    """Alignment of the clocks of all ranks, by the ends of their collectives."""

    collectives: Count
    """Number of collectives that align them."""
    residual_ns: Nanoseconds
    """Median over those of the time from the first rank's end to the last one's, after alignment."""
    offsets_ns: dict[int, int]
    """How far each rank's clock is ahead of that of the first rank that it is connected with by collectives."""


Cause = Literal["compute", "idle"]
"""What a late rank does for longer than the others."""


class Straggler(Frozen):
    """The rank for which the others wait."""

    rank: Count
    share: Amount
    """Share of all waiting that is for this rank."""
    waiting_ns: Amount
    """Mean waiting of another rank for it, per step."""
    step_ns: Amount
    """Mean duration of a step."""
    cause: Cause
    """What this rank does for longer than the others: at least `STRAGGLER_SHARE` of the time that it loses."""


class RanksSummary(Frozen):
    """All ranks of a run of which there are traces."""

    source: ProfileSource
    ranks: list[Count]
    world_size: Count | None
    """Number of ranks of the run; None if not recorded."""
    steps: list[str]
    """Names of the steps that all ranks have."""
    breakdown: list[RankStep]
    collectives: list[CollectiveStatistics]
    calls: list[CollectiveCall] = Field(default=[])
    """Collectives of the last common step, in order of launch; the first `MOST_CALLS`."""
    arrivals: list[Arrivals]
    """Empty if no collective was found on several ranks."""
    clock: Clock | None
    straggler: Straggler | None
    """None if no rank causes nearly all waiting, if the cause is unclear, or if too little was measured to know."""
    cautions: list[str]
    """What is missing or does not match."""


MOST_CALLS: Final = 2000

STRAGGLER_SHARE: Share = 0.8
"""A rank is a straggler only if at least this share of all waiting is for it, and of its lost time has one cause."""


@lru_cache(maxsize=4096)
def kind_of(name: str) -> Kind:
    """Return the kind that a name contains, in any spelling: `_allgather_base`, `ncclDevKernel_AllGather_RING_LL`."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for phrase, kind in _PHRASES if phrase in letters), "other")


_BUS_FACTORS: Final[Mapping[Kind, Callable[[int], float]]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
}
"""Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""


def bus_factor(kind: Kind, group_size: int) -> float | None:
    """Return bus bandwidth over algorithm bandwidth; None for kinds without one."""
    factor = _BUS_FACTORS.get(kind)
    return factor(group_size) if factor is not None else None

"""Comparison of several ranks of one run: all data for the tables and figures, in bounded size.

Times are integer nanoseconds summed over all steps that the ranks have in common, so totals are exact. Message sizes
and bandwidths of collectives follow nccl-tests.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, get_args

from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Amount, Bytes, Count, Nanoseconds, Share
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
"""Collectives that no rank can leave before all ranks have entered them."""

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
"""The first match in a name wins, because `reduce` is also a part of `allreduce`."""


class RankStep(Frozen):
    """One step on one rank: window = compute + exposed + other + idle."""

    rank: Count
    step: str
    """Name of the range that marks the step; empty if no steps are marked."""
    window_ns: Nanoseconds
    compute_ns: Nanoseconds
    """Time in which at least one kernel computes; on a CPU, at least one operator."""
    communication_ns: Nanoseconds
    """Time in which at least one collective runs."""
    exposed_ns: Nanoseconds
    """Communication during which nothing computes."""
    other_ns: Nanoseconds
    """Time in which copies and memory sets run, but nothing computes or communicates."""
    idle_ns: Nanoseconds
    caused_ns: Nanoseconds = 0
    """Time that other ranks wait for this rank at collectives, summed over them."""


class CollectiveStatistics(Frozen):
    """Statistics of collectives of one kind, message size and group size, over all common steps."""

    kind: Kind
    bytes: Bytes | None
    """Message size as nccl-tests counts it; None if the sizes were not recorded."""
    group_size: Count | None
    calls: Count
    """Number of collectives, each counted once."""
    events: Count
    """Number of collectives, each counted once per rank."""
    duration_ns: Nanoseconds
    """Sum of the durations of all events."""
    matched: Count
    """Number of calls that were found on all traced ranks of their group, with known transfer and waiting times."""
    transfer_ns: Nanoseconds
    """Sum over matched calls of the shortest duration over ranks."""
    waits: Count
    """Number of events of the matched calls."""
    waiting_ns: Nanoseconds
    """Sum of the waiting times of all events of matched calls."""


class Clock(Frozen):
    """Alignment of all ranks' clocks, based on the ends of collectives."""

    collectives: Count
    """Number of collectives used for the alignment."""
    residual_ns: Nanoseconds
    """Median over these collectives of the time between the first and the last rank's end, after alignment."""
    offsets_ns: dict[int, int]
    """Offset of each rank's clock from the clock of the first rank connected to it by collectives."""


Cause = Literal["compute", "idle"]
"""Activity on which a late rank spends more time than the other ranks."""


class Straggler(Frozen):
    """The rank for which the others wait."""

    rank: Count
    share: Amount
    """Share of all waiting time that is spent waiting for this rank."""
    waiting_ns: Amount
    """Mean time per step that another rank waits for this rank."""
    step_ns: Amount
    """Mean duration of a step."""
    cause: Cause
    """Activity that accounts for at least `STRAGGLER_SHARE` of this rank's additional time."""


class RanksSummary(Frozen):
    """Summary of all traced ranks of a run."""

    source: ProfileSource
    ranks: list[Count]
    world_size: Count | None
    """Number of ranks of the run; None if not recorded."""
    steps: list[str]
    """Names of the steps that all ranks have."""
    breakdown: list[RankStep]
    collectives: list[CollectiveStatistics]
    clock: Clock | None
    straggler: Straggler | None
    """None if no rank causes nearly all waiting, if the cause is unclear, or if there are too few measurements."""
    cautions: list[str]
    """Descriptions of missing or mismatched data."""


STRAGGLER_SHARE: Share = 0.8
"""Minimum share of all waiting that a straggler causes, and minimum share of its lost time that has a single cause."""


@lru_cache(maxsize=4096)
def kind_of(name: str) -> Kind:
    """Return the kind of a collective by its name in any spelling: `_allgather_base` is an `all_gather`."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for phrase, kind in _PHRASES if phrase in letters), "other")


def bus_factor(kind: Kind, group_size: int) -> float | None:
    """Return the ratio of bus bandwidth to algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md).

    None for kinds without a bus bandwidth.
    """
    if kind in ("broadcast", "reduce"):
        return 1.0
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (group_size - 1) / group_size
    return 2 * (group_size - 1) / group_size if kind == "all_reduce" else None

"""Tables that compare ranks: communication, collectives, and the order in which ranks arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sysbench import units
from sysbench.commands.profile.profiles import NS, Profiles, RankComparison
from sysbench.render.declared import DeclaredTable, Field, Leading, leading_fields
from sysbench.render.table import Measure, Remark
from sysbench.trace.ranks.summary import Arrivals, CollectiveCall, CollectiveStatistics, RankStep, bus_factor

_RUN_COLUMNS: Final = Leading(
    columns=lambda profiles: profiles.columns if profiles.record is not None else (),
    values=lambda _: lambda row: row.comparison.leading,
)
"""Columns that identify the cell of a run. Traces from files have no such columns, because they form a single run."""

# --- communication


@dataclass(frozen=True)
class _RankTimes:
    comparison: RankComparison
    rank: int
    rows: Sequence[RankStep]

    def mean_s(self, name: str) -> float:
        return float(sum(getattr(row, name) for row in self.rows)) * NS / len(self.rows)

    @property
    def overlap(self) -> float | None:
        whole_s = self.mean_s("communication_ns")
        return 1 - self.mean_s("exposed_ns") / whole_s if whole_s else None


def _rank_rows(profiles: Profiles) -> Iterator[_RankTimes]:
    for comparison in profiles.ranks:
        for rank in comparison.summary.ranks:
            rows = [row for row in comparison.summary.breakdown if row.rank == rank]
            if rows:
                yield _RankTimes(comparison, rank, rows)


def _time_field(key: str, name: str = "", importance: int = 0, note: str = "", optional: bool = False) -> Field:
    name = f"{name or key}_ns"

    def get(row: _RankTimes) -> Measure | None:
        return Measure(row.mean_s(name)) if not optional or row.mean_s(name) else None

    return Field(key, unit="s", group="per step", importance=importance, note=note, optional=optional, get=get)


COMMUNICATION = DeclaredTable(
    "communication",
    "communication of each rank",
    (
        _time_field("step", "window"),
        _time_field("compute"),
        _time_field("communication"),
        _time_field("exposed", note="exposed: communication during which nothing computes"),
        Field(
            "exposed_share",
            "of step",
            "share",
            "per step",
            get=lambda row: row.mean_s("exposed_ns") / whole_s if (whole_s := row.mean_s("window_ns")) else None,
        ),
        Field(
            "overlap",
            unit="share",
            group="per step",
            importance=1,
            note="overlap: share of communication during which something computes",
            get=lambda row: row.overlap,
        ),
        _time_field("other", importance=2, note="other: copies and memory sets alone", optional=True),
        _time_field("idle"),
    ),
    rows=_rank_rows,
    leading=(_RUN_COLUMNS, leading_fields(Field("rank", get=lambda row: str(row.rank)))),
)
"""One row per rank: compute, communication, its exposed part, and idle time."""

# --- collectives


@dataclass(frozen=True)
class _CollectiveRow:
    comparison: RankComparison
    entry: CollectiveStatistics

    @property
    def calls(self) -> Measure:
        return Measure(self.entry.calls / max(len(self.comparison.summary.steps), 1))

    @property
    def duration(self) -> Measure:
        return Measure(self.entry.duration_ns * NS / self.entry.events)

    @property
    def transfer_s(self) -> float | None:
        return self.entry.transfer_ns * NS / self.entry.matched if self.entry.matched else None

    @property
    def waiting_s(self) -> float | None:
        return self.entry.waiting_ns * NS / self.entry.waits if self.entry.waits else None

    @property
    def algorithm_bytes_per_s(self) -> float | None:
        return self.entry.bytes / self.transfer_s if self.entry.bytes and self.transfer_s else None

    @property
    def bus_bytes_per_s(self) -> float | None:
        rate, size = self.algorithm_bytes_per_s, self.entry.group_size
        factor = bus_factor(self.entry.kind, size) if size else None
        return rate * factor if rate is not None and factor is not None else None

    @property
    def ceiling_share(self) -> float | None:
        """Return the bus bandwidth as a share of the bus bandwidth of the fastest all-reduce."""
        link, rate = self.comparison.link, self.bus_bytes_per_s
        if link is None or rate is None or self.entry.group_size != len(self.comparison.summary.ranks):
            return None
        share = rate / link.bus_bytes_per_s
        return share if share <= MAX_CEILING_SHARE else None


MAX_CEILING_SHARE: Final = 1.1
"""Highest credible share of a ceiling. Noise, and message sizes between the measured ones, can cause an excess."""


def _ceiling_notes(profiles: Profiles) -> list[str]:
    found = []
    for comparison in profiles.ranks:
        if comparison.link is not None:
            size = units.size(comparison.link.message_bytes)
            rate = units.quantity("bytes_per_s", comparison.link.bus_bytes_per_s)
            which = f"ceiling of {comparison.label}" if comparison.label else "ceiling"
            found.append(f"{which}: an all-reduce of {size} reached {rate} (busBW)")
    return found


COLLECTIVES = DeclaredTable(
    "collectives",
    "collectives by kind, message size and group size",
    (
        Field("bytes", "message", "bytes", get=lambda row: row.entry.bytes, wide_range=True, optional=True),
        Field("group_size", "group", importance=1, get=lambda row: row.entry.group_size, optional=True),
        Field("calls", unit="count", group="per step", importance=1, get=lambda row: row.calls),
        Field("duration", unit="s", group="of one call", importance=3, get=lambda row: row.duration),
        Field(
            "transfer",
            unit="s",
            group="of one call",
            note="transfer: shortest duration over ranks; waiting: mean time over ranks until the last one arrives",
            get=lambda row: row.transfer_s,
            optional=True,
        ),
        Field("waiting", unit="s", group="of one call", get=lambda row: row.waiting_s, optional=True),
        Field(
            "algbw",
            "algBW",
            "bytes_per_s",
            importance=3,
            note="algBW: message / transfer; busBW: as nccl-tests defines it",
            get=lambda row: row.algorithm_bytes_per_s,
            optional=True,
        ),
        Field("busbw", "busBW", "bytes_per_s", importance=1, get=lambda row: row.bus_bytes_per_s, optional=True),
        Field("ceiling", "of ceiling", "share", importance=2, get=lambda row: row.ceiling_share, optional=True),
    ),
    rows=lambda profiles: [
        _CollectiveRow(comparison, row) for comparison in profiles.ranks for row in comparison.summary.collectives
    ],
    notes=_ceiling_notes,
    leading=(_RUN_COLUMNS, leading_fields(Field("collective", get=lambda row: row.entry.kind))),
)
"""One row per kind, message size and group size: calls, transfer, waiting, bandwidths."""


@dataclass(frozen=True)
class _CallRow:
    comparison: RankComparison
    entry: CollectiveCall


CALLS = DeclaredTable(
    "calls",
    "collectives of the last step, in order of launch",
    (
        Field("number", "no.", get=lambda row: str(row.entry.number)),
        Field("bytes", "message", "bytes", get=lambda row: row.entry.bytes, wide_range=True, optional=True),
        Field("group_size", "group", importance=2, get=lambda row: row.entry.group_size, optional=True),
        Field(
            "start",
            "launched",
            "s",
            note="launched: time since the start of the step, on the first rank; duration and exposed: mean over ranks",
            get=lambda row: row.entry.start_ns * NS,
        ),
        Field("duration", unit="s", get=lambda row: row.entry.duration_ns * NS),
        Field("exposed", unit="s", get=lambda row: row.entry.exposed_ns * NS),
        Field(
            "transfer",
            unit="s",
            importance=1,
            get=lambda row: row.entry.transfer_ns * NS if row.entry.transfer_ns is not None else None,
            optional=True,
        ),
        Field(
            "last",
            "arrives last",
            importance=3,
            get=lambda row: f"rank {row.entry.last}" if row.entry.last is not None else None,
            optional=True,
        ),
    ),
    rows=lambda profiles: [
        _CallRow(comparison, row) for comparison in profiles.ranks for row in comparison.summary.calls
    ],
    leading=(_RUN_COLUMNS, leading_fields(Field("collective", get=lambda row: row.entry.kind))),
)
"""One row per collective of one step; with DDP, the all-reduces are its buckets."""

# --- arrivals


@dataclass(frozen=True)
class _ArrivalRow:
    comparison: RankComparison
    entry: Arrivals

    def per_step(self, number: int) -> float:
        return number / max(len(self.comparison.summary.steps), 1)

    @property
    def caused_share(self) -> float | None:
        whole_ns = sum(each.caused_ns for each in self.comparison.summary.arrivals)
        return self.entry.caused_ns / whole_ns if whole_ns else None


ARRIVALS = DeclaredTable(
    "arrivals",
    "arrival of ranks at their collectives",
    (
        Field(
            "collectives",
            unit="count",
            group="per step",
            importance=2,
            get=lambda row: row.per_step(row.entry.collectives),
        ),
        Field(
            "last",
            unit="share",
            group="arrives last",
            get=lambda row: row.entry.last / row.entry.collectives if row.entry.collectives else None,
        ),
        Field(
            "last_times", "times", "count", "arrives last", importance=3, get=lambda row: row.per_step(row.entry.last)
        ),
        Field("caused", "time", "s", "others wait for it", get=lambda row: row.per_step(row.entry.caused_ns) * NS),
        Field("caused_share", "share", "share", "others wait for it", importance=1, get=lambda row: row.caused_share),
        Field("waited", "time", "s", "it waits", get=lambda row: row.per_step(row.entry.waited_ns) * NS),
    ),
    rows=lambda profiles: [
        _ArrivalRow(comparison, row) for comparison in profiles.ranks for row in comparison.summary.arrivals
    ],
    leading=(_RUN_COLUMNS, leading_fields(Field("rank", get=lambda row: str(row.entry.rank)))),
    notes=("times are per step; others wait for it: summed over the waiting ranks",),
)
"""One row per rank: how often it arrives last, how long the others wait for it, and how long it waits."""


# --- remarks


def remarks(profiles: Profiles) -> Iterator[Remark]:
    for comparison in profiles.ranks:
        where = f"{comparison.label}: " if comparison.label else ""
        for caution in comparison.summary.cautions:
            yield Remark("caution", f"{where}{caution}")
        straggler = comparison.summary.straggler
        if straggler is not None:
            spent = {"compute": "it computes longer", "idle": "it is idle longer"}
            yield Remark(
                "finding",
                f"{where}rank {straggler.rank} is late: {units.share(straggler.share)} of all waiting time is spent on "
                f"it. In a step of {units.seconds(straggler.step_ns * NS)}, each other rank waits for it for "
                f"{units.seconds(straggler.waiting_ns * NS)}, because {spent[straggler.cause]}",
            )
        clock = comparison.summary.clock
        if clock is not None:
            number = f"{clock.collectives} collective{'' if clock.collectives == 1 else 's'}"
            yield Remark(
                "note",
                f"{where}the ranks' clocks were compared by means of {number}, whose ends differ by "
                f"{units.seconds(clock.residual_ns * NS)} (median)",
            )

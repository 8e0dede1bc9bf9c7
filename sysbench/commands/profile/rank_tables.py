"""Tables and remarks that compare the ranks of a run: communication, and collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sysbench import units
from sysbench.commands.profile.profiles import NS, Profiles, RankComparison
from sysbench.render.declared import DeclaredTable, Field, Leading, leading_fields
from sysbench.render.table import Measure, Remark
from sysbench.trace.ranks.summary import CollectiveStatistics, RankStep, bus_factor

_RUN_COLUMNS: Final = Leading(
    columns=lambda profiles: profiles.columns if profiles.record is not None else (),
    values=lambda _: lambda row: row.comparison.leading,
)
"""Columns that identify the cell of a run. Traces from files have no such columns, because they form a single run."""

_NEEDS: Final = "--ranks 2, or traces of a distributed run with ranks in them or in their names: rank3.json"


@dataclass(frozen=True)
class _RankTimes:
    comparison: RankComparison
    rank: int
    steps: Sequence[RankStep]

    def mean_s(self, name: str) -> float:
        return float(sum(getattr(step, f"{name}_ns") for step in self.steps)) * NS / len(self.steps)

    def share(self, name: str, whole: str) -> float | None:
        return self.mean_s(name) / whole_s if (whole_s := self.mean_s(whole)) else None

    @property
    def overlap(self) -> float | None:
        exposed = self.share("exposed", "communication")
        return 1 - exposed if exposed is not None else None


def _rank_rows(profiles: Profiles) -> Iterator[_RankTimes]:
    for comparison in profiles.ranks:
        for rank in comparison.summary.ranks:
            if steps := [step for step in comparison.summary.breakdown if step.rank == rank]:
                yield _RankTimes(comparison, rank, steps)


def _time_field(key: str, name: str = "", note: str = "") -> Field:
    return Field(key, unit="s", group="per step", note=note, get=lambda row: row.mean_s(name or key))


COMMUNICATION = DeclaredTable(
    "communication",
    "communication of each rank",
    (
        _time_field("step", "window"),
        _time_field("compute"),
        _time_field("communication"),
        _time_field("exposed", note="exposed: communication during which nothing computes"),
        Field("exposed_share", "of step", "share", "per step", get=lambda row: row.share("exposed", "window")),
        Field(
            "overlap",
            unit="share",
            group="per step",
            importance=1,
            note="overlap: share of communication during which something computes",
            get=lambda row: row.overlap,
        ),
        Field(
            "other",
            unit="s",
            group="per step",
            importance=2,
            note="other: copies and memory sets alone",
            get=lambda row: row.mean_s("other") or None,
            optional=True,
        ),
        _time_field("idle"),
        Field(
            "caused",
            "others wait",
            "s",
            "per step",
            1,
            get=lambda row: (
                row.mean_s("caused") if any(step.caused_ns for step in row.comparison.summary.breakdown) else None
            ),
            note="others wait: time that other ranks wait for this rank at collectives, summed over them",
            optional=True,
        ),
    ),
    rows=_rank_rows,
    leading=(_RUN_COLUMNS, leading_fields(Field("rank", get=lambda row: str(row.rank)))),
    needs=_NEEDS,
)
"""One row per rank: compute, communication, its exposed part, and idle time."""


@dataclass(frozen=True)
class _CollectiveRow:
    comparison: RankComparison
    entry: CollectiveStatistics

    @property
    def transfer_s(self) -> float | None:
        return self.entry.transfer_ns * NS / self.entry.matched if self.entry.matched else None

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


def _ceiling_notes(profiles: Profiles) -> Iterator[str]:
    for comparison in profiles.ranks:
        if comparison.link is not None:
            size = units.size(comparison.link.message_bytes)
            rate = units.quantity("bytes_per_s", comparison.link.bus_bytes_per_s)
            which = f"ceiling of {comparison.label}" if comparison.label else "ceiling"
            yield f"{which}: an all-reduce of {size} reached {rate} (busBW)"


COLLECTIVES = DeclaredTable(
    "collectives",
    "collectives by kind, message size and group size",
    (
        Field("bytes", "message", "bytes", get=lambda row: row.entry.bytes, wide_range=True, optional=True),
        Field("group_size", "group", importance=1, get=lambda row: row.entry.group_size, optional=True),
        Field(
            "calls",
            unit="count",
            group="per step",
            importance=1,
            get=lambda row: Measure(row.entry.calls / max(len(row.comparison.summary.steps), 1)),
        ),
        Field(
            "duration",
            unit="s",
            group="of one call",
            importance=3,
            get=lambda row: row.entry.duration_ns * NS / row.entry.events,
        ),
        Field(
            "transfer",
            unit="s",
            group="of one call",
            note="transfer: shortest duration over ranks; waiting: mean time over ranks until the last one arrives",
            get=lambda row: row.transfer_s,
            optional=True,
        ),
        Field(
            "waiting",
            unit="s",
            group="of one call",
            get=lambda row: row.entry.waiting_ns * NS / row.entry.waits if row.entry.waits else None,
            optional=True,
        ),
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
    needs=_NEEDS,
)
"""One row per kind, message size and group size: calls, transfer, waiting, bandwidths."""


def remarks(profiles: Profiles) -> Iterator[Remark]:
    for comparison in profiles.ranks:
        where = f"{comparison.label}: " if comparison.label else ""
        for caution in comparison.summary.cautions:
            yield Remark("caution", f"{where}{caution}")
        if (late := comparison.summary.straggler) is not None:
            cause = {"compute": "it computes longer", "idle": "it is idle longer"}[late.cause]
            yield Remark(
                "finding",
                f"{where}rank {late.rank} is late: {units.share(late.share)} of all waiting time is spent on it. In a "
                f"step of {units.seconds(late.step_ns * NS)}, each other rank waits for it for "
                f"{units.seconds(late.waiting_ns * NS)}, because {cause}",
            )
        if (clock := comparison.summary.clock) is not None:
            residual = units.seconds(clock.residual_ns * NS)
            text = f"clocks of ranks compared by the ends of collectives ({clock.collectives}); median error {residual}"
            yield Remark("note", f"{where}{text}")

"""Tables whose rows are entries of a summary: operators, device use, and the parts of attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sysbench.commands.profile.breakdowns import PROFILE, WORK
from sysbench.commands.profile.profiles import NS, Profile, Profiles
from sysbench.render.declared import DeclaredTable, Field, leading_fields
from sysbench.render.table import Measure, Word
from sysbench.trace.summary import PARTS, Rate


@dataclass(frozen=True)
class Row:
    """One entry of a profile's summary: an operator, its device use, or a rate."""

    profile: Profile
    entry: Any

    def per_step(self, name: str) -> Measure:
        return self.profile.per_step(getattr(self.entry, name))

    def count(self, name: str) -> Measure:
        return self.profile.calls_per_step(getattr(self.entry, name))


def _operator_table(name: str, shapes: bool) -> DeclaredTable:
    def rows(profiles: Profiles) -> Iterator[Row]:
        for profile in profiles.all:
            chosen = [
                row
                for row in profile.summary.operators
                if (row.shapes is not None) == shapes and profiles.matches(row.name)
            ]
            yield from (Row(profile, row) for row in chosen[: profiles.row_limit(len(chosen))])

    def on_device(profiles: Profiles) -> bool:
        return any(profile.summary.source == "device" for profile in profiles.all)

    def time_field(key: str, title: str, place: str, importance: int) -> Field:
        return Field(
            key,
            title,
            "s",
            f"{place}, {{per}}",
            importance,
            get=lambda row: row.per_step(f"{key}_ns"),
            when=on_device if place == "device" else None,
        )

    return DeclaredTable(
        name,
        lambda profiles: f"operators, {profiles.per}",
        (
            time_field("self_device", "itself", "device", 0),
            time_field("total_device", "with callees", "device", 1),
            time_field("self_host", "itself", "host", 0),
            time_field("total_host", "with callees", "host", 1),
            Field("calls", unit="count", group="{per}", get=lambda row: row.count("calls")),
            Field("operator", elastic=True, get=lambda row: row.entry.name),
            *((Field("shapes", elastic=True, get=lambda row: row.entry.shapes),) if shapes else ()),
        ),
        words=WORK,
        rows=rows,
        leading=PROFILE,
        needs="the input shapes of operators: use --shapes" if shapes else "operators: use --with torch",
    )


OPERATORS = _operator_table("operators", shapes=False)
"""PyTorch's operators: their host time, and the device time of the work they launched."""
OPERATOR_SHAPES = _operator_table("operator-shapes", shapes=True)
"""PyTorch's operators, one row per combination of input shapes."""


def _ratio(value: float | None, divisor: float | None) -> float | None:
    return value / divisor if value is not None and divisor else None


DEVICE = DeclaredTable(
    "device",
    "device utilisation",
    (
        Field(
            "step",
            unit="s",
            get=lambda row: row.profile.per_step(row.profile.summary.window_ns),
            note=lambda profiles: (
                "step: from its start until both host and device have finished"
                if profiles.predicted
                else "step: under the profiler, from its start until both host and device have finished"
            ),
        ),
        Field("busy", unit="share", group="device", get=lambda row: row.entry.busy_ns / row.entry.window_ns),
        Field("idle", unit="share", group="device", get=lambda row: 1 - row.entry.busy_ns / row.entry.window_ns),
        Field(
            "waiting",
            "waiting for the host",
            "share",
            "device",
            get=lambda row: row.entry.waiting_ns / row.entry.window_ns,
            note="waiting for the host: idle time before the launch of the next kernel",
        ),
        Field("launches", "{per}", "count", "launches", get=lambda row: row.count("launches")),
        Field(
            "launch",
            "each",
            "s",
            "launches",
            importance=1,
            get=lambda row: _ratio(row.entry.launch_ns * NS, row.entry.launches),
        ),
        Field(
            "verdict",
            "pace set by",
            get=lambda row: Word("host (launch-bound)", "bad") if row.entry.launch_bound else Word("device", "good"),
        ),
    ),
    words=WORK,
    rows=lambda profiles: [
        Row(profile, use) for profile in profiles.all if (use := profile.summary.device) is not None and use.window_ns
    ],
    leading=PROFILE,
    needs="device kernels",
)
"""Utilisation of the device, time waiting for the host, and cost of launches."""


# --- rates


class _RateRow(Row):
    @property
    def seconds_per_step(self) -> float:
        return float(self.entry.total_ns * NS / self.profile.summary.steps)

    def per_second(self, name: str) -> float | None:
        return _ratio(getattr(self.entry, name), self.seconds_per_step)


def bound(rate: Rate) -> Literal["compute", "memory"] | None:
    """Return whether compute or memory traffic takes longer at the hardware's peak rates; None if unknown."""
    arithmetic, traffic = _ratio(rate.flops or 0, rate.peak_flops_per_s), _ratio(rate.bytes, rate.peak_bytes_per_s)
    if arithmetic is None or traffic is None:
        return None
    return "compute" if arithmetic > traffic else "memory"


def _rate_table(name: str, title: str, key: str, of_attention: bool, needs: str) -> DeclaredTable:
    return DeclaredTable(
        name,
        lambda profiles: f"{title}, {profiles.per}",
        (
            Field("time", unit="s", get=lambda row: row.seconds_per_step),
            Field("work", unit="flops", get=lambda row: row.entry.flops, optional=True),
            Field(
                "bytes",
                unit="bytes",
                importance=1,
                get=lambda row: row.entry.bytes,
                optional=True,
                note="bytes: a lower bound; every operand and result is moved once",
            ),
            Field("rate", unit="flops_per_s", importance=1, get=lambda row: row.per_second("flops"), optional=True),
            Field(
                "peak",
                "of peak",
                "share",
                importance=2,
                get=lambda row: _ratio(row.per_second("flops"), row.entry.peak_flops_per_s),
                optional=True,
            ),
            Field(
                "bandwidth",
                "of bandwidth",
                "share",
                importance=2,
                get=lambda row: _ratio(row.per_second("bytes"), row.entry.peak_bytes_per_s),
                optional=True,
            ),
            Field("bound", "bound by", get=lambda row: bound(row.entry), optional=True),
        ),
        words=WORK,
        rows=lambda profiles: [
            _RateRow(profile, rate)
            for profile in profiles.all
            for rate in profile.summary.rates
            if (rate.part in PARTS if of_attention else rate.part not in PARTS and rate.peak_bytes_per_s)
        ],
        leading=(
            PROFILE,
            leading_fields(
                Field(key, get=lambda row: row.entry.part),
                Field("phase", get=lambda row: row.entry.phase or "unknown"),
            ),
        ),
        needs=needs,
    )


ATTENTION = _rate_table(
    "attention", "parts of attention", "part", True, "ranges around the parts of attention: --attention naive"
)
"""Time, FLOPs, bytes and rates of scores, mask, softmax and output."""
ROOFLINE = _rate_table(
    "roofline", "distance from the hardware's limits", "class", False, "a built-in model on a device with a data sheet"
)
"""Time, FLOPs, bytes and rates of kernel classes, relative to the data sheet's peaks."""

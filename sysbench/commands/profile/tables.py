"""From profiles to tables: which kernels take the time, and which part of the model launched them.

`TABLES` has them all by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.profile import parts as profile_kernels
from sysbench.commands.profile import parts as profile_parts
from sysbench.commands.profile import use as profile_rates
from sysbench.commands.profile import use as profile_use
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
from sysbench.commands.profile.shown import NS, Profiles, Shown
from sysbench.errors import UsageError, unknown
from sysbench.render import remarks
from sysbench.render.table import Cell, Column, Measure, Remark, Sheet, Table, Word
from sysbench.spec.run import Selection
from sysbench.trace.summary import ProfileSummary

_COVERED = "covered: how much of the unprofiled step's time the device was seen at work"

Builder = Callable[[Profiles], list[Table]]

_BUILDERS: dict[str, Builder] = {
    "kernels": profile_kernels.kernels,
    "tree": profile_parts.tree,
    "phases": profile_parts.phases,
    "classes": profile_parts.classes,
    "attention": profile_rates.attention,
    "rates": profile_rates.rates,
    "operators": profile_use.operators,
    "operator-shapes": profile_use.operator_shapes,
    "copies": profile_use.copies,
    "device": profile_use.device,
    "precision": profile_use.precision,
    "checks": profile_use.checks,
    "ranks": profile_use.ranks,
}

TABLES: dict[str, object] = {"summary": None, **_BUILDERS}
"""Every table that a profile can be shown as; `summary` is of a run alone."""

_NEEDS = {
    "attention": "it needs attention that is written out, with ranges around its parts: --attention naive",
    "operator-shapes": "it needs the shapes of operators' inputs: --shapes",
    "operators": "it needs operators, which nsys does not record: --with torch",
    "copies": "nothing was copied by the driver, or it was not recorded",
    "device": "it needs kernels of a device",
    "precision": "no name of a kernel says what it multiplies",
    "checks": "it needs a run of sysbench with eager, naive attention",
    "ranks": "it needs several files",
    "rates": "it needs a model of known size, or the shapes of operators' inputs",
}
"""Why a table may be empty."""


def sheet(record: ProfileRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Everything that is shown of a run; raises UsageError for a table or a part that is not there."""
    specs = axes.axes_of(record.cells)
    profiled = [cell for cell in record.cells if cell.summary is not None]
    profiles = _profiles(record, selection or Selection())
    hardware = tuple(dict.fromkeys(cell.device.name for cell in record.cells if cell.device))
    torch = (f"torch {record.environment.torch.torch}",) if record.environment.torch else ()
    return Sheet(
        subject=(*axes.subject(specs), *hardware, *torch, *_profilers(profiled)),
        tables=tuple(_chosen(profiles, tuple(names), _summary(record, profiles.work))),
        remarks=(*remarks.outcomes(record), *remarks.cautions(record), *_remarks(profiles)),
    )


def fillable(record: ProfileRecord, names: Iterable[str], selection: Selection) -> list[Table]:
    """Those of the tables called `names` that the record can fill."""
    profiles = _profiles(record, selection)
    if not profiles.each:
        return []
    found = ((_summary(record, profiles.work) if name == "summary" else _BUILDERS[name](profiles)) for name in names)
    return [table for tables in found for table in tables]


def _profiles(record: ProfileRecord, selection: Selection) -> Profiles:
    named = axes.varying(axes.axes_of(record.cells))
    shown = (Shown(axes.values(cell.axes, named), cell.summary) for cell in record.cells if cell.summary is not None)
    return Profiles(axes.columns(named), tuple(shown), selection)


def sheet_of(
    summaries: Sequence[tuple[str, ProfileSummary]], names: Iterable[str] = (), selection: Selection | None = None
) -> Sheet:
    """Everything that is shown of traces; raises UsageError for a table or a part that is not there."""
    several = len(summaries) > 1
    shown = tuple(Shown((_file(title, summary),) if several else (), summary) for title, summary in summaries)
    profiles = Profiles((Column("file", "file"),) if several else (), shown, selection or Selection())
    devices = dict.fromkeys(device for _, summary in summaries for device in summary.devices)
    return Sheet(
        subject=(*(title for title, _ in summaries[:4]), *devices, *_steps([summary for _, summary in summaries])),
        tables=tuple(_chosen(profiles, tuple(names), [])),
        remarks=(*_damage(profiles), *_remarks(profiles)),
    )


def _file(title: str, summary: ProfileSummary) -> str:
    return f"rank {summary.rank}" if summary.rank is not None else title


def _profilers(cells: Sequence[ProfileCellRecord]) -> Iterator[str]:
    yield from dict.fromkeys({"torch": "torch.profiler", "nsys": "Nsight Systems"}[cell.profiler] for cell in cells)
    yield from _steps([cell.summary for cell in cells if cell.summary is not None])


def _steps(summaries: Sequence[ProfileSummary]) -> Iterator[str]:
    for count, marked in dict.fromkeys((summary.steps, summary.steps_marked) for summary in summaries):
        yield f"{count} step{'' if count == 1 else 's'} profiled" if marked else "no steps marked: all of it as one"


def _chosen(profiles: Profiles, names: Sequence[str], summary: list[Table]) -> list[Table]:
    """The tables called `names`, or those that say most of what is there."""
    if names:
        return [table for name in names for table in _named(profiles, name, summary)]
    if not profiles.each:
        return []
    if profiles.selection.range or profiles.selection.kernel:
        return [table for name in ("kernels", "tree") for table in _named(profiles, name, summary)]
    if len(profiles.each) > 1:
        return [*summary, *([] if summary else profile_use.ranks(profiles))]
    builders = ("device", "classes", "tree", "attention", "kernels")
    return [*summary, *(table for name in builders for table in _BUILDERS[name](profiles))]


def _named(profiles: Profiles, name: str, summary: list[Table]) -> list[Table]:
    if name not in TABLES:
        raise UsageError(unknown(name, "a table", TABLES))
    found = summary if name == "summary" else _BUILDERS[name](profiles)
    pattern = profiles.selection.kernel
    if not found and pattern is not None and not any(profiles.chosen(shown) for shown in profiles.each):
        where = f" in {profiles.selection.range}" if profiles.selection.range else ""
        raise UsageError(f"--kernel {pattern.pattern} is found in the name of no {profiles.work}{where}")
    if not found:
        why = _NEEDS.get(name, "nothing of it was profiled")
        raise UsageError(f"this profile has nothing to show as the table {name}: {why}")
    return found


# --- one row for every cell


def _summary(record: ProfileRecord, work: str) -> list[Table]:
    """What was profiled, how much of the step it covers, and what profiling cost."""
    named = axes.varying(axes.axes_of(record.cells)) or ("size",)
    covered = any(cell.coverage is not None for cell in record.cells)
    waited = any(_waiting(cell) is not None for cell in record.cells)
    columns = (
        *axes.columns(named),
        Column("step", "unprofiled", "s", "step"),
        Column("cost", "by profiling", "share", "step", signed=True, importance=1),
        Column("busy", f"{work}s", "s", importance=2),
        *((Column("coverage", "covered", "share", note=_COVERED),) if covered else ()),
        Column("matmul", "matmul", "share"),
        Column("calls", f"{work}s", "count", "per step", importance=2),
        *((Column("waiting", "waiting for the host", "share", importance=3),) if waited else ()),
    )
    rows = tuple((*axes.values(cell.axes, named), *_summary_row(cell, covered, waited)) for cell in record.cells)
    return [Table("summary", "profiles", columns, rows, len(named))] if rows else []


def _summary_row(cell: ProfileCellRecord, covered: bool, waited: bool) -> tuple[Cell, ...]:
    step = Measure(cell.unprofiled.median_s) if cell.unprofiled else None
    if cell.summary is None:
        return (
            Word(cell.outcome, "quiet" if cell.outcome in ("skipped", "interrupted") else "bad"),
            *[None] * (4 + covered + waited),
        )
    shown = Shown((), cell.summary)
    whole_ns = shown.total_ns
    matmul_ns = sum(spent.total_ns for spent in shown.spent if shown.class_of(spent) == "matmul")
    return (
        step,
        Measure(cell.cost_share) if cell.cost_share is not None else None,
        Measure(cell.summary.busy_ns * NS / cell.summary.steps),
        *((Measure(cell.coverage) if cell.coverage is not None else None,) if covered else ()),
        Measure(matmul_ns / whole_ns) if whole_ns else None,
        shown.calls_per_step(sum(cell.summary.spent.calls)),
        *((_waiting(cell),) if waited else ()),
    )


def _waiting(cell: ProfileCellRecord) -> Measure | None:
    """The share of a step in which the device waits for the host."""
    use = cell.summary.device if cell.summary else None
    return Measure(use.waiting_ns / use.window_ns) if use and use.window_ns else None


# --- what has to be said


def _damage(profiles: Profiles) -> Iterator[Remark]:
    for shown in profiles.each:
        for remark in shown.summary.remarks:
            yield Remark("caution", f"{shown.summary.title}: {remark}")


def _remarks(profiles: Profiles) -> Iterator[Remark]:
    """Findings, then what is not in the tables."""
    slowest = profile_use.slowest_of(profiles.each) if len(profiles.each) > 1 and not _of_one_run(profiles) else None
    if slowest is not None:
        shown = profiles.each[slowest]
        step_s = shown.summary.window_ns * NS / shown.summary.steps
        yield Remark("finding", f"{profile_use.label(shown)} is slowest: {units.seconds(step_s)} for a step")
    for shown in profiles.each:
        if len(profiles.each) == 1:
            yield from profile_rates.findings(shown, profiles.selection.range)
        summary = shown.summary
        if summary.left_out:
            kernels = f"{summary.left_out} {profiles.work}{'' if summary.left_out == 1 else 's'}"
            yield Remark("note", f"{kernels}, {units.seconds(summary.left_out_ns * NS)}, outside every step: left out")
        if summary.unlinked_ns and summary.source == "device":
            unlinked = units.seconds(summary.unlinked_ns * NS / summary.steps)
            yield Remark("note", f"{unlinked} per step in kernels whose launch was not recorded: in no range")

    if any(shown.summary.source == "cpu" for shown in profiles.each):
        yield Remark("note", "CPU: operators, by the time that each took itself, without those that it called")


def _of_one_run(profiles: Profiles) -> bool:
    """Whether these are the cells of one run, which differ on purpose."""
    return [column.key for column in profiles.columns] != ["file"]

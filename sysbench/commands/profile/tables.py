"""Output of `sysbench profile`: the summary table, breakdowns of each profile, and remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.profile import breakdowns, entries, rank_tables
from sysbench.commands.profile.findings import complete_attention_parts, softmax_words
from sysbench.commands.profile.profiles import NS, Profile, Profiles, RankComparison, find_range
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
from sysbench.commands.profile.spec import ProfileSpec
from sysbench.errors import UsageError, unknown
from sysbench.log.predictions import INTERVAL, MARK
from sysbench.render import remarks
from sysbench.render.axis_columns import axis_columns, axis_values
from sysbench.render.declared import DeclaredTable, Field, Fill, leading_axes, leading_fields, varying_or_size
from sysbench.render.table import Cell, Column, Measure, Remark, Sheet, Table, Word, mean_of
from sysbench.spec.run import Selection
from sysbench.trace.ranks.summary import RanksSummary
from sysbench.trace.summary import ProfileSummary, part_of


def _step_time(cell: ProfileCellRecord) -> Cell:
    if cell.summary is None:
        return remarks.outcome_word(cell.outcome)
    if cell.prediction is not None:
        step = cell.prediction.step
        return Measure(step.point_s, low=step.low_s, high=step.high_s) if step else Word("withheld", "bad")
    found = cell.unprofiled
    return mean_of(found)


def _matmul_share(cell: ProfileCellRecord) -> float | None:
    total_ns = sum(cell.summary.spent.total_ns) if cell.summary is not None else 0
    return cell.summary.by_class().get("matmul", 0) / total_ns if cell.summary is not None and total_ns else None


_PREDICTION_NOTE: Final = "kernel times are computed from GPU rates; kernels run one after another, issued by the host"

SUMMARY: Final = DeclaredTable(
    "summary",
    "profiles",
    (
        Field("step", "{source}", "s", "step", get=_step_time),
        Field(
            "phased_step",
            "by sysbench time",
            "s",
            "step",
            importance=1,
            get=lambda cell: cell.prediction.phased_step_s if cell.prediction else None,
            when=lambda profiles: profiles.predicted,
            note="by sysbench time: with a wait for the device after every phase, without which this step is shorter",
        ),
        Field(
            "cost",
            "by profiling",
            "share",
            "step",
            signed=True,
            importance=1,
            get=lambda cell: cell.cost_share if cell.summary else None,
            when=lambda profiles: not profiles.predicted,
        ),
        Field(
            "busy",
            "{work}s",
            "s",
            importance=2,
            get=lambda cell: cell.summary.busy_ns * NS / cell.summary.steps if cell.summary else None,
        ),
        Field(
            "coverage",
            "covered",
            "share",
            get=lambda cell: cell.coverage,
            optional=True,
            note="covered: device busy time over the mean time of the unprofiled step",
        ),
        Field("matmul", unit="share", get=_matmul_share),
        Field(
            "calls",
            "{work}s",
            "count",
            "{per}",
            importance=2,
            get=lambda cell: sum(cell.summary.spent.calls) / cell.summary.steps if cell.summary else None,
        ),
        Field(
            "waiting",
            "waiting for the host",
            "share",
            importance=3,
            get=lambda cell: (
                use.waiting_ns / use.window_ns
                if cell.summary and (use := cell.summary.device) and use.window_ns
                else None
            ),
            optional=True,
        ),
        Field(
            "median",
            "median step",
            "s",
            on_request=True,
            get=lambda cell: cell.unprofiled.median_s if cell.unprofiled else None,
        ),
    ),
    rows=lambda profiles: profiles.record.cells,
    when=lambda profiles: profiles.record is not None,
    leading=leading_axes(lambda profiles: varying_or_size(profiles.record)),
    words={
        **breakdowns.WORK,
        "source": Fill(
            ("unprofiled", "predicted"), lambda profiles: "predicted" if profiles.predicted else "unprofiled"
        ),
    },
    notes=lambda profiles: (INTERVAL, _PREDICTION_NOTE) if profiles.predicted else (),
)
"""One row per cell: the unprofiled step, the cost of profiling, and the share of the step that the profile covers."""


def _limits(profiles: Profiles) -> Iterator[tuple[ProfileCellRecord, str, float]]:
    """Yield (cell, name, seconds) of what can limit a predicted step, largest first."""
    for cell in profiles.record.cells if profiles.record is not None else ():
        limits_s = cell.prediction.limits_s if cell.prediction is not None and cell.prediction.step else {}
        yield from ((cell, name, each_s) for name, each_s in sorted(limits_s.items(), key=lambda each: -each[1]))


LIMITS: Final = DeclaredTable(
    "limits",
    "what limits the step",
    (
        Field(
            "of_step",
            "of the step",
            "share",
            get=lambda row: row[2] / row[0].prediction.phased_step_s if row[0].prediction.phased_step_s else None,
            note="of the step: by sysbench time, whose column limited by has the same shares",
        ),
        Field("time", unit="s", get=lambda row: row[2]),
    ),
    rows=_limits,
    leading=(
        leading_axes(lambda profiles: axes.varying(profiles.record.cells), lambda row: row[:1]),
        leading_fields(Field("limit", get=lambda row: row[1])),
    ),
    notes=("host: the time to issue everything, while the device works; it limits a step if it takes longer",),
    needs="a predicted step (--simulate h100)",
)
"""For each predicted step: the host's time, and the device's time by what limits its kernels."""

TABLES: Final[dict[str, DeclaredTable]] = {
    table.name: table
    for table in (
        SUMMARY,
        LIMITS,
        breakdowns.KERNELS,
        breakdowns.TREE,
        breakdowns.CLASSES,
        entries.ATTENTION,
        entries.RATES,
        entries.OPERATORS,
        entries.OPERATOR_SHAPES,
        entries.COPIES,
        entries.DEVICE,
        breakdowns.FILE_COMPARISON,
        rank_tables.COMMUNICATION,
        rank_tables.COLLECTIVES,
        rank_tables.CALLS,
        rank_tables.ARRIVALS,
    )
}
"""All tables by name; `summary` needs a run."""

_EMPTY_TABLE_REASONS: Final = {
    "attention": "it needs naive attention with ranges around its parts: use --attention naive",
    "operator-shapes": "it needs the input shapes of operators: use --shapes",
    "limits": "it needs a predicted step: use --simulate h100",
    "operators": "it needs operators, which nsys does not record: use --with torch",
    "copies": "the driver copied nothing, or copies were not recorded",
    "device": "it needs device kernels",
    "ranks": "it needs several files",
    **dict.fromkeys(
        ("communication", "collectives", "calls"),
        "it needs --ranks 2, or traces of a distributed run that contain their ranks, or --rank-regex",
    ),
    "arrivals": "it needs --ranks 2, or traces of several ranks of one run",
    "rates": "it needs a model of known size, or the input shapes of operators",
}
"""Why a table may be empty."""


def sheet(record: ProfileRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    profiles = _profiles_of_run(record, selection or Selection())
    predictions = [cell.prediction for cell in record.cells if cell.prediction]
    devices = dict.fromkeys(cell.device.name for cell in record.cells if cell.device and not cell.prediction)
    prediction_sources = dict.fromkeys(
        (*(each.gpu for each in predictions), *(f"issued by {each.host}" for each in predictions))
    )
    titles = {"torch": "torch.profiler", "nsys": "Nsight Systems"}
    profilers = dict.fromkeys(
        titles[cell.profiler] for cell in record.cells if cell.summary is not None and not cell.prediction
    )
    mark = (MARK, *prediction_sources) if predictions else ()
    return Sheet(
        subject=(
            *axes.subject(record.cells),
            *mark,
            *devices,
            *record.environment.software,
            *profilers,
            *_step_counts(profiles),
        ),
        tables=tuple(_requested_tables(profiles, tuple(names))),
        remarks=(
            *remarks.outcomes(record),
            *remarks.cautions(record),
            *_remarks(profiles),
            *remarks.own_models(record),
        ),
    )


def traces_sheet(
    summaries: Sequence[tuple[str, ProfileSummary]],
    names: Iterable[str] = (),
    selection: Selection | None = None,
    ranks: RanksSummary | None = None,
) -> Sheet:
    """Return the complete output for traces, given as titles and summaries."""
    several = len(summaries) > 1
    each = []
    for title, summary in summaries:
        named = title if summary.rank is None else f"rank {summary.rank}"
        mark = ", predicted" if summary.predicted else ""
        each.append(Profile((f"{named}{mark}",) if several else (), summary))
    profiles = Profiles(
        (Column("file", "file"),) if several else (),
        tuple(each),
        selection or Selection(),
        ranks=(RankComparison((), "", ranks),) if ranks else (),
    )
    devices = dict.fromkeys(device for _, summary in summaries for device in summary.devices)
    damage = (Remark("caution", f"{summary.title}: {remark}") for _, summary in summaries for remark in summary.remarks)
    prediction_mark = (MARK,) if any(summary.predicted for _, summary in summaries) else ()
    return Sheet(
        subject=(*(title for title, _ in summaries[:4]), *prediction_mark, *devices, *_step_counts(profiles)),
        tables=tuple(_requested_tables(profiles, tuple(names))),
        remarks=(*damage, *_remarks(profiles)),
    )


def non_empty_tables(record: ProfileRecord, names: Iterable[str], selection: Selection) -> list[Table]:
    """Return the requested tables for which the record has data."""
    profiles = _profiles_of_run(record, selection)
    if not profiles.all:
        return []
    return _mark_predicted(profiles, (table for name in names for table in TABLES[name](profiles)))


def _mark_predicted(profiles: Profiles, tables: Iterable[Table]) -> list[Table]:
    return [replace(table, title=f"{MARK}: {table.title}") if profiles.predicted else table for table in tables]


def _profiles_of_run(record: ProfileRecord, selection: Selection) -> Profiles:
    differing = axes.varying(record.cells)
    each = (
        Profile(axis_values(cell, differing), cell.summary, bool(cell.excluding_cautions()))
        for cell in record.cells
        if cell.summary is not None
    )
    several = len(record.cells) > 1
    ranks = (
        RankComparison(
            axis_values(cell, differing),
            remarks.name_cells([cell], record.cells) if several else "",
            cell.ranks,
            cell.link,
        )
        for cell in record.cells
        if cell.ranks is not None
    )
    return Profiles(axis_columns(differing), tuple(each), selection, record, tuple(ranks))


def _step_counts(profiles: Profiles) -> Iterator[str]:
    recorded = [each.summary for each in profiles.all if not each.summary.predicted]
    for count, marked in dict.fromkeys((summary.steps, summary.steps_marked) for summary in recorded):
        profiled = f"{count} step{'' if count == 1 else 's'} profiled"
        yield profiled if marked else "no steps marked (--step-pattern): the whole trace counts as one"


def _requested_tables(profiles: Profiles, names: Sequence[str]) -> list[Table]:
    selection = profiles.selection
    if not names and profiles.all and (selection.range or selection.kernel):
        names = ("kernels", "tree")
    if names:
        return _mark_predicted(profiles, (table for name in names for table in _named_tables(profiles, name)))
    if not profiles.all:
        return []
    # Trace files have no summary. With several profiles, there would be too many other tables.
    rank_table_names = ("communication", "collectives", "arrivals")
    tables_of_several = (
        ("summary", "limits", *rank_table_names) if profiles.record is not None else (*rank_table_names, "ranks")
    )
    tables_of_one = ("summary", "limits", "device", *rank_table_names, "classes", "tree", "attention", "kernels")
    shown = tables_of_several if len(profiles.all) > 1 else tables_of_one
    return _mark_predicted(profiles, (table for name in shown for table in TABLES[name](profiles)))


def _named_tables(profiles: Profiles, name: str) -> list[Table]:
    if name not in TABLES:
        raise UsageError(unknown(name, "a table", TABLES))
    found, selection = TABLES[name](profiles), profiles.selection
    if (
        not found
        and selection.kernel is not None
        and not any(profiles.selected_times(profile) for profile in profiles.all)
    ):
        where = f" in {selection.range}" if selection.range else ""
        raise UsageError(f"--kernel {selection.kernel.pattern} matches no {profiles.work_noun}{where}")
    if not found:
        reason = f": {_EMPTY_TABLE_REASONS[name]}" if name in _EMPTY_TABLE_REASONS else ""
        raise UsageError(f"this profile has no data for table {name}{reason}")
    return found


# --- remarks


def _remarks(profiles: Profiles) -> Iterator[Remark]:
    yield from rank_tables.remarks(profiles)
    if profiles.record is not None and any(cell.cell.ranks > 1 and cell.summary for cell in profiles.record.cells):
        yield Remark("note", "kernels, modules and phases: rank 0; steps: slowest rank")
    if profiles.record is None and len(profiles.all) > 1 and profiles.slowest_index is not None:
        slowest = profiles.all[profiles.slowest_index]
        step_s = slowest.per_step(slowest.summary.window_ns).value
        yield Remark("finding", f"{slowest.label} is slowest: {units.seconds(step_s)} {profiles.per}")
    for profile in profiles.all:
        summary = profile.summary
        if len(profiles.all) == 1:
            yield from _softmax_remarks(profile, profiles.selection.range)
        if summary.left_out:
            kernels = f"{summary.left_out} {profiles.work_noun}{'' if summary.left_out == 1 else 's'}"
            outside = f"{kernels} outside all steps, {units.seconds(summary.left_out_ns * NS)} in total"
            yield Remark("note", f"excluded: {outside}")
        if summary.unlinked_ns and summary.source == "device":
            unlinked = units.seconds(profile.per_step(summary.unlinked_ns).value)
            text = f"{unlinked} {profiles.per} are spent in kernels without a recorded launch, which belong to no range"
            yield Remark("note", text)
    host_summaries = [profile.summary for profile in profiles.all if profile.summary.source == "cpu"]
    if host_summaries:
        named = dict.fromkeys(name for summary in host_summaries for name in summary.devices if name)
        missing = f"; the file has no kernels of {', '.join(named)}" if named and profiles.record is None else ""
        yield Remark("note", f"CPU: operators by self time (callees excluded){missing}")


def _softmax_remarks(profile: Profile, range_name: str | None) -> Iterator[Remark]:
    selected_range, mark = find_range(profile, range_name), "predicted, " if profile.summary.predicted else ""
    for phase in ("forward", "backward"):
        parts = complete_attention_parts(profile.summary, phase)
        times = [time for time in profile.times if time.phase == phase and part_of(time.module) == "softmax"]
        if parts and all(map(selected_range.contains, times)):
            words = softmax_words([(profile, profile.summary, parts)], phase, lambda profile: profile.label)
            yield Remark("finding", f"{mark}{phase}: softmax {words}.")


def default_tables(spec: ProfileSpec) -> tuple[str, ...]:
    rank_table_names = ("communication", "collectives", "arrivals") if spec.is_distributed else ()
    return ("summary", "device", *rank_table_names, "classes", "tree", "attention", "kernels")

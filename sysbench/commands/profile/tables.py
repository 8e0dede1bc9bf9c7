"""Output of `sysbench profile`: the summary table, breakdowns of each profile, and remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.profile import breakdowns, entries, rank_tables
from sysbench.commands.profile.findings import complete_attention_parts, softmax_words
from sysbench.commands.profile.profiles import NS, Profile, Profiles, RankComparison
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
from sysbench.commands.profile.spec import ProfileSpec
from sysbench.errors import UsageError
from sysbench.log.predictions import INTERVAL, MARK
from sysbench.render.axis_columns import axis_columns, axis_values
from sysbench.render.declared import DeclaredTable, Field, Fill, build_tables, leading_axes, varying_or_size
from sysbench.render.sentences import notes
from sysbench.render.sentences.cautions import cautions_of
from sysbench.render.sentences.phrases import name_among
from sysbench.render.table import PREDICTED_DIGITS, Cell, Column, Measure, Remark, Sheet, Table, Word, mean_of
from sysbench.spec.run import Selection
from sysbench.trace.ranks.summary import RanksSummary
from sysbench.trace.summary import ProfileSummary


def _step_time(cell: ProfileCellRecord) -> Cell:
    if cell.summary is None:
        return notes.outcome_word(cell.outcome)
    if cell.prediction is not None:
        step = cell.prediction.step
        return Measure(step.point_s, low=step.low_s, high=step.high_s) if step else Word("withheld", "bad")
    return mean_of(cell.unprofiled)


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


TABLES: Final[dict[str, DeclaredTable]] = {
    table.name: table
    for table in (
        SUMMARY,
        breakdowns.KERNELS,
        breakdowns.TREE,
        breakdowns.CLASSES,
        entries.ATTENTION,
        entries.ROOFLINE,
        entries.OPERATORS,
        entries.OPERATOR_SHAPES,
        entries.DEVICE,
        rank_tables.COMMUNICATION,
        rank_tables.COLLECTIVES,
    )
}
"""All tables by name; `summary` needs a run."""

OF_SEVERAL: Final = ("summary", "communication", "collectives")
"""Default tables of several profiles, of which other tables would be too long."""
OF_TRACES: Final = ("device", "communication", "collectives", "classes")
"""Default tables of several traces, which have no summary."""
OF_ONE: Final = (
    "summary",
    "device",
    "communication",
    "collectives",
    "classes",
    "roofline",
    "tree",
    "attention",
    "kernels",
)


def sheet(record: ProfileRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    profiles = _profiles_of_run(record, selection or Selection())
    predictions = [cell.prediction for cell in record.cells if cell.prediction]
    devices = dict.fromkeys(cell.device.name for cell in record.cells if cell.device and not cell.prediction)
    prediction_sources = dict.fromkeys(
        (
            *(prediction.gpu for prediction in predictions),
            *(f"issued by {prediction.host}" for prediction in predictions),
        )
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
            *notes.outcomes(record),
            *cautions_of(record),
            *_remarks(profiles),
            *notes.own_models(record),
        ),
    )


def traces_sheet(
    summaries: Sequence[ProfileSummary],
    names: Iterable[str] = (),
    selection: Selection | None = None,
    ranks: RanksSummary | None = None,
) -> Sheet:
    several = len(summaries) > 1
    each = []
    for summary in summaries:
        named = summary.title if summary.rank is None else f"rank {summary.rank}"
        predicted = ", predicted" if summary.predicted else ""
        each.append(Profile((f"{named}{predicted}",) if several else (), summary))
    profiles = Profiles(
        (Column("file", "file"),) if several else (),
        tuple(each),
        selection or Selection(),
        ranks=(RankComparison((), "", ranks),) if ranks else (),
    )
    titles = [summary.title for summary in summaries[:4]]
    devices = dict.fromkeys(device for summary in summaries for device in summary.devices)
    damage = (Remark("caution", f"{summary.title}: {remark}") for summary in summaries for remark in summary.remarks)
    mark = (MARK,) if any(summary.predicted for summary in summaries) else ()
    softmax = _softmax_remarks(summaries[0]) if not several and not profiles.selection.range else ()
    return Sheet(
        subject=(*titles, *mark, *devices, *_step_counts(profiles)),
        tables=tuple(_requested_tables(profiles, tuple(names))),
        remarks=(*damage, *softmax, *_remarks(profiles)),
    )


def non_empty_tables(record: ProfileRecord, names: Iterable[str], selection: Selection) -> list[Table]:
    profiles = _profiles_of_run(record, selection)
    if not profiles.all:
        return []
    return _mark_predicted(profiles, (table for name in names for table in TABLES[name](profiles)))


def _mark_predicted(profiles: Profiles, tables: Iterable[Table]) -> list[Table]:
    if not profiles.predicted:
        return list(tables)
    return [replace(table, title=f"{MARK}: {table.title}", digits=PREDICTED_DIGITS) for table in tables]


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
            name_among([cell], record.cells) if several else "",
            cell.ranks,
            cell.link,
        )
        for cell in record.cells
        if cell.ranks is not None
    )
    return Profiles(axis_columns(differing), tuple(each), selection, record, tuple(ranks))


def _step_counts(profiles: Profiles) -> Iterator[str]:
    recorded = [profile.summary for profile in profiles.all if not profile.summary.predicted]
    for count, marked in dict.fromkeys((summary.steps, summary.steps_marked) for summary in recorded):
        profiled = f"{count} step{'' if count == 1 else 's'} profiled"
        yield profiled if marked else "no steps marked (--step-pattern): the whole trace counts as one"


def _requested_tables(profiles: Profiles, names: Sequence[str]) -> list[Table]:
    selection = profiles.selection
    if not names and profiles.all and (selection.range or selection.kernel):
        names = ("kernels", "tree")
    if not names:
        default = OF_ONE if len(profiles.all) == 1 else OF_SEVERAL if profiles.record is not None else OF_TRACES
        shown = default if profiles.all else ()
        return _mark_predicted(profiles, (table for name in shown for table in TABLES[name](profiles)))
    if (
        selection.kernel is not None
        and {"kernels", "tree"} & set(names)
        and not any(profiles.selected_times(profile) for profile in profiles.all)
    ):
        where = f" in {selection.range}" if selection.range else ""
        raise UsageError(f"--kernel {selection.kernel.pattern} matches no {profiles.work_noun}{where}")
    return _mark_predicted(profiles, build_tables(TABLES, profiles, names, "this profile"))


# --- remarks


def _remarks(profiles: Profiles) -> Iterator[Remark]:
    yield from rank_tables.remarks(profiles)
    if profiles.record is not None and any(cell.cell.ranks > 1 and cell.summary for cell in profiles.record.cells):
        yield Remark("note", "kernels, modules and phases: rank 0; steps: slowest rank")
    for profile in profiles.all:
        summary = profile.summary
        if summary.left_out:
            amount = f"{summary.left_out} in {units.seconds(summary.left_out_ns * NS)}"
            yield Remark("note", f"excluded: {profiles.work_noun}s outside all steps ({amount})")
        if summary.backlog:
            amount = f"{summary.backlog} in {units.seconds(summary.backlog_ns * NS)}"
            yield Remark("note", f"excluded: kernels launched before the recording began ({amount})")
        if summary.unlinked_ns and summary.source == "device":
            unlinked = units.seconds(profile.per_step(summary.unlinked_ns).value)
            text = f"{unlinked} {profiles.per} are spent in kernels without a recorded launch, which belong to no range"
            yield Remark("note", text)
    if on_host := [profile.summary for profile in profiles.all if profile.summary.source == "cpu"]:
        named = dict.fromkeys(name for summary in on_host for name in summary.devices if name)
        missing = f"; the file has no kernels of {', '.join(named)}" if named and profiles.record is None else ""
        yield Remark("note", f"CPU: operators by self time (callees excluded){missing}")


def _softmax_remarks(summary: ProfileSummary) -> Iterator[Remark]:
    for phase in ("forward", "backward"):
        if parts := complete_attention_parts(summary, phase):
            mark = "predicted: " if summary.predicted else ""
            words = softmax_words([(summary, parts)], phase, lambda profiled: profiled.title)
            yield Remark("finding", f"{mark}{words}")


def default_tables(spec: ProfileSpec) -> tuple[str, ...]:
    return tuple(name for name in OF_ONE if spec.is_distributed or name not in ("communication", "collectives"))

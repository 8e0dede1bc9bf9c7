"""Tables of `sysbench fit`: the step as asked, what its memory is for, and changes that make it fit."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.fit.findings import of_run, verdict
from sysbench.commands.fit.record import Cause, Extent, FitCellRecord, FitRecord, Trial, VerifiedStep
from sysbench.commands.fit.spec import CTX_UNIT, FitSpec
from sysbench.commands.fit.suggestions import Suggestions, command, suggestions, words
from sysbench.log.cautions import MARGIN_UNCERTAINTY_SHARE
from sysbench.log.predictions import INTERVAL, Training
from sysbench.render import remarks, training_columns
from sysbench.render.declared import DeclaredTable, Field, build_tables, leading_fields
from sysbench.render.table import Cell, Measure, Remark, Sheet, Table, Word
from sysbench.spec import hardware
from sysbench.spec.knobs import NONE, modelled_parts
from sysbench.spec.protocols import SearchAxis
from sysbench.spec.run import Selection

MAX_CAUSES = 6
"""Number of causes that are listed by name."""

MIN_CAUSE_SHARE = 0.005
"""Share of the peak below which a cause is not listed."""

MILLION = 1_000_000


def sheet(record: FitRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    chosen = tuple(names)
    tables = (
        build_tables(TABLES, record, chosen)
        if chosen
        else [each for name, build in TABLES.items() if name != CELLS.name for each in build(record)]
    )
    return Sheet(
        subject=(*axes.subject(record.cells), *record.environment.software),
        tables=tuple(tables),
        remarks=(
            *(Remark("finding", statement.text) for statement in of_run(record)),
            *remarks.outcomes(record),
            *remarks.cautions(record),
            *remarks.own_models(record),
        ),
    )


class _Row(NamedTuple):
    cell: FitCellRecord
    trial: Trial
    number: int = 0
    words: str = ""
    command: str = ""


def _step(row: _Row | _Verification) -> Cell:
    step = row.trial.step
    return Measure(step.point_s, low=step.low_s, high=step.high_s) if step else None


def _spare(row: _Row) -> Measure:
    tone = "good" if row.trial.is_safe else "doubtful" if row.trial.fits else "bad"
    return Measure(row.trial.margin_bytes, tone=tone)  # type: ignore[arg-type]


def _training(row: _Row) -> Training | None:
    """Return the whole training; None without its tokens, or without a predicted time."""
    return row.cell.training(row.trial, row.cell.training_tokens) if row.cell.training_tokens else None


def _cost_of_million(row: _Row) -> Cell:
    found = row.cell.training(row.trial, MILLION)
    cost = found.cost.point if found and found.cost else None
    return Measure(cost, text=units.with_digits(cost)) if cost is not None else None


def _has_goal(part: FitRecord | Suggestions) -> bool:
    cells = part.cells if isinstance(part, FitRecord) else [part.cell]
    return any(cell.training_tokens for cell in cells)


_NUMBERS = (
    Field("needed", "memory", "bytes", get=lambda row: row.trial.needed_bytes, importance=2),
    Field("to_spare", "to spare", "bytes", get=_spare, signed=True),
    Field("step", unit="s", get=_step, importance=1, optional=True),
    Field(
        "tokens_per_s",
        "throughput",
        "tokens_per_s",
        get=lambda row: row.trial.tokens_per_s,
        optional=True,
        importance=3,
    ),
    *training_columns.fields(_training),
    Field(
        "million_tokens",
        "per million tokens",
        "number",
        get=_cost_of_million,
        optional=True,
        when=lambda part: not _has_goal(part),
    ),
)


def _has_times(rows: Iterable[Trial]) -> bool:
    return any(trial.step is not None for trial in rows)


def _asked(record: FitRecord) -> Iterator[_Row]:
    for cell in record.cells:
        yield from (_Row(cell, cell.asked(gpu)) for gpu in cell.gpus)


def _asked_notes(record: FitRecord) -> Iterator[str]:
    trials = [row.trial for row in _asked(record)]
    prices = {gpu for cell in record.cells for gpu in cell.price_per_hour}
    yield "memory: what a GPU must have, with CUDA's context and the allocator's cache"
    if _has_times(trials):
        yield INTERVAL
    estimated = sum(cell.estimated for cell in record.cells)
    if estimated:
        counted = f"{estimated} combinations were" if estimated > 1 else "1 combination was"
        yield f"{counted} only estimated, from few layers; what is shown was simulated whole"
    for cell, trial in ((row.cell, row.trial) for row in _asked(record)):
        if trial.step is None:
            yield f"{trial.gpu}: no times, because {_why_untimed(cell, trial)}"
    if _has_goal(record):
        yield from training_columns.missing_prices(prices, [trial.gpu for trial in trials if trial.step])


def _why_untimed(cell: FitCellRecord, trial: Trial) -> str:
    card = hardware.by_slug(trial.gpu)
    if card is None or not card.rates:
        return "its rates are unknown; the order is that of an a100-80gb"
    if cell.cell.offload != NONE and cell.cell.host_link is None:
        return "the rate of its link to the host is unknown: give --host-link 25GB/s"
    return f"the time of this step is withheld: sysbench time --simulate {trial.gpu} says why"


ASKED = DeclaredTable(
    "asked",
    "as asked",
    (
        Field("gpu_memory", "has", "bytes", get=lambda row: row.trial.gpu_bytes, importance=4),
        *_NUMBERS[:2],
        Field("fits", "", get=lambda row: Word(verdict(row.trial), "good" if row.trial.is_safe else "bad")),
        Field("phase", "peak or OOM in", get=lambda row: row.trial.phase, importance=5),
        *_NUMBERS[2:],
    ),
    rows=_asked,
    leading=leading_fields(Field("gpu", "GPU", get=lambda row: row.trial.gpu)),
    notes=_asked_notes,
    needs="a simulated step",
)
"""One row per GPU: the step without changes."""


def _causes(cell: FitCellRecord) -> list[Cause]:
    explained = cell.explained
    if explained is None:
        return []
    least_bytes = MIN_CAUSE_SHARE * explained.allocated_peak_bytes
    shown = [cause for cause in explained.causes[:MAX_CAUSES] if cause.size_bytes >= least_bytes]
    rest = explained.allocated_peak_bytes - sum(cause.size_bytes for cause in shown)
    return [*shown, Cause(name="everything else", size_bytes=rest, shrinks_with="")] if rest >= least_bytes else shown


def _cause_rows(record: FitRecord) -> Iterator[tuple[FitCellRecord, Cause]]:
    return ((cell, cause) for cell in record.cells for cause in _causes(cell))


def _causes_title(record: FitRecord) -> str:
    explained = record.cells[0].explained
    return f"what the peak is for, in {explained.phase}" if explained else "what the peak is for"


def _share(row: tuple[FitCellRecord, Cause]) -> Measure | None:
    cell, cause = row
    return Measure(cause.size_bytes / cell.explained.allocated_peak_bytes) if cell.explained else None


CAUSES = DeclaredTable(
    "causes",
    _causes_title,
    (
        Field("size", unit="bytes", get=lambda row: row[1].size_bytes),
        Field("share", unit="share", get=_share),
        Field("shrinks_with", "shrinks with", get=lambda row: row[1].shrinks_with, importance=1, elastic=True),
    ),
    rows=_cause_rows,
    leading=leading_fields(Field("cause", get=lambda row: row[1].name)),
    needs="a simulated step",
)
"""The largest parts of the peak, without changes."""


def _parts(relearns: bool, record: FitRecord) -> Iterator[Suggestions]:
    for cell in record.cells:
        yield from (part for part in suggestions(cell) if part.relearns == relearns)


def _suggested(part: Suggestions) -> Iterator[_Row]:
    first = 1 + sum(len(each.trials) for each in _earlier(part))
    for number, trial in enumerate(part.trials, first):
        yield _Row(part.cell, trial, number, part.words(trial))


def _earlier(part: Suggestions) -> Iterator[Suggestions]:
    """Yield the suggestions before these: rows are numbered through."""
    names = part.gpu, part.relearns
    return itertools.takewhile(lambda each: (each.gpu, each.relearns) != names, suggestions(part.cell))


def _title(what: str, part: Suggestions) -> str:
    is_faster = part.cell.asked(part.gpu).is_safe
    return f"{what} {'faster' if is_faster else 'fit'} on {part.gpu}, fastest first"


def _part_notes(part: Suggestions) -> Iterator[str]:
    if shared := words(part.shared_changes):
        yield f"all with {shared}"
    if any(not trial.is_safe for trial in part.trials):
        uncertainty = units.size(part.trials[0].uncertainty_bytes)
        yield f"less than {uncertainty} to spare is within the uncertainty of a simulation"
    changed = [part.cell.cell.model_copy(update=trial.changes) for trial in part.trials]
    if modelled := dict.fromkeys(itertools.chain(*map(modelled_parts, changed))):
        yield f"modelled, not traced: {'; '.join(modelled)}"
    if part.relearns:
        yield "these change what a model learns: compare losses before a long training"
    if _has_times(part.trials):
        yield INTERVAL


def _suggestion_table(name: str, title: str, relearns: bool) -> DeclaredTable:
    return DeclaredTable(
        name,
        partial(_title, title),
        _NUMBERS,
        rows=_suggested,
        leading=leading_fields(
            Field("number", "#", get=lambda row: str(row.number)),
            Field("changes", get=lambda row: row.words, wraps=True),
        ),
        parts=partial(_parts, relearns),
        notes=_part_notes,
        needs="a step that does not fit, or --faster",
    )


def _commands(record: FitRecord) -> Iterator[_Row]:
    for relearns in (False, True):
        for part in _parts(relearns, record):
            yield from (row._replace(command=command(record, row.trial)) for row in _suggested(part))


COMMANDS = DeclaredTable(
    "commands",
    "commands that predict these steps; without --simulate, they measure on the GPU itself",
    (Field("command", get=lambda row: row.command),),
    rows=_commands,
    leading=leading_fields(Field("number", "#", get=lambda row: str(row.number))),
    needs="a step that does not fit, or --faster",
)


class _Limits(NamedTuple):
    """The largest values of both axes on a GPU."""

    gpu: str
    gpu_bytes: int
    extents: dict[SearchAxis, Extent]


def _limits(record: FitRecord) -> Iterator[_Limits]:
    for cell in record.cells:
        for gpu in dict.fromkeys(extent.gpu for extent in cell.extents):
            found = {extent.axis: extent for extent in cell.extents if extent.gpu == gpu}
            yield _Limits(gpu, next(iter(found.values())).gpu_bytes, found)


def _limit(row: _Limits, axis: SearchAxis, *, safe: bool = False) -> Cell:
    extent = row.extents.get(axis)
    if extent is None or not (value := extent.safe if safe else extent.largest):
        return None
    return Measure(value, text=f"{value:,}")


def _limit_notes(record: FitRecord) -> Iterator[str]:
    for cell in record.cells:
        others = {"batch": f"ctx {cell.cell.ctx}", "ctx": f"batch {cell.cell.batch}"}
        yield f"batch at {others['batch']}; context at {others['ctx']}, in multiples of {CTX_UNIT}"
        yield f"safe: with more to spare than the uncertainty of a simulation, {units.share(MARGIN_UNCERTAINTY_SHARE)}"
        yield from _refusals(cell)


def _refusals(cell: FitCellRecord) -> Iterator[str]:
    """Yield why GPUs cannot run the step, or not with larger values: one reason for all that have the same limits."""
    refused: dict[tuple[SearchAxis, int], list[Extent]] = {}
    for extent in cell.extents:
        if extent.refusal is not None and (extent.largest or extent.axis == "batch"):
            refused.setdefault((extent.axis, extent.largest), []).append(extent)
    for (axis, value), extents in refused.items():
        above = f", {axis} above {value:,}" if value else ""
        yield f"{', '.join(each.gpu for each in extents)}{above}: {extents[0].refusal}"


LARGEST = DeclaredTable(
    "largest",
    "largest batch and largest context",
    (
        Field("gpu_memory", "has", "bytes", get=lambda row: row.gpu_bytes),
        Field("largest_batch", "batch", "count", get=partial(_limit, axis="batch")),
        Field("safe_batch", "safe batch", "count", get=partial(_limit, axis="batch", safe=True)),
        Field("largest_ctx", "context", "count", get=partial(_limit, axis="ctx")),
        Field("safe_ctx", "safe context", "count", get=partial(_limit, axis="ctx", safe=True)),
    ),
    rows=_limits,
    leading=leading_fields(Field("gpu", "GPU", get=lambda row: row.gpu)),
    notes=_limit_notes,
    needs="--table",
)
"""One row per GPU, with `--table`."""


class _Comparison(NamedTuple):
    """The step as asked, and the first suggestion for the same GPU."""

    cell: FitCellRecord
    asked: Trial
    first: Trial
    recomputed_flops: int


def _comparisons(record: FitRecord) -> Iterator[_Comparison]:
    for cell in record.cells:
        for before, after in zip(cell.memory[::2], cell.memory[1::2], strict=False):
            asked, first = (
                next(trial for trial in cell.trials if trial.gpu == each.gpu and trial.changes == each.changes)
                for each in (before, after)
            )
            yield _Comparison(cell, asked, first, after.recomputed_flops - before.recomputed_flops)


def _categories(part: _Comparison) -> Iterator[tuple[str, int, int]]:
    """Yield each category with its bytes at the peak, before and after, the largest difference first."""
    before, after = part.asked.by_category, part.first.by_category
    rows = [(name, before.get(name, 0), after.get(name, 0)) for name in dict.fromkeys((*before, *after))]
    yield from sorted(rows, key=lambda row: row[2] - row[1])
    yield "peak", part.asked.allocated_peak_bytes, part.first.allocated_peak_bytes


def _comparison_notes(part: _Comparison) -> Iterator[str]:
    asked, first = part.asked, part.first
    # With less memory than it needs, the phase of the step as asked is the one in which memory runs out.
    phase = part.cell.explained.phase if part.cell.explained else asked.phase
    where = f"in {phase}" if phase == first.phase else f"in {phase} before, in {first.phase} after"
    yield f"after: with {words(first.changes)}; peak {where}"
    if part.recomputed_flops > 0:
        share = _share_of_step(part)
        yield f"{units.flops(part.recomputed_flops)} more, which backward computes again{share}"
    else:
        yield "backward computes nothing again"
    if asked.step and first.step:
        change = units.share(abs(first.step.point_s / asked.step.point_s - 1))
        which = "slower" if first.step.point_s > asked.step.point_s else "faster"
        before, after = units.seconds(asked.step.point_s), units.seconds(first.step.point_s)
        yield f"predicted step: {before} before, {after} after, {change} {which}"


def _share_of_step(part: _Comparison) -> str:
    """Return the share of recomputed FLOPs in those of the step, if they are known: backward takes twice forward."""
    forward_flops = part.cell.model.forward_flops
    if not forward_flops:
        return ""
    return f": {units.share(part.recomputed_flops / (3 * forward_flops * part.cell.cell.grad_accum))} of the step's"


EXPLAINED = DeclaredTable(
    "explained",
    lambda part: f"memory at the peak, before and after the first suggestion, on {part.first.gpu}",
    (
        Field("before", unit="bytes", get=lambda row: row[1]),
        Field("after", unit="bytes", get=lambda row: row[2]),
        Field("difference", unit="bytes", get=lambda row: row[2] - row[1], signed=True),
    ),
    rows=_categories,
    leading=leading_fields(Field("category", get=lambda row: row[0])),
    parts=_comparisons,
    notes=_comparison_notes,
    needs="--explain and a suggestion",
)
"""One row per category, with `--explain`."""


class _Verification(NamedTuple):
    """A measured step, and the same step as simulated."""

    verified: VerifiedStep
    trial: Trial


def _verifications(record: FitRecord) -> Iterator[_Verification]:
    for cell in record.cells:
        for each in cell.verified:
            same = (trial for trial in cell.trials if trial.gpu == each.gpu and trial.changes == each.changes)
            yield _Verification(each, next(same))


def _measured_step(row: _Verification) -> Cell:
    steps_s = row.verified.steps_s
    return Measure(statistics.median(steps_s), low=min(steps_s), high=max(steps_s)) if steps_s else None


def _ratio(measured: float | None, predicted: float | None) -> Cell:
    return Measure(measured / predicted) if measured and predicted else None


def _verification_notes(record: FitRecord) -> Iterator[str]:
    yield "measured step: median of the steps (lowest to highest); ratio: measured / predicted"
    for row in _verifications(record):
        if row.verified.failure is not None:
            yield f"{row.verified.gpu}: not measured: {row.verified.failure}"


VERIFIED = DeclaredTable(
    "verified",
    "the first suggestion, predicted and measured",
    (
        Field("step_predicted", "step predicted", "s", get=_step),
        Field("step_measured", "measured", "s", get=_measured_step),
        Field(
            "step_ratio",
            "ratio",
            "ratio",
            get=lambda row: _ratio(
                statistics.median(row.verified.steps_s) if row.verified.steps_s else None,
                row.trial.step.point_s if row.trial.step else None,
            ),
        ),
        Field("peak_simulated", "peak simulated", "bytes", get=lambda row: row.trial.allocated_peak_bytes),
        Field("peak_measured", "measured", "bytes", get=lambda row: row.verified.allocated_peak_bytes),
        Field(
            "peak_ratio",
            "ratio",
            "ratio",
            get=lambda row: _ratio(row.verified.allocated_peak_bytes, row.trial.allocated_peak_bytes),
        ),
    ),
    rows=_verifications,
    leading=leading_fields(
        Field("gpu", "GPU", get=lambda row: row.verified.gpu),
        Field("changes", get=lambda row: words(row.verified.changes) or "as asked"),
    ),
    notes=_verification_notes,
    needs="--verify",
)
"""One row per GPU that is here, with `--verify`."""


def _simulated(record: FitRecord) -> Iterator[_Row]:
    for cell in record.cells:
        yield from (_Row(cell, trial, words=words(trial.changes) or "as asked") for trial in cell.trials)


CELLS = DeclaredTable(
    "cells",
    "all simulated combinations",
    (
        Field("gpu_memory", "has", "bytes", get=lambda row: row.trial.gpu_bytes, importance=4),
        *_NUMBERS[:2],
        Field("fits", get=lambda row: verdict(row.trial)),
        Field("phase", "peak or OOM in", get=lambda row: row.trial.phase, importance=5),
        Field("allocated_peak", "allocated", "bytes", get=lambda row: row.trial.allocated_peak_bytes, importance=5),
        *_NUMBERS[2:],
        Field("learning", get=lambda row: "altered" if row.trial.relearns else "same", importance=4),
    ),
    rows=_simulated,
    leading=leading_fields(
        Field("gpu", "GPU", get=lambda row: row.trial.gpu), Field("changes", get=lambda row: row.words, wraps=True)
    ),
    needs="a run without --table (its limits are in the table largest)",
)
"""One row per simulated combination, whether it fits or not."""

TABLES: dict[str, Callable[[FitRecord], list[Table]]] = {
    "asked": ASKED,
    "causes": CAUSES,
    "changes": _suggestion_table("changes", "changes that make it", False),
    "learning": _suggestion_table("learning", "changes that alter what is learned, and make it", True),
    "commands": COMMANDS,
    "explained": EXPLAINED,
    "verified": VERIFIED,
    "largest": LARGEST,
    "cells": CELLS,
}
"""Builders of all tables, in the order in which they are shown."""


def default_tables(spec: FitSpec) -> tuple[str, ...]:
    """Return the tables of the question; those with changes are shown only where there are any."""
    return tuple(name for name in TABLES if (name == LARGEST.name) == spec.table and name != CELLS.name)

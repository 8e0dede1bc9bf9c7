"""Tables of `sysbench fit`: the step as asked, what its memory is for, and changes that make it fit."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.fit.findings import of_run, verdict
from sysbench.commands.fit.record import Cause, CauseKind, Extent, FitCellRecord, FitRecord, Trial, VerifiedStep
from sysbench.commands.fit.spec import CTX_UNIT, FitSpec
from sysbench.commands.fit.suggestions import Suggestions, best_trial, command, suggestions, words
from sysbench.log.cautions import MARGIN_UNCERTAINTY_SHARE
from sysbench.log.predictions import INTERVAL, Training
from sysbench.render import training_columns
from sysbench.render.declared import DeclaredTable, Field, build_tables, leading_fields
from sysbench.render.sentences import notes
from sysbench.render.sentences.cautions import cautions_of
from sysbench.render.table import Cell, Measure, Remark, Sheet, Word
from sysbench.spec import hardware
from sysbench.spec.knobs import NONE
from sysbench.spec.problems import modelled_parts
from sysbench.spec.run import Selection
from sysbench.spec.steps import SearchAxis
from sysbench.spec.validation import STORED

MAX_CAUSES = 6
"""Number of causes that are listed by name."""

MIN_CAUSE_SHARE = 0.005
"""Share of the peak below which a cause is not listed."""

MILLION = 1_000_000


def sheet(record: FitRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    chosen = tuple(names)
    usual = default_tables(FitSpec.model_validate(record.spec, context=STORED))
    return Sheet(
        subject=(*axes.subject(record.cells), *record.environment.software),
        tables=tuple(
            build_tables(TABLES, record, chosen)
            if chosen
            else [table for name in usual for table in TABLES[name](record)]
        ),
        remarks=(
            *(Remark("finding", statement.text) for statement in of_run(record)),
            *notes.outcomes(record),
            *cautions_of(record),
            *notes.own_models(record),
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
    return row.cell.training(row.trial, row.cell.training_tokens) if row.cell.training_tokens else None


def _cost_of_million(row: _Row) -> Cell:
    training = row.cell.training(row.trial, MILLION)
    return (
        Measure(training.cost.point, text=units.with_digits(training.cost.point))
        if training and training.cost
        else None
    )


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
    Field("million_tokens", "per million tokens", "number", get=_cost_of_million, optional=True, importance=4),
    *training_columns.fields(_training),
)


def _asked(record: FitRecord) -> Iterator[_Row]:
    for cell in record.cells:
        yield from (_Row(cell, cell.asked(gpu)) for gpu in cell.gpus)


def _asked_notes(record: FitRecord) -> Iterator[str]:
    yield "memory: what a GPU must have, with CUDA's context and the allocator's cache"
    rows = list(_asked(record))
    if any(row.trial.step for row in rows):
        yield INTERVAL
    for row in rows:
        if row.trial.step is None:
            yield f"{row.trial.gpu}: no times, because {_why_untimed(row.cell, row.trial)}"
    timed = [row for row in rows if row.trial.step and row.cell.training_tokens]
    yield from training_columns.missing_prices(record.cells[0].price_per_hour, [row.trial.gpu for row in timed])


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


_CAUSES: dict[CauseKind, tuple[str, str]] = {
    "parameters": ("weights", "sharding over ranks"),
    "gradients": ("gradients", "sharding over ranks"),
    "optimizer state": ("optimizer state", "another optimizer, offloading, sharding over ranks"),
    "workspace": ("workspaces of cuBLAS", "nothing"),
    "communication": ("buffers of collectives", "smaller buckets or blocks"),
    "attention scores": ("attention scores", "fused attention, micro-batches, checkpointing"),
    "softmax": ("softmax", "fused attention, micro-batches, checkpointing"),
    "logits": ("logits and their gradients", "chunked cross-entropy, micro-batches"),
    "activations": ("activations", "checkpointing, micro-batches"),
    "rest": ("everything else", ""),
}
"""By kind of a cause: its name, and what makes it smaller."""


def _cause_name(cause: Cause) -> str:
    name, module = _CAUSES[cause.kind][0], cause.module
    if cause.kind in ("activations", "softmax"):
        return f"{name} of {module or 'the step'}"
    return name


def largest_causes(cell: FitCellRecord, count: int) -> list[str]:
    """Return the largest causes of the peak as asked, each with its size: `weights 5.36 GiB`."""
    causes = cell.explained.causes if cell.explained else []
    return [f"{_cause_name(cause)} {units.size(cause.size_bytes)}" for cause in causes[:count]]


class _Share(NamedTuple):
    cause: Cause
    of_bytes: int


def _causes(record: FitRecord) -> Iterator[_Share]:
    for explained in filter(None, (cell.explained for cell in record.cells)):
        peak_bytes = explained.allocated_peak_bytes
        least_bytes = MIN_CAUSE_SHARE * peak_bytes
        shown = [cause for cause in explained.causes[:MAX_CAUSES] if cause.size_bytes >= least_bytes]
        yield from (_Share(cause, peak_bytes) for cause in shown)
        rest = peak_bytes - sum(cause.size_bytes for cause in shown)
        if rest >= least_bytes:
            yield _Share(Cause(kind="rest", size_bytes=rest), peak_bytes)


def _causes_title(record: FitRecord) -> str:
    explained = record.cells[0].explained
    return f"what the peak is for, in {explained.phase}" if explained else "what the peak is for"


CAUSES = DeclaredTable(
    "causes",
    _causes_title,
    (
        Field("size", unit="bytes", get=lambda row: row.cause.size_bytes),
        Field("share", unit="share", get=lambda row: row.cause.size_bytes / row.of_bytes),
        Field("shrinks_with", "shrinks with", get=lambda row: _CAUSES[row.cause.kind][1], importance=1, wraps=True),
    ),
    rows=_causes,
    leading=leading_fields(Field("cause", get=lambda row: _cause_name(row.cause))),
    needs="a simulated step",
)
"""The largest parts of the peak, without changes."""


def _parts(relearns: bool, record: FitRecord) -> Iterator[Suggestions]:
    for cell in record.cells:
        yield from (part for part in suggestions(cell) if part.relearns == relearns)


def _suggested(part: Suggestions) -> Iterator[_Row]:
    names = part.gpu, part.relearns
    earlier = itertools.takewhile(lambda each: (each.gpu, each.relearns) != names, suggestions(part.cell))
    for number, trial in enumerate(part.trials, 1 + sum(len(each.trials) for each in earlier)):
        yield _Row(part.cell, trial, number, words(trial.changes))


def _title(what: str, part: Suggestions) -> str:
    is_faster = part.cell.asked(part.gpu).is_safe
    return f"{what} {'faster' if is_faster else 'fit'} on {part.gpu}, fastest first"


def _part_notes(part: Suggestions) -> Iterator[str]:
    if any(not trial.is_safe for trial in part.trials):
        uncertainty = units.size(part.trials[0].uncertainty_bytes)
        yield f"less than {uncertainty} to spare is within the uncertainty of a simulation"
    changed = [part.cell.cell.model_copy(update=trial.changes) for trial in part.trials]
    if modelled := dict.fromkeys(itertools.chain(*map(modelled_parts, changed))):
        yield f"modelled, not traced: {'; '.join(modelled)}"
    if part.relearns:
        yield "these change what a model learns: compare losses before a long training"
        yield "each row: the fastest with its change of learning, and as few changes that cost time as the GPU needs"
    elif len(part.trials) > 1:
        yield "each row: the fastest combination that needs less memory than the row above, by 5% of the GPU's"
    if compile_s := max((trial.compile_s or 0 for trial in part.trials), default=0):
        yield (
            f"compiled: by torch's own compiler, which took {units.duration(compile_s)} of processor time here; on the "
            "GPU, the first step takes as long, and compiles the kernels besides"
        )
    if any(trial.step for trial in part.trials):
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
    gpu: str
    gpu_bytes: int
    extents: dict[SearchAxis, Extent]


def _limits(record: FitRecord) -> Iterator[_Limits]:
    for cell in record.cells:
        for gpu in dict.fromkeys(extent.gpu for extent in cell.extents):
            found = {extent.axis: extent for extent in cell.extents if extent.gpu == gpu}
            yield _Limits(gpu, next(iter(found.values())).gpu_bytes, found)


def _limit(row: _Limits, axis: SearchAxis, end: str) -> Cell:
    extent = row.extents.get(axis)
    value = getattr(extent, end) if extent else 0
    return Measure(value, text=f"{value:,}") if value else None


def _limit_notes(record: FitRecord) -> Iterator[str]:
    for cell in record.cells:
        yield f"batch at ctx {cell.cell.ctx}; context at batch {cell.cell.batch}, in multiples of {CTX_UNIT}"
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
        yield f"{', '.join(extent.gpu for extent in extents)}{above}: {extents[0].refusal}"


LARGEST = DeclaredTable(
    "largest",
    "largest batch and largest context",
    (
        Field("gpu_memory", "has", "bytes", get=lambda row: row.gpu_bytes),
        Field("largest_batch", "batch", "count", get=partial(_limit, axis="batch", end="largest")),
        Field("safe_batch", "safe batch", "count", get=partial(_limit, axis="batch", end="safe")),
        Field("largest_ctx", "context", "count", get=partial(_limit, axis="ctx", end="largest")),
        Field("safe_ctx", "safe context", "count", get=partial(_limit, axis="ctx", end="safe")),
    ),
    rows=_limits,
    leading=leading_fields(Field("gpu", "GPU", get=lambda row: row.gpu)),
    notes=_limit_notes,
    needs="--table",
)
"""One row per GPU, with `--table`."""


class _Comparison(NamedTuple):
    cell: FitCellRecord
    asked: Trial
    first: Trial


def _comparisons(record: FitRecord) -> Iterator[_Comparison]:
    for cell in record.cells:
        for gpu in cell.gpus:
            if (first := best_trial(cell.trials, gpu, faster=cell.cell.faster)) is not None:
                yield _Comparison(cell, cell.asked(gpu), first)


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
    recomputed_flops, forward_flops = first.recomputed_flops - asked.recomputed_flops, part.cell.model.forward_flops
    if recomputed_flops > 0:
        step_flops = 3 * (forward_flops or 0) * part.cell.cell.grad_accum  # backward takes twice forward
        share = f": {units.share(recomputed_flops / step_flops)} of the step's" if step_flops else ""
        yield f"{units.flops(recomputed_flops)} more, which backward computes again{share}"
    else:
        yield "backward computes nothing again"
    if asked.step and first.step:
        before_s, after_s = asked.step.point_s, first.step.point_s
        change = f"{units.share(abs(after_s / before_s - 1))} {'slower' if after_s > before_s else 'faster'}"
        yield f"predicted step: {units.seconds(before_s)} before, {units.seconds(after_s)} after, {change}"


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
    needs="a suggestion",
)
"""One row per category, with `--explain`."""


class _Verification(NamedTuple):
    verified: VerifiedStep
    trial: Trial

    @property
    def measured_s(self) -> float | None:
        return statistics.median(self.verified.steps_s) if self.verified.steps_s else None


def _verifications(record: FitRecord) -> Iterator[_Verification]:
    for cell in record.cells:
        for step in cell.verified:
            same = (trial for trial in cell.trials if trial.gpu == step.gpu and trial.changes == step.changes)
            yield _Verification(step, next(same))


def _measured_step(row: _Verification) -> Cell:
    steps_s = row.verified.steps_s
    return Measure(statistics.median(steps_s), low=min(steps_s), high=max(steps_s)) if steps_s else None


def _ratio(measured: float | None, predicted: float | None) -> Cell:
    return Measure(measured / predicted) if measured and predicted else None


def _step_ratio(row: _Verification) -> Cell:
    return _ratio(row.measured_s, row.trial.step.point_s if row.trial.step else None)


def _peak_ratio(row: _Verification) -> Cell:
    return _ratio(row.verified.allocated_peak_bytes, row.trial.allocated_peak_bytes)


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
        Field("step_ratio", "ratio", "ratio", get=_step_ratio),
        Field("peak_simulated", "peak simulated", "bytes", get=lambda row: row.trial.allocated_peak_bytes),
        Field("peak_measured", "measured", "bytes", get=lambda row: row.verified.allocated_peak_bytes),
        Field("peak_ratio", "ratio", "ratio", get=_peak_ratio),
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

TABLES: dict[str, DeclaredTable] = {
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
    if spec.table:
        return (LARGEST.name,)
    beside = (LARGEST.name, CELLS.name, *(() if spec.explain else (EXPLAINED.name,)))
    return tuple(name for name in TABLES if name not in beside)

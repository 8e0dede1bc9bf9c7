"""Suggestions: the combinations that are worth showing, in words and as commands."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from sysbench import cells as axes
from sysbench.commands.fit.record import FitCellRecord, Trial
from sysbench.commands.fit.spec import MAX_PLAIN_ROWS, MAX_ROWS, FitSpec, next_limit_bytes
from sysbench.log.records import RunRecord
from sysbench.spec.axis import axes_of_model
from sysbench.spec.cell import spec_of
from sysbench.spec.command_options import command_line
from sysbench.spec.knobs import NONE
from sysbench.spec.model import ModelSpec
from sysbench.spec.validation import STORED


@dataclass(frozen=True)
class Suggestions:
    """The suggestions for a GPU, the fastest first; either all or none change what the model learns."""

    cell: FitCellRecord
    gpu: str
    relearns: bool
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        return self.trials[0]


def suggestions(cell: FitCellRecord) -> Iterator[Suggestions]:
    for relearns, gpu, shown in worth_showing(cell.trials, cell.gpus, faster=cell.cell.faster):
        yield Suggestions(cell, gpu, relearns, tuple(shown))


def worth_showing(
    trials: Sequence[Trial], gpus: Iterable[str], *, faster: bool
) -> Iterator[tuple[bool, str, list[Trial]]]:
    """Yield (whether it changes what is learned, GPU, the trials to show), without empty lists."""
    rows = {gpu: _rows([trial for trial in trials if trial.gpu == gpu], faster=faster) for gpu in gpus}
    for relearns, gpu in itertools.product((False, True), rows):
        if shown := rows[gpu][relearns]:
            yield relearns, gpu, shown


def _rows(trials: Sequence[Trial], *, faster: bool) -> tuple[list[Trial], list[Trial]]:
    """Return what to show of the trials on a GPU, the fastest first: without changes of learning, and with them.

    Where the step fits as asked, only `faster` ones are worth it. Each row without such changes is the fastest that
    needs less memory than the one before (`next_limit_bytes`). With them, it is the fastest one with each change.
    """
    asked = next((trial for trial in trials if not trial.changes), None)
    if asked is None or (asked.is_safe and not faster):
        return [], []
    in_order = sorted(trials, key=lambda each: (each.ranks, each.relative_s, len(each.changes), each.needed_bytes))
    fitting = [each for each in in_order if each.fits and (not asked.is_safe or each.relative_s < asked.relative_s)]
    plain: list[Trial] = []
    left = _safe_if_any(trial for trial in fitting if trial.changes and not trial.relearns)
    while left and len(plain) < MAX_PLAIN_ROWS:
        plain.append(left[0])
        limit_bytes = next_limit_bytes(asked.gpu_bytes, left[0].needed_bytes)
        left = [trial for trial in left if trial.needed_bytes <= limit_bytes]
    relearned: dict[object, Trial] = {}
    for trial in _safe_if_any(trial for trial in fitting if trial.relearns):
        if not plain or trial.ranks < plain[0].ranks or trial.relative_s < plain[0].relative_s:
            relearned.setdefault(_learning_changes(trial), trial)
    return plain, list(relearned.values())[: MAX_ROWS - len(plain)]


def _safe_if_any(trials: Iterable[Trial]) -> list[Trial]:
    found = list(trials)
    return [trial for trial in found if trial.is_safe] or found


def best_trial(trials: Sequence[Trial], gpu: str, *, faster: bool) -> Trial | None:
    return next((shown[0] for _, _, shown in worth_showing(trials, [gpu], faster=faster)), None)


def _learning_changes(trial: Trial) -> tuple[tuple[str, object], ...]:
    return tuple(item for item in sorted(trial.changes.items()) if item[1] in _relearning_values().get(item[0], ()))


@cache
def _relearning_values() -> dict[str, tuple[object, ...]]:
    declared = axes_of_model(ModelSpec).items()
    return {name: axis.remedy.relearns for name, axis in declared if axis.remedy is not None}


def words(changes: Mapping[str, object]) -> str:
    """Return changes as words: `sdpa attention, batch 2 × 4`; empty if there are none."""
    left = dict(changes)
    found = []
    if (ranks := left.pop("ranks", None)) is not None:
        strategy = left.pop("strategy", None)
        found.append(f"{ranks} GPUs{f' with {strategy}' if strategy else ''}")
    batch, accumulated = left.pop("batch", None), left.pop("grad_accum", None)
    if batch is not None:
        found.append(f"batch {batch} × {accumulated}" if accumulated else f"batch {batch}")
    elif accumulated is not None:
        found.append(f"grad accum {accumulated}")
    return ", ".join([*(axes.phrase(name, value) for name, value in left.items()), *found])


def command(record: RunRecord[FitCellRecord], trial: Trial) -> str:
    """Return the command that predicts a step on its GPU, or its memory if the GPU's rates are unknown."""
    asked = FitSpec.model_validate(record.spec, context=STORED)
    cell = record.cells[0].cell
    given = {name: getattr(asked, name) for name in ModelSpec.model_fields if name in asked.model_fields_set}
    exact = {"ctx": cell.ctx, "batch": cell.batch, "grad_accum": cell.grad_accum, **trial.changes}
    fields = {**given, **{name: (value,) for name, value in exact.items()}, "simulate": (trial.gpu,)}
    fields.pop("kind", None)
    shown = () if asked.model else asked.model_fields_set & {"size"}
    if trial.step is None:
        return command_line(spec_of({"kind": "memory", **fields, "mode": ("train",)}), shown)
    if asked.host_link and cell.model_copy(update=trial.changes).offload != NONE:
        fields["host_link"] = asked.host_link
    return command_line(spec_of({"kind": "time", **fields}), shown)


def nearest_miss(trials: Sequence[Trial], gpu: str) -> Trial | None:
    return max((trial for trial in trials if trial.gpu == gpu), key=lambda trial: trial.margin_bytes, default=None)

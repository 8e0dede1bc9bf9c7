"""Suggestions: the combinations that are worth showing, in words and as commands."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from sysbench import cells as axes
from sysbench.commands.fit.record import FitCellRecord, Trial
from sysbench.commands.fit.spec import FitSpec
from sysbench.log.records import RunRecord
from sysbench.spec.axis import axes_of_model
from sysbench.spec.cell import spec_of
from sysbench.spec.command_options import command_line
from sysbench.spec.knobs import NONE
from sysbench.spec.model import ModelSpec
from sysbench.spec.validation import STORED

MAX_SUGGESTIONS = 10
"""Largest number of suggestions for one GPU and of one kind."""


@dataclass(frozen=True)
class Suggestions:
    """The suggestions for a GPU, the fastest first; either all or none change what the model learns."""

    cell: FitCellRecord
    gpu: str
    relearns: bool
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The first suggestion with a margin beyond the uncertainty; if there is none, the first suggestion."""
        return _safest(self.trials)


def suggestions(cell: FitCellRecord) -> Iterator[Suggestions]:
    for relearns, gpu, shown in worth_showing(cell.trials, cell.gpus, faster=cell.cell.faster):
        yield Suggestions(cell, gpu, relearns, tuple(shown))


def worth_showing(
    trials: Sequence[Trial], gpus: Iterable[str], *, faster: bool
) -> Iterator[tuple[bool, str, list[Trial]]]:
    """Yield (whether it changes what is learned, GPU, the trials to show), without empty lists."""
    for relearns, gpu in itertools.product((False, True), gpus):
        on_gpu = [trial for trial in trials if trial.gpu == gpu]
        if on_gpu and (shown := _unbeaten(on_gpu, relearns=relearns, faster=faster)):
            yield relearns, gpu, shown


def _unbeaten(trials: Sequence[Trial], *, relearns: bool, faster: bool) -> list[Trial]:
    """Return those of a GPU's trials that no other one beats, the fastest first; with or without changes of learning.

    Where the step fits as asked, only `faster` ones are worth it.
    """
    asked = next(trial for trial in trials if not trial.changes)
    if asked.is_safe and not faster:
        return []
    rivals = [trial for trial in trials if trial.fits and (relearns or not trial.relearns)]
    shown = [
        trial
        for trial in rivals
        if trial.changes
        and trial.relearns == relearns
        and not any(is_better(other, trial) and _learns_alike(other, trial) for other in rivals)
        and (not asked.is_safe or trial.relative_s < asked.relative_s)
    ]
    return sorted(shown, key=lambda trial: (trial.ranks, trial.relative_s, trial.needed_bytes, repr(trial.changes)))[
        :MAX_SUGGESTIONS
    ]


def best_trial(trials: Sequence[Trial], gpu: str, *, faster: bool) -> Trial | None:
    return next((_safest(shown) for _, _, shown in worth_showing(trials, [gpu], faster=faster)), None)


def _safest(trials: Sequence[Trial]) -> Trial:
    return next((trial for trial in trials if trial.is_safe), trials[0])


def _learns_alike(other: Trial, trial: Trial) -> bool:
    """Return whether `other` changes nothing that the model learns, or the same as `trial`: LoRA replaces no bf16."""
    return _learning_changes(other) in ({}, _learning_changes(trial))


def _learning_changes(trial: Trial) -> dict[str, object]:
    return {name: value for name, value in trial.changes.items() if value in _relearning_values().get(name, ())}


@cache
def _relearning_values() -> dict[str, tuple[object, ...]]:
    declared = axes_of_model(ModelSpec).items()
    return {name: axis.remedy.relearns for name, axis in declared if axis.remedy is not None}


def is_better(one: Trial, other: Trial) -> bool:
    """Return whether a step takes less memory or time than another, and not more of anything, ranks included."""
    ours, theirs = ((trial.needed_bytes, trial.relative_s, trial.ranks, len(trial.changes)) for trial in (one, other))
    return (
        ours != theirs
        and all(mine <= its for mine, its in zip(ours[:3], theirs[:3], strict=True))
        and (ours[:3] != theirs[:3] or ours[3] < theirs[3])
    )


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
    if trial.step is None:
        return command_line(spec_of({"kind": "memory", **fields, "mode": ("train",)}))
    if asked.host_link and cell.model_copy(update=trial.changes).offload != NONE:
        fields["host_link"] = asked.host_link
    return command_line(spec_of({"kind": "time", **fields}))


def nearest_miss(trials: Sequence[Trial], gpu: str) -> Trial | None:
    return max((trial for trial in trials if trial.gpu == gpu), key=lambda trial: trial.margin_bytes, default=None)

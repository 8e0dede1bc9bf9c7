"""Changes of a step that `sysbench fit` tries; they follow from the axes that are marked as remedies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sysbench.commands.fit.spec import FitCell
from sysbench.predict.rates import LINK_RATES
from sysbench.spec import hardware
from sysbench.spec.axis import Axis, axes_of_model, value_if_not_stored
from sysbench.spec.knobs import NONE
from sysbench.spec.model import ModelSpec


@dataclass(frozen=True)
class Change:
    """Other values for some fields of a step; a combination has at most one change of each group.

    milder      the next milder change of the group, if a change that is stronger than needed only costs time
    relearns    whether it changes what the model learns
    costs_time, frees_state, replays  see `sysbench.spec.axis.Remedy`
    """

    group: str
    fields: tuple[tuple[str, object], ...]
    milder: Change | None = None
    relearns: bool = False
    costs_time: bool = False
    frees_state: bool = False
    replays: bool = False


Combination = tuple[Change, ...]
"""Changes of different groups, in the order of `changes_of`; empty for the step as asked."""


def changed(question: FitCell, combination: Combination) -> FitCell:
    return question.model_copy(update=dict(itertools.chain(*(change.fields for change in combination))))


def changes_of(question: FitCell) -> list[Change]:
    """Return all changes that may be tried: those of axes, of micro-batches, and of the number of ranks."""
    changes = [change for name, axis in axes_of_model(ModelSpec).items() for change in _of_axis(question, name, axis)]
    if "batch" not in question.keep:
        changes += _of_batch(question)
    if "ranks" not in question.keep and question.ranks == 1:
        changes += _of_ranks(question)
    return [change for change in changes if _is_possible(question, change)]


def compiling(question: FitCell) -> Change | None:
    """Return the change to a compiled step, if it is to be tried and possible."""
    change = Change("execution", (("execution", "compiled"),))
    return change if question.try_compile and _is_possible(question, change) else None


def _of_axis(question: FitCell, name: str, axis: Axis) -> Iterator[Change]:
    remedy = axis.remedy
    if remedy is None or name.replace("_", "-") in question.keep or (remedy.built_in_only and question.own):
        return
    if any(not _is_turned(question, other) for other, _ in axis.applies_to):
        return
    value = question.axis_value(name)

    def others(values: tuple[object, ...]) -> Iterator[object]:
        return (each for each in values if each != value and f"{name}={each}" not in question.not_tried)

    change = Change(name, (), costs_time=remedy.costs_time, frees_state=remedy.frees_state, replays=remedy.replays)
    if not _is_turned(question, name):
        yield from (replace(change, fields=((name, each),)) for each in others(remedy.values))
    yield from (replace(change, fields=((name, each),), relearns=True) for each in others(remedy.relearns))


def _is_turned(question: FitCell, name: str) -> bool:
    return bool(question.axis_value(name) != value_if_not_stored(ModelSpec.model_fields[name]))


def _of_batch(question: FitCell) -> Iterator[Change]:
    """Yield smaller micro-batches, with as many more of them: the sequences of a step stay the same."""
    milder: Change | None = None
    for parts in (1 << power for power in range(1, question.batch.bit_length())):
        if question.batch % parts == 0:
            fields = (("batch", question.batch // parts), ("grad_accum", question.grad_accum * parts))
            milder = Change("batch", fields, milder, costs_time=True)
            yield milder


def _of_ranks(question: FitCell) -> Iterator[Change]:
    """Yield more ranks that share the model, with as many fewer sequences on each."""
    milder: Change | None = None
    for ranks in (1 << power for power in range(1, question.max_ranks.bit_length())):
        for name in ("grad_accum", "batch"):
            value: int = getattr(question, name)
            if ranks <= question.max_ranks and value % ranks == 0:
                fields = (("ranks", ranks), ("strategy", "fsdp2"), (name, value // ranks))
                milder = Change("ranks", fields, milder, frees_state=True)
                yield milder
                break


def _is_possible(question: FitCell, change: Change) -> bool:
    cell = changed(question, (change,))
    # A step whose time is withheld cannot be ranked, and offloading has a time only at a known rate of the link.
    has_link = question.host_link is not None or all(map(_has_link, question.on))
    is_predicted = has_link or cell.offload in (NONE, question.offload)
    return is_predicted and cell.problem("cuda") is None and cell.unavailable("cuda") is None


def _has_link(gpu: str) -> bool:
    return set(LINK_RATES) <= set(hardware.by_name(gpu).rates)

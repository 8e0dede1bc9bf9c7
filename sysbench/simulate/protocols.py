"""What "the memory of a step" means, in four ways: which phases run, how often before, and what is alive meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sysbench.commands.memory.spec import PROCEDURES, Protocol
from sysbench.lab.step import TrainingStep
from sysbench.spec.model import ModelCell, Phase

__all__ = ["PROCEDURES", "Protocol", "cell_for", "phases_of"]


def cell_for(cell: ModelCell, protocol: Protocol) -> ModelCell:
    """The cell whose training step the protocol takes its phases from."""
    return cell.model_copy(update={"mode": PROCEDURES[protocol].mode})


def phases_of(step: TrainingStep, protocol: Protocol) -> Iterator[tuple[int, Phase, Callable[[], None]]]:
    """The phases to be run, in order, each with the number of its step; the last step is the one that counts.

    Whatever the step before has put out is let go of before the first phase of the next one is given: peaks that are
    reset then are without it.
    """
    procedure = PROCEDURES[protocol]
    for number in range(procedure.earlier_steps + 1):
        step.forget()
        implementations = step.phases
        for phase in procedure.phases:
            yield number, phase, implementations[phase]

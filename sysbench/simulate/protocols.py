"""What "the memory of a step" means, in four ways: which phases run, how often before, and what is alive meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sysbench.specs.model import Mode, ModelCell, Phase
from sysbench.workload.step import TrainingStep

Protocol = Literal["inference", "forward", "train-first", "train"]
"""inference    no graph, nothing but the logits is kept
forward      the graph is kept, logits and loss are alive
train-first  the first step: the optimizer's state appears
train        a later step: the state is there, gradients are cleared before forward
"""


@dataclass(frozen=True)
class Procedure:
    """How a protocol is carried out: with a step of `mode`, its `phases`, after `earlier_steps` of the same."""

    mode: Mode
    phases: tuple[Phase, ...]
    earlier_steps: int


PROCEDURES: Mapping[Protocol, Procedure] = {
    "inference": Procedure("inference", ("forward",), 1),
    "forward": Procedure("forward-backward", ("forward", "loss"), 1),
    "train-first": Procedure("train", ("zero_grad", "forward", "loss", "backward", "optimizer"), 0),
    "train": Procedure("train", ("zero_grad", "forward", "loss", "backward", "optimizer"), 1),
}


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

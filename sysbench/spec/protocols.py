"""Protocols of memory: which phases of a step run, and after which steps; axes along which a limit is searched for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sysbench.spec.model import Mode, Phase

Protocol = Literal["inference", "forward", "forward-backward", "train-first", "train"]
"""inference         no graph; only the logits are kept
forward           the graph, the logits and the loss are kept
forward-backward  also gradients, which are cleared before forward; no optimizer
train-first       the first step, in which the optimizer allocates its state
train             a later step: the optimizer's state exists, gradients are cleared before forward
"""

SearchAxis = Literal["batch", "ctx", "ranks"]


@dataclass(frozen=True)
class Procedure:
    """How to run a protocol: mode of the steps, phases of the measured step, and number of earlier steps."""

    mode: Mode
    phases: tuple[Phase, ...]
    earlier_steps: int


PROCEDURES: Mapping[Protocol, Procedure] = {
    "inference": Procedure("inference", ("forward",), 1),
    "forward": Procedure("forward-backward", ("forward", "loss"), 1),
    "forward-backward": Procedure("forward-backward", ("zero_grad", "forward", "loss", "backward"), 1),
    "train-first": Procedure("train", ("zero_grad", "forward", "loss", "backward", "optimizer"), 0),
    "train": Procedure("train", ("zero_grad", "forward", "loss", "backward", "optimizer"), 1),
}

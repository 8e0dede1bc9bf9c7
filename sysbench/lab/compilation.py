"""Observes torch.compile: what it did for a cell, the events that report it, and a compiler without earlier state."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from sysbench.lab.step import TrainingStep
from sysbench.lab.transformer import Transformer
from sysbench.log.events import Compiled, ModelBuilt, Stage, StageEntered


@dataclass(frozen=True)
class Compilation:
    """Dynamo's counters since the last reset."""

    graphs: int
    graph_breaks: int
    fell_back: bool
    """At least one frame runs eagerly because Dynamo gave up on it, for example at the recompile limit."""
    detail: str | None
    """The reason, in Dynamo's words."""


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Compile everything anew inside this context, and discard all compiled code afterwards.

    Without this, shapes of earlier cells count towards the recompile limit, beyond which Dynamo silently runs eagerly.
    """
    _reset()
    try:
        yield
    finally:
        _reset()


def compilation() -> Compilation:
    """Return what has been compiled inside `fresh_compiler` since `count_from_zero`."""
    from torch._dynamo.utils import counters  # importing Dynamo takes seconds, which only compiled cells need

    frames, breaks = counters["frames"], counters["graph_break"]
    fell_back = frames["total"] > frames["ok"]
    reasons = [*breaks, *(counters["unimplemented"] if fell_back else ())]
    if fused := counters["inductor"]["fuse_attention"]:
        reasons.append(f"Inductor put scaled_dot_product_attention in place of {fused} written-out attentions")
    return Compilation(
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(breaks.values()),
        fell_back=fell_back,
        detail="; ".join(reason.splitlines()[0] for reason in reasons) or None,
    )


def count_from_zero() -> None:
    """Reset the counters but keep the compiled code."""
    from torch._dynamo.utils import counters

    counters.clear()


def _reset() -> None:
    torch.compiler.reset()
    count_from_zero()


def entered(cell: str, stage: Stage) -> StageEntered:
    """Return the event that the cell with this key enters a stage."""
    return StageEntered(at_s=time.time(), cell=cell, stage=stage)


def built(cell: str, step: TrainingStep, build_s: float) -> ModelBuilt:
    """Return the event that the model and its training step are built."""
    parameters = sum(each.numel() for each in step.model.parameters())
    head = step.work.model.lm_head.weight.numel() if isinstance(step.work.model, Transformer) else 0
    return ModelBuilt(
        at_s=time.time(),
        cell=cell,
        parameters=parameters,
        parameters_without_lm_head=parameters - head,
        build_s=build_s,
    )


def compiled(cell: str, compile_s: float) -> Compiled:
    """Return the event about what has been compiled since `count_from_zero`, in a step that took `compile_s`."""
    made = compilation()
    return Compiled(
        at_s=time.time(),
        cell=cell,
        compile_s=compile_s,
        graphs=made.graphs,
        graph_breaks=made.graph_breaks,
        fell_back=made.fell_back,
        detail=made.detail,
    )

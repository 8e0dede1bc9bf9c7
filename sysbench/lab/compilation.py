"""State and counters of torch.compile, and the events that report the building and compiling of a cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from sysbench.lab.precision import fp32_settings
from sysbench.lab.step import TrainingStep
from sysbench.lab.transformer import Transformer
from sysbench.log.events import Compiled, Event, ModelBuilt, Stage, StageEntered
from sysbench.spec.model import ModelCell


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Discard all compiled code before and after this context.

    Otherwise, the shapes of earlier cells would count towards the recompile limit, beyond which Dynamo silently runs
    eagerly.
    """
    _reset_compiler()
    try:
        yield
    finally:
        _reset_compiler()


def reset_counters() -> None:
    """Reset the counters but keep the compiled code."""
    from torch._dynamo.utils import counters

    counters.clear()


def _reset_compiler() -> None:
    torch.compiler.reset()
    reset_counters()


def stage_entered(cell: str, stage: Stage) -> StageEntered:
    """Return the StageEntered event for the cell with key `cell`."""
    return StageEntered(at_s=time.time(), cell=cell, stage=stage)


def model_built(cell: str, step: TrainingStep, build_s: float) -> ModelBuilt:
    """Return the ModelBuilt event for the cell with key `cell`; building the step took `build_s` seconds."""
    parameters = sum(parameter.numel() for parameter in step.model.parameters())
    head = step.work.model.lm_head.weight.numel() if isinstance(step.work.model, Transformer) else 0
    return ModelBuilt(
        at_s=time.time(),
        cell=cell,
        parameters=parameters,
        parameters_without_lm_head=parameters - head,
        build_s=build_s,
        fp32_precision=fp32_settings(),
        precision_overridden=step.precision_overridden,
    )


def compile_step(cell: ModelCell, take_step: Callable[[], float]) -> Iterator[Event]:
    """Take the first steps, which compile the model; nothing happens if the cell is not compiled."""
    if cell.is_compiled:
        yield stage_entered(cell.key, "compiling")
        reset_counters()
        yield compiled_event(cell.key, sum(take_step() for _ in range(2 if cell.uses_cuda_graphs else 1)))


def compiled_event(cell: str, compile_s: float | None, places: Iterable[str] = ()) -> Compiled:
    """Return the Compiled event of a cell, with Dynamo's counters since `reset_counters`.

    `compile_s` is the duration of the first steps, which compile; None in a simulation. `detail` has Dynamo's reasons
    for graph breaks and eager frames, and the number of attentions that Inductor fused. `places` are those of graph
    breaks, if they are known.
    """
    from torch._dynamo.utils import counters  # importing Dynamo takes seconds, which only compiled cells need

    frames, breaks = counters["frames"], counters["graph_break"]
    # At the recompile limit, for example. FSDP2 keeps its hooks out of compiled code, and so the calls of its blocks.
    others = [reason for reason in counters["unimplemented"] if "skipping FSDP hooks" not in reason]
    fell_back = frames["total"] > frames["ok"] and bool(others or not counters["unimplemented"])
    reasons = [*breaks, *(others if fell_back else ())]
    if fused := counters["inductor"]["fuse_attention"]:
        reasons.append(f"Inductor put scaled_dot_product_attention in place of {fused} written-out attentions")
    return Compiled(
        at_s=time.time(),
        cell=cell,
        compile_s=compile_s,
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(breaks.values()),
        fell_back=fell_back,
        graphs_skipped=counters["inductor"]["cudagraph_skips"],
        breaks=list(places),
        detail="; ".join(reason.splitlines()[0] for reason in reasons) or None,
    )

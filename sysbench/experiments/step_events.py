"""Says in events how a training step was built and compiled."""

from __future__ import annotations

import time

from sysbench.events import Compiled, ModelBuilt, Stage, StageEntered
from sysbench.instruments.compilation import compilation
from sysbench.workload.step import TrainingStep


def entered(cell: str, stage: Stage) -> StageEntered:
    """What comes next for the cell, known by its key."""
    return StageEntered(at_s=time.time(), cell=cell, stage=stage)


def built(cell: str, step: TrainingStep, build_s: float) -> ModelBuilt:
    """The step is there."""
    return ModelBuilt(
        at_s=time.time(),
        cell=cell,
        parameters=step.model.parameter_count,
        parameters_without_lm_head=step.model.parameter_count - step.model.lm_head.weight.numel(),
        build_s=build_s,
    )


def compiled(cell: str, compile_s: float) -> Compiled:
    """What has been compiled since `count_from_zero`, in the step that took this long."""
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

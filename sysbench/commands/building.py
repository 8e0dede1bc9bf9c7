"""Building and compiling the step of a cell, with the events that report it, as for times and profiles."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter  # by name: a model's code may replace time.perf_counter

import torch

from sysbench.commands.own_models import counted_work
from sysbench.lab.compilation import compile_step, model_built, stage_entered
from sysbench.lab.devices import synchronize
from sysbench.lab.step import TrainingStep
from sysbench.lab.strategies import mesh_of
from sysbench.log.events import Event
from sysbench.spec.model import ModelCell


def built_step(
    cell: ModelCell, device: torch.device, first_step_s: Callable[[TrainingStep], float]
) -> Generator[Event, None, TrainingStep]:
    """Build the step of a cell on `device`, and return it; `first_step_s` runs it as often as compiling needs."""
    yield stage_entered(cell.key, "building")
    started_s = perf_counter()
    step = TrainingStep(cell, device, mesh_of(cell.strategy, cell.ranks, device.type) if cell.strategy else None)
    synchronize(device)
    yield model_built(cell.key, step, perf_counter() - started_s)
    yield from counted_work(cell, step)
    yield from compile_step(cell, lambda: first_step_s(step))
    return step

"""Two gloo ranks on this machine, which take the same steps: `python -m tests.lab.two_ranks CELLS FOUND`.

CELLS is JSON, FOUND the file into which rank 0 writes what the ranks found together, and where they meet.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # of the optimizer
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

from sysbench.commands.time.spec import TimeCell
from sysbench.lab.step import TrainingStep
from sysbench.lab.strategies import mesh_of
from sysbench.lab.workload.workload import facts_of

RANKS = 2

Step = dict[str, Any]
"""The loss, and the gradients and the parameters after the optimizer by name, whole."""


def main() -> None:
    """Take one step of every cell on each rank; what they need is imported before one becomes two."""
    cells, found = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    rank = 0 if os.fork() else 1
    dist.init_process_group("gloo", init_method=f"file://{found}.store", rank=rank, world_size=RANKS)
    steps = []
    for cell in map(TimeCell.model_validate, cells):
        assert cell.strategy is not None
        steps.append(result_of(TrainingStep(cell, torch.device("cpu"), mesh_of(cell.strategy, RANKS, "cpu"))))
    every: list[Any] = [None] * RANKS
    dist.all_gather_object(every, [step.pop("loss") for step in steps])
    if rank == 0:
        torch.save([{**step, "losses": of_cell} for step, *of_cell in zip(steps, *every, strict=True)], found)
    dist.destroy_process_group()
    os._exit(0 if rank else os.wait()[1] != 0)


def result_of(step: TrainingStep) -> Step:
    """Take a step and return its results under the names of the undistributed model."""
    for _, phase in step.phases:
        phase()
    named = {name.removeprefix("module."): each for name, each in step.model.named_parameters()}
    return {
        "loss": step.loss,
        "class": facts_of(step.work, None).class_name if step.work.own else None,
        "gradients": {name: _whole(each.grad) for name, each in named.items() if each.grad is not None},
        "parameters": {name: _whole(each.detach()) for name, each in named.items()},
    }


def _whole(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.clone()


if __name__ == "__main__":
    main()

"""One of several ranks on the fake GPU: `python -m tests.fake_gpu.sharded CELLS` prints its allocated peaks by phase.

The process group is torch's fake one, which communicates with nobody: the shards and their copies are real.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch._dynamo  # of the optimizer, once for all
import torch.distributed as dist
import torch.distributed.fsdp
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from sysbench.commands.memory.spec import MemoryCell
from sysbench.lab.step import TrainingStep
from sysbench.lab.strategies import mesh_of


def peaks(cell: MemoryCell) -> dict[str, int]:
    """Return the allocated peak of each phase of the second step."""
    assert cell.strategy is not None
    device = torch.device("cuda", 0)
    step = TrainingStep(cell.step, device, mesh_of(cell.strategy, cell.ranks, "cuda"))
    if isinstance(step.model, DistributedDataParallel):  # to which the fake process group returns nothing
        step.model.register_comm_hook(None, lambda _, bucket: _completed(bucket.buffer()))
    found: dict[str, int] = {}
    for _ in range(2):
        step.forget()
        for name, run in step.phases:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            run()
            torch.cuda.synchronize()
            found[name] = torch.cuda.max_memory_allocated()
    return found


def _completed(reduced: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(reduced)
    return done


def main() -> None:
    """Print a line of JSON for each cell, from a process of its own: FSDP2 keeps what it has once allocated."""
    for cell in map(MemoryCell.model_validate, json.loads(sys.argv[1])):
        if os.fork() == 0:
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=cell.ranks)
            print(json.dumps(peaks(cell)), flush=True)
            os._exit(0)
        assert os.wait()[1] == 0


if __name__ == "__main__":
    main()

"""Gloo ranks on this machine, whose tensors are tracked.

`python -m tests.simulate.measured_ranks CELLS FOLDER`: CELLS is JSON; into `FOLDER/2.json`, rank 0 of 2 writes the live
bytes at the end of every phase of every cell of 2 ranks.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # of the optimizer
import torch.distributed as dist
import torch.distributed.fsdp  # once, for all ranks
from torch.multiprocessing.spawn import start_processes
from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench.commands.memory.spec import MemoryCell
from sysbench.lab.strategies import mesh_of
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.steps import record_real


def live(recording: StepRecording) -> list[tuple[int, str, int]]:
    """Step, phase and live bytes at the end of each span.

    Of the spans before the first step, only the last: until it ends, a real rank has the whole model, and a simulated
    one does not.
    """
    built = sum(span.step < 0 for span in recording.spans) - 1
    return [
        (span.step, span.name, sum(recording.allocations[each].size_bytes for each in recording.live_at(span.end)))
        for span in recording.spans[built:]
    ]


def measure(rank: int, ranks: int, cells: list[MemoryCell], found: Path) -> None:
    """Measure every cell as one of their ranks.

    Each is measured twice, and the smaller number of bytes counts: gloo's threads release the buffers of a collective,
    on a busy machine only after the phase has ended.
    """
    dist.init_process_group("gloo", init_method=f"file://{found}.store", rank=rank, world_size=ranks)
    measured = []
    for cell in cells:
        assert cell.strategy is not None
        mesh = mesh_of(cell.strategy, ranks, "cpu")
        runs = []
        for _ in range(2):
            with sdpa_kernel(SDPBackend.MATH):
                *_, recording = record_real(cell.step, cell.mode, torch.device("cpu"), mesh)
            runs.append(live(recording))
        measured.append([min(spans) for spans in zip(*runs, strict=True)])
    if rank == 0:
        found.write_text(json.dumps(measured))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def main() -> None:
    """Measure the cells of each number of ranks, which share what has been imported here."""
    cells, folder = [MemoryCell.model_validate(each) for each in json.loads(sys.argv[1])], Path(sys.argv[2])
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # each step begins with a collection, which would traverse what is imported: half of the time
    for ranks in sorted({cell.ranks for cell in cells}):
        own = [cell for cell in cells if cell.ranks == ranks]
        start_processes(measure, (ranks, own, folder / f"{ranks}.json"), nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()

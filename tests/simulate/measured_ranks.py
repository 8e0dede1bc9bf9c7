"""One of two gloo ranks on this machine, whose tensors are tracked.

`python -m tests.simulate.measured_ranks RANK CELLS FOUND`: CELLS is JSON, FOUND the file into which rank 0 writes the
live bytes at the end of every phase of every cell.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench.commands.memory.spec import MemoryCell
from sysbench.lab.strategies import mesh_of
from sysbench.simulate.recording import StepRecording, record_real

RANKS = 2


def live(recording: StepRecording) -> list[tuple[int, str, int]]:
    """Step, phase and live bytes at the end of each span."""
    return [
        (span.step, span.name, sum(recording.allocations[each].size_bytes for each in recording.live_at(span.end)))
        for span in recording.spans
    ]


def main() -> None:
    """Measure every cell."""
    rank, cells, found = int(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{found}.store", rank=rank, world_size=RANKS)
    measured = []
    for cell in map(MemoryCell.model_validate, cells):
        assert cell.strategy is not None
        mesh = mesh_of(cell.strategy, RANKS, "cpu")
        with sdpa_kernel(SDPBackend.MATH):
            *_, recording = record_real(cell.step, cell.mode, torch.device("cpu"), mesh)
        measured.append(live(recording))
    if rank == 0:
        found.write_text(json.dumps(measured))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()

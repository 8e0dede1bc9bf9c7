"""Times a step with or without allocation history: `python -m tests.bench.recorded_steps SPEC on|off`.

`tests.bench.self_cost` starts this module. SPEC is the JSON of a TimeCell. The output is one line of JSON on
stdout, with the wall time of every measured step in seconds. Requires a CUDA device, because only CUDA's allocator
records a history.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext

from sysbench.commands.time.spec import TimeCell


def main() -> None:
    """Build the cell, warm it up, time its steps, and print their times."""
    channel = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not mix with the answer
    cell = TimeCell.model_validate_json(sys.argv[1])
    samples_s = _samples_s(cell, recorded=sys.argv[2] == "on")
    with os.fdopen(channel, "w") as out:
        out.write(json.dumps(samples_s) + "\n")
    sys.stderr.flush()
    os._exit(0)


def _samples_s(cell: TimeCell, *, recorded: bool) -> list[float]:
    import torch

    from sysbench.interpreter import gc_paused
    from sysbench.lab.clocks import clock_for
    from sysbench.lab.memory.allocator import History
    from sysbench.lab.step import TrainingStep

    device = torch.device(cell.device)
    clock = clock_for(device)
    step = TrainingStep(cell, device)
    samples_s = []
    with History(device).recording() if recorded else nullcontext(), gc_paused(collect_first=True):
        for _ in range(cell.warmup + cell.steps):
            step.forget()
            samples_s.append(clock.measure(step.phases, cell.sync).wall_s)
    return samples_s[cell.warmup :]


if __name__ == "__main__":
    main()

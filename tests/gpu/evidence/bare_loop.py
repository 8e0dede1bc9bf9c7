"""A training step over and over in a plain loop, by the host's clock and by CUDA events; prints the samples as JSON.

    python -m tests.gpu.evidence.bare_loop SIZE CTX PRECISION STEPS DEVICE

No engine, no log, no readings: one synchronization, one clock and one pair of events around each step.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import torch

from sysbench.commands.time.spec import TimeSpec
from sysbench.lab.devices import synchronize
from sysbench.lab.precision import matmul_precision
from sysbench.lab.step import TrainingStep


def main() -> None:
    size, ctx, precision, steps, device = sys.argv[1:]
    fields = {"size": size, "ctx": ctx, "precision": precision, "steps": steps}
    cell = next(TimeSpec(**fields).cells())
    with matmul_precision(cell.precision):
        on = torch.device(device)
        step = TrainingStep(cell, on)
        gc.collect()
        gc.disable()
        wall_s, events_s = [], []
        for _ in range(cell.warmup + cell.steps):
            step.forget()
            synchronize(on)
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device != "cpu" else []
            began_s = time.perf_counter()
            if marks:
                marks[0].record()
            for _, phase in step.phases:
                phase()
            if marks:
                marks[1].record()
            synchronize(on)
            wall_s.append(time.perf_counter() - began_s)
            if marks:
                events_s.append(marks[0].elapsed_time(marks[1]) / 1e3)
    print(json.dumps({"wall_s": wall_s[cell.warmup :], "events_s": events_s[cell.warmup :]}))


if __name__ == "__main__":
    main()

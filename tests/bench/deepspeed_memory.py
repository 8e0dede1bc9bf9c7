"""DeepSpeed's ZeRO-1 and ZeRO-2 on the fake GPU, beside simulations: `python -m tests.bench.deepspeed_memory`.

DeepSpeed is no dependency: install it, or name its directory in PYTHONPATH. It runs as one of several ranks whose
collectives do nothing (torch's fake process group), with a real allocator, on the model and the batches of sysbench.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.cli.running import answered
from tests.fake_gpu.fake import FakeGpu

RANKS = 4
SHAPE = {"d_model": 256, "d_ff": 512, "layers": 4, "heads": 4, "vocab": 1000, "ctx": 128, "batch": 2}
STEP = {**SHAPE, "mode": "train", "precision": "bf16-true", "attention": "sdpa"}


def peaks_of_deepspeed(stage: int, micro_batches: int, bucket_mb: int, optimizer: str) -> dict[str, int]:
    """Take three steps on this process's GPU, and return the peaks of the last one by phase."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS), "DS_ACCELERATOR": "cuda"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    import deepspeed  # type: ignore[import-not-found, unused-ignore]

    from sysbench.commands.memory.spec import MemorySpec
    from sysbench.lab.knobs.optimizers import optimizer_for
    from sysbench.lab.step import TrainingStep

    given: dict[str, Any] = {**STEP, "optimizer": optimizer, "grad_accum": micro_batches}
    (cell,) = MemorySpec(**given).cells()
    step = TrainingStep(cell.step, torch.device("cuda", 0))
    zero = {"stage": stage, "overlap_comm": True, "reduce_bucket_size": (bucket_mb << 20) // 2}
    config = {
        "train_micro_batch_size_per_gpu": SHAPE["batch"],
        "gradient_accumulation_steps": micro_batches,
        "bf16": {"enabled": True, "check_grad_overflow": False},  # what the fake GPU computes is an overflow
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
    }
    updating, step._optimizer = optimizer_for(step.model, optimizer), None
    engine, *_ = deepspeed.initialize(model=step.model, optimizer=updating, config=config, dist_init_required=False)
    peaks: dict[str, int] = {}
    for _ in range(3):
        peaks.clear()
        for batch in step.work.batches:
            run: dict[str, Any] = {}
            phases = {
                "forward": lambda run=run, batch=batch: run.update(output=engine(*batch.arguments)),
                "loss": lambda run=run, batch=batch: run.update(loss=batch.loss(run["output"])),
                "backward": lambda run=run: engine.backward(run["loss"]),
                "optimizer": engine.step,
            }
            for name, phase in phases.items():
                if name == "optimizer" and batch is not step.work.batches[-1]:
                    phase()  # which only counts
                    continue
                torch.cuda.reset_peak_memory_stats()
                phase()
                peaks[name] = max(peaks.get(name, 0), torch.cuda.max_memory_allocated())
    return peaks


def simulated_peaks(stage: int, micro_batches: int, bucket_mb: int, optimizer: str) -> dict[str, int]:
    """Return the peaks that `sysbench memory --simulate` finds, by phase."""
    axes = {**STEP, "optimizer": optimizer, "grad_accum": micro_batches, "ranks": RANKS, "bucket_mb": bucket_mb}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**axes, "strategy": f"zero{stage}"}.items()]
    with tempfile.TemporaryDirectory() as folder:
        ran = answered("memory", *words, "--simulate=h100", "--json=-", "--no-live", f"--out={folder}")
    (cell,) = json.loads(ran.out)["cells"]
    return {phase: peaks["allocated_peak_bytes"] for phase, peaks in cell["peaks_by_phase"].items()}


def main() -> None:
    """Compare all combinations, or run DeepSpeed for the one that the arguments name."""
    if len(sys.argv) > 1:
        stage, micro_batches, bucket_mb, optimizer = sys.argv[1:]
        print(json.dumps(peaks_of_deepspeed(int(stage), int(micro_batches), int(bucket_mb), optimizer)))
        return
    with tempfile.TemporaryDirectory() as folder:
        gpu = FakeGpu.built(Path(folder), Path(folder))
        for asked in itertools.product((1, 2), (1, 2), (1, 2, 16), ("foreach", "fused")):
            ran = gpu.run(sys.executable, "-m", "tests.bench.deepspeed_memory", *map(str, asked), capability="9.0")
            if ran.code:
                sys.exit(f"DeepSpeed did not run: {ran.err[-500:]}")
            real, made = json.loads(ran.out.splitlines()[-1]), simulated_peaks(*asked)
            off = ", ".join(f"{phase} {made[phase] - real[phase]:+,}" for phase in real)
            stage, micro_batches, bucket_mb, optimizer = asked
            title = f"zero{stage}, {micro_batches} micro-batches, {bucket_mb} MiB, {optimizer}"
            print(f"{title}: simulated bytes differ by: {off}; peak {max(real.values()):,}")


if __name__ == "__main__":
    main()

"""What `time --model` adds to a step: beside a bare loop over the same step, interleaved, in one process.

python -m tests.bench.own_models [--steps 100] [--width 256] [--layers 4] [--ctx 128] [--batch 4]

`sysbench` is the measurement itself, event by event, its step's wall time as in the table. Between two of its steps two
bare loops over the same model and optimizer take one each; how far these two are apart says how much of the difference
is noise. (Models of their own differ by 1 to 2% from one another, by where their memory lies.) The order changes from
step to step.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from sysbench.commands.time.measure import run
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.events import DeviceInfo, StepMeasured

PROMISED = 0.005

MODEL = """
import torch
from torch import nn

built, optimizers = [], []


def adamw(parameters):
    optimizers.append(torch.optim.AdamW(parameters, lr=1e-4, foreach=True))
    return optimizers[-1]


class Model(nn.Module):
    def __init__(self, width, layers, vocab=1000):
        super().__init__()
        built.append(self)
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))
"""


def bare(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Callable[[], float]:
    """A step as a training script has it; returns its seconds."""
    targets = ids.roll(-1, 1)

    def step() -> float:
        started_s = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return time.perf_counter() - started_s

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 100), ("width", 256), ("layers", 4), ("ctx", 128), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "bench_model.py").write_text(MODEL)
        (cell,) = TimeSpec(
            model="bench_model:Model",
            model_arg=[f"width={given.width}", f"layers={given.layers}"],
            optimizer="bench_model:adamw",
            app_dir=directory,
            ctx=given.ctx,
            batch=given.batch,
            steps=given.steps,
        ).cells()
        sample_s: dict[str, list[float]] = {"sysbench": [], "bare": [], "bare again": []}
        measured: Iterator[float] = (
            event.step.wall_s
            for event in run(cell, DeviceInfo(name="a processor", type="cpu"))
            if isinstance(event, StepMeasured) and not event.warmup and event.step.wall_s is not None
        )
        sample_s["sysbench"].append(next(measured))
        theirs = sys.modules["bench_model"]
        model, *_ = theirs.built  # the others, without data, count FLOPs
        ids = torch.randint(1000, (given.batch, given.ctx))
        arms: dict[str, Callable[[], float]] = {
            name: bare(model, theirs.optimizers[0], ids) for name in ("bare", "bare again")
        }
        for _ in range(5):
            for step in arms.values():
                step()
        arms["sysbench"] = lambda: next(measured)
        for _ in range(given.steps - 1):
            for name in random.sample(sorted(arms), k=len(arms)):
                sample_s[name].append(arms[name]())
    middle = {name: median(taken_s) for name, taken_s in sample_s.items()}
    for name, middle_s in middle.items():
        print(
            f"{name:10}  {1e3 * middle_s:8.3f} ms  {middle_s / middle['bare'] - 1:+.2%}  ({len(sample_s[name])} steps)"
        )
    # Round by round, so that what slows the machine for seconds falls on all: against the mean of both bare loops.
    rounds = zip(sample_s["sysbench"][1:], sample_s["bare"], sample_s["bare again"], strict=True)
    ratios = [2 * ours_s / (one_s + other_s) for ours_s, one_s, other_s in rounds]
    draws = sorted(median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
    print(
        f"sysbench / bare - 1, round by round: {median(ratios) - 1:+.2%}, 95% interval {draws[50] - 1:+.2%} to "
        f"{draws[-50] - 1:+.2%}   promised ≤ {PROMISED:.1%}"
    )


if __name__ == "__main__":
    main()

"""Whether `sysbench time` measures what a bare loop measures, with its dashboard and sampler on.

    python -m tests.bench.fidelity [--rounds 6] [--size tiny] [--ctx 128] [--steps 60] [--device auto]

Both arms run the same step in a fresh process, in the order A B B A …, so that a machine that gets slower or faster
treats them alike. The bare loop is a plain script: no engine, no events, no dashboard, one clock around each step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.bench.terminal import run_in_terminal

PROMISED = 0.005

BARE = """
import gc, json, sys, time
import torch
from sysbench.commands.time.spec import TimeSpec
from sysbench.lab.step import TrainingStep

size, ctx, steps, device = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
cell = next(TimeSpec(size=size, ctx=ctx, steps=steps).cells())
on_gpu = torch.cuda.is_available() and device != "cpu"
step = TrainingStep(cell, torch.device("cuda" if on_gpu else "cpu"))
synchronize = torch.cuda.synchronize if on_gpu else (lambda: None)
gc.collect(); gc.disable()
samples = []
for index in range(cell.warmup + steps):
    step.forget()
    synchronize()
    started = time.perf_counter()
    for _, phase in step.phases:
        phase()
    synchronize()
    samples.append(time.perf_counter() - started)
print(json.dumps(samples[cell.warmup:]))
"""


def bare_median_s(arguments: argparse.Namespace) -> float:
    words = [arguments.size, str(arguments.ctx), str(arguments.steps), arguments.device]
    ran = subprocess.run([sys.executable, "-c", BARE, *words], check=True, capture_output=True, text=True)
    return median(json.loads(ran.stdout))


def sysbench_median_s(arguments: argparse.Namespace, sync: str) -> float:
    with tempfile.TemporaryDirectory() as directory:
        record = Path(directory) / "record.json"
        command = [sys.executable, "-m", "sysbench", "time", "--size", arguments.size, "--ctx", str(arguments.ctx)]
        command += ["--steps", str(arguments.steps), "--device", arguments.device, "--sync", sync]
        command += ["--out", directory, "--json", str(record)]
        run_in_terminal(command, {**os.environ, "TERM": "xterm-256color"})
        (cell,) = json.loads(record.read_text())["cells"]
        return float(cell["phases"]["step"]["wall"]["median_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--ctx", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sync", default="phase")
    arguments = parser.parse_args()
    ratios = []
    for number in range(arguments.rounds):
        if number % 2:
            measured_s, bare_s = sysbench_median_s(arguments, arguments.sync), bare_median_s(arguments)
        else:
            bare_s, measured_s = bare_median_s(arguments), sysbench_median_s(arguments, arguments.sync)
        ratios.append(measured_s / bare_s)
        print(
            f"round {number + 1}: sysbench {measured_s * 1e3:9.3f} ms   bare {bare_s * 1e3:9.3f} ms   {ratios[-1]:.4f}"
        )
    print(f"median ratio {median(ratios):.4f}   promised within {PROMISED:.1%} of 1")


if __name__ == "__main__":
    main()

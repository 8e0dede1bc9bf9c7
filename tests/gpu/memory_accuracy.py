"""Simulated against measured memory, configuration by configuration; prints the table.

    python -m tests.gpu.memory_accuracy [--out DIR]

Measures every configuration on the first CUDA device, simulates the same for that very GPU, and holds the peaks
against each other. Needs nothing but an NVIDIA GPU; it takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sysbench.hardware import find

GIB = 2**30

AXES = (
    ("--size=small,medium", "--ctx=128,512", "--precision=fp32,bf16", "--mode=forward,train", "--attention=naive,sdpa"),
    (
        "--size=small",
        "--ctx=256",
        "--precision=fp32,bf16",
        "--mode=inference,train-first",
        "--attention=naive,efficient",
    ),
    ("--size=small", "--ctx=256", "--precision=bf16", "--mode=forward,train", "--attention=flash,cudnn,math"),
    ("--size=small", "--ctx=256", "--precision=fp32,bf16", "--mode=train", "--optimizer=for-loop,fused"),
    ("--size=large", "--ctx=256", "--precision=fp32,bf16,fp16,tf32", "--mode=train"),
)
"""54 configurations: sizes, contexts, precisions, protocols, attention kinds, optimizers."""

_IDENTITY = ("size", "ctx", "batch", "precision", "mode", "attention", "optimizer")


@dataclass(frozen=True)
class Pair:
    """One configuration, measured and simulated."""

    name: str
    measured: dict[str, Any]
    simulated: dict[str, Any]

    def error(self, peak: str) -> float:
        """Of the simulation, as a share of what was measured."""
        return abs(self.simulated[peak] / self.measured[peak] - 1)

    @property
    def both_known(self) -> bool:
        return self.measured["outcome"] == "ok" and self.simulated["outcome"] == "ok"

    @property
    def promised_too_much(self) -> bool:
        return self.simulated["outcome"] == "ok" and self.measured["outcome"] == "oom"


def gpu_name() -> tuple[str, int]:
    """What the driver calls the first GPU, and its memory in bytes."""
    words = ["import torch", "p = torch.cuda.get_device_properties(0)", "print(p.total_memory, p.name)"]
    ran = subprocess.run([sys.executable, "-c", "; ".join(words)], check=True, capture_output=True, text=True)
    memory, _, name = ran.stdout.strip().partition(" ")
    return name, int(memory)


def run(out: Path, *words: str) -> list[dict[str, Any]]:
    """The cells of one run."""
    command = [sys.executable, "-m", "sysbench", "memory", *words, f"--out={out}", "--no-live", "--json=-", "--force"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    cells: list[dict[str, Any]] = json.loads(ran.stdout)["cells"]
    return cells


def pairs(out: Path) -> list[Pair]:
    """Every configuration on both sides."""
    name, memory_bytes = gpu_name()
    known = find(name, memory_bytes)
    target = known.slug if known else f"{memory_bytes // 2**20}MiB"
    found = []
    for axes in AXES:
        measured = run(out / "measured", *axes, "--device=cuda", "--no-skip")
        simulated = {_identity(cell): cell for cell in run(out / "simulated", *axes, f"--simulate={target}")}
        for cell in measured:
            identity = _identity(cell)
            found.append(Pair(" ".join(map(str, identity)), cell, simulated[identity]))
    return found


def _identity(cell: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(cell["axes"][axis] for axis in _IDENTITY)


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def print_table(found: list[Pair]) -> None:
    """Both peaks of every configuration, and how far they are apart."""
    print(
        f"{'configuration':52s} {'measured':>9s} {'simul.':>9s} {'off':>7s} {'reserved':>9s} {'simul.':>9s} {'off':>7s}"
    )
    for pair in found:
        if not pair.both_known:
            print(f"{pair.name:52s} measured: {pair.measured['outcome']}, simulated: {pair.simulated['outcome']}")
            continue
        texts = []
        for peak in ("peak_allocated_bytes", "peak_reserved_bytes"):
            measured, simulated = pair.measured[peak], pair.simulated[peak]
            texts.append(f"{measured / GIB:9.3f} {simulated / GIB:9.3f} {simulated / measured - 1:+7.2%}")
        print(f"{pair.name:52s} {' '.join(texts)}")
    known = [pair for pair in found if pair.both_known]
    for peak in ("peak_allocated_bytes", "peak_reserved_bytes"):
        errors = [pair.error(peak) for pair in known]
        print(f"{peak}: median {statistics.median(errors):.2%}, p95 {quantile(errors, 0.95):.2%}, n = {len(errors)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    if out is not None:
        print_table(pairs(out))
        return
    with tempfile.TemporaryDirectory() as directory:
        print_table(pairs(Path(directory)))


if __name__ == "__main__":
    main()

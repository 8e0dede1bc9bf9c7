"""Simulated against measured memory, configuration by configuration; prints the table.

    python -m tests.gpu.memory_accuracy [--out DIR] [--at-once 4]

Measures every configuration on the first CUDA device, simulates the same for that very GPU, and holds the peaks
against each other. Needs nothing but an NVIDIA GPU. Every configuration is measured in a process of its own, most of
whose time goes into starting; peaks are of each process's own allocator, so that several can be at it at once.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sysbench.spec.hardware import find

GIB = 2**30

LIMIT_S = 600.0
"""For the configurations of one run together."""

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

    identity: tuple[Any, ...]
    measured: dict[str, Any]
    simulated: dict[str, Any]

    @property
    def name(self) -> str:
        """Its axes."""
        return " ".join(map(str, self.identity))

    def error(self, peak: str) -> float:
        """Of the simulation, as a share of what was measured."""
        return abs(float(self.simulated[peak]) / float(self.measured[peak]) - 1)

    @property
    def both_known(self) -> bool:
        return bool(self.measured["outcome"] == "ok" and self.simulated["outcome"] == "ok")

    @property
    def promised_too_much(self) -> bool:
        return bool(self.simulated["outcome"] == "ok" and self.measured["outcome"] == "oom")


def gpu_name() -> tuple[str, int]:
    """What the driver calls the first GPU, and its memory in bytes."""
    words = ["import torch", "p = torch.cuda.get_device_properties(0)", "print(p.total_memory, p.name)"]
    ran = subprocess.run([sys.executable, "-c", "; ".join(words)], check=True, capture_output=True, text=True)
    memory, _, name = ran.stdout.strip().partition(" ")
    return name, int(memory)


def run(out: Path, *words: str) -> list[dict[str, Any]]:
    """The cells of one run, or of an earlier one that came to its end there.

    Raises RuntimeError, with the last words of the run, where it left none.
    """
    for path in [*out.glob("*.json"), *out.glob("*.json.gz")]:
        content = path.read_bytes()
        record: dict[str, Any] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        if record["status"] == "complete":
            found: list[dict[str, Any]] = record["cells"]
            return found
    command = [sys.executable, "-m", "sysbench", "memory", *words, f"--out={out}", "--no-live", "--json=-", "--force"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    try:
        cells: list[dict[str, Any]] = json.loads(ran.stdout)["cells"]
    except json.JSONDecodeError:
        raise RuntimeError(
            f"sysbench memory {' '.join(words)} ended with {ran.returncode}: {ran.stderr[-800:]}"
        ) from None
    return cells


def jobs(axes: Iterable[Sequence[str]] = AXES) -> list[tuple[str, ...]]:
    """The same configurations in more runs of fewer: by size and precision."""
    return [words for each in axes for words in _apart(each)]


def _apart(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    choices = []
    for word in words:
        name, _, values = word.partition("=")
        each = values.split(",") if name in ("--size", "--precision") else [values]
        choices.append([f"{name}={value}" for value in each])
    yield from itertools.product(*choices)


def pairs(
    out: Path,
    groups: Sequence[Sequence[str]] = AXES,
    target: str | None = None,
    measured: Sequence[str] = ("--device=cuda", "--force"),
    *,
    at_once: int = 1,
    problems: list[str] | None = None,
) -> list[Pair]:
    """Every configuration on both sides, simulated for `target`, or for the GPU that is here.

    So many runs measure at once, and half as many simulate beside them. A run that fails is told to `problems`, and
    the others go on; without that, it raises RuntimeError.
    """
    target = target or _slug()
    with ThreadPoolExecutor(at_once) as measuring, ThreadPoolExecutor(max(1, at_once // 2)) as simulating:
        started = [
            (
                measuring.submit(run, out / "measured" / f"{number}", *words, *measured),
                simulating.submit(run, out / "simulated" / f"{number}", *words, f"--simulate={target}"),
            )
            for number, words in enumerate(groups)
        ]
    found: list[Pair] = []
    for here, there in started:
        try:
            simulated = {_identity(cell): cell for cell in there.result()}
            found += [Pair(_identity(cell), cell, simulated[_identity(cell)]) for cell in here.result()]
        except (RuntimeError, KeyError, subprocess.TimeoutExpired) as error:
            if problems is None:
                raise
            problems.append(f"{type(error).__name__}: {error}")
    return found


def _slug() -> str:
    """What `--simulate` calls the GPU that is here, or one of its size."""
    name, memory_bytes = gpu_name()
    known = find(name, memory_bytes)
    return known.slug if known else f"{memory_bytes // 2**20}MiB"


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
    parser.add_argument("--at-once", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print_table(pairs(arguments.out or Path(directory), jobs(), at_once=arguments.at_once))


if __name__ == "__main__":
    main()

"""Simulated against published memory of training steps on real cards, and what a verdict would have said of them.

    python -m tests.bench.measured_memory [--only TEXT]

published/README.md says where the rows are from. A row that is not simulated is listed with the reason. Models are
built on the host and moved to the card, as the scripts do; cuBLAS keeps its workspaces, and of equal cached blocks the
one at the lowest address is taken, as in PyTorch before 2.15.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench.commands.memory.spec import MemorySpec
from sysbench.simulate.allocator import device_memory
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate_recording
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.replay import Replay
from sysbench.simulate.steps import record
from sysbench.spec.hardware import by_name
from sysbench.spec.published import catalogued

ROOT = Path(__file__).parents[2]
PUBLISHED = Path(__file__).parent / "published" / "measured_memory.csv"


MARGINS = (0.035, 0.05, 0.1, 0.25, 0.5)
"""Shares by which a card is larger than what a row has reserved, or smaller than what it has allocated."""


class Verdict(NamedTuple):
    """Whether a row fits into a card of some size."""

    memory_bytes: int
    measured: bool
    simulated: bool


class Row(NamedTuple):
    """One published run, and what is simulated for it, in bytes by what is compared; or why it is not simulated."""

    name: str
    published: dict[str, int]
    simulated: dict[str, int]
    verdicts: tuple[Verdict, ...] = ()
    excluded: str = ""

    def error(self, what: str) -> float:
        return self.simulated[what] / self.published[what] - 1


def rows(only: str = "") -> Iterator[Row]:
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            name = " ".join(row[each] for each in ("source", "model", "batch", "ctx", "base", "lora", "attention"))
            if only in name:
                whats = ("allocated", "reserved", "forward", "backward", "optimizer")
                published = {what: int(row[f"{what}_bytes"]) for what in whats if row[f"{what}_bytes"]}
                if excluded := _excluded(row):
                    yield Row(name, published, {}, excluded=excluded)
                    continue
                recording, gpu = _recorded(row)
                verdicts = tuple(_verdicts(published, recording, gpu)) if row["context_bytes"] else ()
                yield Row(name, published, _peaks(recording, gpu), verdicts)


def _excluded(row: dict[str, str]) -> str:
    if row["quantized_by"] == "fms":
        return "weights are packed by fms-acceleration, not by bitsandbytes"
    if row["base"] == "nf4" and row["source"] == "fitcheck":
        return "without double quantization, embeddings and norms in fp32: not an option of --quantize"
    if row["base"] == "nf4":
        return "autocast over 16-bit weights that peft has cast in part: not an option of --precision"
    return "" if catalogued(row["model"]) is not None else "the model is not in the catalogue"


def _recorded(row: dict[str, str]) -> tuple[StepRecording, Gpu]:
    card, model = by_name(row["gpu"]), catalogued(row["model"])
    assert model is not None
    words: dict[str, Any] = {"batch": row["batch"], "ctx": row["ctx"], "mode": "train", "simulate": card.slug}
    if row["source"] == "fitcheck":
        arguments = {"name": model.slug, "dtype": "float16", "rank": int(row["lora"]), "attention": row["attention"]}
        words |= {"model": "tests.bench.published_memory_models:adapted", "app_dir": str(ROOT)}
        words |= {"model_arg": arguments, "precision": "fp32", "attention": "own"}
    else:
        words |= {"model": f"hf:{model.slug}", "precision": "bf16-true", "optimizer": "foreach"}
        words |= {"checkpoint": "full", "attention": "flash"}
        if row["lora"]:
            words |= {"lora": row["lora"], "lora_targets": "q_proj+k_proj+v_proj+o_proj"}
    spec = MemorySpec(**words)
    (cell,) = spec.cells()
    pinned = sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION) if row["source"] == "fitcheck" else nullcontext()
    gpu = Gpu.of(card, context_bytes=int(row["context_bytes"] or 0) or None)
    with pinned:
        recording = record(cell.step, cell.mode, Platform.of(gpu), origins=False)
    return recording.without_build_temporaries(), gpu


def _peaks(recording: StepRecording, gpu: Gpu) -> dict[str, int]:
    memory = simulate_recording(recording, gpu)
    phases = {phase.phase: phase.allocated_peak_bytes for phase in memory.phases}
    phases["forward"] = max(phases["forward"], phases["loss"])  # the scripts compute both in one call
    return {**phases, "allocated": memory.allocated_peak_bytes, "reserved": memory.reserved_peak_bytes}


def _verdicts(published: dict[str, int], recording: StepRecording, gpu: Gpu) -> Iterator[Verdict]:
    """Yield the verdict for cards whose size leaves no doubt of what a measurement there would say.

    A row fits where the card has what was reserved; it does not where the card lacks what was allocated. In between,
    the allocator returns what it caches, and nobody knows whether that suffices.
    """
    least, enough = (published[what] + gpu.context_bytes for what in ("allocated", "reserved"))
    sizes = {round(enough / (1 - margin)): True for margin in MARGINS}
    sizes |= {round(least / (1 + margin)): False for margin in MARGINS}
    for memory_bytes, fits in sizes.items():
        replay = Replay(recording, replace(gpu, memory_bytes=memory_bytes), AllocatorSettings())
        yield Verdict(memory_bytes, fits, replay.failure is None)


def main() -> None:
    os.environ["TORCH_CUBLAS_WORKSPACE_CACHE"] = "1"
    device_memory.installed_torch = lambda: (2, 14)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    found = []
    for row in rows(parser.parse_args().only):
        found.append(row)
        print(
            row.name, row.excluded or ", ".join(f"{each} {row.error(each):+.2%}" for each in row.published), flush=True
        )
    for what in ("allocated", "reserved"):
        errors = [abs(row.error(what)) for row in found if what in row.published and not row.excluded]
        if errors:
            print(f"{what}: median {statistics.median(errors):.2%}, largest {max(errors):.2%} of {len(errors)} runs")
    verdicts = [verdict for row in found for verdict in row.verdicts]
    right = sum(verdict.measured == verdict.simulated for verdict in verdicts)
    print(f"verdicts: {right} of {len(verdicts)} right")


if __name__ == "__main__":
    main()

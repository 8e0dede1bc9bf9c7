"""Simulated against published memory of training steps on real cards.

    python -m tests.bench.measured_memory [--only TEXT]

published/README.md says where the rows are from. A row that is not simulated is listed with the reason. Allocated bytes
depend on the version of PyTorch by its workspaces: the T4 ran 2.14.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench.commands.memory.spec import MemorySpec
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import SimulatedMemory, simulate
from sysbench.spec.hardware import by_name
from sysbench.spec.published import catalogued

ROOT = Path(__file__).parents[2]
PUBLISHED = Path(__file__).parent / "published" / "measured_memory.csv"


class Row(NamedTuple):
    """One published run, and what is simulated for it, in bytes by what is compared; or why it is not simulated."""

    name: str
    published: dict[str, int]
    simulated: dict[str, int]
    excluded: str = ""

    def error(self, what: str) -> float:
        return self.simulated[what] / self.published[what] - 1


def rows(only: str = "") -> Iterator[Row]:
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            name = " ".join(row[each] for each in ("source", "model", "batch", "ctx", "base", "lora", "attention"))
            if only in name:
                excluded = _excluded(row)
                whats = ("allocated", "reserved", "forward", "backward", "optimizer")
                published = {what: int(row[f"{what}_bytes"]) for what in whats if row[f"{what}_bytes"]}
                yield Row(name, published, {} if excluded else _peaks(_simulated(row)), excluded)


def _excluded(row: dict[str, str]) -> str:
    if row["base"] == "nf4":
        return "without double quantization, embeddings and norms in fp32: not an option of --quantize"
    return "attention of the package flash-attn, not PyTorch's" if row["attention"] == "flash" else ""


def _simulated(row: dict[str, str]) -> SimulatedMemory:
    card, model = by_name(row["gpu"]), catalogued(row["model"])
    assert model is not None
    arguments = {"name": model.slug, "dtype": "float16", "rank": int(row["lora"]), "attention": row["attention"]}
    spec = MemorySpec(
        model="tests.bench.published_memory_models:adapted",
        app_dir=str(ROOT),
        model_arg=arguments,
        batch=row["batch"],
        ctx=row["ctx"],
        precision="fp32",
        attention="own",
        mode="train",
        simulate=card.slug,
    )
    (cell,) = spec.cells()
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return simulate(cell.step, cell.mode, Gpu.of(card), origins=False)


def _peaks(memory: SimulatedMemory) -> dict[str, int]:
    phases = {phase.phase: phase.allocated_peak_bytes for phase in memory.phases}
    phases["forward"] = max(phases["forward"], phases["loss"])  # the scripts compute both in one call
    return {**phases, "allocated": memory.allocated_peak_bytes, "reserved": memory.reserved_peak_bytes}


def main() -> None:
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


if __name__ == "__main__":
    main()

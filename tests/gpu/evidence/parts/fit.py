"""The largest batch with which a step is simulated to fit: what the parts about speed fill the card with."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gpu.evidence.machine import simulated_as
from tests.gpu.evidence.work import TINY, Part, Work, result_path

CTX = 1024
SIZES = {"2.7b": 12, "xl": 12}
"""By size, the batch from which on the largest is looked for."""


def _run(work: Work) -> None:
    target = "24GiB" if work.rehearsal else simulated_as()
    batches: dict[str, int] = {}
    for size, first in SIZES.items():
        shape = [*TINY[:-1], "--batch=2000"] if work.rehearsal else [f"--size={size}", f"--batch={first}"]
        step = [f"--ctx={CTX}", "--bf16", "--attention=flash", "--optimizer=fused", "--mode=train"]
        for cell in work.cells("memory", *shape, *step, "--find=batch", f"--simulate={target}"):
            if cell["found"] is not None:
                batches[size] = cell["found"]["value"]
    work.numbers["largest_batch"] = batches
    work.table(
        f"The largest batch that is simulated to fit, ctx {CTX}, bf16, flash, fused AdamW, eager",
        ("size", "batch"),
        list(batches.items()),
    )


def batch_for(directory: Path, size: str) -> int | None:
    """What this part has found for a size; None where it has not."""
    try:
        found = json.loads(result_path(directory, PART.name).read_text())["numbers"]["largest_batch"][size]
    except (OSError, KeyError, json.JSONDecodeError):
        return None
    return int(found)


PART = Part("fit", "the largest batch that fits, simulated", 60, _run, alone=False, limit_s=200)

"""Whether suggestions hold: each command that `sysbench fit` suggests, alone, gives the bytes and the time of its row.

    python -m tests.bench.suggestions

The questions ask for a small model on budgets from too little to too much, so that every kind of change is suggested.
"""

from __future__ import annotations

import itertools
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from sysbench.commands.fit.record import FitRecord, Trial
from sysbench.commands.fit.suggestions import command, suggestions
from tests.cli.running import answered, record_in

SHAPES = (
    ("--d-model=256", "--d-ff=1024", "--layers=4", "--heads=8", "--vocab=32000", "--ctx=512", "--batch=8"),
    ("--d-model=128", "--d-ff=512", "--layers=4", "--heads=4", "--vocab=500", "--ctx=1024", "--batch=8"),
)
PRECISIONS = ("fp32", "bf16")
BUDGETS = ("900MiB", "1200MiB", "1600MiB", "2400MiB")
GPUS = ("a100-40gb", "rtx-4090")


def main() -> int:
    """Ask, run each suggested command alone, and print how many agree; 1 if one does not."""
    counts: Counter[str] = Counter()
    for shape, precision, budget in itertools.product(SHAPES, PRECISIONS, BUDGETS):
        words = (*shape, f"--precision={precision}", f"--budget={budget}", f"--on={','.join(GPUS)}", "--keep=lora")
        record = FitRecord.model_validate(run("fit", *words))
        for part in suggestions(record.cells[0]):
            for trial in part.trials:
                kind, *line = shlex.split(command(record, trial))[1:]
                agrees = is_of(trial, run(kind, *line))
                counts["agree" if agrees else "differ"] += 1
                if not agrees:
                    print(command(record, trial))
        print(f"{shape[0]} {precision} {budget}: {dict(counts)}", flush=True)
    return 1 if counts["differ"] else 0


def run(kind: str, *words: str) -> dict[str, Any]:
    """Run a command, and return its record."""
    with tempfile.TemporaryDirectory() as out:
        ran = answered(kind, *words, "--quiet", f"--out={out}")
        assert ran.code == 0, ran.err
        return record_in(Path(out))


def is_of(trial: Trial, alone: dict[str, Any]) -> bool:
    """Return whether the record of the command alone has the bytes, and the time with its interval, of the row."""
    (cell,) = alone["cells"]
    predicted = cell["prediction"]
    step = trial.step.model_dump() if trial.step else None
    return (predicted["allocated_peak_bytes"], predicted["step"]) == (trial.allocated_peak_bytes, step)


if __name__ == "__main__":
    sys.exit(main())

"""How long `sysbench compare` takes for two records of 500 cells each, as a whole process.

python -m tests.bench.compare [--rounds 7]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from sysbench.commands.time.spec import TimeSpec
from tests.fixtures_timing import record

PROMISED_S = 1.0

GRID = TimeSpec(
    size=("tiny", "small"),
    ctx=tuple(range(16, 16 * 126, 16)),
    batch=(1,),
    precision=("fp32", "bf16"),
)
"""2 × 125 × 2 cells."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / f"{arm}.json" for arm in "ab"]
        for seed, path in enumerate(paths):
            found = record(GRID, seed=seed)
            path.write_text(found.model_dump_json(indent=1))
            print(f"{path.name}: {len(found.cells)} cells, {path.stat().st_size / 2**20:.1f} MiB")
        for format in ("terminal", "csv"):
            command = [sys.executable, "-m", "sysbench", "compare", *map(str, paths), "--format", format]
            elapsed_s, cpu_s = zip(*[taken(command) for _ in range(rounds + 1)][1:], strict=True)  # first: file cache
            promise = f"   promised ≤ {PROMISED_S:g} s" if format == "terminal" else ""
            spread = f"({min(elapsed_s):.2f}–{max(elapsed_s):.2f}; of the processor {median(cpu_s):.2f} s)"
            print(f"{format:9} {median(elapsed_s):6.2f} s   {spread}{promise}")


def taken(command: list[str]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    started_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()

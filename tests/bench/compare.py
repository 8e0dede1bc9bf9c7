"""How long `sysbench compare` takes for two records of 500 cells each, as a whole process.

python -m tests.bench.compare [--rounds 7]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from sysbench.specs.time import TimeSpec
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
            taken = [elapsed_s(command) for _ in range(rounds + 1)][1:]  # the first fills the file cache
            promise = f"   promised ≤ {PROMISED_S:g} s" if format == "terminal" else ""
            print(f"{format:9} {median(taken):6.2f} s   ({min(taken):.2f}–{max(taken):.2f}){promise}")


def elapsed_s(command: list[str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()

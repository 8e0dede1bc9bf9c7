"""What a cell of an attention sweep costs beyond the calls that are measured, in a worker that is warm.

python -m tests.bench.attention [--cells 12] [--seq 64]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from sysbench.commands.attention.record import AttentionTimed
from sysbench.log import journal as log
from sysbench.log.events import CellFinished, CellStarted

PROMISED_S = 0.050


def overheads_s(path: Path) -> list[float]:
    """For each cell but the first, the time from its start to its end without the calls that were timed."""
    found, started_s, calls_s = [], 0.0, 0.0
    for event in log.read(path):
        if isinstance(event, CellStarted):
            started_s, calls_s = event.at_s, 0.0
        elif isinstance(event, AttentionTimed):
            calls_s += event.sample.wall_s or 0.0
            if event.phase == "backward":
                calls_s += event.sample.wall_s or 0.0  # the forward before it is about as long, at the most
        elif isinstance(event, CellFinished):
            found.append(event.at_s - started_s - calls_s)
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--seq", type=int, default=64)
    arguments = parser.parse_args()
    sizes = ",".join(str(arguments.seq + 8 * number) for number in range(arguments.cells))
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "sysbench", "attention", "--device=cpu", "--dim=16", f"--seq={sizes}"]
        command += ["--batch=1", "--repeats=10", "--warmup=2", "--quiet", f"--out={directory}"]
        subprocess.run(command, check=True, capture_output=True)
        (path,) = Path(directory).glob("*.jsonl")
        found = overheads_s(path)
    print(
        f"{len(found)} cells, beyond their calls: median {median(found) * 1e3:.1f} ms, most {max(found) * 1e3:.1f} ms"
    )
    print(f"promised: {PROMISED_S * 1e3:.0f} ms")


if __name__ == "__main__":
    main()

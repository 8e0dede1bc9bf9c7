"""How long `sysbench --help` takes, beside a Python that only imports typer and rich.

python -m tests.bench.startup [--rounds 15]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

PROMISED = 1.3

COMMANDS = {
    "import typer, rich": [sys.executable, "-c", "import typer, rich"],
    "sysbench --help": [sys.executable, "-m", "sysbench", "--help"],
    "sysbench time --help": [sys.executable, "-m", "sysbench", "time", "--help"],
    "sysbench time --plan": [sys.executable, "-m", "sysbench", "time", "--plan", "--ctx", "128"],
}


def elapsed_s(command: list[str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    for command in COMMANDS.values():
        elapsed_s(command)  # once unmeasured: byte code and the file cache
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            times[name].append(elapsed_s(command))
    baseline = times["import typer, rich"]
    for name, samples in times.items():
        ratio = median(sample / base for sample, base in zip(samples, baseline, strict=True))
        promise = f"   promised ≤ {PROMISED}" if name == "sysbench --help" else ""
        print(f"{name:24} {median(samples) * 1e3:7.1f} ms   {ratio:5.2f} ×{promise}")


if __name__ == "__main__":
    main()

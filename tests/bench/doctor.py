"""How long `sysbench doctor` takes, beside a Python that only imports torch.

    python -m tests.bench.doctor [--rounds 10]

Both run in turns (A B B A …), and the ratio is taken within each round.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

from sysbench.statistics import ratio

PROMISED = 1.2

IMPORT = [sys.executable, "-c", "import torch"]
DOCTOR = [sys.executable, "-m", "sysbench", "doctor"]


def elapsed_s(command: list[str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    for command in (IMPORT, DOCTOR):
        elapsed_s(command)  # once unmeasured: byte code and the file cache
    imports, doctors = [], []
    for number in range(rounds):
        pair = [(IMPORT, imports), (DOCTOR, doctors)]
        for command, times in reversed(pair) if number % 2 else pair:
            times.append(elapsed_s(command))
    found = ratio([doctor / bare for doctor, bare in zip(doctors, imports, strict=True)], [1.0] * rounds)
    interval = f" ({found.low:.2f}-{found.high:.2f})" if found.low is not None and found.high is not None else ""
    print(f"import torch     {median(imports):6.2f} s")
    print(f"sysbench doctor  {median(doctors):6.2f} s   {found.value:.2f} ×{interval}   promised ≤ {PROMISED}")


if __name__ == "__main__":
    main()

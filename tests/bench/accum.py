"""How long `sysbench accum` takes, beside a Python that only imports torch.

python -m tests.bench.accum [--rounds 5]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from statistics import median

from tests.bench.startup import elapsed_s

PROMISED = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as out:
        baseline = [sys.executable, "-c", "import torch"]
        command = [sys.executable, "-m", "sysbench", "accum", "--device", "cpu", "--quiet", "--out", out]
        for each in (baseline, command):
            elapsed_s(each)  # once unmeasured: byte code and the file cache
        # Taken in turns, so that what else the machine does meets both alike.
        pairs = [(elapsed_s(baseline), elapsed_s(command)) for _ in range(rounds)]
    ratio = median(taken / base for base, taken in pairs)
    print(f"import torch    {median(base for base, _ in pairs):5.2f} s")
    print(f"sysbench accum  {median(taken for _, taken in pairs):5.2f} s   {ratio:.2f} ×   promised ≤ {PROMISED}")
    if ratio > PROMISED:
        sys.exit(1)


if __name__ == "__main__":
    main()

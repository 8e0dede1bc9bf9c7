"""What a run costs beyond import, model building and the steps themselves, and how much CPU the parent takes.

python -m tests.bench.overhead [--rounds 5] [--size tiny] [--ctx 256] [--steps 100]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from sysbench.log import journal as log
from sysbench.log.events import Compiled, ModelBuilt, StepMeasured, WorkerReady
from tests.bench.terminal import run_in_terminal

PROMISED_S, PROMISED_SHARE = 1.0, 0.02


class ParentWatch:
    """CPU time of the parent process, its children not included, while it is running."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, float]] = []

    def __call__(self, pid: int) -> None:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            return
        self.readings.append((time.perf_counter(), times.user + times.system))

    def share(self, settled_s: float = 5.0) -> float:
        """CPU seconds per second once start-up (imports, mostly) is over."""
        begin_s = self.readings[0][0] + settled_s
        during = [reading for reading in self.readings if reading[0] >= begin_s]
        (first_s, first_cpu_s), (last_s, last_cpu_s) = during[0], during[-1]
        return (last_cpu_s - first_cpu_s) / (last_s - first_s)


def accounted_s(path: Path) -> float:
    """Seconds that the log says went into importing torch, building, compiling and stepping."""
    total_s = 0.0
    for event in log.read(path):
        match event:
            case WorkerReady():
                total_s += event.torch.import_s
            case ModelBuilt():
                total_s += event.build_s
            case Compiled():
                total_s += event.compile_s
            case StepMeasured():
                total_s += event.step.wall_s or 0.0
            case _:
                pass
    return total_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    rest, shares = [], []
    # As where sysbench is installed: byte code is kept, and once it is there the files have been read before.
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    minute = [sys.executable, "-m", "sysbench", "time", "--size", arguments.size, "--ctx", "16", "--steps", "1"]
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([*minute, "--out", directory, "--quiet"], env=environment, stdout=subprocess.DEVNULL, check=True)
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "sysbench", "time", "--size", arguments.size, "--ctx", str(arguments.ctx)]
            command += ["--steps", str(arguments.steps), "--out", directory]
            watch = ParentWatch()
            elapsed_s, drawn_bytes = run_in_terminal(command, environment, watch)
            (path,) = Path(directory).glob("*.jsonl")
            rest.append(elapsed_s - accounted_s(path))
            shares.append(watch.share())
        print(
            f"round {number + 1}: {elapsed_s:6.2f} s, {rest[-1]:5.2f} s of it neither import, building nor steps; "
            f"parent {shares[-1]:.2%} of a core, {drawn_bytes / 1024:.0f} KiB drawn"
        )
    print(f"median rest   {median(rest):.2f} s   promised ≤ {PROMISED_S:g} s")
    print(f"median parent {median(shares):.2%}   promised ≤ {PROMISED_SHARE:.0%} of a core")


if __name__ == "__main__":
    main()

"""Pairs of runs of the same code on a busy machine: how often does `compare` see a difference that is not there?

    python -m tests.bench.same_code --pairs 200 --runs DIRECTORY
    python -m tests.bench.same_code --pairs 40 --loops 0 --runs DIRECTORY

Each run is `sysbench time` of a step of some 20 ms, with a worker that is forked; beside it, up to
`--loops` processes each use a core, and pause and go on at random moments. The logs are kept in DIRECTORY, so that an
interrupted session continues where it stopped, and a changed interval is judged again on the same samples.

Said at the end: how many pairs of the same code differ, in the table of verdicts and at the gate, and how many of the
same pairs are told apart, or told apart the wrong way round, if every time of B is 10% longer.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sysbench.commands.compare.cells import build_side
from sysbench.commands.compare.comparison import Rules, apply_gate, compare
from sysbench.engine.process import WorkerProcess
from sysbench.log import runs
from sysbench.log.records import RunRecord
from tests.cli.running import answered
from tests.worker import forked

SIZE = ("--d-model", "128", "--layers", "2", "--heads", "2", "--vocab", "2000")
STEP = ("time", *SIZE, "--ctx", "32", "--batch", "1", "--device", "cpu", "--columns", "step")
SLOWER = 1.1
GATE = 0.03

_BUSY = """
import random, sys, time
chance = random.Random(int(sys.argv[1]))
while True:
    end = time.perf_counter() + chance.expovariate(1 / 2)
    while time.perf_counter() < end:
        pass
    time.sleep(chance.expovariate(1 / 0.5))
"""


@contextmanager
def busy(loops: int, seed: int) -> Iterator[None]:
    """Keep so many processes busy, in bursts of two seconds with pauses of half a second, on average."""
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY, f"{seed + number}"]) for number in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measured(path: Path, loops: int, seed: int) -> RunRecord:
    """Return the record of the run in the folder `path`, which is measured beside so many loops if it is not there."""
    logs = list(path.glob("*.jsonl"))
    if not logs:
        with busy(loops, seed):
            answered(*STEP, "-q", "--out", str(path))
        logs = list(path.glob("*.jsonl"))
    return runs.load(logs[0])


def slower(record: RunRecord) -> RunRecord:
    """Return the record as if the code were 10% slower: every time and every end of an interval is 10% longer."""
    content = json.loads(record.model_dump_json())
    for cell in content["cells"]:
        cell["phases"] = _longer(cell["phases"])
    return type(record).model_validate(content)


def _longer(value: Any, is_time: bool = False) -> Any:
    if isinstance(value, dict):
        return {name: _longer(each, name.endswith("_s")) for name, each in value.items()}
    if isinstance(value, list):
        return [_longer(each, is_time) for each in value]
    return value * SLOWER if is_time and value is not None else value


def verdicts(a: RunRecord, b: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the verdict on the step in the table, and at the gate."""
    found = compare(build_side("A", {0: a}), build_side("B", {0: b}), Rules())
    yield from (("table", time.verdict) for cell in found.cells for time in cell.times if time.headline)
    gate = apply_gate(found, GATE)
    times = [text for text in gate.failed if " takes " in text]
    yield "gate", "SLOWER" if times else "AMBIGUOUS" if gate.undecided else "SAME"


def judge(a: RunRecord, b: RunRecord, same: Counter[tuple[str, str]], different: Counter[tuple[str, str]]) -> None:
    """Count the verdicts on A and B, and on A and a slower B."""
    same.update(verdicts(a, b))
    different.update(verdicts(a, slower(b)))


def main() -> None:
    WorkerProcess._launch = forked.launch  # type: ignore[method-assign,assignment]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--loops", type=int, default=3, help="largest number of busy processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=Path, required=True)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    same, different = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for number in range(options.pairs):
        chance = random.Random(f"{options.seed} {number}")
        a, b = (
            measured(options.runs / f"{number:03}-{arm}", chance.randint(0, options.loops), number)
            for arm in ("a", "b")
        )
        judge(a, b, same, different)
    for what, counts in (("the same code", same), (f"B takes {SLOWER} times as long", different)):
        for where in ("table", "gate"):
            found = {verdict: count for (place, verdict), count in counts.items() if place == where}
            print(f"{what}, {where}: {found}")


if __name__ == "__main__":
    main()

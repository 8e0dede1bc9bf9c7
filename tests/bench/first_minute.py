"""What people get within their first minute, on a quiet machine and beside two busy loops.

    python -m tests.bench.first_minute [--rounds 10] [--only NAME] [--limit S] [--state FILE]

Each command is started so many times quiet, and so many times while two processes keep two cores busy. For each start:
the seconds until the first line that says something about the question, the seconds until the end, and the step time
with its interval. Printed for each command: in how many starts the first answer came within 10 s, in how many there was
a number with an interval, and in how many of those the interval held the median of the quiet starts. With --state, what
was seen is kept in a file of JSON lines, and a later call goes on where this one ended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.busy import busy_loops

COMMANDS = {
    "time medium": ("time", "--size", "medium", "--ctx", "512", "--bf16"),
    "memory 2.7b": ("memory", "--size", "2.7b", "--snapshot", "out.pickle"),
    "attention": ("attention", "--sweep"),
    "readme": ("time", "--size", "small", "--ctx", "128"),
    "plan": ("run", "quick", "--plan"),
}

ANSWER = re.compile(
    r"PREDICTED|A step takes|no GPU here: simulating|^\s*\d+/\d+ |step \d|cells? |GiB|not fit|in all|about \d"
)
"""A line that answers something; lines about threads, other processes and the machine do not."""

FIRST_ANSWER_S = 10.0
BUSY_LOOPS = 2


@dataclass(frozen=True)
class Start:
    """One start of a command, and what came of it."""

    command: str
    busy: bool
    first_answer_s: float | None
    whole_s: float
    code: int
    step_s: float | None
    """Median step of the first cell with steps."""
    interval_s: tuple[float, float] | None
    load_average: float | None = None
    """Processes that wanted to run, on average over the minute before the start."""


def start(name: str, limit_s: float, *, busy: bool) -> Start:
    """Run a command without a terminal, in an empty directory; end it after `limit_s`."""
    words, load_average = [sys.executable, "-m", "sysbench", *COMMANDS[name]], os.getloadavg()[0]
    with TemporaryDirectory() as directory:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        began_s = time.perf_counter()
        answered_s: float | None = None
        with subprocess.Popen(
            words, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                passed_s = time.perf_counter() - began_s
                if answered_s is None and ANSWER.search(line):
                    answered_s = passed_s
                if passed_s > limit_s:
                    process.terminate()
        whole_s = time.perf_counter() - began_s
        step_s, interval_s = measured(Path(directory))
    return Start(name, busy, answered_s, whole_s, process.returncode, step_s, interval_s, load_average)


def measured(directory: Path) -> tuple[float | None, tuple[float, float] | None]:
    """Return the median step of the first cell that has steps, and its interval."""
    for path in directory.glob("runs/*.json"):
        for cell in json.loads(path.read_text())["cells"]:
            wall = ((cell.get("phases") or {}).get("step") or {}).get("wall")
            if wall:
                interval = wall["ci95_s"]
                return wall["median_s"], (interval[0], interval[1]) if interval else None
    return None, None


def summary(starts: Sequence[Start]) -> Iterator[str]:
    """Yield a line for each command and load."""
    for name in COMMANDS:
        quiet = [each.step_s for each in starts if each.command == name and not each.busy and each.step_s]
        for busy in (False, True):
            seen = [each for each in starts if each.command == name and each.busy is busy]
            if not seen:
                continue
            answers = [each.first_answer_s for each in seen if each.first_answer_s is not None]
            prompt = sum(answer <= FIRST_ANSWER_S for answer in answers)
            intervals = [each.interval_s for each in seen if each.interval_s is not None]
            loads = [each.load_average for each in seen if each.load_average is not None]
            held = sum(low <= median(quiet) <= high for low, high in intervals) if quiet else 0
            yield (
                f"{name:<12} {'busy ' if busy else 'quiet'}  first answer {median(answers or [float('nan')]):5.1f} s "
                f"(≤ {FIRST_ANSWER_S:g} s in {prompt} of {len(seen)})  whole {median(s.whole_s for s in seen):6.1f} s  "
                f"a step time in {sum(s.step_s is not None for s in seen)}, with an interval in {len(intervals)}, "
                f"which holds the quiet median in {held}; median load average {median(loads or [float('nan')]):.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", choices=COMMANDS, action="append")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a command is ended")
    parser.add_argument("--state", type=Path, help="file that keeps what was seen")
    options = parser.parse_args()
    starts: list[Start] = []
    if options.state is not None and options.state.exists():
        starts = [Start(**json.loads(line)) for line in options.state.read_text().splitlines()]
    for number in range(options.rounds):
        for busy in (False, True):
            with busy_loops(BUSY_LOOPS if busy else 0):
                for name in options.only or COMMANDS:
                    if sum(each.command == name and each.busy is busy for each in starts) > number:
                        continue
                    starts.append(start(name, options.limit, busy=busy))
                    if options.state is not None:
                        with options.state.open("a") as file:
                            file.write(json.dumps(asdict(starts[-1])) + "\n")
    for line in summary(starts):
        print(line)


if __name__ == "__main__":
    main()

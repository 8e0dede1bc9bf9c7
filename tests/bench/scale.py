"""How reading, showing and continuing runs grow with the number of their cells.

`python -m tests.bench.scale` measures one cell for real, writes logs in which it stands 100, 1,000 and 10,000 times,
each time as another cell whose steps took other times, and prints for each command its seconds, those of them on a core
(on a machine that is busy with something else, only these tell anything), its peak memory, the exponent of the number
of cells with which the seconds on a core grow (1 is linear), and the limit for 10,000 cells on two cores. Commands find
their bytecode, as those do that were installed.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sysbench
from sysbench.commands.time.spec import TimeSpec

STEPS = ("--steps", "10", "--warmup", "5")
MODEL = ("--d-model", "32", "--d-ff", "64", "--layers", "1", "--heads", "2", "--vocab", "50", "--device", "cpu")


READINGS = 5
"""Readings from outside in each cell."""


@dataclass(frozen=True)
class Cost:
    """What one command took."""

    seconds: float
    core_seconds: float
    peak_bytes: int


LIMITS = {
    "time --from log": "10 s, 300 MB",
    "time --from record": "",
    "report": "30 s",
    "report -o html": "30 s",
    "compare": "30 s",
    "resume": "5 s to the first new cell",
}
"""All commands, and what they may take for 10,000 cells."""


def measured_once(place: Path) -> list[str]:
    """The log of a run of one cell, line by line."""
    words = [*MODEL, *STEPS, "--mode", "forward", "--ctx", "16", "--batch", "1", "--quiet", "--out", str(place)]
    subprocess.run([sys.executable, "-m", "sysbench", "time", *words], check=True, stdout=subprocess.DEVNULL)
    (log,) = place.glob("*.jsonl")
    return log.read_text().splitlines()


def log_of(cells: int, template: Sequence[str], path: Path, *, missing: int = 0) -> Path:
    """A log in which that one cell stands for so many, the last few of which are missing; and its spec's size."""
    events = [json.loads(line) for line in template]
    batches, contexts = max(1, cells // 100), min(cells, 100)
    fields = {**events[0]["spec"], "batch": list(range(1, batches + 1)), "ctx": list(range(16, 16 + contexts))}
    spec = TimeSpec.model_validate(fields)
    first = next(number for number, event in enumerate(events) if event["event"] == "cell_started")
    last = next(number for number, event in enumerate(events) if event["event"] == "cell_finished")
    lines = template[first : last + 1]
    # On a busy machine the cell took longer, and was read more often.
    surplus = [line for line in lines if '"event":"reading"' in line][READINGS:]
    of_cell = "\n".join(line for line in lines if line not in surplus)
    old_key, old_axes = events[first]["cell"], json.dumps(events[first]["axes"], separators=(",", ":"))
    assert old_axes in of_cell
    with path.open("w") as file:
        start = {**events[0], "spec": spec.model_dump(mode="json"), "cells": cells}
        print(json.dumps(start, separators=(",", ":")), *template[1:first], sep="\n", file=file)
        chance = random.Random(cells)
        for cell in list(spec.cells())[: cells - missing]:
            varied = _STEP.sub(partial(_at_another_pace, chance), of_cell)
            print(varied.replace(old_key, cell.key).replace(old_axes, cell.model_dump_json()), file=file)
        print(*template[last + 1 :], sep="\n", file=file)
    return path


_STEP, _TIME = re.compile(r'.*"step_measured".*'), re.compile(r'(?<=_s":)[\d.e-]+(?=[,}])')


def _at_another_pace(chance: random.Random, step: re.Match[str]) -> str:
    """The line of a step that took longer or shorter, in all of its phases; the events' own time stays."""
    head, times = step[0].split('"phases"')
    factor = chance.lognormvariate(0.0, 0.05)
    return f'{head}"phases"{_TIME.sub(lambda time: str(float(time[0]) * factor), times)}'


def cost_of(words: Sequence[str]) -> Cost:
    """Seconds and peak memory of a process of its own, imports included."""
    started_s = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return Cost(time.monotonic() - started_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def resumed(log: Path) -> Cost:
    """What passes until a run is continued, its worker's start included: until the first new cell is in the log."""
    before = log.read_bytes()
    words = [sys.executable, "-m", "sysbench", "time", "--resume", str(log), "--quiet"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started_s = time.monotonic()
    while b"cell_started" not in _appended(log, len(before)):
        assert process.poll() is None, "it ended before a cell began"
        time.sleep(0.01)
    seconds = time.monotonic() - started_s
    process.kill()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    log.write_bytes(before)
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def _appended(log: Path, position: int) -> bytes:
    with log.open("rb") as file:
        file.seek(position)
        return file.read()


def costs(name: str, place: Path, cells: int) -> Cost:
    """What one of these costs for a run of so many cells."""
    log, record = place / f"{cells}.jsonl", place / f"{cells}.json"
    if name == "resume":
        return resumed(place / f"{cells}-part.jsonl")
    words = {
        "time --from log": ["time", "--from", str(log), "--json", str(record)],
        "time --from record": ["time", "--from", str(record)],
        "report": ["report", str(log)],
        "report -o html": ["report", str(log), "-o", str(place / "report.html"), "--quiet"],
        "compare": ["compare", str(log), str(place / f"{cells}-part.jsonl")],
    }[name]
    return cost_of(["-m", "sysbench", *words])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--cells", default="100,1000,10000")
    parser.add_argument("--only", default="", help="commands with this in them")
    parser.add_argument("--keep", type=Path, help="keep the logs there")
    asked = parser.parse_args()
    compileall.compile_dir(Path(sysbench.__file__).parent, quiet=1)
    counts = [int(word) for word in asked.cells.split(",")]
    with tempfile.TemporaryDirectory(prefix="sysbench-scale-") as temporary:
        place = asked.keep or Path(temporary)
        place.mkdir(exist_ok=True)
        template = measured_once(Path(temporary) / "once")
        for cells in counts:
            size_bytes = log_of(cells, template, place / f"{cells}.jsonl").stat().st_size
            log_of(cells, template, place / f"{cells}-part.jsonl", missing=max(1, cells // 100))
            print(f"{cells:,} cells: a log of {size_bytes / 1e6:.1f} MB")
        print(f"{'':20}", *(f"{cells:>28,}" for cells in counts), " exponent  limit")
        for name, limit in LIMITS.items():
            if asked.only in name:
                found = [costs(name, place, cells) for cells in counts]
                shown = (
                    f"{cost.seconds:6.1f} s {cost.core_seconds:5.1f} core-s {cost.peak_bytes / 1e6:5.0f} MB"
                    for cost in found
                )
                # Imports take the same time for every size: growth is told by the two largest.
                two = [(cost.core_seconds, cells) for cost, cells in zip(found, counts, strict=True)][-2:]
                growth = math.log(two[1][0] / two[0][0], two[1][1] / two[0][1]) if len(two) > 1 else 0.0
                print(f"{name:20}", *shown, f"{growth:9.2f}  {limit}", flush=True)


if __name__ == "__main__":
    main()

"""Whether `sysbench time` measures what a bare loop measures, by the host's clock and by CUDA events; what it costs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median

from sysbench.log import journal as log
from tests.bench.overhead import ParentWatch, accounted_s
from tests.bench.terminal import run_in_terminal
from tests.gpu.evidence.promises import at_most, near_one
from tests.gpu.evidence.work import Part, Work

WALL = "sysbench over a bare loop, whole step, by the host's clock"
EVENTS = "sysbench over a bare loop, whole step, by CUDA events"
BARE = "events over the host's clock in the bare loop"
REST = "a run's time beyond import, building and steps"
PARENT = "the parent's CPU time, as a share of a core"
ROUNDS = 3

Step = dict[str, float | None]
"""Its median, by the host's clock and by events."""


def _run(work: Work) -> None:
    # Steps so long that the device never waits for its host, whose noise would be all that differs.
    cell = ("tiny", "16", "fp32", "6", "cpu") if work.rehearsal else ("medium", "1024", "fp32", "20", "cuda")
    rounds: list[dict[str, Step]] = []
    for number in range(1 if work.rehearsal else ROUNDS):
        if not work.has(f"round {number + 1}", 30):
            break
        with work.attempt(f"round {number + 1}"):
            arms = {"bare": _bare, "sysbench": _sysbench}
            order = list(arms) if number % 2 == 0 else list(reversed(arms))
            rounds.append({name: arms[name](work, cell) for name in order})
            _tell(work, rounds)
    with work.attempt("what a run costs"):
        _cost(work)


def _tell(work: Work, rounds: list[dict[str, Step]]) -> None:
    work.numbers["rounds"] = rounds
    ratios = {
        WALL: [_ratio(each["sysbench"]["wall_s"], each["bare"]["wall_s"]) for each in rounds],
        EVENTS: [_ratio(each["sysbench"]["events_s"], each["bare"]["events_s"]) for each in rounds],
        BARE: [_ratio(each["bare"]["events_s"], each["bare"]["wall_s"]) for each in rounds],
    }
    for name, found in ratios.items():
        known = [ratio for ratio in found if ratio is not None]
        if known:
            work.see(name, median(known), f"rounds: {', '.join(f'{ratio:.4f}' for ratio in known)}")


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _bare(work: Work, cell: tuple[str, ...]) -> Step:
    ran = work.command(sys.executable, "-m", "tests.gpu.evidence.bare_loop", *cell)
    samples = json.loads(ran.out.read_text())
    events = samples["events_s"]
    return {"wall_s": median(samples["wall_s"]), "events_s": median(events) if events else None}


def _sysbench(work: Work, cell: tuple[str, ...]) -> Step:
    """With the dashboard drawn and the sampler on, as a person would run it."""
    size, ctx, precision, steps, device = cell
    directory = work.place / f"sysbench-{len(list(work.place.glob('sysbench-*')))}"
    words = ["time", f"--size={size}", f"--ctx={ctx}", f"--precision={precision}", f"--steps={steps}"]
    words += [f"--device={device}", "--sync=step", f"--out={directory}"]
    _in_terminal(words)
    (step,) = (each["phases"]["step"] for each in _cells(directory))
    device_s = step["device"]["median_s"] if step["device"] else None
    return {"wall_s": step["wall"]["median_s"], "events_s": device_s}


def _cost(work: Work) -> None:
    size, ctx, steps = ("tiny", "16", "100") if work.rehearsal else ("small", "512", "400")
    if not work.has("what a run costs", 35):
        return
    directory = work.place / "cost"
    watch = ParentWatch()
    words = ["time", f"--size={size}", f"--ctx={ctx}", f"--steps={steps}", work.device, f"--out={directory}"]
    elapsed_s, _ = _in_terminal(words, watch)
    (path,) = directory.glob("*.jsonl")
    rest_s = elapsed_s - accounted_s(path)
    work.numbers["cost"] = {"elapsed_s": elapsed_s, "rest_s": rest_s, "events": sum(1 for _ in log.read(path))}
    work.see(REST, rest_s)
    settled = [reading for reading in watch.readings if reading[0] >= watch.readings[0][0] + 5.0]
    if len(settled) > 4:
        work.see(PARENT, watch.share())


def _in_terminal(words: list[str], watch: ParentWatch | None = None) -> tuple[float, int]:
    command = [sys.executable, "-m", "sysbench", *words]
    return run_in_terminal(command, {**os.environ, "TERM": "xterm-256color"}, watch or (lambda pid: None))


def _cells(directory: Path) -> list[dict[str, dict[str, dict[str, dict[str, float]]]]]:
    (record,) = directory.glob("*.json")
    found: list[dict[str, dict[str, dict[str, dict[str, float]]]]] = json.loads(record.read_text())["cells"]
    return found


PART = Part(
    "fidelity",
    "sysbench against a bare loop, and what it costs",
    140,
    _run,
    (
        near_one(WALL, 0.005),
        near_one(EVENTS, 0.005),
        near_one(BARE, 0.005),
        at_most(REST, 1.0, "seconds"),
        at_most(PARENT, 0.02),
    ),
    limit_s=200,
)

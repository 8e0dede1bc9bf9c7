"""What `compare` says of runs of the same code, and of a run with 10% more work.

    python -m tests.bench.same_code [--pairs 200] [--loops 0,2] [--kinds same,more] [--rounds 14] [--state FILE]

Two runs of `sysbench time` of the same six cells follow each other, each with a process of its own, and are compared
as by `sysbench compare A B --gate 0`: each cell with its verdict is a pair. Every other time, B has 11 layers
instead of 10 (`more`, else `same`). Loads take turns: so many busy loops of Python run beside both runs. With --rounds,
A and B alternate so often, as by `sysbench compare --ab`. The workers are forked from a process that has imported torch
(tests/worker/forked.py); nothing else differs from the command line.

For each kind and load, a line counts the pairs, the verdicts and the gates that failed. Wrong is, for the same code,
FASTER or SLOWER, or a gate that fails; for more work, FASTER. Of the same code, the standard deviation of the ratio is
`CPU_REPEAT_SD` times the root of two, where nothing else runs. The load average before each run says how busy the
machine was. Runs that chose other numbers of threads are refused, and not counted. With --state, every pair is kept as
a line of JSON, and a later call adds to them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Literal
from unittest import mock

from sysbench import api
from sysbench.commands.compare.cells import build_side
from sysbench.commands.compare.comparison import compare_sides
from sysbench.commands.compare.spec import CompareOptions
from sysbench.engine.process import WorkerProcess
from sysbench.errors import UsageError
from sysbench.log.records import RunRecord
from tests.bench.busy import busy_loops
from tests.worker import forked

PairKind = Literal["same", "more"]
KINDS: tuple[PairKind, ...] = ("same", "more")

CELLS = "--d-model 32 --d-ff 128 --heads 4 --vocab 100 --ctx 24,32,48 --batch 2,4 --device cpu"
"""On a quiet core, a step takes some 15 to 20 ms."""

LAYERS = {"same": (10, 10), "more": (10, 11)}
"""Layers of A and of B: one more adds its tenth to what Python, the operators and the optimizer take alike, which one
more sequence does not."""


@dataclass(frozen=True)
class Pair:
    """A cell of two runs that were compared."""

    kind: PairKind
    cell: str
    loops: int
    load_average: float
    """Processes that wanted to run, on average over the minute before the pair."""
    threads: tuple[int, ...]
    step_s: tuple[float, float]
    processor_s: tuple[float | None, ...]
    """Processor time of a step."""
    ratio: float
    low: float | None
    high: float | None
    verdict: str
    gate: str
    """Whether a gate of 0% failed, was undecided, or passed."""
    cautions: tuple[tuple[str, ...], ...]

    @property
    def is_wrong(self) -> bool:
        if self.kind == "more":
            return self.verdict == "FASTER"
        return self.verdict in ("FASTER", "SLOWER") or self.gate == "failed"

    @property
    def is_found(self) -> bool:
        return self.kind == "more" and self.verdict == "SLOWER"


def measured(layers: int, directory: Path) -> RunRecord:
    return api.run(f"time {CELLS} --layers {layers}", out=directory).record


def compared(kind: PairKind, loops: int, rounds: int, directory: Path) -> Iterator[Pair]:
    """Measure A and B in so many rounds, and yield each cell."""
    load_average = os.getloadavg()[0]
    runs: list[dict[int, RunRecord]] = [{}, {}]
    for number in range(rounds):
        for arm in (number % 2, 1 - number % 2):
            runs[arm][number] = measured(LAYERS[kind][arm], directory)
    records = [each[0] for each in runs]
    a, b = (build_side(name, each) for name, each in zip("AB", runs, strict=True))
    options = CompareOptions(a="A", b="B", across=("size",) if kind == "more" else (), gate=0.0)
    try:
        found = compare_sides(a, b, options, paired=rounds > 1)
    except UsageError as refusal:  # as where the runs chose other numbers of threads
        print(refusal, file=sys.stderr, flush=True)
        return
    assert found.gate is not None
    for (name, cell), *measured_cells in zip(found.named_cells, *(record.cells for record in records), strict=True):
        step = cell.times[0]
        failed, undecided = (
            any(text.startswith(f"{name}: step") for text in texts)
            for texts in (found.gate.failed, found.gate.undecided)
        )
        yield Pair(
            kind=kind,
            cell=name,
            loops=loops,
            load_average=load_average,
            threads=tuple(record.environment.torch.threads if record.environment.torch else 0 for record in records),
            step_s=(step.a_s, step.b_s),
            processor_s=tuple(each.phases["step"].processor_median_s for each in measured_cells),
            ratio=step.ratio,
            low=step.low,
            high=step.high,
            verdict=step.verdict,
            gate="failed" if failed else "undecided" if undecided else "passed",
            cautions=tuple(tuple(caution.code for caution in each.cautions) for each in measured_cells),
        )


def pairs(loads: Sequence[int], kinds: Sequence[PairKind], rounds: int) -> Iterator[Pair]:
    """Yield pairs of every kind and load in turn, without end."""
    for loops, kind in itertools.cycle(itertools.product(loads, kinds)):
        with busy_loops(loops), TemporaryDirectory() as directory:
            yield from compared(kind, loops, rounds, Path(directory))


def summary(seen: Sequence[Pair]) -> Iterator[str]:
    for kind, loops in itertools.product(KINDS, sorted({each.loops for each in seen})):
        chosen = [each for each in seen if (each.kind, each.loops) == (kind, loops)]
        if not chosen:
            continue
        loads = sorted(each.load_average for each in chosen)
        verdicts = Counter(each.verdict for each in chosen)
        found = f", found {sum(each.is_found for each in chosen)}" if kind == "more" else ""
        widths = [each.high / each.low for each in chosen if each.low and each.high]
        logs = [math.log(each.ratio) for each in chosen]
        yield (
            f"{kind}, {loops} loops: {len(chosen)} pairs, wrong {sum(each.is_wrong for each in chosen)}{found}; "
            f"{', '.join(f'{verdict} {count}' for verdict, count in verdicts.most_common())}; "
            f"gates that failed {sum(each.gate == 'failed' for each in chosen)}; "
            f"ratio {math.exp(fmean(logs)):.3f}, standard deviation {stdev(logs):.1%}; "
            f"median width of the interval {median(widths or [float('nan')]):.2f}×; "
            f"load average {loads[0]:.1f} to {loads[-1]:.1f}, median {median(loads):.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=50, help="pairs to measure now")
    parser.add_argument("--loops", default="0,2", help="busy loops beside the pairs")
    parser.add_argument("--kinds", default=",".join(KINDS), help="the same code, 10%% more work, or both")
    parser.add_argument("--rounds", type=int, default=1, help="how often A and B alternate; at least 3, else once")
    parser.add_argument("--state", type=Path, help="file that keeps what was seen")
    options = parser.parse_args()
    loads = [int(word) for word in options.loops.split(",")]
    kinds = [kind for kind in KINDS if kind in options.kinds.split(",")]
    seen: list[Pair] = []
    if options.state is not None and options.state.exists():
        seen = [Pair(**json.loads(line)) for line in options.state.read_text().splitlines()]
    with mock.patch.object(WorkerProcess, "_launch", forked.launch):
        for each in itertools.islice(pairs(loads, kinds, options.rounds), options.pairs):
            seen.append(each)
            if each.is_wrong:
                print(each, file=sys.stderr, flush=True)
            if options.state is not None:
                with options.state.open("a") as file:
                    file.write(json.dumps(asdict(each)) + "\n")
    for line in summary(seen):
        print(line)


if __name__ == "__main__":
    main()

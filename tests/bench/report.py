"""What a report over 500 cells costs: time, memory and the size of its page.

    python -m tests.bench.report [--keep DIR] [--formats .html .md .tex .csv]

The runs are believable ones that are made up (time, attention) or small real ones, repeated under other axes (profile,
memory), in files as `sysbench` writes them. The report is made by a process of its own. CPU seconds are beside those of
the clock, for machines that do other things as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.kinds import command_of
from sysbench.log.records import RunRecord
from sysbench.spec.cell import cell_of
from tests import fixtures_attention, fixtures_timing

PROMISED_S = 10.0
PROMISED_RSS_BYTES = 400 * 2**20
PROMISED_BYTES = 8 * 2**20

SIZES = ("small", "medium", "large", "xl", "2.7b")
CONTEXTS = (128, 256, 512, 1024)

MEASURE = """
import json, resource, sys, time
wall, cpu = time.perf_counter(), time.process_time()
from sysbench.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"code": code, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "rss": rss}))
"""


def time_runs() -> Iterator[RunRecord[Any]]:
    """Every size and context in several precisions, eager and compiled: 240 cells."""
    for mode in ("forward-backward", "train"):
        yield fixtures_timing.record(
            TimeSpec(
                size=SIZES,
                ctx=CONTEXTS,
                precision=("fp32", "tf32", "bf16"),
                mode=(mode,),
                execution=("eager", "compiled"),
            )  # type: ignore[arg-type]
        )


def attention_runs() -> Iterator[RunRecord[Any]]:
    """A whole sweep of five implementations: 125 cells."""
    names = ("naive", "compiled", "sdpa-math", "sdpa-efficient", "sdpa-flash")
    spec = AttentionSpec(impl=names, dim=(16, 32, 64, 96, 128), seq=(256, 1024, 4096, 8192, 16384))
    yield fixtures_attention.record(spec)


def repeated(record: RunRecord[Any], axes: Sequence[dict[str, Any]]) -> RunRecord[Any]:
    """A run of one cell as one of many, which are alike but for these axes."""
    (cell,) = record.cells
    cells = []
    for changed in axes:
        other = cell_of({**cell.axes, **changed})
        cells.append(cell.model_copy(update={"cell": other, "key": other.key}))
    return record.model_copy(update={"cells": cells})


def real(directory: Path, *arguments: str) -> RunRecord[Any]:
    """The record of a small run on this machine."""
    command = [sys.executable, "-m", "sysbench", *arguments, "-q", "--out", str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (path,) = directory.glob("*.json")
    return command_of(arguments[0]).records().record.model_validate_json(path.read_bytes())  # type: ignore[index]


def model_runs(directory: Path) -> Iterator[RunRecord[Any]]:
    """Profiles and memory of a tiny model, as if they were of many: 30 and 100 cells; and rounding, 5 experiments."""
    profile = real(directory / "profile", "profile", "--size", "tiny", "--ctx", "32", "--steps", "2", "--device", "cpu")
    modes = ("forward", "forward-backward", "train")
    axes = [{"size": size, "ctx": ctx, "mode": mode} for size in SIZES for ctx in CONTEXTS[:2] for mode in modes]
    yield repeated(profile, axes)
    memory = real(
        directory / "memory", "memory", "--size", "tiny", "--ctx", "32", "--mode", "train", "--simulate", "a100-80gb"
    )
    yield real(directory / "accum", "accum", "sums,autocast,norm,scaling,matmul", "--device", "cpu")
    protocols = ("inference", "forward", "forward-backward", "train-first", "train")
    yield repeated(
        memory, [{"size": size, "ctx": ctx, "mode": mode} for size in SIZES for ctx in CONTEXTS for mode in protocols]
    )


def write_runs(directory: Path) -> int:
    """Records as they lie in `runs/`; returns how many cells they have."""
    with tempfile.TemporaryDirectory() as scratch:
        records = [*time_runs(), *attention_runs(), *model_runs(Path(scratch))]
    for number, record in enumerate(records):
        name = f"2026-11-20T14-{number:02}-00-{record.kind}.json"
        (directory / name).write_text(record.model_dump_json(indent=1) + "\n")
    return sum(len(record.cells) for record in records)


def measure(runs: Path, report: Path) -> dict[str, float]:
    """Make one report in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, "report", str(runs), "-o", str(report), "-q"],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found | {"bytes": report.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="make the runs and reports here, and leave them")
    parser.add_argument("--formats", nargs="*", default=[".html", ".md", ".tex", ".csv"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = given.keep or Path(scratch)
        runs = directory / "runs"
        if not runs.is_dir():
            runs.mkdir(parents=True)
            print(f"{write_runs(runs)} cells")
        for suffix in given.formats:
            found = measure(runs, directory / f"report{suffix}")
            print(
                f"{suffix:6} {found['wall_s']:6.1f} s  {found['cpu_s']:6.1f} s of CPU  "
                f"{found['rss'] / 2**20:5.0f} MiB  {found['bytes'] / 2**20:6.2f} MiB written"
            )
    print(f"promised for .html: {PROMISED_S:g} s, {PROMISED_RSS_BYTES / 2**20:g} MiB, {PROMISED_BYTES / 2**20:g} MiB")


if __name__ == "__main__":
    main()

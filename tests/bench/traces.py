"""What reading a trace and making all its tables costs: seconds, processor seconds, and resident memory.

python -m tests.bench.traces [--megabytes 1000 4000] [--kernels 5000000] [--analyst PYTHON] [--directory DIRECTORY]

Files of Kineto's JSON are written, read and summarised in a process of its own, and so is an export of Nsight Systems
with five kernels to each NVTX range; Kineto's once more with a slice of them, as large as slices may be. `--analyst`
names a Python that has Meta's HolisticTraceAnalysis (it wants older libraries than this project): it reads 200 MB
beside sysbench and makes three tables, where sysbench makes all. Time is without imports. Memory is that of the process
and of those that it starts, together. Where others use the machine, processor seconds say more than seconds; they
include imports.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.trace import kineto_files, nsys_files

SPENT = """
import json, resource, sys, time
{imports}
begin = time.perf_counter()
{read}
done = time.perf_counter()
own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps({{
    "wall_s": done - begin,
    "processor_s": sum(each.ru_utime + each.ru_stime for each in (own, others)),
    "peak_bytes": (own.ru_maxrss + others.ru_maxrss) * unit,
}}))
"""

IMPORTS = """
from pathlib import Path
from sysbench.trace import traces, window
from sysbench.trace.summarise import summarise
"""

SYSBENCH = SPENT.format(
    imports=IMPORTS,
    read="summarise(traces.read(Path(sys.argv[1])))",
)

SLICE = SPENT.format(
    imports=IMPORTS,
    read="""
recording = traces.read(Path(sys.argv[1]))
cut = window.extract_slice(recording, window.find_window(recording, None), window.MAX_ROWS)
summarise(recording)
del recording
window.write(Path(sys.argv[1] + ".slice.json"), cut, window.MAX_BYTES)
""",
)

ANALYST = SPENT.format(
    imports="from hta.trace_analysis import TraceAnalysis",
    read="""
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
for table in ("gpu_kernel_breakdown", "temporal_breakdown", "cuda_kernel_launch_stats"):
    getattr(analysis, f"get_{table}")(visualize=False)
""",
)


@dataclass(frozen=True)
class Spent:
    """By a process that reads a file."""

    wall_s: float
    processor_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return f"{self.wall_s:.1f} s ({self.processor_s:.1f} s of processors), {self.peak_bytes / 1e6:.0f} MB"


def kineto_file(path: Path, megabytes: float) -> None:
    """Write about this much."""
    every = kineto_files.events(10**9)
    with path.open("w", encoding="utf-8") as file:
        for piece in kineto_files.text(itertools.takewhile(lambda _: file.tell() < megabytes * 1e6, every)):
            file.write(piece)


def spent(python: str, program: str, path: Path) -> Spent:
    """What the program takes for the file, in a process of its own."""
    ran = subprocess.run([python, "-c", program, str(path)], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{python} failed: {ran.stderr.strip()}")
    return Spent(**json.loads(ran.stdout.splitlines()[-1]))


def beside(analyst: str, path: Path, rounds: int = 3) -> None:
    """Both read the same file and make their tables, one right after the other, and again."""
    kineto_file(path, 200)
    pairs = []
    for _ in range(rounds):
        ours, theirs = spent(sys.executable, SYSBENCH, path), spent(analyst, ANALYST, path)
        print(f"200 MB, sysbench: {ours}; HolisticTraceAnalysis: {theirs}")
        pairs.append((ours, theirs))
    wall = statistics.median(theirs.wall_s / ours.wall_s for ours, theirs in pairs)
    processor = statistics.median(theirs.processor_s / ours.processor_s for ours, theirs in pairs)
    memory = statistics.median(theirs.peak_bytes / ours.peak_bytes for ours, theirs in pairs)
    print(
        f"median: {wall:.0f} × the time ({processor:.0f} × on processors), {memory:.1f} × the memory; promised: 20, 5"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="*", default=[1000, 4000])
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--analyst", metavar="PYTHON")
    parser.add_argument("--directory", type=Path, help="where files of several gigabytes may be written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        path = Path(directory) / "trace.json"
        for megabytes in arguments.megabytes:
            kineto_file(path, megabytes)
            size_mb = path.stat().st_size / 1e6
            took = spent(sys.executable, SYSBENCH, path)
            print(f"Kineto, {size_mb:,.0f} MB: {took}; promised: 12 s for each GB, 600 MB up to 4 GB")
            print(f"Kineto, {size_mb:,.0f} MB, and a slice of 100 MB: {spent(sys.executable, SLICE, path)}")
        if arguments.analyst:
            beside(arguments.analyst, path)
        path.unlink(missing_ok=True)
        if arguments.kernels:
            ranges = arguments.kernels // 5
            nsys_files.write(path, new=True, kernel_count=arguments.kernels, range_count=ranges)
            took = spent(sys.executable, SYSBENCH, path)
            print(f"nsys, {arguments.kernels:,} kernels, {ranges:,} ranges: {took}; promised for 5 million: 15 s")


if __name__ == "__main__":
    main()

"""What reading a trace and making all its tables costs, in seconds and in resident memory.

python -m tests.bench.traces [--megabytes 1000] [--kernels 5000000] [--analyst PYTHON]

A file of Kineto's JSON is written, read and summarised in a process of its own, and so is an export of Nsight Systems
with five kernels to each NVTX range. `--analyst` names a Python that has Meta's HolisticTraceAnalysis (it wants older
libraries than this project); it reads 200 MB beside sysbench.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.unit import kineto_files, nsys_files

READ = """
import resource, sys, time
from pathlib import Path
begin = time.perf_counter()
from sysbench.analysis import traces
imported = time.perf_counter()
trace = traces.read(Path(sys.argv[1]))
read = time.perf_counter()
from sysbench.analysis.profile import summarise
summary = summarise(trace)
done = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(f"{done - imported:.1f} s ({read - imported:.1f} s of it reading), {peak / 1e6:.0f} MB, "
      f"{len(trace.work.name):,} kernels and copies")
"""

ANALYST = """
import resource, sys, time, json
begin = time.perf_counter()
from hta.common.trace import parse_trace_dataframe
parse_trace_dataframe(sys.argv[1])
print(f"{time.perf_counter() - begin:.1f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")
"""


def kineto_file(path: Path, megabytes: float) -> None:
    """Write about this much."""
    every = kineto_files.events(10**9)
    with path.open("w", encoding="utf-8") as file:
        for piece in kineto_files.text(itertools.takewhile(lambda _: file.tell() < megabytes * 1e6, every)):
            file.write(piece)


def spent(python: str, program: str, path: Path) -> str:
    """What the program says of the file, in a process of its own."""
    ran = subprocess.run([python, "-c", program, str(path)], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or f"failed: {ran.stderr.strip().splitlines()[-1:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--analyst", metavar="PYTHON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        if arguments.megabytes:
            kineto_file(path, arguments.megabytes)
            size = path.stat().st_size / 1e6
            print(f"Kineto, {size:,.0f} MB: {spent(sys.executable, READ, path)}; promised for 1 GB: 12 s, 600 MB")
        if arguments.analyst:
            kineto_file(path, 200)
            print(f"200 MB, sysbench: {spent(sys.executable, READ, path)}")
            print(f"200 MB, HolisticTraceAnalysis: {spent(arguments.analyst, ANALYST, path)}; promised: 20 × as long")
        if arguments.kernels:
            export, ranges = Path(directory) / "export.sqlite", arguments.kernels // 5
            begin_s = time.perf_counter()
            nsys_files.write(export, new=True, kernel_count=arguments.kernels, range_count=ranges)
            said = spent(sys.executable, READ, export)
            print(f"nsys, {arguments.kernels:,} kernels, {ranges:,} ranges: {said}; promised for 5 million: 15 s")
            print(f"(made and read in {time.perf_counter() - begin_s:.0f} s)")


if __name__ == "__main__":
    main()

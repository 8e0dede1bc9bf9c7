"""What simulating memory costs: one large step, a sweep, and the same step under torch's own MemTracker.

    python -m tests.bench.simulation [--size 2.7b] [--ctx 512] [--precision bf16] [--without-tracker]

Every arm is a process of its own. Seconds count from when torch is imported; CPU seconds are beside those of the
clock, for machines that do other things as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

PROMISED_S = 8.0
PROMISED_BYTES = 1.5e9
PROMISED_SWEEP_S = 90.0
PROMISED_RATIO = 5.0

GIB = 2**30

PRELUDE = """
import json, resource, sys, time
import torch
wall, cpu = time.perf_counter(), time.process_time()
size, ctx, precision = sys.argv[1], int(sys.argv[2]), sys.argv[3]
from sysbench.commands.memory.spec import MemorySpec

def cell(**changes):
    spec = MemorySpec(size=size, ctx=ctx, precision=precision, mode="train", device="cpu")
    return next(spec.cells()).step.model_copy(update=changes)

def report(**found):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    found |= {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "rss_bytes": peak}
    print(json.dumps(found))
"""

GPU = """
from sysbench.spec.hardware import by_name
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate
gpu = Gpu.of(by_name("a100-80gb"))
"""

ONE = """
import tempfile, pathlib
from sysbench.snapshot import snapshot
result = simulate(cell(), "train", gpu)
with tempfile.TemporaryDirectory() as directory:
    snapshot.write(pathlib.Path(directory) / "snapshot.pickle", result.snapshot())
report(peak_bytes=result.allocated_peak_bytes, events=len(result.recording.events))
"""

SWEEP = """
contexts, precisions, protocols = (ctx // 4, ctx // 2, ctx), ("fp32", "bf16"), ("inference", "forward", "train")
cells = [(p, c, m) for c in contexts for p in precisions for m in protocols]
for precision, ctx, protocol in cells:
    simulate(cell(ctx=ctx, precision=precision), protocol, gpu)
report(cells=len(cells))
"""

TRACKER = """
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from sysbench.lab.step import TrainingStep
with FakeTensorMode():
    step = TrainingStep(cell(), torch.device("cpu"))
    tracker = MemTracker()
    tracker.track_external(step.model, step._optimizer, *step.work.batches[0].arguments)
    with tracker:
        for _ in range(2):
            step.forget()
            tracker.reset_mod_stats()  # it refuses a second step otherwise
            for _, phase in step.phases:
                phase()
peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
report(peak_bytes=peak["Total"])
"""


def run(arguments: argparse.Namespace, *parts: str) -> dict[str, float]:
    words = [arguments.size, str(arguments.ctx), arguments.precision]
    command = [sys.executable, "-W", "ignore", "-c", "".join((PRELUDE, *parts)), *words]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _spent(found: dict[str, float]) -> str:
    return f"{found['wall_s']:.1f} s ({found['cpu_s']:.1f} s CPU)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2.7b")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--without-tracker", action="store_true")
    arguments = parser.parse_args()
    name = f"{arguments.size}, ctx {arguments.ctx}, {arguments.precision}, train"

    one = run(arguments, GPU, ONE)
    print(f"{name}, with stacks and snapshot: {_spent(one)}, promised {PROMISED_S:.0f} s")
    print(f"  memory: {one['rss_bytes'] / 1e9:.2f} GB, promised {PROMISED_BYTES / 1e9:.1f} GB")
    print(f"  {one['events']:.0f} events, peak {one['peak_bytes'] / GIB:.2f} GiB")

    sweep = run(arguments, GPU, SWEEP)
    print(f"{sweep['cells']:.0f} cells: {_spent(sweep)}, promised {PROMISED_SWEEP_S:.0f} s")

    if arguments.without_tracker:
        return
    tracker = run(arguments, TRACKER)
    again = run(arguments, GPU, ONE)
    ratios = [tracker[clock] / again[clock] for clock in ("wall_s", "cpu_s")]
    print(
        f"MemTracker, the same two steps under fake tensors: {tracker['wall_s']:.1f} s ({tracker['cpu_s']:.1f} s CPU)"
    )
    print(f"  {ratios[0]:.1f} times as long ({ratios[1]:.1f} by CPU), promised {PROMISED_RATIO:.0f}")
    print(f"  its peak: {tracker['peak_bytes'] / GIB:.2f} GiB")


if __name__ == "__main__":
    main()

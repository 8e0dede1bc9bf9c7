"""What reading a memory snapshot costs, and how smooth the page of one is.

    python -m tests.bench.snapshots [--entries 100000 1000000 2600000] [--depth 80] [--page]

Files are made as torch makes them: distinct frames shared, a list of frames for every allocation, the same list for
its two releases. Every file is read in a process of its own. CPU seconds are beside those of the clock, for machines
that do other things as well. With --page, a page of 100,000 allocations is zoomed in headless Chromium, a step a frame.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROMISED_S = 3.0
PROMISED_ENTRIES = 100_000

READ = """
import json, resource, sys, time
from pathlib import Path
from sysbench.snapshot import snapshot
from sysbench.snapshot.categories import from_snapshot

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

idle, wall, cpu = peak(), time.perf_counter(), time.process_time()
read = snapshot.read(Path(sys.argv[1]))
found = {"entries": len(read.trace), "stacks": len(read.stacks), "read_s": time.perf_counter() - wall}
found |= {"read_cpu_s": time.process_time() - cpu, "rss_bytes": peak(), "idle_bytes": idle}
wall, cpu = time.perf_counter(), time.process_time()
timeline = from_snapshot(read)
timeline.by_category
timeline.groups(timeline.peak.state)
found |= {"timeline_s": time.perf_counter() - wall, "timeline_cpu_s": time.process_time() - cpu}
print(json.dumps(found | {"with_timeline_bytes": peak()}))
"""

ZOOM = """
const done = arguments[arguments.length - 1];
const canvas = document.getElementById("timeline");
const box = canvas.getBoundingClientRect();
const frames = [];
let steps = 0;
let last = performance.now();
performance.clearMeasures();
function step(now) {
  frames.push(now - last);
  last = now;
  if (steps++ >= 120) {
    const draws = performance.getEntriesByName("draw").map((entry) => entry.duration);
    return done([frames.slice(2), draws]);
  }
  const deltaY = steps <= 60 ? -30 : 30;
  const at = { clientX: box.x + box.width * 0.6, clientY: box.y + box.height * 0.7 };
  canvas.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY, cancelable: true }));
  requestAnimationFrame(step);
}
requestAnimationFrame(step);
"""


def write_snapshot(path: Path, entries: int, depth: int) -> None:
    """A snapshot of so many trace entries, with stacks so deep."""
    rng = random.Random(0)
    frames = [{"name": f"function_{i}", "filename": f"/torch/file_{i % 300}.py", "line": i} for i in range(20_000)]
    stacks = [rng.sample(frames, depth) for _ in range(3000)]
    trace: list[dict[str, Any]] = []
    live: list[tuple[int, int, list[Any]]] = []
    address = 0x7F0000000000
    while len(trace) < entries:
        stack, size = list(rng.choice(stacks)), rng.choice([512, 4096, 100_000, 1 << 22, 1 << 28])
        trace.append(_entry("alloc", address, size, stack, len(trace)))
        live.append((address, size, stack))
        address += size
        if len(live) > 500:
            gone = live.pop(rng.randrange(500))
            trace += [_entry(action, *gone, len(trace)) for action in ("free_requested", "free_completed")]
    with path.open("wb") as file:
        pickle.dump({"segments": [], "device_traces": [trace], "allocator_settings": {}}, file, protocol=4)


def _entry(action: str, address: int, size: int, stack: list[Any], number: int) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": 1_700_000_000_000_000 + 11 * number,
        "compile_context": "".join(("N/", "A")),
        "user_metadata": "",
        "pool_id": (number * 0, 0),
        "frames": stack,
    }


def measure_reading(entries: int, depth: int, directory: Path) -> None:
    """Write one file and read it, each in a process of its own."""
    path = directory / f"{entries}.pickle"
    here = [sys.executable, "-m", "tests.bench.snapshots", "--write", str(path), "--entries", str(entries)]
    subprocess.run([*here, "--depth", str(depth)], check=True)
    ran = subprocess.run([sys.executable, "-c", READ, str(path)], check=True, capture_output=True, text=True)
    found = json.loads(ran.stdout)
    print(
        f"{path.stat().st_size / 2**20:7.0f} MiB  {found['entries']:9,} entries  {found['stacks']:6,} stacks"
        f"   read {found['read_s']:6.2f} s (CPU {found['read_cpu_s']:.2f} s)"
        f"   RSS {found['rss_bytes'] / 2**20:5.0f} MiB (idle {found['idle_bytes'] / 2**20:.0f})"
        f"   timeline {found['timeline_s']:.2f} s (CPU {found['timeline_cpu_s']:.2f} s),"
        f" RSS {found['with_timeline_bytes'] / 2**20:.0f} MiB"
    )
    if entries <= PROMISED_ENTRIES:
        print(f"         promised: {PROMISED_S} s; {'kept' if found['read_s'] <= PROMISED_S else 'BROKEN'}")
    path.unlink()


def measure_page(directory: Path) -> None:
    """Zoom into a page of 100,000 allocations and out again."""
    from sysbench.commands.memory import page as memory_page
    from sysbench.snapshot import snapshot
    from sysbench.snapshot.categories import from_snapshot
    from tests.render.browser import browser, missing
    from tests.snapshot.synthetic_snapshots import Model, training_snapshot

    if missing():
        print(f"page: not measured, {missing()}")
        return
    timeline = from_snapshot(snapshot.of(training_snapshot(Model(layers=48), steps=53, described=False)))
    path = directory / "page.html"
    memory_page.write(path, timeline, "bench")
    with browser(directory / "profile", 1360, 940) as window:
        window.open(path)
        window.settle()
        for attempt in ("first", "second"):
            frames, draws = window.run_async(ZOOM)
            print(f"page, {len(timeline.allocations):,} allocations, {attempt} time in and out, 120 frames:")
            for name, values in (("frame", frames), ("drawing", draws)):
                ordered = sorted(values)
                middle, late = statistics.median(ordered), ordered[int(len(ordered) * 0.95)]
                print(f"   {name:8} median {middle:5.1f} ms   p95 {late:5.1f} ms   most {ordered[-1]:5.1f} ms")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[100_000, 500_000])
    parser.add_argument("--depth", type=int, default=80)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_snapshot(arguments.write, arguments.entries[0], arguments.depth)
        return
    with tempfile.TemporaryDirectory() as directory:
        for entries in arguments.entries:
            measure_reading(entries, arguments.depth, Path(directory))
        if arguments.page:
            measure_page(Path(directory))


if __name__ == "__main__":
    main()

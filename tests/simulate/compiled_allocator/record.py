"""Writes the fixtures in tests/fixtures/snapshots: `python -m tests.simulate.compiled_allocator.record TORCH_VERSION`.

The version is that of the PyTorch whose allocator is run, for the record.
"""

from __future__ import annotations

import gzip
import pickle
import sys
import tempfile
from itertools import chain
from pathlib import Path

from sysbench.simulate.allocator.settings import AllocatorSettings
from tests.simulate.allocator_calls import MIB, Call, random_calls, training_calls
from tests.simulate.compiled_allocator.compiled import build

FIXTURES = Path(__file__).parents[2] / "fixtures" / "snapshots"
GIB = 1024 * MIB


def _training(recorded_steps: int, steps_before: int | None = None) -> list[Call]:
    """A training loop, recorded from its setup, or from a later step on as a profile of a running job would be."""
    setup, *steps = training_calls(recorded_steps + (steps_before or 0))
    if steps_before is None:
        return [*setup, *chain.from_iterable(steps)]
    return [
        *setup,
        *chain.from_iterable(steps[:steps_before]),
        ("r",),
        ("p",),
        *chain.from_iterable(steps[steps_before:]),
    ]


RECORDINGS: dict[str, tuple[list[Call], str, int]] = {
    "training": (_training(2), "", 16 * GIB),
    "training-expandable": (_training(2), "expandable_segments:True", 16 * GIB),
    "training-steady": (_training(2, steps_before=2), "", 16 * GIB),
    "training-steady-expandable": (_training(2, steps_before=2), "expandable_segments:True", 16 * GIB),
    "training-tight": (_training(2), "", 1050 * MIB),
    "hard": (random_calls(1, 600), "", 64 * GIB),
    "hard-steady": ([*random_calls(2, 300), ("r",), *random_calls(3, 300)], "", 64 * GIB),
    "hard-tight": (random_calls(4, 600), "", 300 * MIB),
    "hard-tight-expandable": (random_calls(5, 600), "expandable_segments:True", 300 * MIB),
    "hard-max-split": (random_calls(6, 600), "max_split_size_mb:20", 260 * MIB),
    "hard-roundup": (random_calls(7, 600), "roundup_power2_divisions:[1:8,4:2,>:4]", 400 * MIB),
    "hard-collecting": (
        random_calls(8, 600),
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.75",
        280 * MIB,
    ),
}


def main(torch_version: str) -> None:
    FIXTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        allocator = build(Path(directory))
        for name, (calls, settings, capacity_bytes) in RECORDINGS.items():
            ran = allocator.run(calls, settings, capacity_bytes)
            recording = {
                "allocator": f"libc10_cuda.so of PyTorch {torch_version}",
                "device": "stand-in, no GPU",
                "capacity_bytes": capacity_bytes,
                "memory_fraction": AllocatorSettings.parse(settings).memory_fraction,
                "reserved_peak_bytes": max(counters[5] for counters in ran.counters),
            }
            snapshot = {**ran.snapshot, "recording": recording}
            # mtime 0: the same recording is the same file.
            with (
                (FIXTURES / f"{name}.pickle.gz").open("wb") as file,
                gzip.GzipFile("", "wb", mtime=0, fileobj=file) as out,
            ):
                out.write(pickle.dumps(snapshot, protocol=4))
            print(name, len(ran.snapshot["device_traces"][0]), "entries", ran.counters[-1])


if __name__ == "__main__":
    main(sys.argv[1])

"""How long the allocator model takes over 100,000 allocations and their frees, for each kind of settings.

python -m tests.bench.allocator [--rounds 3]
"""

from __future__ import annotations

import argparse
import time

from sysbench.simulate.allocator import CachingAllocator
from sysbench.simulate.allocator.settings import AllocatorSettings
from tests.simulate.allocator_calls import Call, play, training_calls
from tests.simulate.allocator_replay import reproduce

PROMISED_S = 2.0
CAPACITY_BYTES = 192 * 2**30

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
)


def played_s(calls: list[Call], settings: AllocatorSettings, record: bool) -> tuple[float, CachingAllocator]:
    allocator = CachingAllocator(CAPACITY_BYTES, settings, record=record)
    started_s = time.perf_counter()
    play(calls, allocator)
    return time.perf_counter() - started_s, allocator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    calls = [call for part in training_calls(255, layers=32, width=2560) for call in part]
    allocations = sum(call[0] == "a" for call in calls)
    print(
        f"{allocations:,} allocations, {len(calls) - allocations:,} frees; promised: {PROMISED_S} s for 100,000 of each"
    )
    for text in SETTINGS:
        settings = AllocatorSettings.parse(text)
        plain_s = min(played_s(calls, settings, record=False)[0] for _ in range(rounds))
        recorded_s = min(played_s(calls, settings, record=True)[0] for _ in range(rounds))
        print(f"{plain_s:6.2f} s   recorded {recorded_s:6.2f} s   {text or '(default)'}")
    _, allocator = played_s(calls, AllocatorSettings(), record=True)
    started_s = time.perf_counter()
    snapshot = allocator.snapshot()
    snapshot_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    divergence = reproduce(snapshot).divergence
    print(f"{snapshot_s:6.2f} s   snapshot of {len(snapshot['device_traces'][0]):,} entries")
    print(f"{time.perf_counter() - started_s:6.2f} s   reproduced, divergence: {divergence}")


if __name__ == "__main__":
    main()

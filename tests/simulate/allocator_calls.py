"""Sequences of calls on an allocator, for the model and PyTorch's compiled one alike."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from sysbench.simulate.allocator import CachingAllocator, SimulatedOutOfMemoryError
from sysbench.simulate.allocator.blocks import Block

MIB = 1024 * 1024

Call = tuple[str | int | float, ...]
"""("a", key, size, stream) · ("f", key) · ("e",) empty the cache · ("m", memory fraction) · ("p",) reset peaks ·
("r",) forget the trace so far (the compiled allocator only).

Freeing a key that could not be allocated does nothing."""

BORDERLINE_SIZES = (
    *(1, 511, 512, 513, 1500, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB, 5 * MIB + 100, 9 * MIB),
    *(10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 12 * MIB + 512, 19 * MIB, 20 * MIB, 21 * MIB, 33 * MIB + 1, 40 * MIB),
)

SETTINGS = (
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:32,max_non_split_rounding_mb:24",
    "large_segment_size_mb:12",
    "large_segment_size_mb:21",
    "large_segment_size_mb:64,max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,4:2,>:4]",
    "per_process_memory_fraction:0.5",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.75",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.75,max_split_size_mb:20",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:12",
    "expandable_segments:True,max_split_size_mb:32,max_non_split_rounding_mb:24",
    "expandable_segments:True,max_split_size_mb:20,garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
)
"""Settings whose rules meet in different ways."""


def random_calls(seed: int, length: int, allocate_share: float = 0.52) -> list[Call]:
    """A hard life: borderline sizes, two streams, frees in any order, now and then an emptied cache."""
    chance = random.Random(seed)
    calls: list[Call] = []
    live: list[int] = []
    for key in range(length):
        kind = chance.random()
        if kind < 0.01:
            calls.append(("e",))
        elif kind < 0.02:
            calls.append(("p",))
        elif kind < allocate_share or not live:
            borderline = chance.random() < 0.7
            size = chance.choice(BORDERLINE_SIZES) if borderline else int(2 ** chance.uniform(0, 25.5))
            calls.append(("a", key, size, chance.choice((0, 0, 0, 7))))
            live.append(key)
        else:
            calls.append(("f", live.pop(chance.randrange(len(live)))))
    return calls


def with_changing_fractions(calls: list[Call]) -> list[Call]:
    """The same life while the share of the device that may be used changes."""
    fractions = (0.5, 1.0, 0.8, 0.3, 0.9)
    changed = list(calls)
    for count, index in enumerate(range(len(calls), 0, -40)):
        changed.insert(index, ("m", fractions[count % len(fractions)]))
    return changed


def training_calls(steps: int, layers: int = 6, width: int = 1024, tokens: int = 2048) -> Iterator[list[Call]]:
    """The setup of a model, then one list for each step: activations kept forwards, freed backwards, gradients,
    optimizer state that appears in the first step, temporaries everywhere."""
    keys = iter(range(10**9))
    weights = [width * width * 4, width * width * 4, 4 * width * width * 4, 4 * width * width * 4, width * 4]
    yield [("a", next(keys), size, 0) for _ in range(layers) for size in weights]
    workspace: list[Call] = [("a", next(keys), 8_519_680, 0)]
    gradients: list[int] = []
    for step in range(steps):
        calls: list[Call] = workspace if step == 0 else []
        calls += [("f", key) for key in gradients]
        saved: list[list[int]] = []
        for _ in range(layers):
            activations = [next(keys) for _ in range(6)]
            sizes = (
                tokens * width * 4,
                tokens * 4,
                tokens * width * 2,
                4 * tokens * width * 2,
                tokens * tokens,
                700_001,
            )
            calls += [("a", key, size, 0) for key, size in zip(activations, sizes, strict=True)]
            calls += [("f", activations[2]), ("f", activations[5])]
            saved.append([activations[0], activations[1], activations[3], activations[4]])
        gradients = []
        for activations in reversed(saved):
            temporary = next(keys)
            calls.append(("a", temporary, 4 * tokens * width * 4, 0))
            for size in weights:
                gradients.append(next(keys))
                calls.append(("a", gradients[-1], size, 0))
            calls += [("f", key) for key in (temporary, *activations)]
        if step == 0:
            calls += [("a", next(keys), size, 0) for _ in range(2 * layers) for size in weights]
        yield calls


def play(calls: Iterable[Call], allocator: CachingAllocator, live: dict[int, Block] | None = None) -> list[int | None]:
    """Make the calls on the model; the address of each allocation, None for out of memory."""
    held = {} if live is None else live
    addresses: list[int | None] = []
    for kind, *values in calls:
        if kind == "a":
            key, size, stream = map(int, values)
            try:
                held[key] = allocator.allocate(size, stream)
                addresses.append(held[key].address)
            except SimulatedOutOfMemoryError:
                addresses.append(None)
        elif kind == "f":
            block = held.pop(int(values[0]), None)
            if block is not None:
                allocator.free(block)
        elif kind == "m":
            allocator.set_memory_fraction(float(values[0]))
        elif kind == "e":
            allocator.empty_cache()
        else:
            allocator.reset_peaks()
    return addresses

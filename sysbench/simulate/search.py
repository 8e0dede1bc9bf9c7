"""Search for the largest batch size or context length that fits on a GPU, and for the fewest ranks."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from sysbench.log.cautions import margin_uncertainty_bytes
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import SimulatedMemory, simulate
from sysbench.simulate.replay import Verdict
from sysbench.spec.model import ModelCell
from sysbench.spec.problems import layout_problem
from sysbench.spec.steps import Protocol, SearchAxis

MAX_VALUE = 2**20
"""Upper limit of the search for a batch size or context length."""


MAX_RANKS = 4096
"""Upper limit of the search for ranks. With more ranks, the savings are within the uncertainty about a GPU's memory."""


ROUNDING_BYTES = 64 * 2**20
"""Allowance for rounding in the allocator, where two simulated peaks are compared."""


@dataclass(frozen=True)
class Largest:
    """The result of a search."""

    value: int
    """Largest value that fits, or the fewest ranks; 0 if nothing fits."""
    safe: int
    """Largest value, or fewest ranks, with a margin beyond the uncertainty of a simulation; 0 if there is none."""
    result: SimulatedMemory | None
    """Simulation of `value`, with stacks and modules; None if nothing fits."""
    beyond: SimulatedMemory | None
    """Simulation of the next value, which does not fit; None if every tried value fits."""
    more_is_useless: bool = False
    """Whether the search for ranks ended because more ranks cannot save what is missing."""


Search = Generator[tuple[int, SimulatedMemory], None, Largest]
"""Yields each tried value and its simulation; returns the result."""


def find_largest(
    cell: ModelCell,
    axis: SearchAxis,
    gpu: Gpu,
    protocol: Protocol = "train",
    settings: AllocatorSettings | None = None,
    at_most: int = MAX_VALUE,
) -> Search:
    """Find the largest value of `axis` with which `cell` fits on `gpu`, and the largest one that fits for certain.

    Raises the same errors as `simulate`.
    """
    tried: dict[int, SimulatedMemory] = {}

    def search(spare_bytes: int) -> Generator[tuple[int, SimulatedMemory], None, int]:
        steps = narrowing(min(at_most, max(1, getattr(cell, axis))), at_most)
        value = next(steps)
        while True:
            if value not in tried:
                tried[value] = simulate(cell.model_copy(update={axis: value}), protocol, gpu, settings, origins=False)
                yield value, tried[value]
            try:
                value = steps.send(left_bytes(tried[value].verdict, spare_bytes))
            except StopIteration as end:
                return int(end.value)

    fits = yield from search(0)
    safe = (yield from search(margin_uncertainty_bytes(gpu.memory_bytes))) if fits else 0
    result = simulate(cell.model_copy(update={axis: fits}), protocol, gpu, settings) if fits else None
    return Largest(fits, safe, result, tried.get(fits + 1))


def left_bytes(verdict: Verdict, spare_bytes: int) -> int:
    """Return the free memory beyond `spare_bytes`, or the missing memory as a negative number."""
    beyond_bytes = verdict.margin_bytes - spare_bytes
    return beyond_bytes if verdict.fits else min(beyond_bytes, -1)


def narrowing(start: int, at_most: int) -> Generator[int, int | None, int]:
    """Yield values to try, to be sent the bytes left with each, or None if it is impossible; return the largest to fit.

    Starting from `start`, the search doubles the value until it does not fit, and then narrows the interval,
    alternately by interpolation and by bisection. It returns 0 if nothing fits.
    """
    left: dict[int, int | None] = {0: None}
    fits, fails, value = 0, 0, start
    while not fails or fails - fits > 1:
        sent = left[value] = yield value
        if sent is not None and sent >= 0:
            fits = value
        else:
            fails = value
        if fits == at_most:
            break
        low_bytes, high_bytes = left[fits], left.get(fails)
        if not fails:
            value = min(2 * value, at_most)
        elif low_bytes is None or high_bytes is None or len(left) % 2 == 0:
            value = (fits + fails) // 2
        else:  # where nothing would be left, if what is left were linear between the two
            share = low_bytes / max(1, low_bytes - high_bytes)
            value = min(fails - 1, max(fits + 1, fits + int(share * (fails - fits))))
    return fits


def find_fewest_ranks(
    cell: ModelCell, gpu: Gpu, protocol: Protocol = "train", settings: AllocatorSettings | None = None
) -> Search:
    """Find the fewest ranks, 1 or a power of two, with which `cell` fits on GPUs like `gpu`, and fits for certain.

    Numbers that the strategy does not allow are skipped, such as those that do not divide the number of heads. A single
    rank is not sharded. If the cell has a `param_dtype`, a single rank still uses FSDP2, which computes in that dtype.
    The search ends where more ranks cannot save what is missing. Raises the same errors as `simulate`.
    """
    single_rank = {"strategy": "fsdp2" if cell.param_dtype is not None else None, "reshard": None, "no_sync": None}
    tried: dict[int, SimulatedMemory] = {}
    value, is_useless, uncertain_bytes = 0, False, margin_uncertainty_bytes(gpu.memory_bytes)
    for ranks in (1 << power for power in range(MAX_RANKS.bit_length())):
        sharded = cell.model_copy(update={"ranks": ranks, **(single_rank if ranks == 1 else {})})
        if layout_problem(sharded) is not None:
            continue
        tried[ranks] = simulate(sharded, protocol, gpu, settings, origins=False)
        yield ranks, tried[ranks]
        value = value or (ranks if tried[ranks].verdict.fits else 0)
        if left_bytes(tried[ranks].verdict, uncertain_bytes) >= 0:
            break
        is_useless = _are_more_ranks_useless(tried, uncertain_bytes if value else 0)
        if is_useless:
            break
    safe = next((ranks for ranks, memory in tried.items() if left_bytes(memory.verdict, uncertain_bytes) >= 0), 0)
    result = simulate(tried[value].recording.cell, protocol, gpu, settings) if value else None
    beyond = max((ranks for ranks, memory in tried.items() if not memory.verdict.fits), default=None)
    return Largest(value, safe, result, tried[beyond] if beyond else None, more_is_useless=is_useless and not value)


def _are_more_ranks_useless(tried: dict[int, SimulatedMemory], margin_bytes: int) -> bool:
    """Return whether not even infinitely many ranks would leave this margin.

    What each rank's tensors need is the highest of several phases, each with a part that is divided among the ranks: a
    convex function of 1 / ranks. So all further doublings together save at most as much as the last one saved. A single
    rank is not sharded, and the allocator's cache is released before memory runs out.
    """
    sharded = [
        memory.gpu.memory_bytes - memory.gpu.outside_bytes - max(memory.recording.live_bytes(), default=0)
        for ranks, memory in tried.items()
        if ranks > 1
    ]
    if len(sharded) < 2:
        return False
    saved_bytes = max(0, sharded[-1] - sharded[-2])
    return sharded[-1] + saved_bytes + ROUNDING_BYTES < margin_bytes

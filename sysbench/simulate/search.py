"""Search for the largest batch size or context length that fits on a GPU, and for the fewest ranks."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import SimulatedMemory, simulate
from sysbench.spec.model import ModelCell
from sysbench.spec.protocols import Protocol, SearchAxis
from sysbench.spec.ranks import layout_problem

MAX_VALUE = 2**20
"""Upper limit of the search for a batch size or context length."""


MAX_RANKS = 4096
"""Upper limit of the search for ranks. With more ranks, the savings are within the uncertainty about a GPU's memory."""


@dataclass(frozen=True)
class Largest:
    """The result of a search."""

    value: int
    """Largest value that fits, or the fewest ranks; 0 if nothing fits."""
    result: SimulatedMemory | None
    """Simulation of that value, with stacks and modules; None if nothing fits."""
    beyond: SimulatedMemory | None
    """Simulation of the next value, which does not fit; None if every tried value fits."""


def find_largest(
    cell: ModelCell,
    axis: SearchAxis,
    gpu: Gpu,
    protocol: Protocol = "train",
    settings: AllocatorSettings | None = None,
    at_most: int = MAX_VALUE,
) -> Generator[tuple[int, SimulatedMemory], None, Largest]:
    """Find the largest value of `axis` with which `cell` fits on `gpu`; yields each tried value and its simulation.

    Starting from the cell's own value, the search doubles the value until the cell does not fit. The search then
    narrows the interval, alternately by interpolation and by bisection, with at most 2 · log2(`at_most`) simulations in
    total. Raises the same errors as `simulate`.
    """
    tried: dict[int, SimulatedMemory] = {}
    fits, fails = 0, at_most + 1
    value, interpolate = min(at_most, max(1, getattr(cell, axis))), True
    while fails - fits > 1:
        tried[value] = simulate(cell.model_copy(update={axis: value}), protocol, gpu, settings, origins=False)
        yield value, tried[value]
        if tried[value].verdict.fits:
            fits = value
        else:
            fails = value
        if fails > at_most:
            value = min(at_most, 2 * value)
            continue
        value = (fits + fails) // 2
        if interpolate and fits:
            # Interpolate the value at which the margin would reach zero.
            left_bytes, missing_bytes = tried[fits].verdict.margin_bytes, tried[fails].verdict.margin_bytes
            share = left_bytes / max(1, left_bytes - missing_bytes)
            value = min(fails - 1, max(fits + 1, fits + int(share * (fails - fits))))
        interpolate = not interpolate
    result = simulate(cell.model_copy(update={axis: fits}), protocol, gpu, settings) if fits else None
    return Largest(fits, result, tried.get(fails))


def find_fewest_ranks(
    cell: ModelCell, gpu: Gpu, protocol: Protocol = "train", settings: AllocatorSettings | None = None
) -> Generator[tuple[int, SimulatedMemory], None, Largest]:
    """Find the fewest ranks, 1 or a power of two, with which `cell` fits on GPUs like `gpu`.

    Yields each tried number and its simulation. Numbers that the strategy does not allow are skipped, such as those
    that do not divide the number of heads. A single rank is not sharded. If the cell has a `param_dtype`, a single rank
    still uses FSDP2, which computes in that dtype. Raises the same errors as `simulate`.
    """
    single_rank = {"strategy": "fsdp2" if cell.param_dtype is not None else None, "reshard": None, "no_sync": None}
    beyond: SimulatedMemory | None = None
    for ranks in (1 << power for power in range(MAX_RANKS.bit_length())):
        sharded = cell.model_copy(update={"ranks": ranks, **(single_rank if ranks == 1 else {})})
        if layout_problem(sharded) is not None:
            continue
        tried = simulate(sharded, protocol, gpu, settings, origins=False)
        yield ranks, tried
        if tried.verdict.fits:
            return Largest(ranks, simulate(sharded, protocol, gpu, settings), beyond)
        beyond = tried
    return Largest(0, None, beyond)

"""The largest batch or context that fits on a GPU, and the fewest ranks."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from sysbench.commands.memory.spec import Protocol, SearchAxis
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import SimulatedMemory, simulate
from sysbench.spec.model import ModelCell
from sysbench.spec.ranks import layout_problem

AT_MOST = 2**20
"""Upper limit of the search."""


MOST_RANKS = 4096
"""The same for ranks; sharding over more saves less than the assumptions about a GPU are uncertain by."""


@dataclass(frozen=True)
class Largest:
    """The result of a search."""

    value: int
    """Largest value that fits, or the fewest ranks; 0 if none does."""
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
    at_most: int = AT_MOST,
) -> Generator[tuple[int, SimulatedMemory], None, Largest]:
    """Find the largest value of `axis` with which `cell` fits on `gpu`; yields each value that is tried.

    The value doubles from the cell's own until a value does not fit. The search then narrows the interval, alternately
    by interpolation and by bisection: at most twice the binary logarithm of `at_most` simulations. Raises as `simulate`
    does.
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
    """Find the fewest ranks, 1 or a power of two, over which `cell` fits on GPUs like `gpu`; yields each tried number.

    A number that the strategy does not allow, such as one that does not divide the heads, is passed over. One rank has
    nothing to share; where parameters have a type to be gathered in, FSDP2 computes in it on one rank too. Raises as
    `simulate` does.
    """
    alone = {"strategy": "fsdp2" if cell.param_dtype is not None else None, "reshard": None, "no_sync": None}
    beyond: SimulatedMemory | None = None
    for ranks in (1 << power for power in range(MOST_RANKS.bit_length())):
        among = cell.model_copy(update={"ranks": ranks, **(alone if ranks == 1 else {})})
        if layout_problem(among) is not None:
            continue
        tried = simulate(among, protocol, gpu, settings, origins=False)
        yield ranks, tried
        if tried.verdict.fits:
            return Largest(ranks, simulate(among, protocol, gpu, settings), beyond)
        beyond = tried
    return Largest(0, None, beyond)

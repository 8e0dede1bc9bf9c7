"""Several ranks for one training step: how many processes, and how the model is distributed over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import BeforeValidator

from sysbench.spec.axes import choices, integers

if TYPE_CHECKING:
    from sysbench.spec.model import GridCell

Strategy = Literal["ddp", "fsdp2", "tp", "hsdp"]

Ranks = Annotated[tuple[int, ...], BeforeValidator(integers(1, 65_536))]
"""An axis of numbers of ranks."""

Strategies = Annotated[tuple[Strategy, ...], BeforeValidator(choices("a strategy", get_args(Strategy)))]

Interconnect = Literal["eth-100", "ib-200", "ib-400", "ib-800"]
"""Network between nodes, by the nominal rate of each GPU's adapter in Gbit/s."""

NODE_RANKS = 8
"""Ranks of one node in every common GPU server; HSDP shards within a node."""


def points(ranks: Sequence[int], strategies: Sequence[Strategy]) -> Iterator[tuple[int, Strategy | None]]:
    """Yield the numbers of ranks, each with its strategies: none for one rank, DDP unless others are given."""
    for each in ranks:
        for strategy in strategies or ("ddp",):
            if each > 1:
                yield each, strategy
        if each == 1:
            yield 1, None


def layout(strategy: Strategy | None, ranks: int) -> tuple[int, int]:
    """Return (replicas, shards): how many copies of the model there are, and over how many ranks each is split.

    HSDP shards within a node of 8 ranks, and over half of the ranks if there is no more than one node.
    """
    match strategy:
        case "fsdp2" | "tp":
            return 1, ranks
        case "hsdp":
            shards = NODE_RANKS if ranks > NODE_RANKS else ranks // 2
            return ranks // shards, shards
    return ranks, 1


def ranks_problem(cell: GridCell) -> str | None:
    """Return the reason why the cell cannot be one of several ranks, in one line, or None if it can."""
    if cell.ranks > 1 and (refused := cell.ranks_refused) is not None:
        return f"--ranks {cell.ranks}: {refused}"
    return layout_problem(cell)


def layout_problem(cell: GridCell) -> str | None:
    """Return the reason why the cell's model cannot be distributed like this, in one line, or None if it can."""
    ranks, shape = cell.ranks, cell.shape
    if cell.strategy == "hsdp" and (ranks < 4 or ranks % (NODE_RANKS if ranks > NODE_RANKS else 2)):
        nearest = max(4, ranks - ranks % 2) if ranks <= NODE_RANKS else max(16, round(ranks / NODE_RANKS) * NODE_RANKS)
        return (
            f"--ranks {ranks} makes no replicas of equal shards for --strategy hsdp: allowed are 4, 6, 8, and "
            f"multiples of {NODE_RANKS}. Nearest: {nearest}"
        )
    if cell.strategy == "tp" and shape is not None:
        for name, size in (("heads", shape.heads), ("d_ff", shape.d_ff)):
            if size % ranks:
                fits = [each for each in range(1, size + 1) if shape.heads % each == 0 and shape.d_ff % each == 0]
                nearest = min(fits, key=lambda each: abs(each - ranks))
                return (
                    f"--strategy tp splits the {size} {name.replace('d_ff', 'columns of d_ff')} of {cell.size} over "
                    f"--ranks {ranks}, which does not divide them. Nearest that does: {nearest}"
                )
    return None

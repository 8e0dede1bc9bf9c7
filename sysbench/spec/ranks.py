"""Training steps on several ranks: the number of processes, and the distribution of the model over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from sysbench.errors import Refusal
from sysbench.spec.axes import choices, parse_whole_number, split_words
from sysbench.spec.options import flag_of

if TYPE_CHECKING:
    from sysbench.spec.model import GridCell

Strategy = Literal["ddp", "fsdp2", "tp", "hsdp"]

Switch = Literal["on", "off"]
Reshard = Switch | int
"""Whether a block's parameters are freed after forward; a number keeps them sharded over groups of that many ranks."""

ShardDtype = Literal["fp32", "bf16"]


def parse_reshards(value: object) -> tuple[str | int, ...]:
    """Parse `on`, `off`, or numbers of ranks from 2; raises ValueError for anything else."""
    words = split_words(value)
    for word in words:
        if word not in ("on", "off") and not (word.isdecimal() and parse_whole_number(word) > 1):
            raise ValueError(f"{word or '(nothing)'} is not on, off, or a number of ranks from 2")
    return tuple(int(word) if word.isdecimal() else word for word in words)


MAX_RANKS = 65_536
MAX_BUCKET_MB = 65_536
MAX_PREFETCH = 1000
parse_switches = choices("a value", get_args(Switch))
parse_dtypes = choices("a type", get_args(ShardDtype))

DDP: tuple[str, tuple[Strategy, ...]] = ("strategy", ("ddp",))
SHARDED: tuple[str, tuple[Strategy, ...]] = ("strategy", ("fsdp2", "hsdp"))
DISTRIBUTED: tuple[str, tuple[Strategy, ...]] = ("strategy", ("ddp", "fsdp2", "hsdp"))
"""Strategies to which an option applies, as in `Axis.applies_to`."""

Interconnect = Literal["eth-100", "ib-200", "ib-400", "ib-800"]
"""Network between nodes, by the nominal rate of each GPU's adapter in Gbit/s."""

SMALL_SHM_BYTES = 1 << 30
"""Size of /dev/shm that may be too small for NCCL and data loaders; Docker's default is 64 MiB."""

NODE_RANKS = 8
"""Ranks of one node in every common GPU server; HSDP shards within a node."""


def knobs_problem(
    strategies: Sequence[Strategy],
    knobs: Mapping[str, Sequence[object]],
    applicable: Mapping[str, Sequence[object]],
) -> Refusal | None:
    """Return a refusal if one of the given knobs applies to none of the strategies, otherwise None."""
    for name, values in knobs.items():
        if values and not set(applicable[name]) & set(strategies):
            needed = ", ".join(map(str, applicable[name]))
            reason = f"applies to --strategy {needed}; this run has {', '.join(strategies)}"
            return Refusal(reason, option=flag_of(name))
    return None


def layout(strategy: Strategy | None, ranks: int) -> tuple[int, int]:
    """Return (replicas, shards): the number of copies of the model, and the number of ranks that share each copy."""
    match strategy:
        case "fsdp2" | "tp":
            return 1, ranks
        case "hsdp":
            shards = NODE_RANKS if ranks > NODE_RANKS else ranks // 2
            return ranks // shards, shards
    return ranks, 1


def ranks_problem(cell: GridCell) -> Refusal | None:
    """Return the reason why the cell cannot run on its number of ranks, or None if it can."""
    if cell.ranks > 1 and (refused := cell.ranks_unsupported_reason) is not None:
        return Refusal(refused, option=f"--ranks {cell.ranks}:")
    return layout_problem(cell)


def layout_problem(cell: GridCell) -> Refusal | None:
    """Return the reason why the model cannot be distributed with this strategy, or None if it can."""
    ranks, shape, given = cell.ranks, cell.shape, f"--ranks {cell.ranks}"
    if cell.strategy == "hsdp" and (ranks < 4 or ranks % (NODE_RANKS if ranks > NODE_RANKS else 2)):
        nearest = max(4, ranks - ranks % 2) if ranks <= NODE_RANKS else max(16, round(ranks / NODE_RANKS) * NODE_RANKS)
        uneven = "cannot form replicas of equal size for --strategy hsdp"
        return Refusal(uneven, f"use 4, 6, 8, or a multiple of {NODE_RANKS}. Nearest: {nearest}", given)
    if isinstance(cell.reshard, int) and cell.strategy is not None:
        shards = layout(cell.strategy, ranks)[1]
        groups = [size for size in range(2, shards) if shards % size == 0]
        if cell.reshard not in groups:
            wanted = cell.reshard
            closest = min(groups, key=lambda size: abs(size - wanted), default="on")
            return Refusal(
                f"does not divide the {shards} ranks of a --strategy {cell.strategy} shard group",
                f"use one of {', '.join(['on', 'off', *map(str, groups)])}. Nearest: {closest}",
                f"--reshard {wanted}",
            )
    if cell.strategy == "tp" and shape is not None:
        for name, size in (("heads", shape.heads), ("d_ff", shape.d_ff)):
            if size % ranks:
                fits = [each for each in range(1, size + 1) if shape.heads % each == 0 and shape.d_ff % each == 0]
                nearest = min(fits, key=lambda each: abs(each - ranks))
                split = f"splits the {size} {name.replace('d_ff', 'columns of d_ff')} of {cell.size} over {given}"
                return Refusal(
                    f"{split}, which does not divide them", f"nearest valid number: {nearest}", "--strategy tp"
                )
    return None

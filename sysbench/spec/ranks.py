"""Training steps on several ranks: the number of processes, and the distribution of the model over them."""

from __future__ import annotations

from typing import Literal, get_args

from sysbench.spec.axes import choices, parse_whole_number, split_words

Strategy = Literal["ddp", "fsdp2", "tp", "hsdp", "zero1", "zero2"]

ZERO: tuple[Strategy, ...] = ("zero1", "zero2")
"""Strategies in which each rank has all parameters, and a part of the optimizer's state; their stage is the digit."""

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
BUCKETS: tuple[str, tuple[Strategy, ...]] = ("strategy", ("ddp", *ZERO))
SHARDED: tuple[str, tuple[Strategy, ...]] = ("strategy", ("fsdp2", "hsdp"))
DISTRIBUTED: tuple[str, tuple[Strategy, ...]] = ("strategy", ("ddp", "fsdp2", "hsdp"))
"""Strategies to which an option applies, as in `Axis.applies_to`."""

Interconnect = Literal["eth-100", "ib-200", "ib-400", "ib-800"]
"""Network between nodes, by the nominal rate of each GPU's adapter in Gbit/s."""

SMALL_SHM_BYTES = 1 << 30
"""Size of /dev/shm that may be too small for NCCL and data loaders; Docker's default is 64 MiB."""

NODE_RANKS = 8
"""Ranks of one node in every common GPU server; HSDP shards within a node."""


def layout(strategy: Strategy | None, ranks: int) -> tuple[int, int]:
    """Return (replicas, shards): the number of copies of the model, and the number of ranks that share each copy."""
    match strategy:
        case "fsdp2" | "tp":
            return 1, ranks
        case "hsdp":
            shards = NODE_RANKS if ranks > NODE_RANKS else ranks // 2
            return ranks // shards, shards
    return ranks, 1

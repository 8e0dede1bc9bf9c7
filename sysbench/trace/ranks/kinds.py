"""Kinds of collectives, their message sizes, and their bandwidths as nccl-tests defines them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal, get_args

from sysbench.trace.recording import NONE

Kind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
    "other",
]
"""Collectives of torch.distributed. `send_recv` stands for all point-to-point messages."""

ENDS_TOGETHER: Final[frozenset[Kind]] = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
)
"""Collectives that no rank can leave before every rank has entered them."""

_PHRASES: Final[tuple[tuple[str, Kind], ...]] = (
    *((kind.replace("_", ""), kind) for kind in get_args(Kind)[:5]),
    ("sendrecv", "send_recv"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
)
"""The first that a name contains counts: `reduce` is also a part of `allreduce`."""


@lru_cache(maxsize=4096)
def kind_of(name: str) -> Kind:
    """Return the kind that a name contains, in any spelling: `_allgather_base`, `ncclDevKernel_AllGather_RING_LL`."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for phrase, kind in _PHRASES if phrase in letters), "other")


_BYTES: Final = (
    (re.compile(r"float8\w*|byte|char|bool|(unsigned|signed) char|u?int8(_t)?", re.IGNORECASE), 1),
    (re.compile(r"(c10::)?(half|bfloat16)|u?short( int)?|float16|u?int16(_t)?", re.IGNORECASE), 2),
    (re.compile(r"float|float32|(unsigned )?int|u?int32(_t)?", re.IGNORECASE), 4),
    (re.compile(r"double|float64|(unsigned )?long( int)?|u?int64(_t)?", re.IGNORECASE), 8),
    (re.compile(r"complexfloat|c10::complex<float>", re.IGNORECASE), 8),
    (re.compile(r"complexdouble|c10::complex<double>", re.IGNORECASE), 16),
)
"""Types as Kineto writes them in arguments of collectives (`BFloat16`) and in those of operators (`c10::BFloat16`)."""


@lru_cache(maxsize=256)
def element_bytes(dtype: str) -> int | None:
    """Return the size of one element (`BFloat16`, `float`, `Long`); None for an unknown type."""
    return next((size for pattern, size in _BYTES if pattern.fullmatch(dtype)), None)


def message_bytes(kind: Kind, elements: tuple[int, int], dtype: str, group_size: int | None) -> int | None:
    """Return the size that nccl-tests counts: the larger of input and output.

    `elements` are those of input and output, NONE if not recorded. If only the input is known, the output of an
    all-gather follows from the size of the group. None if the size is unknown.
    """
    size, given, made = element_bytes(dtype), *elements
    if kind in ("all_gather", "gather") and made == NONE:
        made = given * group_size if group_size and given != NONE else NONE
        given = made
    largest = max(given, made)
    return None if size is None or largest == NONE else largest * size


_BUS_FACTORS: Final[Mapping[Kind, Callable[[int], float]]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
}
"""Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""


def bus_factor(kind: Kind, group_size: int) -> float | None:
    """Return bus bandwidth over algorithm bandwidth; None for kinds without one."""
    factor = _BUS_FACTORS.get(kind)
    return factor(group_size) if factor is not None else None

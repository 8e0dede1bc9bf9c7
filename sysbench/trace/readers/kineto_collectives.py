"""Collectives among Kineto's events, with their arguments.

Kineto writes the arguments of `record_param_comms` to the kernels that it launches (libkineto, output_json.cpp; their
names are in torch/csrc/profiler/util.h). Backends on the host, such as gloo, record a range with the shapes of its
inputs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.trace.kernels.classes import classified
from sysbench.trace.recording import CALLED, HOST_RAN, KERNEL_RAN, NONE, Integers

_CALL: Final = re.compile(r"c10d::\w+|record_param_comms")
_ON_HOST: Final = re.compile(r"(gloo|mpi|ucc):\w+")
"""Ranges of other backends (`nccl:all_reduce`) only last as long as the launch."""

_KINDS: Final[dict[str, tuple[int, Callable[[str], bool]]]] = {
    "work": (KERNEL_RAN, lambda name: classified(name) == "communication"),
    "operators": (CALLED, lambda name: _CALL.fullmatch(name) is not None),
    "ranges": (HOST_RAN, lambda name: _ON_HOST.fullmatch(name) is not None),
}


_UNSEEN: Final = -1


class CollectiveRows:
    """Finds collectives among events, and reads their arguments; texts are numbered by `names`."""

    def __init__(self, names: dict[Any, int]) -> None:
        self._names = names
        self._known = {which: np.zeros(0, np.int8) for which in _KINDS}
        """Whether each name is that of a collective, or _UNSEEN; names of events repeat millions of times."""

    def among(self, which: str, events: Sequence[Any], name: NDArray[Any]) -> tuple[list[int], Sequence[Integers]]:
        """Return the positions of the collectives, and their columns from `source` on, as in `Collectives`.

        `name` is the number of each event's name.
        """
        if which not in _KINDS:
            return [], ()
        source, holds = _KINDS[which]
        known = self._known[which]
        if len(known) < len(self._names):
            known = np.concatenate([known, np.full(2 * len(self._names) - len(known), _UNSEEN, np.int8)])
            self._known[which] = known
        unseen = np.flatnonzero(known[name] == _UNSEEN)
        for at in unseen[np.unique(name[unseen], return_index=True)[1]].tolist():
            known[name[at]] = holds(events[at].name)
        rows = np.flatnonzero(known[name]).tolist()
        columns = np.array([self._arguments(source, events[at].args) for at in rows], np.int64)
        return rows, [*columns.reshape(-1, 10).T]

    def _arguments(self, source: int, given: Any) -> tuple[int, ...]:
        elements = _number(given.in_elements)
        dtype = _text(given.dtype)
        if source == HOST_RAN and elements == NONE:
            elements, dtype = _inputs(_decoded(given.shapes), _decoded(given.types))
        return (
            source,
            NONE if given.correlation is None or abs(given.correlation) >= 2**63 else given.correlation,
            self._number_of(_text(given.collective)),
            elements,
            _number(given.out_elements),
            self._number_of(str(dtype)),
            _number(given.group_size),
            self._number_of(_text(given.group)),
            self._number_of(_text(given.ranks)),
            _number(given.collective_sequence),
        )

    def _number_of(self, text: str) -> int:
        return self._names[text] if text else NONE


def _decoded(raw: msgspec.Raw) -> Any:
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(raw) if bytes(raw) else None
    return None


def _number(raw: msgspec.Raw) -> int:
    """Return a whole number of elements or ranks; NONE for anything else."""
    value = _decoded(raw)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**50 else NONE


def _text(raw: msgspec.Raw) -> str:
    """Return a text as it is, and anything else (a list of ranks) as JSON."""
    value = _decoded(raw)
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def _inputs(shapes: Any, types: Any) -> tuple[int, str]:
    """Return the number of elements of all input tensors, NONE if not recorded, and the type of the first."""
    if not (isinstance(shapes, list) and isinstance(types, list) and len(shapes) == len(types)):
        return NONE, ""
    tensors = [(shape, dtype) for shape, dtype in zip(shapes, types, strict=True) if dtype and _is_shape(shape)]
    if not tensors:
        return NONE, ""
    elements = sum(math.prod(shape) for shape, _ in tensors)
    return elements if elements < 2**50 else NONE, str(tensors[0][1])


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, int) and each >= 0 for each in value)

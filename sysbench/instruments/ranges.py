"""Names around parts of a step, for a profiler to show; while none is on, they are not there at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

Profiler = Literal["none", "nvtx", "record_function"]

_ABSENT: AbstractContextManager[None] = nullcontext()


def _absent(name: str) -> AbstractContextManager[None]:
    return _ABSENT


_range: Callable[[str], AbstractContextManager[object]] = _absent
"""The one switch: what a name becomes."""


def named(name: str) -> AbstractContextManager[object]:
    """`with named("attention scores"): …`; outside `visible_to` it is one shared context that does nothing."""
    return _range(name)


@contextmanager
def visible_to(profiler: Profiler) -> Iterator[None]:
    """Inside, every `named` is a range that `profiler` records; outside, it is what it was before."""
    global _range
    before = _range
    _range = _ranges_of(profiler)
    try:
        yield
    finally:
        _range = before


def _ranges_of(profiler: Profiler) -> Callable[[str], AbstractContextManager[object]]:
    if profiler == "nvtx":
        import nvtx  # only nsys reads these ranges, and only then is the package wanted

        return lambda name: nvtx.annotate(name)
    return torch.profiler.record_function if profiler == "record_function" else _absent

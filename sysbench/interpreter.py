"""What Python's interpreter does besides the program: it collects garbage, and maps memory for the call stack.

A collection takes as long as a small step, and can free tensors at any time. While millions of events are read,
collections take a fifth of the time and free nothing.

CPython 3.11 and later keep frames in chunks of 16 KiB, and free a chunk as soon as it is empty. A call from the end of
one maps memory and unmaps it again every time: it took 18 µs instead of 0.09 on a virtual machine.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import TypeVar

_STACK_WORDS = 70_000
"""More than half of 1 MiB: the next larger chunk has room for thousands of frames besides."""

_Function = TypeVar("_Function", bound=Callable[..., object])


@contextmanager
def gc_paused(*, collect_first: bool = False) -> Iterator[None]:
    """Disable garbage collection inside this context; with `collect_first`, run a collection first."""
    enabled = gc.isenabled()
    if collect_first:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def with_roomy_stack(function: _Function) -> _Function:
    """Decorate a function so that the frames of all that it calls are in one chunk of memory."""
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace(co_stacksize=_STACK_WORDS)
    return function

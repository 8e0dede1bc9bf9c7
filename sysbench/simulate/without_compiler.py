"""torch without its compiler: importing that takes longer than simulating a step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

_COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"


@contextmanager
def without_compiler() -> Iterator[None]:
    """Keep torch from importing its compiler in this context.

    Optimizers and shape functions tell the compiler to stay out of them, for which `torch._compile` imports it. Nothing
    is compiled here, so that they get a stand-in that does nothing; at the end everything is as it was.
    """
    if _COMPILER in sys.modules:
        yield
        return
    marked: list[Any] = []

    def disable(function: Callable[..., Any], recursive: bool = True, **_: object) -> Callable[..., Any]:
        marked.append(function)  # `torch._compile` leaves what this returns on the function
        return function

    stand_in: Any = ModuleType(_COMPILER)
    stand_in.disable = disable
    stand_in.graph_break = lambda: None
    sys.modules[_COMPILER] = torch._dynamo = stand_in
    try:
        yield
    finally:
        del sys.modules[_COMPILER], torch._dynamo
        for function in marked:
            if hasattr(function, _MARK):
                delattr(function, _MARK)

"""torch without its compiler and symbolic shapes, because importing them takes longer than simulating a step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from importlib import import_module
from operator import and_, or_
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"
_IDENTITY = ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious", "guarding_hint_or_throw",
         "statically_known_true")  # fmt: skip

_ON_INTEGERS: Mapping[str, Mapping[str, Callable[..., object]]] = {
    "sympy": {},
    "torch.fx.experimental.symbolic_shapes": {
        **dict.fromkeys(_IDENTITY, lambda known, *_: known),
        "has_guarding_hint": lambda number: True,
        "is_nested_int": lambda number: False,
        "sym_and": lambda *known: reduce(and_, known),
        "sym_or": lambda *known: reduce(or_, known),
        "sym_eq": lambda one, other: tuple(one) == tuple(other) if isinstance(one, tuple | list) else one == other,
    },
    "torch.utils._sympy.functions": {"Max": max},
}
"""By module: the functions that torch's shape functions call on sizes and comparisons, simplified for integers."""


@contextmanager
def without_compiler() -> Iterator[None]:
    """Context manager that keeps torch from importing its compiler and sympy.

    torch imports the compiler to mark optimizers and shape functions to be skipped by it (`torch._compile`): a stand-in
    does nothing. Shape functions compare sizes with helpers that also support symbols: another stand-in compares
    integers, and imports the original for everything else. On exit, everything is restored.
    """
    with _without_sympy():
        if _COMPILER in sys.modules:
            yield
            return
        marked: list[object] = []

        def disable(function: Callable[..., object], recursive: bool = True, **_: object) -> Callable[..., object]:
            marked.append(function)  # `torch._compile` stores the return value on the function
            return function

        stand_in: Any = ModuleType(_COMPILER)
        stand_in.disable = disable
        stand_in.graph_break = lambda: None
        stand_in.disable_nested_graph_breaks = nullcontext  # entered when torch 2.15 slices a device mesh
        stand_in.config = SimpleNamespace(error_on_nested_fx_trace=True)  # read by activation checkpointing
        sys.modules[_COMPILER] = torch._dynamo = stand_in
        try:
            yield
        finally:
            del sys.modules[_COMPILER], torch._dynamo
            for function in marked:
                if hasattr(function, _MARK):
                    delattr(function, _MARK)


def _are_integers(arguments: Iterable[object]) -> bool:
    return all(
        _are_integers(argument) if isinstance(argument, tuple | list) else type(argument) in (bool, int)
        for argument in arguments
    )


@contextmanager
def _without_sympy() -> Iterator[None]:
    if any(name in sys.modules for name in _ON_INTEGERS):
        yield
        return
    stand_ins = {name: ModuleType(name) for name in _ON_INTEGERS}

    def remove_stand_ins() -> None:
        for name, each in stand_ins.items():
            if sys.modules.get(name) is each:
                del sys.modules[name]

    def original(module: str, name: str) -> Any:
        if name.startswith("__"):  # `import` asks whether it is a package
            raise AttributeError(name)
        remove_stand_ins()
        return getattr(import_module(module), name)

    def on_integers(simplified: Callable[..., object], module: str, name: str) -> Callable[..., object]:
        def function(*arguments: object) -> object:
            return simplified(*arguments) if _are_integers(arguments) else original(module, name)(*arguments)

        return function

    for module, each in stand_ins.items():
        vars(each).update(
            {name: on_integers(simplified, module, name) for name, simplified in _ON_INTEGERS[module].items()}
        )
        vars(each)["__getattr__"] = partial(original, module)
    vars(stand_ins["sympy"])["Basic"] = type("Basic", (), {})  # anything that is not a number
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        remove_stand_ins()
        del vars(stand_ins["sympy"])["Basic"]  # kept references now lead to the real module

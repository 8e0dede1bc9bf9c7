"""Named ranges around the parts of a step, for profilers; without an active profiler, there are no ranges.

A profile of sysbench's own workload has these ranges, and `sysbench.trace` identifies them by name: `step`, which ends
when the device has finished it; in it the phases of the step's mode; and in `forward` the modules, by their path in the
model (`layers.3.attention.q`; a module shared by several others has a path in each of them). Naive attention also has
ranges of its parts: `layers.3.attention.attend.scores`. `backward` has no modules: autograd calls their operators from
its own thread, and only the sequence number of the forward operator links them to a module.

A compiled model has only the ranges of the step and its phases. Ranges of modules would be compiled with the model, and
the profiled step would differ from the timed one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Literal

import torch
from torch import nn

ROOT_PATH = ""
"""Path of the model itself."""


@contextmanager
def module_callbacks(model: nn.Module, enter: Callable[[str], object], leave: Callable[[], object]) -> Iterator[None]:
    """In this context, call `enter` with the path of each called module, and `leave` when the module returns or raises.

    A module that is used by several modules has a path for each caller, such as `layers.3.attention.attend` in the
    fourth layer.
    """
    called: list[tuple[nn.Module, str]] = []
    name_of = cache(partial(_name_within, model))

    def on_enter(module: nn.Module, arguments: object) -> None:
        path = ".".join(filter(None, (called[-1][1], name_of(called[-1][0], module)))) if called else ROOT_PATH
        called.append((module, path))
        enter(path)

    def on_leave(module: nn.Module, arguments: object, result: object) -> None:
        called.pop()
        leave()

    # Before the module's own hooks, because FSDP2 gathers the module's parameters in one of them.
    hooks = [module.register_forward_pre_hook(on_enter, prepend=True) for module in model.modules()]
    hooks += [module.register_forward_hook(on_leave, always_call=True) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _name_within(model: nn.Module, caller: nn.Module, module: nn.Module) -> str:
    for parent in (caller, model):
        for name, each in parent.named_modules(remove_duplicate=False):
            if each is module:
                return str(name)
    return type(module).__name__


Profiler = Literal["none", "nvtx", "record_function"]
Range = AbstractContextManager[object]

_NO_RANGE: Range = nullcontext()


def _no_range(name: str) -> Range:
    return _NO_RANGE


_range: Callable[[str], Range] = _no_range
"""Creates the range for a name; replaced while a profiler is active."""


def named(name: str) -> Range:
    """Return a range for `with named("scores"): …`; outside `visible_to` and `range_callbacks`, a no-op context.

    Within `visible_to`, the name is prefixed with the path of the module that is running:
    `layers.3.attention.attend.scores`.
    """
    if torch.compiler.is_compiling():
        return _NO_RANGE  # checked first, because reading `_range` would make it a guard of the compiled model
    return _range(name)


@contextmanager
def visible_to(profiler: Profiler, model: nn.Module | None = None) -> Iterator[None]:
    """In this context, report `named` blocks and the calls of `model`'s modules to `profiler` as ranges."""
    global _range
    before = _range
    ranges = _ModuleRanges(_ranges_of(profiler))
    _range = ranges.named if profiler != "none" else _no_range
    try:
        if model is None or profiler == "none":
            yield
        else:
            with module_callbacks(model, ranges.enter, ranges.leave):
                yield
    finally:
        _range = before


@contextmanager
def range_callbacks(enter: Callable[[str], object], leave: Callable[[], object]) -> Iterator[None]:
    """In this context, call `enter` with the name of each `named` range, and `leave` when the range ends."""
    global _range

    @contextmanager
    def calling(name: str) -> Iterator[None]:
        enter(name)
        try:
            yield
        finally:
            leave()

    before, _range = _range, calling
    try:
        yield
    finally:
        _range = before


class _ModuleRanges:
    def __init__(self, range_of: Callable[[str], Range]) -> None:
        self._range_of = range_of
        self._open: list[tuple[str, Range]] = []

    def named(self, name: str) -> Range:
        path = self._open[-1][0] if self._open else ROOT_PATH
        return self._range_of(f"{path}.{name}" if path else name)

    def enter(self, path: str) -> None:
        range_ = self._range_of(path) if path != ROOT_PATH else _NO_RANGE
        range_.__enter__()
        self._open.append((path, range_))

    def leave(self) -> None:
        _, range_ = self._open.pop()
        range_.__exit__(None, None, None)


def _ranges_of(profiler: Profiler) -> Callable[[str], Range]:
    if profiler == "nvtx":
        import nvtx  # only nsys reads these ranges, so the package is needed only then

        return lambda name: nvtx.annotate(name)
    return torch.profiler.record_function if profiler == "record_function" else _no_range

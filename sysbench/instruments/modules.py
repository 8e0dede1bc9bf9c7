"""Which of a model's modules is being called, by its path: the same module may have several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

WHOLE = ""
"""The path of the model itself."""


@contextmanager
def following(model: nn.Module, enter: Callable[[str], object], leave: Callable[[], object]) -> Iterator[None]:
    """Inside, `enter` gets the path of every module that is called, and `leave` is called when it returns or raises.

    A module that several others share is known by how it is called: `layers.3.attention.attend` in the fourth layer.
    """
    relative = _RelativePaths(model)
    called: list[tuple[nn.Module, str]] = []

    def before(module: nn.Module, arguments: object) -> None:
        path = relative.path(*called[-1], module) if called else WHOLE
        called.append((module, path))
        enter(path)

    def after(module: nn.Module, arguments: object, result: object) -> None:
        called.pop()
        leave()

    hooks = [module.register_forward_pre_hook(before) for module in model.modules()]
    hooks += [module.register_forward_hook(after, always_call=True) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _RelativePaths:
    """How a module is called by the one that calls it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: dict[tuple[int, int], str] = {}

    def path(self, caller: nn.Module, caller_path: str, module: nn.Module) -> str:
        """Of `module`, when it is called in `caller`, which is at `caller_path`."""
        key = id(caller), id(module)
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = self._name(caller, module)
        return f"{caller_path}.{name}" if caller_path and name else caller_path or name

    def _name(self, caller: nn.Module, module: nn.Module) -> str:
        for parent in (caller, self._model):
            for name, each in parent.named_modules(remove_duplicate=False):
                if each is module:
                    return str(name)
        return type(module).__name__

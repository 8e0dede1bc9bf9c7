"""What torch dispatches: an operator with its arguments, whose types torch itself does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

Operator = Any
"""A torch._ops.OpOverload, such as `torch.ops.aten.bmm.default`."""
Arguments = tuple[Any, ...]
Options = Mapping[str, Any]
Handler = Callable[[Operator, Arguments, Options], object]


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that prevents torch from importing its compiler, which would take seconds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Operator, types: Iterable[type], args: Arguments = (), kwargs: Options | None = None
    ) -> object:
        """Run an operator as `run` does."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Run an operator that was called while the mode is active, and return its result."""
        raise NotImplementedError

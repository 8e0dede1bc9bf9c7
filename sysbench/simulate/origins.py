"""Origin of an operator call: the module and the Python stack from which it is called.

In backward, autograd calls operators without a Python stack. Such an operator has the origin of the forward operator
whose gradient it computes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import CodeType, FrameType
from typing import NamedTuple

import torch
from torch import nn

from sysbench.frames import PYTHON, owner_here
from sysbench.lab.ranges import ROOT_PATH, module_callbacks, range_callbacks
from sysbench.snapshot.layout import Frame

OUTSIDE = ROOT_PATH
"""Path for operators outside all modules, such as the loss, and for the whole model."""


GENERATED = "sysbench-generated-"
"""Beginning of the name of the folder with the code that the compiler generates for a simulation, and no longer."""

Stack = tuple[Frame, ...]
"""Innermost frame first."""


class Origin(NamedTuple):
    """Module and Python stack of an operator call."""

    module: str
    """Path of the module in the model: `layers.3.attention.q`."""
    stack: int
    """Position in `Origins.stacks`."""
    operator: str = ""
    """Name of the operator, without namespace and overload: `_softmax`."""


class Origins:
    """Tracker that determines the origin of each operator when the operator is called.

    stacks  all distinct stacks so far; the first is empty
    """

    def __init__(self, until: CodeType | None, *, parts: bool = False) -> None:
        """Track calls with their Python stacks up to this code; None for modules alone, which takes less time."""
        self.stacks: list[Stack] = [()]
        self._until = until
        self._parts = parts
        self._known: dict[tuple[int, ...], int] = {}
        self._of_backward: dict[tuple[str, int], int] = {}
        self._paths: list[str] = []
        self._forward: dict[int, Origin] = {}

    @contextmanager
    def tracking(self, model: nn.Module) -> Iterator[None]:
        """Context manager that tracks which module of the model is being called."""
        named = range_callbacks(self._enter_part, self._paths.pop) if self._parts else nullcontext()
        with module_callbacks(model, self._paths.append, self._paths.pop), named:
            yield

    def _enter_part(self, name: str) -> None:
        inside = self._paths[-1] if self._paths else OUTSIDE
        self._paths.append(f"{inside}.{name}" if inside else OUTSIDE)

    def forget_forward(self) -> None:
        """Discard the origins of forward operators, which no backward operator needs any more."""
        self._forward.clear()

    def current(self, operator: str) -> Origin:
        """Return the origin of the operator that is being called, and has this name."""
        node = torch._C._current_autograd_node()
        if node is not None:
            forward = self._forward.get(node._sequence_nr())
            if forward is None:
                return Origin(OUTSIDE, 0, operator)  # accumulation of a gradient, which has no forward operator
            key = node.name(), forward.stack
            stack = self._of_backward.get(key)
            if stack is None:
                stack = self._of_backward[key] = len(self.stacks)
                self.stacks.append((Frame("autograd", 0, key[0]), *self.stacks[forward.stack]))
            return Origin(forward.module, stack, operator)
        stack = self._stack(sys._getframe(1)) if self._until is not None else 0
        origin = Origin(self._paths[-1] if self._paths else OUTSIDE, stack, operator)
        # Autograd creates and numbers the node of an operator just before the operator runs. Operators without a node
        # see the number of an earlier one.
        self._forward.setdefault(torch.autograd._get_sequence_nr() - 1, origin)
        return origin

    def _stack(self, frame: FrameType | None) -> int:
        first = frame
        key: list[int] = []
        while frame is not None and frame.f_code is not self._until:
            key += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        position = self._known.get(tuple(key))
        if position is None:
            position = self._known[tuple(key)] = len(self.stacks)
            self.stacks.append(tuple(self._frames(first)))
        return position

    def _frames(self, frame: FrameType | None) -> Iterator[Frame]:
        while frame is not None and frame.f_code is not self._until:
            filename = frame.f_code.co_filename
            if not _only_passes_calls_on(filename):
                yield Frame(filename, frame.f_lineno, frame.f_code.co_qualname)
            frame = frame.f_back


def _only_passes_calls_on(filename: str) -> bool:
    """Return whether a file's frames carry no information. Those of torch's optimizers do."""
    owner = owner_here(filename)
    if any(part.startswith(GENERATED) for part in owner.path):
        return True
    if owner.package == "torch":
        return not owner.is_in("torch", "optim")
    return owner.package in ("einops", PYTHON) or owner.is_in("sysbench", "simulate")

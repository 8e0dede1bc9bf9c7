"""The module to which each allocation on a CUDA device belongs, as text in the device's allocation history.

The history records with each allocation the text that the allocating thread has set. Autograd runs backward on a thread
of its own, so hooks on the nodes of the graph set the text there. A dispatch mode could do it too, but would change
what is allocated: autograd adds gradients in place only where no mode looks on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr
from torch.autograd import Variable
from torch.cuda.memory import _set_memory_metadata

from sysbench.lab.ranges import ROOT_PATH, module_callbacks


class ModuleMetadata:
    """Annotates allocations of forward and backward with the path of their module."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._paths = [ROOT_PATH]
        self._numbers: list[int] = []
        """Sequence numbers of autograd's nodes at which another module begins or ends, ascending."""
        self._paths_from: list[str] = []
        """The module of the nodes from each of these numbers on."""

    @contextmanager
    def annotating(self) -> Iterator[None]:
        """Annotate allocations in this context with the module that is running."""
        try:
            with module_callbacks(self._model, self._enter, self._leave):
                yield
        finally:
            _set_memory_metadata(ROOT_PATH)

    def annotate_backward(self, loss: Tensor) -> None:
        """Annotate what backward from `loss` will allocate: with the module of the forward operator or parameter."""
        module_of = {parameter: name.rpartition(".")[0] for name, parameter in self._model.named_parameters()}
        pending, seen = [loss.grad_fn], {loss.grad_fn}
        while pending:
            node: Any = pending.pop()
            parameter = getattr(node, "variable", None)
            path = self._path_of(node._sequence_nr()) if parameter is None else module_of.get(parameter, ROOT_PATH)
            node.register_prehook(partial(_set_path, path))
            following = {each for each, _ in node.next_functions if each is not None} - seen
            seen |= following
            pending += following
        assert loss.grad_fn is not None
        # The thread of autograd lives on. What it allocates before the first hook of the next backward has no module.
        loss.grad_fn.register_prehook(lambda _: Variable._execution_engine.queue_callback(_clear_path))
        self._numbers.clear()
        self._paths_from.clear()

    def _path_of(self, number: int) -> str:
        position = bisect_right(self._numbers, number)
        return self._paths_from[position - 1] if position else ROOT_PATH

    def _enter(self, path: str) -> None:
        self._paths.append(path)
        self._begin(path)

    def _leave(self) -> None:
        self._paths.pop()
        self._begin(self._paths[-1])

    def _begin(self, path: str) -> None:
        _set_memory_metadata(path)
        if torch._C._current_autograd_node() is None:  # not where activation checkpointing repeats forward in backward
            self._numbers.append(_get_sequence_nr())
            self._paths_from.append(path)


def _set_path(path: str, gradients: object) -> None:
    _set_memory_metadata(path)


def _clear_path() -> None:
    _set_memory_metadata(ROOT_PATH)

"""Kernels that Inductor generates in Triton, which a simulated device does not run: what each launch does."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

_MOVED_BYTES = "# moved bytes: "


class Launch(NamedTuple):
    """One launch of a kernel.

    moved_bytes  bytes read and written: slices and rows that are gathered count as far as they are read, whatever is
                 read several times, or broadcast, once
    rows, width  results, and number of elements that each one is reduced from; one for each element if it is pointwise
    dtype        type of the largest argument
    """

    name: str
    is_reduction: bool
    moved_bytes: int
    rows: int
    width: int
    dtype: torch.dtype


@dataclass(frozen=True)
class GeneratedKernel:
    """A kernel by its name, which lists the operators that are fused in it, and its source code."""

    name: str
    source: str

    @staticmethod
    def with_moved_bytes(source: str, moved_bytes: int) -> str:
        """Return the source code with what Inductor knows that the kernel moves."""
        return f"{source}\n{_MOVED_BYTES}{moved_bytes}\n"

    def launch(self, arguments: Sequence[object]) -> Launch:
        """Return what the kernel does, called with these arguments: tensors, scalars and numbers of elements."""
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        of_each = [(tensor.numel() * tensor.dtype.itemsize, tensor.dtype) for tensor in tensors]
        _, dtype = max(of_each, key=lambda each: each[0], default=(0, torch.float32))
        elements = {
            name.removesuffix("numel"): argument
            for name, argument in zip(self._signature, arguments, strict=False)
            if name.endswith("numel") and isinstance(argument, int)
        }
        rows = math.prod(count for axis, count in elements.items() if not axis.startswith("r"))
        width = math.prod(count for axis, count in elements.items() if axis.startswith("r"))
        if not elements:  # such as a kernel that user code has brought along
            rows = max((tensor.numel() for tensor in tensors), default=1)
        known = self._moved_bytes
        moved_bytes = sum(size_bytes for size_bytes, _ in of_each) if known is None else known
        return Launch(self.name, "reduction" in self._heuristic, moved_bytes, rows, width, dtype)

    @cached_property
    def _moved_bytes(self) -> int | None:
        found = re.search(rf"^{_MOVED_BYTES}(\d+)$", self.source, re.MULTILINE)
        return int(found[1]) if found else None

    @cached_property
    def _decorator(self) -> ast.Call | None:
        """Return the call of one of Inductor's heuristics, which has the facts about the kernel."""
        for function in ast.parse(self.source).body:
            if isinstance(function, ast.FunctionDef):
                for decorator in function.decorator_list:
                    if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute):
                        return decorator
        return None

    @property
    def _heuristic(self) -> str:
        """Return which one it is: `pointwise`, `reduction`, `persistent_reduction` and so on."""
        called = self._decorator.func if self._decorator else None
        return called.attr if isinstance(called, ast.Attribute) else ""

    @cached_property
    def _signature(self) -> Sequence[str]:
        """Return the names of the arguments, in order."""
        for name, value in self._facts():
            if name == "signature" and isinstance(value, ast.Dict):
                return [key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        return ()

    def _facts(self) -> Iterator[tuple[str, ast.expr]]:
        for keyword in self._decorator.keywords if self._decorator else ():
            if keyword.arg == "triton_meta" and isinstance(keyword.value, ast.Dict):
                for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, value

"""Count the memory of attention on the host tensor by tensor; the tensors are real or have no data."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sysbench.commands.attention.record import AttentionTensor
from sysbench.lab.attention_functions import Inputs, function_for
from sysbench.lab.dispatch import Arguments, DispatchMode, Operator, Options
from sysbench.lab.memory.accounting import StorageWatch, round_to_block
from sysbench.lab.precision import compute_dtype
from sysbench.spec.attention import AttentionCell

CreationPhase = Literal["inputs", "forward", "backward"]

COUNTED = ("naive", "sdpa-math", "sdpa-flash")
"""Implementations whose tensors are all created by dispatched operators that the host supports."""


_RESULT_NAMES = {
    "bmm": "product",
    "div": "scaled scores, weights",
    "exp": "exponentials",
    "mul": "elementwise product",
    "masked_fill": "masked scores",
    "amax": "largest scores",
    "sum": "sums",
    "neg": "negated product",
    "to_copy": "converted copy",
}
"""Names of operator results that are clearer than the names of the operators."""


def result_name(func: Operator) -> str:
    name = str(func._schema.name).removeprefix("aten::").removeprefix("_")
    return _RESULT_NAMES.get(name, name)


def described(name: str, tensor: Tensor, size_bytes: int, phase: CreationPhase) -> AttentionTensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return AttentionTensor(name=name, shape=list(tensor.shape), dtype=dtype, size_bytes=size_bytes, phase=phase)


class MemoryNeeds(NamedTuple):
    """Memory that attention needs, including inputs; each tensor is rounded up to whole blocks of the allocator."""

    before_backward_bytes: int
    saved_bytes: int
    peak_allocated_bytes: int
    at_peak: list[AttentionTensor]


class _Ledger(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.phase: CreationPhase = "inputs"
        self.live_bytes = 0
        self.peak_bytes = 0
        self.at_peak: dict[int, AttentionTensor] = {}
        self._live: dict[int, AttentionTensor] = {}
        self._made: tuple[str, Tensor] | None = None
        self._count = 0
        self.watch = StorageWatch(self._allocated, self._freed)

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        result = func(*args, **kwargs)
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.see(tensor, result_name(func))
        return result

    def see(self, tensor: Tensor, name: str) -> None:
        self._made = (name, tensor)
        self.watch.track(tensor)

    def _allocated(self, size_bytes: int) -> int:
        assert self._made is not None
        name, tensor = self._made
        self._count += 1
        self._live[self._count] = described(name, tensor, round_to_block(size_bytes), self.phase)
        self.live_bytes += round_to_block(size_bytes)
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.at_peak = self.live_bytes, dict(self._live)
        return self._count

    def _freed(self, number: int) -> None:
        self.live_bytes -= self._live.pop(number).size_bytes


def count_memory(cell: AttentionCell, *, real: Inputs | None = None) -> MemoryNeeds | None:
    """Return the memory of one forward and one backward call; None if the implementation's tensors cannot be counted.

    Operators run on the `real` inputs if given, otherwise on tensors without data, which take neither time nor memory.
    """
    if cell.implementation not in COUNTED:
        return None
    if real is not None:
        return _count_memory(cell, *real)
    shape = (cell.batch, *([cell.heads] if cell.heads else []), cell.seq, cell.dim)
    with FakeTensorMode():
        return _count_memory(
            cell, *(torch.empty(shape, dtype=compute_dtype(cell.precision), requires_grad=True) for _ in range(3))
        )


def _count_memory(cell: AttentionCell, q: Tensor, k: Tensor, v: Tensor) -> MemoryNeeds:
    function = function_for(cell, torch.device("cpu"))
    ledger = _Ledger()
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        ledger.see(tensor, name)
    inputs_bytes = ledger.live_bytes
    ledger.phase = "forward"
    with ledger:
        output = function(q, k, v)
    before_backward = ledger.live_bytes
    kept = round_to_block(math.prod(output.shape) * output.element_size())
    ledger.phase = "backward"
    gradient = torch.empty_like(output)
    ledger.see(gradient, "gradient of the output")
    with ledger:
        output.backward(gradient)
    q.grad = k.grad = v.grad = None
    needs = MemoryNeeds(
        before_backward,
        before_backward - inputs_bytes - kept,
        ledger.peak_bytes,
        list(ledger.at_peak.values()),
    )
    ledger.watch.forget_all()
    return needs

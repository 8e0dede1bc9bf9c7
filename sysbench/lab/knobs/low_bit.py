"""AdamW with moments of 8 or 4 bits: codes in blocks, with an fp32 scale for each block.

Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021; Li et al., "Memory Efficient Optimizers with
4-bit States", 2023. The implementations are torchao's, which torch.compile turns into kernels, and bitsandbytes', which
brings its own. Neither runs without data: there, `BlockwiseAdamW` requests the memory that they request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from sysbench import extras
from sysbench.errors import UnavailableError
from sysbench.lab.knobs.layers import LIBRARY

_SMALLEST = 4096
"""Number of elements from which both libraries store moments in blocks."""

_SMALLEST_PAGED = 100_000
"""Number of elements from which bitsandbytes stores moments in managed memory, outside PyTorch's allocator."""

LIBRARY.define("update_in_blocks_(Tensor(a!) parameter, Tensor gradient, Tensor[] moments, Tensor[] temporaries) -> ()")
_update_in_blocks: Any = torch.ops.sysbench.update_in_blocks_
"""The update of one parameter; it only has a name, and no implementation."""


@dataclass(frozen=True)
class BlockFormat:
    """How a library stores moments: codes in blocks with one scale each, and a table of `entries` values for codes."""

    package: str
    name: str
    bits: int
    block: int
    entries: int

    def applies_to(self, parameter: Tensor) -> bool:
        """Return whether the moments of a parameter are stored in blocks."""
        is_whole = self.package == "bitsandbytes" or parameter.numel() % self.block == 0
        return parameter.numel() >= _SMALLEST and is_whole

    def moments(self, parameter: Tensor) -> list[Tensor]:
        """Return new state of a parameter on its device, without what is in managed memory."""
        if self.package == "bitsandbytes":
            return self._paged_moments(parameter)
        if not self.applies_to(parameter):
            return [torch.zeros_like(parameter) for _ in range(2)]
        sizes = (
            (parameter.numel() * self.bits // 8, torch.uint8),
            (parameter.numel() // self.block, torch.float32),
            (self.entries, torch.float32),
        )
        return [parameter.new_zeros(size, dtype=dtype) for _ in range(2) for size, dtype in sizes]

    def _paged_moments(self, parameter: Tensor) -> list[Tensor]:
        codes = torch.uint8 if self.applies_to(parameter) else torch.float32
        is_paged = parameter.numel() >= _SMALLEST_PAGED
        tensors = [] if is_paged else [torch.zeros_like(parameter, dtype=codes) for _ in range(2)]
        blocks = math.ceil(parameter.numel() / self.block) if self.applies_to(parameter) else 0
        return tensors + [parameter.new_zeros(blocks, dtype=torch.float32) for _ in range(2) if blocks]

    def temporaries(self, parameter: Tensor) -> list[Tensor]:
        """Return what the update of a parameter allocates: only that of 4-bit codes does, before it packs them.

        These are the buffers in the code that Inductor of PyTorch 2.15 generates: for each moment scales, scaled values
        in fp32, and codes in int64.
        """
        if self.bits == 8 or not self.applies_to(parameter):
            return []
        size = parameter.numel()
        sizes = ((size // self.block, torch.float32), (size, torch.float32), (size, torch.int64))
        return [parameter.new_empty(each, dtype=dtype) for each, dtype in sizes for _ in range(2)]


FORMATS: Mapping[str, BlockFormat] = {
    "adamw-8bit": BlockFormat("torchao", "AdamW8bit", bits=8, block=256, entries=256),
    "adamw-4bit": BlockFormat("torchao", "AdamW4bit", bits=4, block=128, entries=16),
    "adamw-8bit-paged": BlockFormat("bitsandbytes", "PagedAdamW8bit", bits=8, block=256, entries=256),
}
"""By optimizer, as stored by torchao 0.18 (optim/subclass_8bit.py and subclass_4bit.py) and bitsandbytes 0.50
(optim/optimizer.py)."""


def low_bit_optimizer(groups: list[dict[str, Any]], choice: str, learning_rate: float) -> torch.optim.Optimizer:
    """Return the optimizer of its library; raises UnavailableError if that is not installed."""
    stored = FORMATS[choice]
    if any(_local(parameter).is_meta for group in groups for parameter in group["params"]):
        return BlockwiseAdamW(groups, stored)
    if complaint := extras.missing(*extras.of_optimizer(choice)):
        raise UnavailableError(complaint)
    create = getattr(import_module(f"{stored.package}.optim"), stored.name)
    optimizer: torch.optim.Optimizer = create(groups, lr=learning_rate)
    return optimizer


class BlockwiseAdamW(torch.optim.Optimizer):
    """Stands for a library's optimizer where there is no data: it has the state, and updates nothing."""

    def __init__(self, groups: list[dict[str, Any]], stored: BlockFormat) -> None:
        """Create it without state, which the first step adds."""
        super().__init__(groups, {})
        self._stored = stored
        self._tables: list[Tensor] = []
        """Those of bitsandbytes, which all parameters share."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Add missing state, and let each parameter have its update."""
        for parameter in (each for group in self.param_groups for each in group["params"] if each.grad is not None):
            self._update(parameter)

    def _update(self, whole: Tensor) -> None:
        parameter, state = _local(whole), self.state[whole]
        if not state:
            self._add_shared_tables(parameter)
            state |= {str(number): moment for number, moment in enumerate(self._stored.moments(parameter))}
        assert whole.grad is not None
        _update_in_blocks(parameter, _local(whole.grad), list(state.values()), self._stored.temporaries(parameter))

    def _add_shared_tables(self, parameter: Tensor) -> None:
        if self._stored.package == "bitsandbytes" and self._stored.applies_to(parameter) and not self._tables:
            self._tables = [parameter.new_zeros(self._stored.entries, dtype=torch.float32) for _ in range(2)]


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return getattr(tensor, "_local_tensor", tensor)

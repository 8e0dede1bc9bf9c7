"""AdamW on the host, by torchao's `CPUOffloadOptimizer`: the device keeps no state of large parameters.

Backward copies each gradient to pinned memory of the host while it computes the next ones. The host updates its copy of
the parameter, and copies it to the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sysbench import extras
from sysbench.errors import UnavailableError
from sysbench.lab.knobs.layers import LIBRARY

_SMALLEST = 4096
"""Number of elements from which a parameter is updated on the host: the default `minimal_size` of torchao 0.18."""

LIBRARY.define("copy_to_host(Tensor gradient) -> ()")
LIBRARY.define("update_on_host(Tensor parameter, bool fused) -> ()")
LIBRARY.define("copy_to_device_(Tensor(a!) parameter) -> ()")
_copy_to_host: Any = torch.ops.sysbench.copy_to_host
_update_on_host: Any = torch.ops.sysbench.update_on_host
_copy_to_device: Any = torch.ops.sysbench.copy_to_device_
"""What torchao does for each parameter; the operators only have names, and no implementation."""


def offloaded_adamw(model: nn.Module, options: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Return AdamW with these options for the trainable parameters; raises UnavailableError if torchao is missing."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(parameter.is_meta for parameter in trained):
        return _UpdatesOnHost(trained, options)
    if complaint := extras.missing(*extras.OFFLOAD):
        raise UnavailableError(complaint)
    from torchao.optim import CPUOffloadOptimizer

    optimizer: Any = CPUOffloadOptimizer(trained, torch.optim.AdamW, minimal_size=_SMALLEST, **options)
    optimizer.state = optimizer.d_opt.state if optimizer.d_opt is not None else {}  # torchao leaves it out
    return optimizer  # type: ignore[no-any-return]


class _UpdatesOnHost(torch.optim.Optimizer):
    """Stands for torchao's optimizer where there is no data: copies between host and device allocate nothing."""

    def __init__(self, trained: Sequence[Tensor], options: Mapping[str, Any]) -> None:
        super().__init__(trained, {})
        small = [tensor for tensor in trained if tensor.numel() < _SMALLEST]
        self._on_device = torch.optim.AdamW(small, **options) if small else None
        self._is_fused = bool(options["fused"])
        self._stream = torch.cpu.Stream()
        self._copied: dict[Tensor, None] = {}
        """Parameters whose gradients are on the host, in the order of the copies."""
        for tensor in trained:
            if tensor.numel() >= _SMALLEST:
                tensor.register_post_accumulate_grad_hook(self._copy_gradient)

    def _copy_gradient(self, parameter: Tensor) -> None:
        self._stream.wait_stream(torch.cpu.current_stream())
        with torch.cpu.stream(self._stream):
            _copy_to_host(parameter.grad)
        self._copied.pop(parameter, None)
        self._copied[parameter] = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        if self._on_device is not None:
            self._on_device.step()
            self.state.update(self._on_device.state)
        for parameter in self._copied:
            _update_on_host(parameter, self._is_fused)
            with torch.cpu.stream(self._stream):
                _copy_to_device(parameter)
        self._copied.clear()

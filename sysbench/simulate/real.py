"""Observation of a real device with the interface of a simulated one."""

from __future__ import annotations

from typing import Any

import torch

from sysbench.lab.accounting import tensors_in
from sysbench.simulate.tensors import Arguments, DeviceObserver, ObservedDevice, Operator, Options


class RealDevice(ObservedDevice):
    """While active, reports every storage that operators allocate on `device`, and its end, to an observer."""

    def __init__(self, observer: DeviceObserver, device: torch.device) -> None:
        super().__init__(observer)
        self._device = device

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> Any:
        """Run the operator and watch what it returns."""
        self._observer.begins(func)
        result = func(*args, **kwargs)
        self._arguments = args
        try:
            for tensor in tensors_in([result]):
                if tensor.device.type == self._device.type:
                    self._watch.see(tensor)
        finally:
            self._arguments = ()  # a longer reference would keep them alive
        self._observer.ends(func, args, kwargs, result)
        return result

"""Observation of a real device with the interface of a simulated one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sysbench.lab.accounting import StorageWatch
from sysbench.simulate.tensors import Arguments, DeviceObserver


class RealDevice(TorchDispatchMode):
    """While active, reports every storage that operators allocate on `device`, and its end, to an observer."""

    def __init__(self, observer: DeviceObserver, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer
        self._device = device
        self._arguments: Arguments = ()
        self._watch = StorageWatch(lambda size_bytes: observer.allocated(size_bytes, self._arguments), observer.freed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def number_of(self, tensor: Tensor) -> int | None:
        """Return the observer's number of the tensor's storage; None for empty tensors and those of other devices."""
        return self._watch.number_of(tensor)

    def stop(self) -> None:
        """Stop reporting freed storages: the remaining ones are freed because the run is over."""
        self._watch.forget_all()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and watch what it returns."""
        self._observer.begins(func)
        result = func(*args, **(kwargs or {}))
        self._arguments = args
        try:
            self._see(result)
        finally:
            self._arguments = ()  # a longer reference would keep them alive
        self._observer.ends(func, args)
        return result

    def _see(self, result: object) -> None:
        if isinstance(result, Tensor):
            if result.device.type == self._device.type:
                self._watch.see(result)
        elif isinstance(result, list | tuple):
            for each in result:
                self._see(each)

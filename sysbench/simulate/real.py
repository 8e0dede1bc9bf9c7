"""A device that is there, followed as a simulated one is: what really happens, in the same terms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sysbench.lab.accounting import StorageWatch
from sysbench.simulate.tensors import Arguments, DeviceObserver


class RealDevice(TorchDispatchMode):
    """While it is entered, an observer is told of every storage on `device` that operators make, and of its end."""

    def __init__(self, observer: DeviceObserver, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer
        self._device = device
        self._arguments: Arguments = ()
        self._watch = StorageWatch(lambda size_bytes: observer.allocated(size_bytes, self._arguments), observer.freed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes seconds, to keep it away from __torch_dispatch__

    def number_of(self, tensor: Tensor) -> int | None:
        """What the observer knows the tensor's storage by; None for tensors of other devices and empty ones."""
        return self._watch.number_of(tensor)

    def stop(self) -> None:
        """Report nothing more as freed: whatever is left goes because the run is over."""
        self._watch.forget_all()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and watch what it returns."""
        self._observer.begins(func)
        result = func(*args, **(kwargs or {}))
        self._arguments = args
        try:
            self._see(result)
        finally:
            self._arguments = ()  # kept any longer, they would live longer
        self._observer.ends(func, args)
        return result

    def _see(self, result: object) -> None:
        if isinstance(result, Tensor):
            if result.device.type == self._device.type:
                self._watch.see(result)
        elif isinstance(result, list | tuple):
            for each in result:
                self._see(each)

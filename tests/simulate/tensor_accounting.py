"""The bytes of live tensors, counted while operators run: an independent account of what a simulation claims."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sysbench.lab.memory.accounting import StorageWatch, round_to_block


class TensorAccounting(TorchDispatchMode):
    """While active, counts the bytes of the tensors that operators create, in whole blocks, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self._sizes: list[int] = []
        self._watch = StorageWatch(self._allocated, self._freed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def reset_peak(self) -> None:
        """Reset the peak to the current number of live bytes."""
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and watch the tensors that it returns."""
        result = func(*args, **(kwargs or {}))
        self._see(result)
        return result

    def _see(self, result: object) -> None:
        if isinstance(result, Tensor):
            self._watch.track(result)
        elif isinstance(result, list | tuple):
            for each in result:
                self._see(each)

    def _allocated(self, size_bytes: int) -> int:
        self._sizes.append(round_to_block(size_bytes))
        self.live_bytes += self._sizes[-1]
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return len(self._sizes) - 1

    def _freed(self, number: int) -> None:
        self.live_bytes -= self._sizes[number]

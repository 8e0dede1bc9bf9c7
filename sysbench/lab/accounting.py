"""Which memory tensors hold, followed storage by storage: from the operator that makes one to the end of its last use.

A storage is what allocators hand out; tensors that are views of one another share one. What a kernel allocates and
frees again before it returns is invisible here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BLOCK_BYTES = 512
"""Blocks of CUDA's caching allocator are multiples of this (kMinBlockSize, c10/core/AllocatorConfig.h)."""


def rounded(size_bytes: int) -> int:
    """`size_bytes` in whole blocks, as CUDA's caching allocator would count them."""
    return (size_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


class _Watched(weakref.ref[torch.UntypedStorage]):
    """A storage that does not live longer for being watched."""

    __slots__ = ("address", "number")
    address: int
    number: int


class StorageWatch:
    """Numbers storages as they are first seen, and says when each of them is gone.

    `on_allocation` gets the bytes of a new storage and returns the number it is known by from then on; `on_free` gets
    that number once nothing refers to the storage any more. Storages without bytes are passed over: no allocator is
    asked for them.
    """

    def __init__(self, on_allocation: Callable[[int], int], on_free: Callable[[int], None]) -> None:
        self._on_allocation = on_allocation
        self._on_free = on_free
        self._watched: dict[int, _Watched] = {}

    def see(self, tensor: Tensor) -> None:
        """Watch the tensor's storage, unless it is being watched."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._watched:
            return
        size_bytes = storage.nbytes()
        if not size_bytes:
            return
        watched = _Watched(storage, self._gone)
        watched.address = address
        watched.number = self._on_allocation(size_bytes)
        self._watched[address] = watched

    def number_of(self, tensor: Tensor) -> int | None:
        """What the tensor's storage is known by, or None if it never was seen or has no bytes."""
        watched = self._watched.get(tensor.untyped_storage()._cdata)
        return None if watched is None else watched.number

    def forget_all(self) -> None:
        """Watch nothing any more: what is freed from now on is not reported."""
        self._watched.clear()

    def _gone(self, watched: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(watched, _Watched)
        del self._watched[watched.address]
        self._on_free(watched.number)


class TensorAccounting(TorchDispatchMode):
    """While it is entered, counts the bytes of tensors that operators make, in whole blocks, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self._sizes: list[int] = []
        self._watch = StorageWatch(self._allocated, self._freed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes seconds, to keep it away from __torch_dispatch__

    def reset_peak(self) -> None:
        """Let the peak start from what is live now."""
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and watch what it returns."""
        result = func(*args, **(kwargs or {}))
        self._see(result)
        return result

    def _see(self, result: object) -> None:
        if isinstance(result, Tensor):
            self._watch.see(result)
        elif isinstance(result, list | tuple):
            for each in result:
                self._see(each)

    def _allocated(self, size_bytes: int) -> int:
        self._sizes.append(rounded(size_bytes))
        self.live_bytes += self._sizes[-1]
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return len(self._sizes) - 1

    def _freed(self, number: int) -> None:
        self.live_bytes -= self._sizes[number]

"""Memory accounting by tensor storage: a storage is followed from the operator that creates it until it is freed.

A storage is what an allocator hands out; tensors that are views of one another share one storage. Memory that a kernel
allocates and frees before it returns is not visible here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BLOCK_BYTES = 512
"""Block sizes in CUDA's caching allocator are multiples of this (kMinBlockSize, c10/core/AllocatorConfig.h)."""


def rounded(size_bytes: int) -> int:
    """Round `size_bytes` up to whole blocks, as CUDA's caching allocator does."""
    return (size_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among these values, those in lists and tuples included."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


class DispatchMode(TorchDispatchMode):
    """A mode that sees every operator, without making torch import its compiler, which takes seconds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Watched(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage: watching a storage does not extend its lifetime."""

    __slots__ = ("address", "number")
    address: int
    number: int | None
    """None while the storage has no bytes, because it was resized."""


class StorageWatch:
    """Numbers storages in the order in which they are first seen, and reports when each one is freed.

    `on_allocation` receives the size of a new storage in bytes and returns the number that identifies it from then on.
    `on_free` receives that number once nothing refers to the storage any more. Storages of zero bytes are ignored,
    because they need no allocation.
    """

    def __init__(self, on_allocation: Callable[[int], int], on_free: Callable[[int], None]) -> None:
        self._on_allocation = on_allocation
        self._on_free = on_free
        self._watched: dict[int, _Watched] = {}

    def see(self, tensor: Tensor) -> None:
        """Start watching the tensor's storage, unless it is already being watched."""
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

    @contextmanager
    def following_resizes(self) -> Iterator[None]:
        """Also report storages that are resized, which no operator does; FSDP2 frees gathered parameters like this."""
        resize = torch.UntypedStorage.resize_

        def resize_and_tell(storage: torch.UntypedStorage, size_bytes: int) -> Any:
            result = resize(storage, size_bytes)
            self._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize_and_tell  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def _resized(self, storage: torch.UntypedStorage) -> None:
        watched = self._watched.get(storage._cdata)
        if watched is None:
            return
        if watched.number is not None:
            self._on_free(watched.number)
        size_bytes = storage.nbytes()
        watched.number = self._on_allocation(size_bytes) if size_bytes else None

    def number_of(self, tensor: Tensor) -> int | None:
        """Return the number of the tensor's storage, or None if it has not been seen or has no bytes."""
        watched = self._watched.get(tensor.untyped_storage()._cdata)
        return None if watched is None else watched.number

    def forget_all(self) -> None:
        """Stop watching all storages; those freed later are not reported."""
        self._watched.clear()

    def _gone(self, watched: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(watched, _Watched)
        del self._watched[watched.address]
        if watched.number is not None:
            self._on_free(watched.number)

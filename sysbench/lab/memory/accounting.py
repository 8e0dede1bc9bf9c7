"""Memory accounting by tensor storage, from the operator that creates a storage until the storage is freed.

A storage is the unit of allocation; tensors that are views of one another share one storage. Memory that a kernel
allocates and frees before it returns is not visible here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

BLOCK_BYTES = 512
"""Block sizes in CUDA's caching allocator are multiples of this (kMinBlockSize, c10/core/AllocatorConfig.h)."""


def round_to_block(size_bytes: int) -> int:
    """Round `size_bytes` up to whole blocks, as CUDA's caching allocator does."""
    return (size_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


def tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield the tensors among these values, including tensors in nested lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


class _Watched(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage: watching a storage does not extend its lifetime."""

    __slots__ = ("address", "number")
    address: int
    number: int | None
    """None while the storage is resized to zero bytes."""


class StorageWatch:
    """Reports when a storage is first seen, and when nothing refers to it any more.

    `on_allocation` gets the size of a new storage in bytes, and returns a number for it. Empty storages are ignored.
    """

    def __init__(self, on_allocation: Callable[[int], int], on_free: Callable[[int], None]) -> None:
        self._on_allocation = on_allocation
        self._on_free = on_free
        self._watched: dict[int, _Watched] = {}

    def track(self, tensor: Tensor) -> None:
        """Start watching the tensor's storage, unless it is already being watched."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._watched:
            return
        size_bytes = storage.nbytes()
        if not size_bytes:
            return
        watched = _Watched(storage, self._on_freed)
        watched.address = address
        watched.number = self._on_allocation(size_bytes)
        self._watched[address] = watched

    @contextmanager
    def watching_resizes(self) -> Iterator[None]:
        """In this context, also report resizes of watched storages: FSDP2 frees gathered parameters by resizing."""
        resize = torch.UntypedStorage.resize_

        def resize_and_report(storage: torch.UntypedStorage, size_bytes: int) -> object:
            result = resize(storage, size_bytes)
            self._on_resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize_and_report  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def _on_resized(self, storage: torch.UntypedStorage) -> None:
        watched = self._watched.get(storage._cdata)
        if watched is None:
            return
        if watched.number is not None:
            self._on_free(watched.number)
        size_bytes = storage.nbytes()
        watched.number = self._on_allocation(size_bytes) if size_bytes else None

    def number_of(self, tensor: Tensor) -> int | None:
        """Return the number of the tensor's storage, or None if the storage is not watched or has no bytes."""
        watched = self._watched.get(tensor.untyped_storage()._cdata)
        return None if watched is None else watched.number

    def forget_all(self) -> None:
        """Stop watching all storages, so that nothing is reported when they are freed."""
        self._watched.clear()

    def _on_freed(self, watched: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(watched, _Watched)
        del self._watched[watched.address]
        if watched.number is not None:
            self._on_free(watched.number)

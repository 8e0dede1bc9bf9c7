"""Memory of one GPU as an allocator sees it: how much is free, and at which addresses allocations lie."""

from __future__ import annotations

from sysbench.extras import installed_torch

GRANULARITY_BYTES = 2 * 1024 * 1024
"""Physical page size of NVIDIA GPUs since Pascal: the smallest amount that cudaMalloc and cuMemCreate allocate."""

_SEGMENT_ADDRESSES = 0x7F00_0000_0000
_RESERVED_ADDRESSES = 0x3_0200_0000
"""Where the addresses of cudaMalloc and cuMemAddressReserve begin; plausible values, because real ones vary."""


class DeviceMemory:
    """Physical memory and addresses of a simulated GPU.

    Addresses are never reused, so a recorded address is unique. Their order decides between cached blocks of the same
    size. Those of cudaMalloc descend from call to call, as Linux places mappings: of 16 runs on a T4 with PyTorch 2.14,
    reserved memory is within 0.8% so; with ascending addresses, four would be 6 to 9% too low
    (`tests.bench.measured_memory`). PyTorch 2.15 takes the same block wherever the driver places segments, the one
    that ascending addresses lead to: with it, they ascend here.
    """

    def __init__(self, capacity_bytes: int, outside_bytes: int = 0, *, ascending: bool | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self._used_bytes = outside_bytes
        self._ascending = installed_torch() >= (2, 15) if ascending is None else ascending
        self._next_segment = _SEGMENT_ADDRESSES
        self._next_reserved = _RESERVED_ADDRESSES

    @property
    def free_bytes(self) -> int:
        """Return the free memory, as in `torch.cuda.mem_get_info()[0]`; never less than 0."""
        return max(0, self.capacity_bytes - self._used_bytes)

    def allocate(self, size_bytes: int) -> int | None:
        """Simulate `cudaMalloc`: return the address of the new memory, or None if there is not enough."""
        if not self._allocate_pages(size_bytes):
            return None
        pages_bytes = _round_up_to_pages(size_bytes)
        self._next_segment += pages_bytes if self._ascending else -pages_bytes
        return self._next_segment - (pages_bytes if self._ascending else 0)

    def reserve_addresses(self, size_bytes: int) -> int:
        """Simulate `cuMemAddressReserve`: return the start of an address range that has no memory yet."""
        address = self._next_reserved
        self._next_reserved += _round_up_to_pages(size_bytes)
        return address

    def map_pages(self, address: int, size_bytes: int) -> bool:
        """Simulate `cuMemCreate` and `cuMemMap` at reserved addresses; return False if there is not enough memory."""
        return self._allocate_pages(size_bytes)

    def release(self, size_bytes: int) -> None:
        """Simulate `cudaFree` or `cuMemRelease` of `size_bytes`."""
        self._used_bytes -= _round_up_to_pages(size_bytes)

    def _allocate_pages(self, size_bytes: int) -> bool:
        pages_bytes = _round_up_to_pages(size_bytes)
        if pages_bytes > self.free_bytes:
            return False
        self._used_bytes += pages_bytes
        return True


def _round_up_to_pages(size_bytes: int) -> int:
    return (size_bytes + GRANULARITY_BYTES - 1) // GRANULARITY_BYTES * GRANULARITY_BYTES

"""The memory of one GPU as an allocator sees it: how much is left, and at which addresses it is handed out."""

from __future__ import annotations

GRANULARITY_BYTES = 2 * 1024 * 1024
"""Physical pages of NVIDIA GPUs since Pascal: what cudaMalloc and cuMemCreate take from the device at least."""

_SEGMENT_ADDRESSES = 0x7F_0000_0000_00
_RESERVED_ADDRESSES = 0x3_0200_0000
"""Where cudaMalloc and cuMemAddressReserve hand out addresses; plausible ones, the driver's own vary."""


class DeviceMemory:
    """Physical memory and addresses of a simulated GPU.

    Addresses ascend in the order of the calls and are never used twice, so that a recorded address means one thing.
    A driver may hand them out in another order; that decides only between cached blocks of exactly the same size.

    capacity_bytes  total memory, as `torch.cuda.mem_get_info()[1]` has it
    outside_bytes   what is gone before the first allocation: the CUDA context, libraries, other processes
    """

    def __init__(self, capacity_bytes: int, outside_bytes: int = 0) -> None:
        self.capacity_bytes = capacity_bytes
        self._taken_bytes = outside_bytes
        self._next_segment = _SEGMENT_ADDRESSES
        self._next_reserved = _RESERVED_ADDRESSES

    @property
    def free_bytes(self) -> int:
        """What `torch.cuda.mem_get_info()[0]` would say; never less than 0."""
        return max(0, self.capacity_bytes - self._taken_bytes)

    def allocate(self, size_bytes: int) -> int | None:
        """`cudaMalloc`: the address of `size_bytes`, or None if they are not there."""
        if not self._take(size_bytes):
            return None
        address = self._next_segment
        self._next_segment += _whole_pages(size_bytes)
        return address

    def reserve_addresses(self, size_bytes: int) -> int:
        """`cuMemAddressReserve`: the first of `size_bytes` addresses with nothing behind them."""
        address = self._next_reserved
        self._next_reserved += _whole_pages(size_bytes)
        return address

    def map_pages(self, address: int, size_bytes: int) -> bool:
        """`cuMemCreate` and `cuMemMap` at reserved addresses; False, and nothing taken, if the memory is not there."""
        return self._take(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """`cudaFree` or `cuMemRelease` of `size_bytes`."""
        self._taken_bytes -= _whole_pages(size_bytes)

    def adopt(self, size_bytes: int) -> None:
        """Count memory handed out before the simulation began; ValueError if the device is too small for it."""
        if not self._take(size_bytes):
            raise ValueError(f"a device of {self.capacity_bytes} bytes is too small for the segments it starts with")

    def adopt_addresses(self, address: int, size_bytes: int) -> None:
        """Hand out no address of a range that was in use before the simulation began, nor any below it."""
        end = _whole_pages(address + size_bytes)
        if address >= _SEGMENT_ADDRESSES:
            self._next_segment = max(self._next_segment, end)
        else:
            self._next_reserved = max(self._next_reserved, end)

    def _take(self, size_bytes: int) -> bool:
        pages_bytes = _whole_pages(size_bytes)
        if pages_bytes > self.free_bytes:
            return False
        self._taken_bytes += pages_bytes
        return True


def _whole_pages(size_bytes: int) -> int:
    return (size_bytes + GRANULARITY_BYTES - 1) // GRANULARITY_BYTES * GRANULARITY_BYTES

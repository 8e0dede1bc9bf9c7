"""An allocator that begins with the segments of a snapshot, and tells what its next request would do.

The model itself always starts empty; a recorded trace is replayed from the state before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from sysbench.simulate.allocator import CachingAllocator, _whole_segments
from sysbench.simulate.allocator.blocks import Block, BlockPool, VirtualSegment
from sysbench.simulate.allocator.device_memory import _SEGMENT_ADDRESSES, DeviceMemory, _round_up_to_pages
from sysbench.simulate.allocator.ledger import _DEFAULT_POOL
from sysbench.simulate.allocator.settings import AllocatorSettings

_DEFAULT_SETTINGS = AllocatorSettings()


class AdoptingDevice(DeviceMemory):
    """A device on which memory was allocated before the simulation began."""

    def adopt(self, size_bytes: int) -> None:
        """Count memory allocated before the simulation began; raises ValueError if the device is too small for it."""
        if not self._allocate_pages(size_bytes):
            raise ValueError(f"a device of {self.capacity_bytes} bytes is too small for the segments it starts with")

    def adopt_addresses(self, address: int, size_bytes: int) -> None:
        """Exclude a range of addresses in use before the simulation began, and all addresses below it."""
        end = _round_up_to_pages(address + size_bytes)
        if address >= _SEGMENT_ADDRESSES:
            self._next_segment = max(self._next_segment, end)
        else:
            self._next_reserved = max(self._next_reserved, end)


class RestorableAllocator(CachingAllocator):
    """Begins with the blocks of a snapshot."""

    _device: AdoptingDevice

    @classmethod
    def from_segments(
        cls,
        segments: Iterable[Mapping[str, Any]],
        capacity_bytes: int,
        settings: AllocatorSettings = _DEFAULT_SETTINGS,
        *,
        outside_bytes: int = 0,
        record: bool = False,
        device: AdoptingDevice | None = None,
    ) -> RestorableAllocator:
        """Create an allocator with the segments of a snapshot, including their used and free blocks.

        A snapshot does not contain the ages of free blocks: with garbage collection, all count as just freed. Mapped
        ranges of one stream and size class count as one expandable segment that begins at the lowest of them. Raises
        ValueError for blocks that do not fill their segment, and for segments of private pools.
        """
        device = device or AdoptingDevice(capacity_bytes, outside_bytes)
        allocator = cls(capacity_bytes, settings, record=record, device=device)
        capacity_bytes = allocator._device.capacity_bytes
        pools = {"small": allocator._small, "large": allocator._large}
        for segment in restore_segments(segments, pools, settings, capacity_bytes):
            allocator._adopt(segment)
        return allocator

    def is_in_use(self, address: int) -> bool:
        """Whether a block in use begins at this address."""
        return address in self._in_use

    def would_reuse(self, size_bytes: int, stream: int = 0) -> bool:
        """Whether a cached block could serve such a request now."""
        size = self.settings.block_bytes(size_bytes)
        return self._find_cached(self._pool(size), stream, size) is not None

    def unused_segments(self) -> list[int]:
        """Addresses of the segments that `empty_cache` would free, in that order, without expandable ones."""
        return [block.address for pool in (self._large, self._small) for block in _whole_segments(pool)]

    def _adopt(self, segment: RestoredSegment) -> None:
        ledger = self._ledger
        mapped_bytes = sum(block.size for block in segment.blocks if block.mapped)
        self._device.adopt(mapped_bytes)
        ledger.reserved.add(mapped_bytes)
        for block in segment.blocks:
            self._device.adopt_addresses(block.address, block.size)
            if not block.allocated:
                block.pool.insert(block)
                continue
            self._in_use[block.address] = block
            ledger.allocated.add(block.size)


class RestoredSegment(NamedTuple):
    """A restored segment: its blocks by address, linked; the last block of an expandable one is unmapped."""

    is_expandable: bool
    blocks: list[Block]


def restore_segments(
    segments: Iterable[Mapping[str, Any]],
    pools: Mapping[str, BlockPool],
    settings: AllocatorSettings,
    capacity_bytes: int,
) -> list[RestoredSegment]:
    """Restore the blocks of a snapshot's segments, linked but not yet in their pools (`pools` by `segment_type`).

    Mapped ranges of one stream and size class count as one expandable segment that begins at the lowest of them,
    because a snapshot does not contain the real beginning. Raises ValueError for blocks that do not fill their segment,
    ranges that are not aligned to pages, and segments of private pools.
    """
    restored: list[RestoredSegment] = []
    mapped_ranges: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for segment in sorted(segments, key=lambda segment: int(segment["address"])):
        if segment.get("is_expandable", False):
            mapped_ranges.setdefault((segment["segment_type"], int(segment["stream"])), []).append(segment)
        else:
            restored.append(RestoredSegment(False, _chain(_blocks(segment, pools[segment["segment_type"]], None))))
    for (size_class, _), ranges in mapped_ranges.items():
        page_bytes = settings.page_bytes(pools[size_class].is_small)
        range_bytes = VirtualSegment.range_bytes(capacity_bytes, page_bytes)
        virtual = VirtualSegment(int(ranges[0]["address"]), range_bytes, page_bytes)
        restored.append(RestoredSegment(True, _chain(_expandable_blocks(ranges, pools[size_class], virtual))))
    return restored


def _expandable_blocks(ranges: list[Mapping[str, Any]], pool: BlockPool, virtual: VirtualSegment) -> list[Block]:
    """Blocks of all mapped ranges, with unmapped ones between and after them."""
    blocks: list[Block] = []
    end = virtual.address
    for mapped_range in [*ranges, None]:
        start = int(mapped_range["address"]) if mapped_range is not None else virtual.address + virtual.size
        if (start - virtual.address) % virtual.page_bytes:
            raise ValueError(f"the mapped range at {start:#x} does not lie on whole pages")
        if start > end:
            unmapped = Block(pool, int(ranges[0]["stream"]), end, start - end, virtual)
            unmapped.mapped = False
            blocks.append(unmapped)
        if mapped_range is not None:
            blocks.extend(_blocks(mapped_range, pool, virtual))
            end = start + int(mapped_range["total_size"])
    return blocks


def _blocks(segment: Mapping[str, Any], pool: BlockPool, virtual: VirtualSegment | None) -> list[Block]:
    if tuple(segment.get("segment_pool_id", _DEFAULT_POOL)) != _DEFAULT_POOL:
        raise ValueError("segments of private memory pools (CUDA graphs, MemPool) are not simulated")
    blocks = []
    address = int(segment["address"])
    for entry in segment["blocks"]:
        block = Block(pool, int(segment["stream"]), address, int(entry["size"]), virtual)
        block.requested = int(entry.get("requested_size", block.size))
        block.allocated = entry["state"] != "inactive"
        block.frames = entry.get("frames") or None
        blocks.append(block)
        address += block.size
    if address != int(segment["address"]) + int(segment["total_size"]) or not blocks:
        raise ValueError(f"the blocks of the segment at {segment['address']:#x} do not fill it")
    blocks[0].segment_frames = segment.get("frames") or None
    return blocks


def _chain(blocks: list[Block]) -> list[Block]:
    for before, after in pairwise(blocks):
        before.next, after.previous = after, before
    return blocks

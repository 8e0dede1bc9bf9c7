"""Segments that grow and shrink by pages (`expandable_segments:True`).

Source: ExpandableSegment, find_expandable_block, map_block, try_allocate_expandable_block and unmap_block in
c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from sysbench.simulate.allocator.blocks import Block, BlockPool, Frames, VirtualSegment
from sysbench.simulate.allocator.device_memory import DeviceMemory
from sysbench.simulate.allocator.ledger import Ledger
from sysbench.simulate.allocator.settings import AllocatorSettings


class ExpandableMemory:
    """Expandable segments, which map and unmap memory at reserved addresses."""

    def __init__(self, device: DeviceMemory, settings: AllocatorSettings, ledger: Ledger) -> None:
        self._device = device
        self._settings = settings
        self._ledger = ledger

    def grow(self, pool: BlockPool, stream: int, size: int, frames: Frames | None) -> Block | None:
        """Return a block of at least `size` bytes, removed from the pool; None if the device has too little memory."""
        block = self._first_fit(pool, stream, size)
        if not block.mapped and not self._map(block, min(block.size, size), frames):
            return None
        while block.size < size:
            unmapped = block.next
            if unmapped is None or not self._map(unmapped, min(size - block.size, unmapped.size), frames):
                return None
            block = unmapped
        pool.remove(block)
        return block

    def shrink(self, block: Block, frames: Frames | None) -> None:
        """Unmap the pages that lie within a free block; drop the segment if no mapped pages are left."""
        if block.virtual_segment is None:
            raise ValueError("only blocks of expandable segments can be unmapped")
        start, size = block.virtual_segment.pages_within(block)
        if size <= 0:
            return
        pool = block.pool
        pool.remove(block)
        self._split_before(block, start)
        self._split_after(block, size)
        block.mapped = False
        block.merge_with(block.previous)
        block.merge_with(block.next)
        self._device.release(size)
        self._ledger.reserved.add(-size)
        self._ledger.record("segment_unmap", start, size, block.stream, frames or block.segment_frames)
        if block.is_split:
            pool.insert(block)

    def _first_fit(self, pool: BlockPool, stream: int, size: int) -> Block:
        """Return the first block of the lowest-addressed run of unused blocks that totals at least `size` bytes."""
        for _, unmapped in pool.unmapped_blocks(stream):
            before = unmapped.previous
            first = before if before is not None and not before.allocated else unmapped
            if _unused_bytes_from(first, size) >= size:
                return first
        page_bytes = self._settings.page_bytes(pool.is_small)
        range_bytes = VirtualSegment.range_bytes(self._device.capacity_bytes, page_bytes)
        address = self._device.reserve_addresses(range_bytes)
        block = Block(pool, stream, address, range_bytes, VirtualSegment(address, range_bytes, page_bytes))
        block.mapped = False
        pool.insert(block)
        return block

    def _map(self, block: Block, size: int, frames: Frames | None) -> bool:
        """Map memory to the first `size` bytes of an unmapped block, in whole pages (map_block)."""
        if block.virtual_segment is None:
            raise ValueError("only blocks of expandable segments can be mapped")
        mapped_bytes = block.virtual_segment.round_up_to_pages(size)
        if not self._device.map_pages(block.address, mapped_bytes):
            return False
        start, pool = block.address, block.pool
        pool.remove(block)
        self._split_after(block, mapped_bytes)
        block.mapped = True
        block.merge_with(block.previous)
        block.merge_with(block.next)
        pool.insert(block)
        self._ledger.reserved.add(mapped_bytes)
        self._ledger.record("segment_map", start, mapped_bytes, block.stream, frames)
        if block.previous is None and block.segment_frames is None:
            block.segment_frames = frames
        return True

    @staticmethod
    def _split_before(block: Block, start: int) -> None:
        if start > block.address:
            before = Block(block.pool, block.stream, block.address, start - block.address, block.virtual_segment)
            before.mapped = block.mapped
            before.insert_between(block.previous, block)
            block.pool.insert(before)
            block.size -= before.size
            block.address = start

    @staticmethod
    def _split_after(block: Block, size: int) -> None:
        if size < block.size:
            rest_bytes = block.size - size
            rest = Block(block.pool, block.stream, block.address + size, rest_bytes, block.virtual_segment)
            rest.mapped = block.mapped
            rest.insert_between(block, block.next)
            block.pool.insert(rest)
            block.size = size


def _unused_bytes_from(first: Block, enough: int) -> int:
    """Return the total size of consecutive unused blocks, beginning with `first`; stop counting at `enough` bytes."""
    covered = 0
    block: Block | None = first
    while block is not None and covered < enough and not block.allocated:
        covered += block.size
        block = block.next
    return covered

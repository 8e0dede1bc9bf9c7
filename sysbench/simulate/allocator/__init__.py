"""A model of PyTorch's CUDA caching allocator, exact to the byte, that needs no GPU.

It follows DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11 to 2.13. Names in parentheses are
those of the modelled functions. Not modelled: blocks used on several streams (record_stream), private pools (CUDA
graphs, MemPool) and the pluggable backends.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Literal

from sysbench.simulate.allocator.blocks import Block, BlockPool, Frames, FreeBlocks
from sysbench.simulate.allocator.device_memory import DeviceMemory
from sysbench.simulate.allocator.expandable import ExpandableMemory
from sysbench.simulate.allocator.ledger import AllocatorEvent, AllocatorStatistics, Annotation, Ledger, build_snapshot
from sysbench.simulate.allocator.settings import UNLIMITED, AllocatorSettings
from sysbench.snapshot.block_sizes import MIN_BLOCK_BYTES, SMALL_BYTES
from sysbench.units import size as in_bytes

_DEFAULT_SETTINGS = AllocatorSettings()


class SimulatedOutOfMemoryError(RuntimeError):
    """Raised if the simulated device cannot serve a request, even after all cached memory was released."""


class CachingAllocator:
    """An allocator that serves requests from cached blocks, and asks the device for memory if no block fits."""

    def __init__(
        self,
        capacity_bytes: int,
        settings: AllocatorSettings = _DEFAULT_SETTINGS,
        *,
        outside_bytes: int = 0,
        record: bool = False,
        device: DeviceMemory | None = None,
    ) -> None:
        """Create an empty allocator; others use `outside_bytes` of the device, and `record` keeps every event."""
        self.settings = settings
        self._device = device or DeviceMemory(capacity_bytes, outside_bytes)
        self._ledger = Ledger(record)
        self._expandable = ExpandableMemory(self._device, settings, self._ledger)
        self._small = BlockPool(is_small=True, by_age=settings.prefers_oldest)
        self._large = BlockPool(is_small=False, by_age=settings.prefers_oldest)
        self._in_use: dict[int, Block] = {}
        self._annotations: list[Annotation] = []
        self._allowed_bytes: int | None = None
        self.set_memory_fraction(settings.memory_fraction)

    @property
    def statistics(self) -> AllocatorStatistics:
        """Return the current counters and their peaks since the start or the last `reset_peaks`."""
        return self._ledger.statistics()

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes currently reserved from the device; much faster than `statistics`."""
        return self._ledger.reserved.current

    @property
    def events(self) -> list[AllocatorEvent]:
        """Return the recorded events, oldest first; empty if `record` was False. The list must not be modified."""
        return self._ledger.events if self._ledger.events is not None else []

    def reset_peaks(self) -> None:
        """Reset every peak to the current value (`torch.cuda.reset_peak_memory_stats`)."""
        self._ledger.reset_peaks()

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit the allocator to a fraction of the device's memory (`torch.cuda.set_per_process_memory_fraction`)."""
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"a memory fraction must be in [0, 1], not {fraction}")
        self._allowed_bytes = int(fraction * self._device.capacity_bytes) if fraction < 1.0 else None

    def allocate(self, size_bytes: int, stream: int = 0, frames: Frames | None = None) -> Block:
        """Allocate a block of at least `size_bytes`, in use until it is passed to `free` (malloc)."""
        if size_bytes < 1:
            raise ValueError(f"a block must have at least 1 byte, not {size_bytes}")
        size = self.settings.block_bytes(size_bytes)
        pool = self._pool(size)
        block = self._allocate_cached(pool, stream, size)
        if block is None:
            block = self._allocate_new(pool, stream, size, frames)
            if block is None:
                raise self._out_of_memory(size, stream, frames)
        if self._should_split(block, size):
            block, rest = _split(block, size), block
            pool.insert(rest)
        return self._mark_in_use(block, size_bytes, frames)

    def free(self, block: Block | int, frames: Frames | None = None) -> None:
        """Free a block, given as an object or by its address, and merge it with free neighbours (free_block)."""
        address = block if isinstance(block, int) else block.address
        freed = self._in_use.pop(address, None)
        if freed is None:
            raise ValueError(f"no used block begins at {address:#x}")
        ledger = self._ledger
        if ledger.events is not None:
            stack = frames or freed.frames
            ledger.record("free_requested", address, freed.requested, freed.stream, stack)
            ledger.record("free_completed", address, freed.requested, freed.stream, stack)
        ledger.allocated.add(-freed.size)
        freed.allocated = False
        freed.frames = None
        freed.merge_with(freed.previous)
        freed.merge_with(freed.next)
        freed.pool.insert(freed)

    def empty_cache(self, frames: Frames | None = None) -> None:
        """Release all unused segments to the device (`torch.cuda.empty_cache`, release_cached_blocks)."""
        for pool in (self._large, self._small):
            expandable = [block for block in pool if block.virtual_segment is not None]
            for block in _whole_segments(pool):
                self._release(block, frames)
            for block in expandable:
                self._expandable.shrink(block, frames)

    def annotate(self, name: str, stage: Literal["START", "END"]) -> None:
        """Mark the start or end of a phase in the recorded trace, as `record_function` does."""
        if self._ledger.events is not None:
            self._annotations.append(Annotation(len(self._ledger.events), name, stage))

    def snapshot(self) -> dict[str, Any]:
        """Return the state and the recorded trace in the format of `torch.cuda.memory._snapshot()`."""
        blocks = [*self._small, *self._large, *self._in_use.values()]
        return build_snapshot(blocks, self.events, self._annotations, self.settings)

    def _mark_in_use(self, block: Block, size_bytes: int, frames: Frames | None) -> Block:
        block.allocated = True
        block.requested = size_bytes
        block.frames = frames
        self._in_use[block.address] = block
        ledger = self._ledger
        if ledger.events is not None:
            ledger.record("alloc", block.address, size_bytes, block.stream, frames)
        ledger.allocated.add(block.size)
        return block

    def _pool(self, size: int) -> BlockPool:
        return self._small if size <= SMALL_BYTES else self._large

    def _collects_garbage(self) -> bool:
        return self._allowed_bytes is not None and self.settings.garbage_collection_threshold > 0.0

    def _find_cached(self, pool: BlockPool, stream: int, size: int) -> int | None:
        """Return the position of the best-fitting free block of the pool; None if no block fits (get_free_block)."""
        free = pool.free_blocks(stream)
        index = bisect_left(free, (size,))
        if index < len(free) and free[index][2].virtual_segment is not None:
            if self.settings.expandable_segments:
                index = _best_expandable(free, index)
            else:
                blocks = (number for number in range(index, len(free)) if free[number][2].virtual_segment is None)
                index = next(blocks, len(free))
        if index == len(free):
            return None
        found_bytes, limit = free[index][0], self.settings.max_split_bytes
        if size < limit <= found_bytes:
            return None
        if size >= limit and found_bytes >= size + self.settings.max_non_split_rounding_bytes:
            return None
        return index

    def _allocate_cached(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        if self._collects_garbage():
            pool.searches += 1
        index = self._find_cached(pool, stream, size)
        return pool.free_blocks(stream).pop(index)[2] if index is not None else None

    def _allocate_new(self, pool: BlockPool, stream: int, size: int, frames: Frames | None) -> Block | None:
        """Allocate a block from the device, after releasing cached memory if necessary; None on failure (malloc)."""
        if self._collects_garbage():
            self._collect_garbage(frames)
        block = self._allocate_segment(pool, stream, size, frames)
        if block is None and self._release_oversize(pool, stream, size, frames):
            block = self._allocate_segment(pool, stream, size, frames)
        if block is None:
            self.empty_cache(frames)
            self._ledger.alloc_retries += 1
            block = self._allocate_segment(pool, stream, size, frames)
        return block

    def _allocate_segment(self, pool: BlockPool, stream: int, size: int, frames: Frames | None) -> Block | None:
        """Allocate a segment, or extend an expandable one; return None if memory is insufficient (alloc_block)."""
        segment_bytes = self.settings.segment_bytes(size)
        if self._allowed_bytes is not None and self.reserved_bytes + segment_bytes > self._allowed_bytes:
            return None
        if self.settings.expandable_segments:
            return self._expandable.grow(pool, stream, size, frames)
        return self._new_segment(pool, stream, segment_bytes, frames)

    def _new_segment(self, pool: BlockPool, stream: int, segment_bytes: int, frames: Frames | None) -> Block | None:
        address = self._device.allocate(segment_bytes)
        if address is None:
            return None
        self._ledger.reserved.add(segment_bytes)
        self._ledger.record("segment_alloc", address, segment_bytes, stream, frames)
        block = Block(pool, stream, address, segment_bytes)
        block.segment_frames = frames
        return block

    def _should_split(self, block: Block, size: int) -> bool:
        """Return whether the remainder of the block is large enough to be split off (should_split)."""
        left_bytes = block.size - size
        if block.pool.is_small or self.settings.expandable_segments:
            return left_bytes >= MIN_BLOCK_BYTES
        return size < self.settings.max_split_bytes and left_bytes > SMALL_BYTES

    def _release(self, block: Block, frames: Frames | None) -> None:
        """Release a segment that consists of one free block to the device (release_block)."""
        self._ledger.record("segment_free", block.address, block.size, block.stream, frames or block.segment_frames)
        block.pool.remove(block)
        self._device.release(block.size)
        self._ledger.reserved.add(-block.size)

    def _release_oversize(self, pool: BlockPool, stream: int, size: int, frames: Frames | None) -> bool:
        """Release as many oversize blocks as a request needs; return whether they suffice.

        Oversize blocks are those that are too large to be split. Source: release_available_cached_blocks.
        """
        limit = self.settings.max_split_bytes
        if limit == UNLIMITED:
            return False
        wanted_bytes = max(size, limit)
        free = pool.free_blocks(stream)
        index = bisect_left(free, (wanted_bytes,))
        if index < len(free) and free[index][2].virtual_segment is None:
            self._release(free[index][2], frames)
            return True
        # No single block is large enough, so several are released, largest first.
        released_bytes = 0
        for size_bytes, _, block in reversed(free[:index]):
            if released_bytes >= wanted_bytes or size_bytes < limit:
                break
            if block.virtual_segment is None:
                released_bytes += size_bytes
                self._release(block, frames)
        return released_bytes >= wanted_bytes

    def _collect_garbage(self, frames: Frames | None) -> None:
        """Release the segments that have been unused longest, until reserved memory is below the threshold.

        Source: garbage_collect_cached_blocks.
        """
        if self._allowed_bytes is None:
            return
        threshold_bytes = int(self.settings.garbage_collection_threshold * self._allowed_bytes)
        target_bytes = self._ledger.reserved.current - threshold_bytes
        candidates = _whole_segments(self._large)
        total_age = sum(block.age for block in candidates)
        while target_bytes > 0 and candidates:
            oldest_age = total_age / len(candidates)
            old = [block for block in candidates if block.age >= oldest_age]
            candidates = [block for block in candidates if block.age < oldest_age]
            for block in old:
                target_bytes -= block.size
                total_age -= block.age
                self._release(block, frames)

    def _out_of_memory(self, size: int, stream: int, frames: Frames | None) -> SimulatedOutOfMemoryError:
        ledger, device = self._ledger, self._device
        ledger.record("oom", device.free_bytes, size, stream, frames)
        allowed = f"{in_bytes(self._allowed_bytes)} allowed; " if self._allowed_bytes is not None else ""
        return SimulatedOutOfMemoryError(
            f"CUDA out of memory (simulated). Tried to allocate {in_bytes(self.settings.segment_bytes(size))}. The GPU "
            f"has a total capacity of {in_bytes(device.capacity_bytes)} of which {in_bytes(device.free_bytes)} is "
            f"free. {allowed}Of the allocated memory {in_bytes(ledger.allocated.current)} is allocated by PyTorch, and "
            f"{in_bytes(ledger.reserved.current - ledger.allocated.current)} is reserved by PyTorch but unallocated."
        )


def _whole_segments(pool: BlockPool) -> list[Block]:
    return [block for block in pool if block.virtual_segment is None and not block.is_split]


def _split(block: Block, size: int) -> Block:
    """Split `size` bytes off the front of a free block that is in no pool; return the front (alloc_found_block)."""
    front = Block(block.pool, block.stream, block.address, size, block.virtual_segment)
    before = block.previous
    block.address += size
    block.size -= size
    front.insert_between(before, block)
    if before is None:
        front.segment_frames, block.segment_frames = block.segment_frames, None
    return front


def _best_expandable(free: FreeBlocks, index: int) -> int:
    """Return the position of the best fit, comparing the sizes to which expandable blocks can grow (get_free_block)."""
    while (
        free[index][2].virtual_segment is not None
        and index + 1 < len(free)
        and _growable_bytes(free[index + 1][2]) < _growable_bytes(free[index][2])
    ):
        index += 1
    return index


def _growable_bytes(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)

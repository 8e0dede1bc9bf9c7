"""Blocks, into which segments are divided, and pools, which keep free blocks sorted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from operator import attrgetter

Frames = Sequence[object]
"""Stack of an allocation: any objects that the caller wants in the snapshot. Viewers expect dictionaries with
`filename`, `line` and `name`."""

FreeBlocks = list[tuple[int, int, "Block"]]
"""(size, address or number, block), ascending: both are unique, so blocks themselves are never compared."""

_numbers = count()


class VirtualSegment:
    """A reserved address range of one expandable segment; only some of the pages are backed by memory."""

    __slots__ = ("address", "page_bytes", "size")

    def __init__(self, address: int, size: int, page_bytes: int) -> None:
        self.address = address
        self.size = size
        self.page_bytes = page_bytes

    @staticmethod
    def range_bytes(capacity_bytes: int, page_bytes: int) -> int:
        """Return the size of the range to reserve: an eighth more than the memory, for pages unmapped at the front."""
        return -(-(capacity_bytes + capacity_bytes // 8) // page_bytes) * page_bytes

    def round_up_to_pages(self, size: int) -> int:
        """Return `size` bytes rounded up to whole pages."""
        return (size + self.page_bytes - 1) // self.page_bytes * self.page_bytes

    def pages_within(self, block: Block) -> tuple[int, int]:
        """Return the start and the total size of the whole pages within `block`; the size is ≤ 0 if there are none."""
        start = self.address + self.round_up_to_pages(block.address - self.address)
        end = block.address + block.size
        return start, (end - start) // self.page_bytes * self.page_bytes


class Block:
    """A part of a segment: in use, free, or (in an expandable segment) not mapped to memory.

    A freed block may grow, shrink or merge with a neighbour, so keep a reference only while the block is in use.

    requested           size of the last request that the block served; at most `size`
    searches_at_insert  the pool's search count when the block became free; used to compute `age`
    segment_frames      stack of the allocation that created the segment; only on the segment's first block
    """

    __slots__ = (
        "address",
        "allocated",
        "frames",
        "mapped",
        "next",
        "number",
        "pool",
        "previous",
        "requested",
        "searches_at_insert",
        "segment_frames",
        "size",
        "stream",
        "virtual_segment",
    )

    def __init__(
        self, pool: BlockPool, stream: int, address: int, size: int, virtual_segment: VirtualSegment | None = None
    ) -> None:
        self.number = next(_numbers)
        self.pool = pool
        self.stream = stream
        self.address = address
        self.size = size
        self.requested = 0
        self.allocated = False
        self.mapped = True
        self.previous: Block | None = None
        self.next: Block | None = None
        self.searches_at_insert = 0
        self.frames: Frames | None = None
        self.segment_frames: Frames | None = None
        self.virtual_segment = virtual_segment

    @property
    def is_split(self) -> bool:
        """Return whether the block shares its segment with another block."""
        return self.previous is not None or self.next is not None

    @property
    def age(self) -> int:
        """Return the number of searches of the pool since the block became free (gc_count)."""
        return self.pool.searches - self.searches_at_insert

    def insert_between(self, before: Block | None, after: Block | None) -> None:
        """Insert the block between two neighbours (splice)."""
        self.previous, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.previous = self

    def merge_with(self, neighbour: Block | None) -> None:
        """Merge with a neighbour if it is unused, and both blocks are mapped or both unmapped (try_merge_blocks)."""
        if neighbour is None or neighbour.allocated or neighbour.mapped != self.mapped:
            return
        self.pool.remove(neighbour)
        if neighbour is self.previous:
            self.address = neighbour.address
            self.segment_frames = neighbour.segment_frames
            self.insert_between(neighbour.previous, self.next)
        else:
            self.insert_between(self.previous, neighbour.next)
        self.size += neighbour.size


class BlockPool:
    """The pool of small or of large blocks: free blocks of all streams, and unmapped blocks of expandable segments.

    searches  number of searches for a block; counted only if garbage collection is enabled
    """

    def __init__(self, is_small: bool, *, by_age: bool) -> None:
        self.is_small = is_small
        self._order = attrgetter("number" if by_age else "address")
        self.searches = 0
        self._free: defaultdict[int, FreeBlocks] = defaultdict(list)
        self._unmapped: defaultdict[int, list[tuple[int, Block]]] = defaultdict(list)

    def free_blocks(self, stream: int) -> FreeBlocks:
        """Return the free blocks of a stream in search order: by size, then address or age."""
        return self._free[stream]

    def unmapped_blocks(self, stream: int) -> list[tuple[int, Block]]:
        """Return (address, block) for each unmapped block of a stream, sorted by address."""
        return self._unmapped[stream]

    def __iter__(self) -> Iterator[Block]:
        """Yield all free blocks by stream, then in search order."""
        for stream in sorted(self._free):
            for _, _, block in self._free[stream]:
                yield block

    def insert(self, block: Block) -> None:
        """Add a free or unmapped block."""
        if block.mapped:
            block.searches_at_insert = self.searches
            insort(self._free[block.stream], (block.size, self._order(block), block))
        else:
            insort(self._unmapped[block.stream], (block.address, block))

    def remove(self, block: Block) -> None:
        """Remove a block. Call this before the block's size or address changes, because they are the sort key."""
        if block.mapped:
            free = self._free[block.stream]
            del free[bisect_left(free, (block.size, self._order(block)))]
        else:
            unmapped = self._unmapped[block.stream]
            del unmapped[bisect_left(unmapped, (block.address,))]

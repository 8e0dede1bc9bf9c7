"""The blocks that segments are divided into, and the two pools that keep the free ones in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence

Frames = Sequence[object]
"""Origin of an allocation: any objects that the caller wants in the snapshot; for viewers, dictionaries with
`filename`, `line` and `name`."""

FreeBlocks = list[tuple[int, int, "Block"]]
"""(size, address, block), ascending: addresses are unique, so blocks themselves are never compared."""


class VirtualSegment:
    """An address range reserved for one expandable segment; only some of its pages are backed by memory."""

    __slots__ = ("address", "page_bytes", "size")

    def __init__(self, address: int, size: int, page_bytes: int) -> None:
        self.address = address
        self.size = size
        self.page_bytes = page_bytes

    @classmethod
    def for_device(cls, address: int, capacity_bytes: int, page_bytes: int) -> VirtualSegment:
        """Create a range with as many addresses as the device has memory, and an eighth more.

        The excess allows pages that were unmapped at the front of the segment to be mapped at its end.
        """
        return cls(address, cls.addresses_for(capacity_bytes, page_bytes), page_bytes)

    @staticmethod
    def addresses_for(capacity_bytes: int, page_bytes: int) -> int:
        """Return the number of addresses to reserve."""
        return -(-(capacity_bytes + capacity_bytes // 8) // page_bytes) * page_bytes

    def pages_over(self, size: int) -> int:
        """Return `size` bytes rounded up to whole pages."""
        return (size + self.page_bytes - 1) // self.page_bytes * self.page_bytes

    def pages_within(self, block: Block) -> tuple[int, int]:
        """Return first address and total size of the pages completely in `block`; the size may be 0 or less."""
        start = self.address + self.pages_over(block.address - self.address)
        end = block.address + block.size
        return start, (end - start) // self.page_bytes * self.page_bytes


class Block:
    """A part of a segment: in use, free, or (in an expandable segment) addresses without memory.

    A freed block may grow, shrink or merge with a neighbour, so keep a reference only while it is in use.

    address, size       of the block, in bytes
    requested           size of the last request it served; at most `size`
    previous, next      neighbours in the same segment
    searches_at_insert  number of searches of its pool when it became free, for its age in garbage collection
    frames              of the allocation; segment_frames, on a segment's first block, of the one that made the segment
    """

    __slots__ = (
        "address",
        "allocated",
        "frames",
        "mapped",
        "next",
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
        """Return the number of searches of its pool since it became free (gc_count)."""
        return self.pool.searches - self.searches_at_insert

    def put_between(self, before: Block | None, after: Block | None) -> None:
        """Insert the block between two neighbours (splice)."""
        self.previous, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.previous = self

    def absorb(self, neighbour: Block | None) -> None:
        """Merge with a neighbour if it is a free block of the same kind (try_merge_blocks)."""
        if neighbour is None or neighbour.allocated or neighbour.mapped != self.mapped:
            return
        self.pool.remove(neighbour)
        if neighbour is self.previous:
            self.address = neighbour.address
            self.segment_frames = neighbour.segment_frames
            self.put_between(neighbour.previous, self.next)
        else:
            self.put_between(self.previous, neighbour.next)
        self.size += neighbour.size


class BlockPool:
    """The free blocks of all streams, either small or large ones, and the unmapped ones of expandable segments.

    searches  number of searches for a block; counted only with garbage collection
    """

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.searches = 0
        self._free: defaultdict[int, FreeBlocks] = defaultdict(list)
        self._unmapped: defaultdict[int, list[tuple[int, Block]]] = defaultdict(list)

    def free_blocks(self, stream: int) -> FreeBlocks:
        """Return the free blocks of a stream by size, then address: the order in which they are tried."""
        return self._free[stream]

    def unmapped_blocks(self, stream: int) -> list[tuple[int, Block]]:
        """Return (address, block) of a stream's unmapped blocks, in ascending order."""
        return self._unmapped[stream]

    def __iter__(self) -> Iterator[Block]:
        """Yield all free blocks: by stream, size, address."""
        for stream in sorted(self._free):
            for _, _, block in self._free[stream]:
                yield block

    def insert(self, block: Block) -> None:
        """Add a free or unmapped block."""
        if block.mapped:
            block.searches_at_insert = self.searches
            insort(self._free[block.stream], (block.size, block.address, block))
        else:
            insort(self._unmapped[block.stream], (block.address, block))

    def remove(self, block: Block) -> None:
        """Remove a block. Call this before its size or address changes."""
        if block.mapped:
            free = self._free[block.stream]
            del free[bisect_left(free, (block.size, block.address))]
        else:
            unmapped = self._unmapped[block.stream]
            del unmapped[bisect_left(unmapped, (block.address,))]

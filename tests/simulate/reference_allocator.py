"""The caching allocator's rules once more, slow and plain: the reference that the fast model is held to.

Written from the prose of c10/cuda/CUDACachingAllocator.cpp without looking for speed: all memory is one flat list of
cells, neighbours and best fits are found by scanning it, and every counter is a sum over it. It shares no code with
the model, and takes the settings as plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

KIB = 1024
MIB = 1024 * KIB
PAGE_OF_DEVICE = 2 * MIB
FIRST_SEGMENT_ADDRESS = 0x7F0000000000
FIRST_RESERVED_ADDRESS = 0x302000000


@dataclass
class Rules:
    """The settings, in the units in which people write them."""

    capacity: int
    max_split_size_mb: int | None = None
    max_non_split_rounding_mb: int = 20
    large_segment_size_mb: int = 20
    roundup_divisions: list[int] = field(default_factory=lambda: [0] * 16)
    garbage_collection_threshold: float = 0.0
    expandable: bool = False
    memory_fraction: float = 1.0


@dataclass
class Cell:
    """Some addresses of one segment that are all in use, all free, or (hole) without memory behind them."""

    segment: int
    address: int
    size: int
    state: Literal["used", "free", "hole"]
    small: bool
    stream: int
    requested: int = 0
    free_since: int = 0

    @property
    def end(self) -> int:
        return self.address + self.size


class ReferenceOutOfMemory(Exception):  # noqa: N818 -- a fact that the test looks for, not a fault
    pass


class ReferenceAllocator:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.cells: list[Cell] = []
        self.events: list[tuple[str, int, int, int]] = []
        self.reserved_peak = 0
        self.allocated_peak = 0
        self.retries = 0
        self.searches = {True: 0, False: 0}
        self.next_segment = 0
        self.next_address = FIRST_SEGMENT_ADDRESS
        self.next_reserved = FIRST_RESERVED_ADDRESS

    # Counters: sums over the cells.

    def allocated(self) -> int:
        return sum(cell.size for cell in self.cells if cell.state == "used")

    def reserved(self) -> int:
        return sum(cell.size for cell in self.cells if cell.state != "hole")

    def device_free(self) -> int:
        taken: dict[int, int] = {}
        for cell in self.cells:
            if cell.state != "hole":
                taken[cell.segment] = taken.get(cell.segment, 0) + cell.size
        return self.rules.capacity - sum(-(-size // PAGE_OF_DEVICE) * PAGE_OF_DEVICE for size in taken.values())

    def allowed(self) -> int | None:
        if self.rules.memory_fraction == 1.0:
            return None
        return int(self.rules.memory_fraction * self.rules.capacity)

    def collecting(self) -> bool:
        return self.allowed() is not None and self.rules.garbage_collection_threshold > 0

    def max_split(self) -> float:
        return float("inf") if self.rules.max_split_size_mb is None else self.rules.max_split_size_mb * MIB

    def note_peaks(self) -> None:
        self.reserved_peak = max(self.reserved_peak, self.reserved())
        self.allocated_peak = max(self.allocated_peak, self.allocated())

    # Sizes.

    def rounded(self, size: int) -> int:
        if size <= 512:
            return 512
        for power in range(16):
            if size < 2 * MIB * 2**power or power == 15:
                divisions = self.rules.roundup_divisions[power]
                break
        if divisions >= 2 and size > 512 * divisions:
            below = 1
            while below * 2 <= size:
                below *= 2
            step = below // divisions
            candidate = below
            while candidate < size:
                candidate += step
            return candidate
        return -(-size // 512) * 512

    def asked_of_device(self, size: int) -> int:
        if size <= MIB:
            return 2 * MIB
        if size < 10 * MIB:
            return self.rules.large_segment_size_mb * MIB
        return -(-size // (2 * MIB)) * 2 * MIB

    def page(self, small: bool) -> int:
        return 2 * MIB if small else self.rules.large_segment_size_mb * MIB

    # Neighbours.

    def before(self, cell: Cell) -> Cell | None:
        for other in self.cells:
            if other.segment == cell.segment and other.end == cell.address:
                return other
        return None

    def after(self, cell: Cell) -> Cell | None:
        for other in self.cells:
            if other.segment == cell.segment and other.address == cell.end:
                return other
        return None

    def is_whole_segment(self, cell: Cell) -> bool:
        return [other for other in self.cells if other.segment == cell.segment] == [cell]

    def merge(self, cell: Cell) -> Cell:
        """Join a free cell or hole with neighbours of its state."""
        for neighbour in (self.before(cell), self.after(cell)):
            if neighbour is not None and neighbour.state == cell.state:
                self.cells.remove(neighbour)
                cell.address = min(cell.address, neighbour.address)
                cell.size += neighbour.size
        cell.free_since = self.searches[cell.small]
        return cell

    def free_in_order(self, small: bool) -> list[Cell]:
        free = [cell for cell in self.cells if cell.state == "free" and cell.small == small]
        return sorted(free, key=lambda cell: (cell.stream, cell.size, cell.address))

    # What a user calls.

    def allocate(self, requested: int, stream: int) -> int:
        size = self.rounded(requested)
        small = size <= MIB
        if self.collecting():
            self.searches[small] += 1
        cell = self.best_fit(size, small, stream)
        if cell is None:
            cell = self.from_device(size, small, stream)
        if cell is None:
            self.events.append(("oom", self.device_free(), size, stream))
            raise ReferenceOutOfMemory
        rest = cell.size - size
        always = small or self.rules.expandable
        if rest >= 512 if always else size < self.max_split() and rest > MIB:
            remaining = Cell(cell.segment, cell.address + size, rest, "free", small, stream)
            remaining.free_since = self.searches[small]
            self.cells.append(remaining)
            cell.size = size
        cell.state = "used"
        cell.requested = requested
        self.events.append(("alloc", cell.address, requested, stream))
        self.note_peaks()
        return cell.address

    def free(self, address: int) -> None:
        (cell,) = [cell for cell in self.cells if cell.address == address and cell.state == "used"]
        self.events.append(("free_requested", address, cell.requested, cell.stream))
        self.events.append(("free_completed", address, cell.requested, cell.stream))
        cell.state = "free"
        self.merge(cell)

    def empty_cache(self) -> None:
        for small in (False, True):
            for cell in self.free_in_order(small):
                if self.rules.expandable:
                    self.unmap(cell)
                elif self.is_whole_segment(cell):
                    self.release(cell)

    def reset_peaks(self) -> None:
        self.reserved_peak = self.allocated_peak = 0
        self.note_peaks()

    # Finding room.

    def best_fit(self, size: int, small: bool, stream: int) -> Cell | None:
        fitting = [cell for cell in self.free_in_order(small) if cell.stream == stream and cell.size >= size]
        if not fitting:
            return None
        chosen = fitting[0]
        if self.rules.expandable:
            for following in fitting[1:]:
                if self.could_become(following) >= self.could_become(chosen):
                    break
                chosen = following
        if size < self.max_split() <= chosen.size:
            return None
        if size >= self.max_split() and chosen.size - size >= self.rules.max_non_split_rounding_mb * MIB:
            return None
        return chosen

    def could_become(self, cell: Cell) -> int:
        following = self.after(cell)
        return cell.size + (following.size if following is not None and following.state == "hole" else 0)

    def from_device(self, size: int, small: bool, stream: int) -> Cell | None:
        if self.collecting():
            self.collect_garbage()
        cell = self.ask(size, small, stream)
        if cell is None and self.release_oversize(size, small, stream):
            cell = self.ask(size, small, stream)
        if cell is None:
            self.empty_cache()
            self.retries += 1
            cell = self.ask(size, small, stream)
        return cell

    def ask(self, size: int, small: bool, stream: int) -> Cell | None:
        allowed = self.allowed()
        if allowed is not None and self.reserved() + self.asked_of_device(size) > allowed:
            return None
        if self.rules.expandable:
            return self.grow(size, small, stream)
        size = self.asked_of_device(size)
        if -(-size // PAGE_OF_DEVICE) * PAGE_OF_DEVICE > self.device_free():
            return None
        cell = Cell(self.next_segment, self.next_address, size, "free", small, stream)
        self.next_segment += 1
        self.next_address += -(-size // PAGE_OF_DEVICE) * PAGE_OF_DEVICE
        self.cells.append(cell)
        self.events.append(("segment_alloc", cell.address, size, stream))
        self.note_peaks()
        return cell

    # Giving back.

    def release(self, cell: Cell) -> None:
        self.cells.remove(cell)
        self.events.append(("segment_free", cell.address, cell.size, cell.stream))

    def release_oversize(self, size: int, small: bool, stream: int) -> bool:
        if self.rules.max_split_size_mb is None:
            return False
        wanted = max(size, self.rules.max_split_size_mb * MIB)
        mine = [cell for cell in self.free_in_order(small) if cell.stream == stream]
        enough = [cell for cell in mine if cell.size >= wanted]
        if self.rules.expandable:
            return False  # their memory is not released here, and nothing else is in the pool
        if enough:
            self.release(enough[0])
            return True
        released = 0
        while mine and released < wanted and mine[-1].size >= self.max_split():
            cell = mine.pop()
            released += cell.size
            self.release(cell)
        return released >= wanted

    def collect_garbage(self) -> None:
        allowed = self.allowed()
        assert allowed is not None
        excess = self.reserved() - int(self.rules.garbage_collection_threshold * allowed)
        while excess > 0:
            whole = [cell for cell in self.free_in_order(small=False) if self.is_whole_segment(cell)]
            if self.rules.expandable or not whole:
                return
            ages = {cell.address: self.searches[False] - cell.free_since for cell in whole}
            average = sum(ages.values()) / len(ages)
            for cell in whole:
                if ages[cell.address] >= average:
                    excess -= cell.size
                    self.release(cell)

    # Expandable segments.

    def cell_at(self, address: int) -> Cell:
        (cell,) = [cell for cell in self.cells if cell.address <= address < cell.end]
        return cell

    def grow(self, size: int, small: bool, stream: int) -> Cell | None:
        start = self.lowest_room(size, small, stream)
        while True:
            cell = self.cell_at(start)
            if cell.state == "free" and cell.size >= size:
                return cell
            have = cell.size if cell.state == "free" else 0
            hole = cell if cell.state == "hole" else self.after(cell)
            assert hole is not None
            assert hole.state == "hole"
            page = self.page(small)
            mapped = -(-min(hole.size, size - have) // page) * page
            if mapped > self.device_free():
                return None
            address = hole.address
            if mapped < hole.size:
                rest = Cell(hole.segment, hole.address + mapped, hole.size - mapped, "hole", small, stream)
                self.cells.append(rest)
                hole.size = mapped
            hole.state = "free"
            self.merge(hole)
            self.events.append(("segment_map", address, mapped, stream))
            self.note_peaks()

    def lowest_room(self, size: int, small: bool, stream: int) -> int:
        holes = [c for c in self.cells if c.state == "hole" and c.small == small and c.stream == stream]
        for hole in sorted(holes, key=lambda cell: cell.address):
            first: Cell | None = self.before(hole)
            if first is None or first.state == "used":
                first = hole
            room = 0
            cell: Cell | None = first
            while cell is not None and cell.state != "used":
                room += cell.size
                cell = self.after(cell)
            if room >= size:
                return first.address
        page = self.page(small)
        addresses = -(-(self.rules.capacity + self.rules.capacity // 8) // page) * page
        hole = Cell(self.next_segment, self.next_reserved, addresses, "hole", small, stream)
        self.next_segment += 1
        self.next_reserved += -(-addresses // PAGE_OF_DEVICE) * PAGE_OF_DEVICE
        self.cells.append(hole)
        return hole.address

    def unmap(self, cell: Cell) -> None:
        page = self.page(cell.small)
        base = min(other.address for other in self.cells if other.segment == cell.segment)
        pages = [
            address for address in range(base, cell.end, page) if address >= cell.address and address + page <= cell.end
        ]
        if not pages:
            return
        start, end = pages[0], pages[-1] + page
        self.cells.remove(cell)
        hole = Cell(cell.segment, start, end - start, "hole", cell.small, cell.stream)
        for left, right in ((cell.address, start), (end, cell.end)):
            if left < right:
                fragment = Cell(cell.segment, left, right - left, "free", cell.small, cell.stream)
                fragment.free_since = self.searches[cell.small]
                self.cells.append(fragment)
        self.cells.append(hole)
        self.merge(hole)
        self.events.append(("segment_unmap", start, end - start, cell.stream))
        if self.is_whole_segment(hole):
            self.cells.remove(hole)

"""The segments of a snapshot as they were before its trace began: the trace read backwards from its end.

Needed because a trace recorded in a steady state starts with segments that it says nothing about. Nearly all of it
follows without doubt: allocations take the front of a free block, and free neighbours are always merged. One thing
cannot always be told: by how much a block of the large pool was larger than its request, if what was left (up to 1 MiB)
was not split off. It follows from what happened next to the block while it was in use; for a block that was allocated
before the trace began, and whose neighbour was freed before then too, the smallest size is assumed. A wrong guess
moves the border between two blocks, never a segment, and replaying the trace forwards shows it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sysbench.simulate.allocator.blocks import Frames
from sysbench.simulate.allocator.settings import SMALL_SEGMENT_BYTES, AllocatorSettings
from sysbench.snapshot.block_sizes import SMALL_BYTES


@dataclass
class _Cell:
    """A block of the state that is wound back; blocks with the same owner may merge when they touch."""

    owner: Hashable
    address: int
    size: int
    stream: int
    size_class: str
    is_expandable: bool
    used: bool = False
    requested: int = 0
    frames: Frames | None = None

    @property
    def end(self) -> int:
        return self.address + self.size


def segments_before(
    segments: Iterable[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], settings: AllocatorSettings
) -> list[dict[str, Any]]:
    """The `segments` of a snapshot as they were before the first entry of its `trace`, for one device.

    Raises ValueError where segments and trace contradict each other (a trace of another device or run, blocks that
    other streams used, private pools), and for traces in which expandable segments shrink: to which of them the pages
    belonged is not recorded.
    """
    held = list(segments)
    if sum(int(segment["total_size"]) for segment in held) == _net_growth(trace):
        return []  # the trace begins with an empty allocator
    state = _State(held, trace, settings)
    for index in range(len(trace) - 1, -1, -1):
        entry = trace[index]
        undo = _UNDO.get(entry["action"])
        if undo is not None and not undo(state, index, int(entry["addr"]), int(entry["size"])):
            raise ValueError(f"entry {index} of the trace ({entry['action']}) contradicts what came after it")
    return state.segments()


def _net_growth(trace: Iterable[Mapping[str, Any]]) -> int:
    """Bytes taken from the device in the trace, less those given back."""
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    return sum(signs.get(entry["action"], 0) * int(entry["size"]) for entry in trace)


class _State:
    def __init__(
        self,
        segments: Iterable[Mapping[str, Any]],
        trace: Sequence[Mapping[str, Any]],
        settings: AllocatorSettings,
    ) -> None:
        self._settings = settings
        self._trace = trace
        self._cells: dict[int, _Cell] = {}
        for segment in segments:
            self._read(segment)
        self._addresses = sorted(self._cells)
        self._seen_at: dict[int, list[int]] = {}
        for index, entry in enumerate(trace):
            if entry["action"] in ("alloc", "free_completed"):
                self._seen_at.setdefault(int(entry["addr"]), []).append(index)
        self._seen_addresses = sorted(self._seen_at)

    def _read(self, segment: Mapping[str, Any]) -> None:
        is_expandable = bool(segment.get("is_expandable", False))
        size_class, stream, address = segment["segment_type"], int(segment["stream"]), int(segment["address"])
        owner = _expandable_owner(size_class, stream) if is_expandable else address
        for block in segment["blocks"]:
            cell = _Cell(owner, address, int(block["size"]), stream, size_class, is_expandable)
            cell.used = block["state"] != "inactive"
            cell.requested = int(block.get("requested_size", cell.size))
            cell.frames = block.get("frames") or None
            self._cells[address] = cell
            address += cell.size

    def segments(self) -> list[dict[str, Any]]:
        """The state as a snapshot has it: one segment for each run of cells that touch and have one owner."""
        runs: list[list[_Cell]] = []
        for address in self._addresses:
            cell = self._cells[address]
            if runs and runs[-1][-1].owner == cell.owner and runs[-1][-1].end == address:
                runs[-1].append(cell)
            else:
                runs.append([cell])
        return [_segment(run) for run in runs]

    def undo_alloc(self, index: int, address: int, size: int) -> bool:
        cell = self._cells.get(address)
        if cell is None or not cell.used or cell.requested != size:
            return False
        cell.used, cell.frames = False, None
        following = self._cells.get(cell.end)
        if following is not None and not following.used and following.owner == cell.owner:
            self._remove(following)
            cell.size += following.size
        return True

    def undo_free(self, index: int, address: int, size: int) -> bool:
        cell = self._containing(address)
        if cell is None or cell.used:
            return False
        block_bytes = self._settings.block_bytes(size)
        if address + block_bytes > cell.end or (cell.size_class == "small") != (block_bytes <= SMALL_BYTES):
            return False
        if cell.size_class == "large" and not cell.is_expandable:
            block_bytes += self._unsplit_bytes(index, address, block_bytes, cell.end)
        used = self._cut_out(cell, address, block_bytes)
        used.used, used.requested, used.frames = True, size, self._trace[index].get("frames") or None
        self._add(used)
        return True

    def _unsplit_bytes(self, freed_at: int, address: int, block_bytes: int, free_until: int) -> int:
        """By how much a block of the large pool was larger than its request rounded up (should_split).

        Nothing as small as that is ever a block of its own there, so whatever began so close behind the block while it
        was in use began at its end.
        """
        end = address + block_bytes
        may_split = block_bytes < self._settings.max_split_bytes
        most_bytes = SMALL_BYTES if may_split else self._settings.max_non_split_rounding_bytes - 1
        if free_until - end <= most_bytes:
            return free_until - end
        before = bisect_left(self._seen_at[address], freed_at)
        in_use_since = self._seen_at[address][before - 1] if before else -1
        first = bisect_right(self._seen_addresses, end)
        for border in self._seen_addresses[first : bisect_right(self._seen_addresses, end + most_bytes)]:
            indices = self._seen_at[border]
            after = bisect_right(indices, in_use_since)
            if after < len(indices) and indices[after] < freed_at:
                return border - end
        return 0

    def undo_segment_alloc(self, index: int, address: int, size: int) -> bool:
        cell = self._cells.get(address)
        if cell is None or cell.used or cell.size != size or cell.is_expandable:
            return False
        self._remove(cell)
        return True

    def undo_segment_free(self, index: int, address: int, size: int) -> bool:
        # Segments of the large pool are always larger than one of the small pool.
        size_class = "small" if size == SMALL_SEGMENT_BYTES else "large"
        self._add(_Cell(address, address, size, int(self._trace[index]["stream"]), size_class, is_expandable=False))
        return True

    def undo_segment_map(self, index: int, address: int, size: int) -> bool:
        cell = self._containing(address)
        if cell is None or cell.used or not cell.is_expandable or cell.end < address + size:
            return False
        self._cut_out(cell, address, size)
        return True

    def undo_segment_unmap(self, index: int, address: int, size: int) -> bool:
        raise ValueError("a trace in which expandable segments shrink cannot be wound back")

    def _containing(self, address: int) -> _Cell | None:
        index = bisect_right(self._addresses, address) - 1
        cell = self._cells[self._addresses[index]] if index >= 0 else None
        return cell if cell is not None and address < cell.end else None

    def _cut_out(self, cell: _Cell, address: int, size: int) -> _Cell:
        """Take a piece out of a free cell; what lies before and after it stays free."""
        self._remove(cell)
        for start, end in ((cell.address, address), (address + size, cell.end)):
            if start < end:
                self._add(replace(cell, address=start, size=end - start))
        return replace(cell, address=address, size=size)

    def _add(self, cell: _Cell) -> None:
        self._cells[cell.address] = cell
        insort(self._addresses, cell.address)

    def _remove(self, cell: _Cell) -> None:
        del self._cells[cell.address]
        del self._addresses[bisect_left(self._addresses, cell.address)]


_UNDO = {
    "alloc": _State.undo_alloc,
    "free_completed": _State.undo_free,
    "segment_alloc": _State.undo_segment_alloc,
    "segment_free": _State.undo_segment_free,
    "segment_map": _State.undo_segment_map,
    "segment_unmap": _State.undo_segment_unmap,
}


def _expandable_owner(size_class: str, stream: int) -> Hashable:
    return ("expandable", size_class, stream)


def _segment(run: list[_Cell]) -> dict[str, Any]:
    used_bytes = sum(cell.size for cell in run if cell.used)
    return {
        "device": 0,
        "address": run[0].address,
        "total_size": sum(cell.size for cell in run),
        "allocated_size": used_bytes,
        "active_size": used_bytes,
        "requested_size": sum(cell.requested for cell in run if cell.used),
        "stream": run[0].stream,
        "segment_type": run[0].size_class,
        "segment_pool_id": (0, 0),
        "is_expandable": run[0].is_expandable,
        "frames": [],
        "blocks": [
            {
                "address": cell.address,
                "size": cell.size,
                "requested_size": cell.requested,
                "state": "active_allocated" if cell.used else "inactive",
                "frames": cell.frames or [],
            }
            for cell in run
        ],
    }

"""Recorded traces fed to the model: what other settings would have done, and whether the model says what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sysbench.simulate.allocator import CachingAllocator, SimulatedOutOfMemoryError
from sysbench.simulate.allocator.ledger import AllocatorEvent, AllocatorStatistics
from sysbench.simulate.allocator.settings import UNLIMITED, AllocatorSettings
from tests.simulate.allocator_rewind import segments_before
from tests.simulate.restored_allocator import AdoptingDevice, RestorableAllocator

_GROWS = frozenset({"segment_alloc", "segment_map"})
_SHRINKS = frozenset({"segment_free", "segment_unmap"})
_COMPARED = _GROWS | _SHRINKS | {"alloc", "free_completed", "oom"}
_UNKNOWN_CAPACITY_BYTES = 2**40


def settings_in_snapshot(recorded: Mapping[str, Any]) -> AllocatorSettings:
    """The settings in the `allocator_settings` of a memory snapshot.

    The option text contains only the options from the last call that set any. The separate fields also reflect earlier
    calls, and take precedence.
    """
    values = vars(AllocatorSettings.parse(str(recorded.get("PYTORCH_CUDA_ALLOC_CONF", "")))).copy()
    if "max_split_size" in recorded:
        values["max_split_bytes"] = int(recorded["max_split_size"]) % (UNLIMITED + 1)
    for name in ("garbage_collection_threshold", "expandable_segments"):
        values[name] = recorded.get(name, values[name])
    divisions = recorded.get("roundup_power2_divisions")
    if divisions:
        values["roundup_power2_divisions"] = tuple(divisions[key] for key in sorted(divisions, key=int))
    return AllocatorSettings(**values)


def segment_events(events: Sequence[AllocatorEvent]) -> list[AllocatorEvent]:
    """Only what took memory from the device or gave it back, and requests that failed."""
    return [event for event in events if event.action in _GROWS | _SHRINKS | {"oom"}]


def replay(trace: Sequence[Mapping[str, Any]], allocator: CachingAllocator) -> list[AllocatorEvent]:
    """Let `allocator` serve the requests of a recorded trace; returns the segment events that this caused.

    trace      `device_traces[i]` of a snapshot; only its `alloc`, `free_completed` and `oom` entries count
    allocator  made with `record=True`; any settings and any device, so that the same program can be tried under others

    Blocks freed in the trace that were allocated before it are the allocator's own if it has them (see
    `RestorableAllocator.from_segments`), else passed over. A block that was in use on other streams stays in use until
    its free completed. Raises SimulatedOutOfMemoryError where this allocator has no memory left though the recorded
    one had some.
    """
    blocks: dict[int, int] = {}
    before = len(allocator.events)
    for entry in trace:
        if entry["action"] == "alloc":
            block = allocator.allocate(int(entry["size"]), int(entry["stream"]), entry.get("frames"))
            blocks[int(entry["addr"])] = block.address
        elif entry["action"] == "free_completed":
            recorded = int(entry["addr"])
            address = blocks.pop(recorded, recorded)
            if address in allocator._in_use:
                allocator.free(address)
        elif entry["action"] == "oom":
            _expect_failure(allocator, entry)
    return segment_events(allocator.events[before:])


def _expect_failure(allocator: CachingAllocator, entry: Mapping[str, Any]) -> None:
    """A request that failed when recorded was not used; it still makes the allocator give back what it caches."""
    try:
        allocator.free(allocator.allocate(int(entry["size"]), int(entry["stream"])))
    except SimulatedOutOfMemoryError:
        return


@dataclass(frozen=True)
class Divergence:
    """Where the model and a recording part: entry `index` of the trace, what it says and what the model did."""

    index: int
    recorded: AllocatorEvent | None
    simulated: AllocatorEvent | None


@dataclass(frozen=True)
class Reproduction:
    """What the model made of a recorded trace, up to its end or to where it first differs.

    events      of the model; addresses are the recorded ones
    divergence  None: every event is the recorded one, with address, size and stream, in the recorded order
    statistics  of the model at the end; the peaks are those of the trace
    allocator   as the trace left it
    """

    events: list[AllocatorEvent]
    divergence: Divergence | None
    statistics: AllocatorStatistics
    allocator: RestorableAllocator


def reproduce(
    snapshot: Mapping[str, Any],
    device: int = 0,
    *,
    capacity_bytes: int | None = None,
    memory_fraction: float | None = None,
) -> Reproduction:
    """Run the model over a snapshot's trace and compare event by event.

    From the recording the model takes what is not the allocator's to decide: the requests and frees in their order,
    the addresses that the driver handed out, and whether the driver had memory left. Calls of `empty_cache` show as
    freed segments that no request explains.

    capacity_bytes, memory_fraction  the device's memory and the share allowed, if a fraction was set; they are not in
                                     a snapshot, and without them a recorded garbage collection shows as a divergence

    Raises ValueError if the state before the trace cannot be told (see `segments_before`), for settings that are not
    simulated, and for entries of private pools.
    """
    trace = snapshot["device_traces"][device]
    if any(tuple(entry.get("pool_id", (0, 0))) != (0, 0) for entry in trace):
        raise ValueError("traces with private memory pools (CUDA graphs, MemPool) are not simulated")
    settings = settings_in_snapshot(snapshot.get("allocator_settings", {}))
    segments = [segment for segment in snapshot["segments"] if int(segment.get("device", 0)) == device]
    run = _Run(trace, capacity_bytes or _UNKNOWN_CAPACITY_BYTES)
    run.allocator = RestorableAllocator.from_segments(
        segments_before(segments, trace, settings), run.device.capacity_bytes, settings, record=True, device=run.device
    )
    if memory_fraction is not None:
        run.allocator.set_memory_fraction(memory_fraction)
    elif capacity_bytes is None:
        run.allocator.set_memory_fraction(1.0)
    divergence = run.to_the_end()
    return Reproduction(run.allocator.events, divergence, run.allocator.statistics, run.allocator)


class _RecordedDevice(AdoptingDevice):
    """Has memory, and hands out addresses, exactly where a recording says so."""

    def __init__(self, capacity_bytes: int, run: _Run) -> None:
        super().__init__(capacity_bytes)
        self._run = run

    def allocate(self, size_bytes: int) -> int | None:
        upcoming = self._run.upcoming()
        return upcoming.address if upcoming is not None and upcoming.action == "segment_alloc" else None

    def reserve_addresses(self, size_bytes: int) -> int:
        # Recorded only once something is mapped there: perhaps after pages elsewhere were given back for it. What was
        # reserved for a request that then failed is not recorded at all, and later mappings in it are a divergence.
        address = self._run.next_mapping()
        return address if address is not None else super().reserve_addresses(size_bytes)

    def map_pages(self, address: int, size_bytes: int) -> bool:
        upcoming = self._run.upcoming()
        return upcoming is not None and upcoming[:3] == ("segment_map", address, size_bytes)

    def adopt(self, size_bytes: int) -> None:
        """What was there before the trace began fitted, as the recording shows."""

    def release(self, size_bytes: int) -> None:
        """Nothing to do: what is left is in the recording."""


class _Run:
    """The recorded events, how far the model has come in them, and the model."""

    allocator: RestorableAllocator

    def __init__(self, trace: Sequence[Mapping[str, Any]], capacity_bytes: int) -> None:
        self._indices = [index for index, entry in enumerate(trace) if entry["action"] in _COMPARED]
        self._recorded = [_event(trace[index]) for index in self._indices]
        self._frames = [trace[index].get("frames") for index in self._indices]
        self._position = 0
        self._seen = 0
        self.device = _RecordedDevice(capacity_bytes, self)

    def upcoming(self) -> AllocatorEvent | None:
        """What was recorded where the model stands now, in the middle of a request."""
        index = self._reached()
        return self._recorded[index] if index < len(self._recorded) else None

    def next_mapping(self) -> int | None:
        """Where the request that is served now had memory mapped next, if it had."""
        for event in self._recorded[self._reached() :]:
            if event.action == "segment_map":
                return event.address
            if event.action not in _SHRINKS:
                break
        return None

    def _reached(self) -> int:
        return self._position + len(self.allocator.events) - self._seen

    def to_the_end(self) -> Divergence | None:
        """Replay everything; the first difference, if there is one."""
        self._seen = len(self.allocator.events)
        while self._position < len(self._recorded):
            self._next_call()
            divergence = self._compare()
            if divergence is not None:
                return divergence
        return None

    def _next_call(self) -> None:
        """Make the call on the allocator that explains the next recorded events."""
        event = self._recorded[self._position]
        if event.action == "free_completed":
            if self.allocator.is_in_use(event.address):
                self.allocator.free(event.address)
            return
        cause = self._position
        while cause < len(self._recorded) and self._recorded[cause].action in _GROWS | _SHRINKS:
            cause += 1
        if self._explains(cause):
            request = self._recorded[cause]
            try:
                self.allocator.allocate(request.size, request.stream, self._frames[cause])
            except SimulatedOutOfMemoryError:
                return  # recorded as an event like all others
        else:
            self.allocator.empty_cache()

    def _explains(self, cause: int) -> bool:
        """Whether the request at `cause` is what made the segment events before it happen."""
        if cause == len(self._recorded) or self._recorded[cause].action not in ("alloc", "oom"):
            return False
        if self._recorded[self._position].action not in _SHRINKS:
            return True
        request = self._recorded[cause]
        if self._recorded[cause - 1].action not in _GROWS and request.action != "oom":
            return False
        if self.allocator.would_reuse(request.size, request.stream):
            return False
        # A request releases blocks that may not be split first, whatever their place among the others.
        unused = self.allocator.unused_segments()
        freed = [event.address for event in self._recorded[self._position : self._position + len(unused)]]
        return self.allocator.settings.max_split_bytes == UNLIMITED or freed != unused

    def _compare(self) -> Divergence | None:
        produced = [event for event in self.allocator.events[self._seen :] if event.action in _COMPARED]
        self._seen = len(self.allocator.events)
        for event in produced:
            recorded = self._recorded[self._position] if self._position < len(self._recorded) else None
            if recorded is None or not _same(recorded, event):
                return Divergence(self._index(), recorded, event)
            self._position += 1
        return None if produced else Divergence(self._index(), self._recorded[self._position], None)

    def _index(self) -> int:
        return self._indices[min(self._position, len(self._indices) - 1)]


def _event(entry: Mapping[str, Any]) -> AllocatorEvent:
    address = entry["device_free" if entry["action"] == "oom" else "addr"]
    return AllocatorEvent(entry["action"], int(address), int(entry["size"]), int(entry["stream"]), None)


def _same(recorded: AllocatorEvent, simulated: AllocatorEvent) -> bool:
    """Same in all but frames; how much the device had left at an `oom` is the device's own matter."""
    if recorded.action == simulated.action == "oom":
        return recorded[2:4] == simulated[2:4]
    return recorded[:4] == simulated[:4]

"""Replay of a recording with the simulated allocator of a GPU: how much is reserved, and whether memory suffices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sysbench.simulate.allocator import CachingAllocator, SimulatedOutOfMemoryError
from sysbench.simulate.allocator.blocks import Frames
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.recording import Recording, Span

_UNLIMITED_BYTES = 2**50


@dataclass(frozen=True)
class Verdict:
    """Whether a recording fits into a GPU's memory and, if not, where it fails."""

    fits: bool
    failed_phase: str | None
    """Phase or stage of building in which memory runs out; None if it fits."""
    failed_step: int | None
    """Step in which memory runs out, from 0; -1 before the first; None if it fits."""
    margin_bytes: int
    """Free memory of the GPU at the peak; a negative number is the missing memory."""
    detail: str | None
    """The allocator's error message, if memory ran out."""


@dataclass(frozen=True)
class SpanPeak:
    """Peaks of one span, in bytes."""

    span: Span
    allocated_bytes: int
    reserved_bytes: int
    position: int
    """Number of events in the recording up to the one that first reaches the allocated peak."""


class Replay:
    """Replay of a recording with the allocator of a GPU, to the end of the recording or until memory runs out.

    sizes           block sizes in bytes, by allocation number
    peaks           peaks of every span that was entered
    reserved_bytes  reserved bytes after every event
    """

    def __init__(
        self, recording: Recording, gpu: Gpu, settings: AllocatorSettings, frames: Sequence[Frames] | None = None
    ) -> None:
        """Replay the recording; `frames` are stacks for a snapshot, one for each recorded stack, if one is needed."""
        self.allocator = CachingAllocator(
            gpu.memory_bytes, settings, outside_bytes=gpu.outside_bytes, record=frames is not None
        )
        self.sizes: list[int] = []
        self.peaks: list[SpanPeak] = []
        self.failure: SimulatedOutOfMemoryError | None = None
        self.reserved_bytes: list[int] = []
        self._addresses: list[int] = []
        self.recording = recording
        self._frames = frames
        self._allocated_bytes = 0
        position = 0
        for span in recording.spans:
            self._serve(position, span.first)
            self.allocator.reset_peaks()
            self.allocator.annotate(span.name, "START")
            peak = self._serve(span.first, span.end)
            self.allocator.annotate(span.name, "END")
            statistics = self.allocator.statistics
            self.peaks.append(SpanPeak(span, statistics.allocated_peak_bytes, statistics.reserved_peak_bytes, peak))
            position = span.end
            if self.failure is not None:
                return

    @property
    def addresses(self) -> dict[int, int]:
        """Return the addresses of the blocks that are live at the end of the replay, by allocation number."""
        return {number: self._addresses[number] for number in self.recording.live_at(len(self.reserved_bytes))}

    @property
    def reserved_peak_bytes(self) -> int:
        """Return the highest reserved bytes of all spans."""
        return max(peak.reserved_bytes for peak in self.peaks)

    def peaks_of_last_step(self) -> list[SpanPeak]:
        """Return the peaks of the step in which the replay ended."""
        return [peak for peak in self.peaks if peak.span.step == self.peaks[-1].span.step]

    def _serve(self, first: int, end: int) -> int:
        """Serve the events from `first` to `end`; return the position after the event that first reaches the peak."""
        allocator, addresses, sizes, reserved = self.allocator, self._addresses, self.sizes, self.reserved_bytes
        highest_bytes, peak = self._allocated_bytes, first
        for position, event in enumerate(self.recording.events[first:end], start=first + 1):
            if event < 0:
                allocator.free(addresses[~event])
                self._allocated_bytes -= sizes[~event]
                reserved.append(reserved[-1])  # freed memory stays in the cache
                continue
            allocation = self.recording.allocations[event]
            frames = self._frames[allocation.stack] if self._frames is not None else None
            try:
                block = allocator.allocate(allocation.size_bytes, allocation.stream, frames)
            except SimulatedOutOfMemoryError as error:
                self.failure = error
                break
            addresses.append(block.address)
            sizes.append(block.size)
            reserved.append(allocator.reserved_bytes)
            self._allocated_bytes += block.size
            if self._allocated_bytes > highest_bytes:
                highest_bytes, peak = self._allocated_bytes, position
        return peak


def available_bytes(gpu: Gpu, settings: AllocatorSettings) -> int:
    """Return the GPU memory that the allocator may use."""
    free_bytes = gpu.memory_bytes - gpu.outside_bytes
    if settings.memory_fraction < 1.0:
        return min(free_bytes, int(settings.memory_fraction * gpu.memory_bytes))
    return free_bytes


def replay_unlimited(recording: Recording, gpu: Gpu, settings: AllocatorSettings) -> Replay:
    """Replay the recording to its end on a GPU like `gpu` with unlimited memory."""
    return Replay(recording, replace(gpu, memory_bytes=_UNLIMITED_BYTES), settings)


def verdict_of(replay: Replay, recording: Recording, gpu: Gpu, settings: AllocatorSettings) -> Verdict:
    """Return whether the recording fits on `gpu`."""
    unlimited = replay if replay.failure is None else replay_unlimited(recording, gpu, settings)
    return _verdict(replay, unlimited, available_bytes(gpu, settings))


def _verdict(replay: Replay, unlimited: Replay, usable_bytes: int) -> Verdict:
    if replay.failure is None:
        margin_bytes = usable_bytes - replay.reserved_peak_bytes
        return Verdict(True, None, None, margin_bytes, None)
    span = replay.peaks[-1].span
    return Verdict(False, span.name, span.step, usable_bytes - unlimited.reserved_peak_bytes, str(replay.failure))


class ReplayCache:
    """Replays of one recording on many GPUs.

    The capacity of a GPU affects the allocator only when the device refuses a request, or when the allocator collects
    garbage. Until then, one replay with unlimited memory is valid for every GPU.
    """

    def __init__(self, recording: Recording, settings: AllocatorSettings) -> None:
        self._recording, self._settings = recording, settings
        self._unlimited = replay_unlimited(recording, Gpu("", _UNLIMITED_BYTES), settings)
        self._replays: dict[tuple[int, int], Replay] = {}
        self._collects_garbage = settings.memory_fraction < 1.0 and settings.garbage_collection_threshold > 0.0

    def replay_on(self, gpu: Gpu) -> tuple[Replay, Verdict]:
        """Return a replay on `gpu`, perhaps with the addresses of another GPU, and whether the recording fits."""
        unlimited, usable_bytes = self._unlimited, available_bytes(gpu, self._settings)
        if not self._collects_garbage and unlimited.reserved_peak_bytes <= usable_bytes:
            return unlimited, _verdict(unlimited, unlimited, usable_bytes)
        memory = gpu.memory_bytes, gpu.outside_bytes
        if memory not in self._replays:  # many GPUs have the same memory
            self._replays[memory] = Replay(self._recording, gpu, self._settings)
        return self._replays[memory], _verdict(self._replays[memory], unlimited, usable_bytes)

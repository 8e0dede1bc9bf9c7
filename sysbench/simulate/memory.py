"""Simulated memory of a training step on a GPU: peaks, whether the step fits, and the largest allocations.

A cell runs without data (`recording`), and a model of the caching allocator, limited to the GPU's memory, serves the
cell's requests. Peaks are those of the last step, which is the measured one. A cell fits if no request fails during the
build or any step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sysbench.errors import UnavailableError
from sysbench.log.events import Source
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.compiler.deep_steps import recorded
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.origins import Stack
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import Allocation, Recording, StepRecording
from sysbench.simulate.replay import Replay, SpanPeak, Verdict, verdict_of
from sysbench.snapshot import CATEGORIES, Category
from sysbench.snapshot.timeline import ModuleNode
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import Protocol

MAX_GROUPS = 20
"""Number of groups of allocations in a result, largest first."""


@dataclass(frozen=True)
class PhasePeak:
    """Peaks of one phase of the step, in bytes: the maximum over all occurrences of the phase."""

    phase: str
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    by_category: Mapping[Category, int]
    """Bytes by category when the allocated peak is first reached, without empty categories. Their sum is the peak."""
    position: int
    """Number of events in the recording up to the one that first reaches the peak."""


@dataclass(frozen=True)
class SimilarAllocations:
    """Group of allocations with the same size, category, phase and stack that are live at the peak."""

    count: int
    size_bytes: int
    """Size of each block."""
    category: Category
    phase: str
    """The phase in which they were allocated: `build`, or a phase of a step."""
    stack: Stack
    """Innermost frame first; in backward, the stack of the forward operator. Empty if origins were not recorded."""
    modules: tuple[str, ...]
    """Modules of the first and the last allocation: `layers.0.attention`, `layers.31.attention`."""


@dataclass(frozen=True)
class SimulatedMemory:
    """Simulated memory of a cell under a protocol on a GPU."""

    recording: StepRecording = field(repr=False)
    gpu: Gpu
    settings: AllocatorSettings
    alloc_retries: int
    """Number of times that the whole cache was released to the device, in all steps."""
    verdict: Verdict
    phases: tuple[PhasePeak, ...]
    """Phases of the measured step, or of the step that ran out of memory."""
    block_bytes: tuple[int, ...] = field(repr=False)
    """Size of every allocation of the recording, by number, until memory ran out."""
    reserved_bytes: tuple[int, ...] = field(repr=False)
    """Reserved bytes after every event of the recording, until memory ran out."""

    @property
    def peak_phase(self) -> PhasePeak:
        """Return the phase with the highest allocated peak; the first one in case of a tie."""
        return max(self.phases, key=lambda phase: phase.allocated_peak_bytes)

    @property
    def allocated_peak_bytes(self) -> int:
        """Return the allocated peak of the measured step, or of the step that ran out of memory."""
        return self.peak_phase.allocated_peak_bytes

    @property
    def reserved_peak_bytes(self) -> int:
        """Return the highest reserved peak of all phases: `torch.cuda.max_memory_reserved`."""
        return max(phase.reserved_peak_bytes for phase in self.phases)

    @property
    def by_category(self) -> Mapping[Category, int]:
        """Return the allocated bytes in each category at the peak."""
        return self.peak_phase.by_category

    @cached_property
    def _live(self) -> list[int]:
        return self.recording.live_at(self.peak_phase.position)

    @property
    def groups(self) -> list[SimilarAllocations]:
        """Return the largest groups of similar allocations at the peak, largest total first."""
        recording = self.recording
        phases = {
            event: span.name
            for span in recording.spans
            for event in recording.events[span.first : span.end]
            if event >= 0
        }
        modules_of: dict[tuple[int, Category, str, Stack], list[str]] = {}
        for number in sorted(self._live, key=lambda number: -self.block_bytes[number]):
            allocation = recording.allocations[number]
            stack = recording.stacks[allocation.stack]
            key = (self.block_bytes[number], allocation.category, phases[number], stack)
            modules_of.setdefault(key, []).append(allocation.module)
        groups = [
            SimilarAllocations(len(modules), *key, tuple(dict.fromkeys(filter(None, (modules[0], modules[-1])))))
            for key, modules in modules_of.items()
        ]
        return sorted(groups, key=lambda group: -group.count * group.size_bytes)[:MAX_GROUPS]

    @property
    def tree(self) -> ModuleNode:
        """Return the module tree with the bytes of each module at the peak."""
        root = ModuleNode("")
        for number in self._live:
            allocation = self.recording.allocations[number]
            path = allocation.module.split(".") if allocation.module else ()
            root.add(path, allocation.category, self.block_bytes[number])
        return root

    def snapshot(self, source: Source = "simulated") -> dict[str, Any]:
        """Return the allocation history and the final state in the format of `torch.cuda.memory._snapshot()`.

        Allocations and blocks have a `category` and, in `user_metadata`, the path of their module. Phases are
        annotated. The history ends when memory runs out. `source` is "measured" if the recording comes from a real
        device. Tensors, sizes, stacks and their order are then real, but addresses and reserved memory are simulated.
        """
        frames = [[frame._asdict() for frame in stack] for stack in self.recording.stacks]
        replay = Replay(self.recording, self.gpu, self.settings, frames)
        snapshot = replay.allocator.snapshot()
        allocations = self.recording.allocations
        allocated = (allocations[event] for event in self.recording.events if event >= 0)
        for entry in snapshot["device_traces"][0]:
            if entry["action"] == "alloc":
                _describe(entry, next(allocated))
        live = {address: allocations[number] for number, address in replay.addresses.items()}
        for segment in snapshot["segments"]:
            for block in segment["blocks"]:
                if block["address"] in live:
                    _describe(block, live[block["address"]])
        snapshot["sysbench"] = {
            "source": source,
            "allocator": "cuda" if source == "simulated" else None,
            "device_name": self.gpu.title,
            "protocol": self.recording.protocol,
            "cell": self.recording.cell.model_dump(mode="json"),
        }
        return snapshot


def simulate(
    cell: ModelCell, protocol: Protocol, gpu: Gpu, settings: AllocatorSettings | None = None, *, origins: bool = True
) -> SimulatedMemory:
    """Simulate the memory of `cell` under `protocol` on `gpu`.

    With `origins`, stacks and modules are recorded, which takes a fifth of the total time. Raises UnavailableError for
    an attention implementation that is not available on the GPU, and for cells that cannot be simulated.
    """
    unavailable = cell.unavailable("cuda")
    if unavailable is not None:
        raise UnavailableError(unavailable)
    recording = recorded(cell, protocol, Platform.of(gpu), origins=origins)
    return simulate_recording(recording, gpu.with_nccl_memory(cell.strategy, cell.ranks), settings)


def simulate_recording(
    recording: StepRecording, gpu: Gpu, settings: AllocatorSettings | None = None
) -> SimulatedMemory:
    """Replay a recording within the memory of `gpu`."""
    settings = settings or AllocatorSettings()
    replay = Replay(recording, gpu, settings)
    return SimulatedMemory(
        recording=recording,
        gpu=gpu,
        settings=settings,
        alloc_retries=replay.allocator.statistics.alloc_retries,
        verdict=verdict_of(replay, recording, gpu, settings),
        phases=tuple(_peaks(recording, replay)),
        block_bytes=tuple(replay.sizes),
        reserved_bytes=tuple(replay.reserved_bytes),
    )


def _peaks(recording: Recording, replay: Replay) -> Iterator[PhasePeak]:
    occurrences: dict[str, list[SpanPeak]] = {}
    for peak in replay.peaks_of_last_step():
        occurrences.setdefault(peak.span.name, []).append(peak)
    for phase, peaks in occurrences.items():
        largest = max(peaks, key=lambda peak: peak.allocated_bytes)
        yield PhasePeak(
            phase=phase,
            allocated_peak_bytes=largest.allocated_bytes,
            reserved_peak_bytes=max(peak.reserved_bytes for peak in peaks),
            by_category=by_category(recording, replay.sizes, largest.position),
            position=largest.position,
        )


def by_category(recording: Recording, block_bytes: Sequence[int], position: int) -> dict[Category, int]:
    """Return the bytes of each category that are live after `position` events."""
    sums = dict.fromkeys(CATEGORIES, 0)
    for number in recording.live_at(position):
        sums[recording.allocations[number].category] += block_bytes[number]
    return {category: size_bytes for category, size_bytes in sums.items() if size_bytes}


def _describe(entry: dict[str, object], allocation: Allocation) -> None:
    entry["category"] = allocation.category
    entry["user_metadata"] = allocation.module

"""The memory of a training step on a GPU that need not be there: peaks, whether it fits, and what is largest.

A cell is run without data (`recording`), and what it asks for is served by a model of the caching allocator with the
memory of the GPU. The peaks are those of the step that counts; it fits if everything before it does, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sysbench.errors import UnavailableError
from sysbench.log.events import Source
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.origins import Frame, Stack
from sysbench.simulate.protocols import Protocol
from sysbench.simulate.recording import CATEGORIES, Allocation, Category, Platform, Recording, StepRecording, record
from sysbench.simulate.serving import Replay, Verdict, verdict_of
from sysbench.spec.model import ModelCell

ByCategory = Mapping[Category, int]
"""Bytes of blocks, as the allocator counts them; what has none is left out."""

LARGEST = 20
"""How many of the largest allocations a result names."""


@dataclass(frozen=True)
class PhasePeak:
    """The most in one phase of the step, in bytes."""

    phase: str
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    by_category: ByCategory
    """At the first moment at which that much is allocated; adds up to it."""


@dataclass(frozen=True)
class LargeAllocation:
    """One of the largest allocations that are there at the peak."""

    size_bytes: int
    """Of its block."""
    requested_bytes: int
    category: Category
    module: str
    """`layers.3.attention.attend`; empty for what belongs to no module."""
    phase: str
    """In which it was made: `build`, or a phase of a step."""
    stack: Stack
    """Innermost frame first; in backward, the lines that the gradient is of. Empty without origins."""

    @property
    def location(self) -> Frame | None:
        """The line that it comes from."""
        return next((frame for frame in self.stack if frame.line), None)


@dataclass(frozen=True)
class AlikeAllocations:
    """Allocations of one size, category, phase and stack that are there at the peak."""

    count: int
    first: LargeAllocation
    last: LargeAllocation


@dataclass(frozen=True)
class ModuleBytes:
    """A module and those below it, at the peak."""

    name: str
    """The last part of its path; empty for the whole."""
    total_bytes: int
    """With everything below it."""
    own_bytes: int
    """Without."""
    by_category: ByCategory
    """Of the total."""
    children: tuple[ModuleBytes, ...]
    """Largest first."""


@dataclass(frozen=True)
class SimulatedMemory:
    """What a protocol does to the memory of a GPU.

    The three lines that add up to what the device shows as used are `reserved_peak_bytes`, `context_bytes` and
    `other_bytes`; `workspace_bytes` is the part of `allocated_peak_bytes` that cuBLAS holds.
    """

    recording: StepRecording = field(repr=False)
    gpu: Gpu
    settings: AllocatorSettings
    allocated_peak_bytes: int
    """Of the step that counts, or until memory ran out: `torch.cuda.max_memory_allocated`."""
    reserved_peak_bytes: int
    """`torch.cuda.max_memory_reserved`."""
    workspace_bytes: int
    alloc_retries: int
    """How often everything cached had to be given back to the device, from the beginning."""
    verdict: Verdict
    phases: tuple[PhasePeak, ...]
    """Of the step that counts, as far as it came."""
    by_category: ByCategory
    """At the peak."""
    largest: tuple[LargeAllocation, ...]
    """At the peak, largest first."""
    groups: tuple[AlikeAllocations, ...]
    """At the peak, those first that have the most bytes together."""
    tree: ModuleBytes
    """At the peak."""
    block_bytes: tuple[int, ...] = field(repr=False)
    """Of every allocation of the recording, by number, as far as it came."""
    reserved_bytes: tuple[int, ...] = field(repr=False)
    """After every event of the recording, as far as it came."""

    @property
    def cell(self) -> ModelCell:
        """What was simulated."""
        return self.recording.cell

    @property
    def protocol(self) -> Protocol:
        """How."""
        return self.recording.protocol

    @property
    def context_bytes(self) -> int:
        """Outside the allocator: the CUDA context."""
        return self.gpu.context_bytes

    @property
    def other_bytes(self) -> int:
        """Outside the process."""
        return self.gpu.other_bytes

    def snapshot(self, source: Source = "simulated") -> dict[str, Any]:
        """The whole history, and the state at its end, in the format of `torch.cuda.memory._snapshot()`.

        Allocations and blocks carry `category` and, in `user_metadata`, the path of their module; phases are marked.
        The history ends where memory ran out. `source` is "measured" if the recording is of a device that is there:
        then tensors, sizes, stacks and their order are real, and addresses and what is reserved are not.
        """
        frames = [[frame._asdict() for frame in stack] for stack in self.recording.stacks]
        replay = Replay(self.recording, self.gpu, self.settings, frames)
        snapshot = replay.allocator.snapshot()
        allocations = self.recording.allocations
        made = (allocations[event] for event in self.recording.events if event >= 0)
        for entry in snapshot["device_traces"][0]:
            if entry["action"] == "alloc":
                _describe(entry, next(made))
        live = {address: allocations[number] for number, address in replay.addresses.items()}
        for segment in snapshot["segments"]:
            for block in segment["blocks"]:
                if block["address"] in live:
                    _describe(block, live[block["address"]])
        snapshot["sysbench"] = {
            "source": source,
            "allocator": "cuda" if source == "simulated" else None,
            "device_name": self.gpu.title,
            "protocol": self.protocol,
            "cell": self.cell.model_dump(mode="json"),
        }
        return snapshot


def simulate(
    cell: ModelCell,
    protocol: Protocol,
    gpu: Gpu,
    settings: AllocatorSettings | None = None,
    *,
    origins: bool = True,
) -> SimulatedMemory:
    """The memory of `cell` on `gpu`, by the protocol.

    `origins` is whether stacks and modules are wanted; they take a fifth of the time. Raises
    UnavailableError for what does not exist on that GPU, and for what cannot be simulated.
    """
    unavailable = cell.unavailable("cuda")
    if unavailable is not None:
        raise UnavailableError(unavailable)
    return serve(record(cell, protocol, Platform.of(gpu), origins=origins), gpu, settings)


def serve(recording: StepRecording, gpu: Gpu, settings: AllocatorSettings | None = None) -> SimulatedMemory:
    """What becomes of a recording on `gpu`; it has to be of the kernels of that generation."""
    settings = settings or AllocatorSettings()
    replay = Replay(recording, gpu, settings)
    peaks = replay.peaks_of_last_step()
    fullest = max(peaks, key=lambda peak: peak.allocated_bytes)
    moments = {peak.position: _by_category(recording, replay.sizes, peak.position) for peak in peaks}
    live = recording.live_at(fullest.position)
    statistics = replay.allocator.statistics
    everything = _largest(recording, replay.sizes, live, _phases_of(recording))
    return SimulatedMemory(
        recording=recording,
        gpu=gpu,
        settings=settings,
        allocated_peak_bytes=fullest.allocated_bytes,
        reserved_peak_bytes=max(peak.reserved_bytes for peak in peaks),
        workspace_bytes=moments[fullest.position].get("workspace", 0),
        alloc_retries=statistics.alloc_retries,
        verdict=verdict_of(replay, recording, gpu, settings),
        phases=tuple(
            PhasePeak(peak.span.name, peak.allocated_bytes, peak.reserved_bytes, moments[peak.position])
            for peak in peaks
        ),
        by_category=moments[fullest.position],
        largest=tuple(everything[:LARGEST]),
        groups=tuple(_groups(everything)),
        tree=_tree(recording, replay.sizes, live),
        block_bytes=tuple(replay.sizes),
        reserved_bytes=tuple(replay.reserved_bytes),
    )


def _by_category(recording: Recording, sizes: list[int], position: int) -> ByCategory:
    return _sums((recording.allocations[number], sizes[number]) for number in recording.live_at(position))


def _sums(blocks: Iterable[tuple[Allocation, int]]) -> ByCategory:
    sums = dict.fromkeys(CATEGORIES, 0)
    for allocation, size_bytes in blocks:
        sums[allocation.category] += size_bytes
    return {category: size_bytes for category, size_bytes in sums.items() if size_bytes}


def _largest(
    recording: Recording, sizes: list[int], live: list[int], phases: Mapping[int, str]
) -> list[LargeAllocation]:
    found = []
    for number in sorted(live, key=lambda number: -sizes[number]):
        allocation = recording.allocations[number]
        found.append(
            LargeAllocation(
                size_bytes=sizes[number],
                requested_bytes=allocation.size_bytes,
                category=allocation.category,
                module=allocation.module,
                phase=phases[number],
                stack=recording.stacks[allocation.stack],
            )
        )
    return found


def _groups(allocations: Iterable[LargeAllocation]) -> list[AlikeAllocations]:
    alike: dict[tuple[object, ...], list[LargeAllocation]] = {}
    for each in allocations:
        alike.setdefault((each.size_bytes, each.category, each.phase, each.stack), []).append(each)
    groups = (AlikeAllocations(len(every), every[0], every[-1]) for every in alike.values())
    return sorted(groups, key=lambda group: -group.count * group.first.size_bytes)[:LARGEST]


def _phases_of(recording: Recording) -> dict[int, str]:
    """In which phase each allocation was made."""
    return {
        event: span.name for span in recording.spans for event in recording.events[span.first : span.end] if event >= 0
    }


def _tree(recording: Recording, sizes: list[int], live: list[int]) -> ModuleBytes:
    by_path: dict[tuple[str, ...], list[int]] = {}
    for number in live:
        module = recording.allocations[number].module
        by_path.setdefault(tuple(module.split(".")) if module else (), []).append(number)
    return _branch("", by_path, recording, sizes)


def _branch(
    name: str, by_path: Mapping[tuple[str, ...], list[int]], recording: Recording, sizes: list[int]
) -> ModuleBytes:
    """The module at the empty path, and everything below it."""
    below: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for path, numbers in by_path.items():
        if path:
            below.setdefault(path[0], {})[path[1:]] = numbers
    children = sorted(
        (_branch(part, rest, recording, sizes) for part, rest in below.items()), key=lambda child: -child.total_bytes
    )
    own_bytes = sum(sizes[number] for number in by_path.get((), ()))
    everything = (number for numbers in by_path.values() for number in numbers)
    return ModuleBytes(
        name=name,
        total_bytes=own_bytes + sum(child.total_bytes for child in children),
        own_bytes=own_bytes,
        by_category=_sums((recording.allocations[number], sizes[number]) for number in everything),
        children=tuple(children),
    )


def _describe(entry: dict[str, Any], allocation: Allocation) -> None:
    entry["category"] = allocation.category
    entry["user_metadata"] = allocation.module

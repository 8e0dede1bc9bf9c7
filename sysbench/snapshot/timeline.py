"""Live and reserved bytes over time: lifetime and category of each allocation, and the composition of the peak.

Time is counted in states. State 0 precedes the first event. Every allocator event (an allocation, a release, memory
reserved or returned) leads to the next state. An allocation is live in the states `born` to `died - 1`, so sums over
allocations are exact in every state. Reserved memory consists of segments, which the allocator takes from the device
and returns to the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np

from sysbench.frames import owner
from sysbench.snapshot import CATEGORIES
from sysbench.snapshot.layout import NONE, Column, Frame, Stacks

UNKNOWN: Final = CATEGORIES.index("unknown")

PHASES: Final = ("zero_grad", "forward", "loss", "backward", "optimizer")


@dataclass(frozen=True, eq=False)
class Allocations:
    """All allocations, one row each."""

    size_bytes: Column  # int64, size as the allocator counts it, rounded up
    requested_bytes: Column  # int64
    born: Column  # int64, the first state in which the allocation is live; 0 if it predates the trace
    died: Column  # int64, the first state in which it is no longer live; the number of states if it is never released
    category: Column  # uint8, positions in CATEGORIES
    module: Column  # int32, positions in `Timeline.modules`, or NONE
    stack: Column  # int32, stack of the allocation: position in `Timeline.stacks`, or NONE
    freed_stack: Column  # int32, stack of the release, or NONE
    address: Column  # uint64; 0 if addresses are unknown

    def __len__(self) -> int:
        return len(self.size_bytes)


@dataclass(frozen=True)
class Phase:
    """One occurrence of a phase: the states `first` to `end - 1`.

    `first` is the state before the first event of the phase. The peak of the phase therefore equals the allocator's
    peak counter, if the counter is reset when the phase begins and read when the phase ends.
    """

    name: str
    first: int
    end: int


@dataclass(frozen=True)
class Peak:
    """A maximum of the allocated bytes, and the first state that reaches it."""

    state: int
    allocated_bytes: int


@dataclass(frozen=True)
class Group:
    """Allocations of equal size, category and stack."""

    count: int
    size_bytes: int
    """Size of each allocation."""
    category: str
    stack: int
    modules: tuple[tuple[str, ...], ...]
    """Distinct module paths, in order of first appearance."""
    first: int
    """Position of the first of the allocations."""

    @property
    def total_bytes(self) -> int:
        """Return the total size of the group."""
        return self.count * self.size_bytes


@dataclass
class ModuleNode:
    """Node of a tree of modules, with the bytes of the module and all its submodules."""

    name: str
    total_bytes: int = 0
    own_bytes: int = 0
    """Bytes of this module without its submodules."""
    by_category: dict[str, int] = field(default_factory=dict)
    children: dict[str, ModuleNode] = field(default_factory=dict)

    def add(self, path: Sequence[str], category: str, size_bytes: int) -> None:
        """Add bytes to the module at a path relative to this node, and to every module above it."""
        node = self
        for part in ("", *path):
            node = node.children.setdefault(part, ModuleNode(part)) if part else node
            node.total_bytes += size_bytes
            node.by_category[category] = node.by_category.get(category, 0) + size_bytes
        node.own_bytes += size_bytes

    def walk(self, above: str = "") -> Iterator[tuple[str, ModuleNode]]:
        """Yield this node and its descendants, each with its path (`layers.3.attention`), largest siblings first."""
        path = f"{above}.{self.name}" if above else self.name
        yield path, self
        for child in sorted(self.children.values(), key=lambda node: -node.total_bytes):
            yield from child.walk(path)


@dataclass(frozen=True)
class OutOfMemory:
    """An allocation that failed."""

    state: int
    requested_bytes: int
    device_free_bytes: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """Memory of one device over time."""

    allocations: Allocations
    states: int
    phases: tuple[Phase, ...]
    modules: tuple[tuple[str, ...], ...]
    """Module paths, split into parts: `("layers", "3", "attn")`."""
    stacks: Stacks
    reserved_bytes: Column | None
    """int64, one per state: memory reserved from the device; None if unknown."""
    time_us: Column | None
    """int64, one per state, microseconds; None if times are unknown."""
    source: Literal["measured", "simulated"]
    inferred: bool
    """Whether categories and phases were inferred from stacks and lifetimes, instead of recorded."""
    device: int = 0
    device_name: str | None = None
    failures: tuple[OutOfMemory, ...] = ()
    largest_free_bytes: int = 0
    """Largest free block in the last state that one allocation could use."""

    # --- over time

    @cached_property
    def allocated_bytes(self) -> Column:
        """Return the live bytes in every state."""
        return self._live(np.ones(len(self.allocations), bool))

    @cached_property
    def by_category(self) -> Column:
        """Return the live bytes as a (category, state) array, in the order of CATEGORIES; sums to `allocated_bytes`."""
        category = self.allocations.category
        return np.stack([self._live(category == code) for code in range(len(CATEGORIES))])

    def _live(self, which: Column) -> Column:
        """Return the live bytes of the selected allocations in every state, as exact int64 sums."""
        change = np.zeros(self.states + 1, np.int64)
        allocations = self.allocations
        np.add.at(change, allocations.born[which], allocations.size_bytes[which])
        np.subtract.at(change, allocations.died[which], allocations.size_bytes[which])
        return np.cumsum(change[:-1])

    # --- the peak

    @property
    def peak(self) -> Peak:
        """Return the largest number of allocated bytes, and the state in which it is reached."""
        return self._peak(0, self.states)

    def _peak(self, first: int, end: int) -> Peak:
        state = first + int(np.argmax(self.allocated_bytes[first:end]))
        return Peak(state, int(self.allocated_bytes[state]))

    def peaks_by_phase(self) -> dict[str, Peak]:
        """Return the highest peak of each phase over all its occurrences, in order of first occurrence."""
        peaks: dict[str, Peak] = {}
        for phase in self.phases:
            peak = self._peak(phase.first, phase.end)
            if phase.name not in peaks or peak.allocated_bytes > peaks[phase.name].allocated_bytes:
                peaks[phase.name] = peak
        return peaks

    def phase_at(self, state: int) -> Phase | None:
        """Return the phase whose events lead to this state; None outside all phases."""
        return next((phase for phase in self.phases if phase.first < state < phase.end), None)

    # --- what is live

    def live_at(self, state: int) -> Column:
        """Return the positions of the allocations that are live in a state, in order of allocation."""
        allocations = self.allocations
        live = np.flatnonzero((allocations.born <= state) & (state < allocations.died))
        return live[np.argsort(allocations.born[live], kind="stable")]

    def categories_at(self, state: int) -> dict[str, int]:
        """Return the live bytes by category in a state, without empty categories."""
        return {name: int(size) for name, size in zip(CATEGORIES, self.by_category[:, state], strict=True) if size}

    def groups(self, state: int) -> list[Group]:
        """Group the allocations live in a state by size, category and stack, largest total first: `32 × 256 MiB`."""
        among, allocations = self.live_at(state), self.allocations
        members: dict[tuple[int, int, int], list[int]] = {}
        columns = (allocations.size_bytes, allocations.category, allocations.stack)
        for place, *key in zip(among.tolist(), *(column[among].tolist() for column in columns), strict=True):
            members.setdefault((key[0], key[1], key[2]), []).append(place)
        groups = []
        for (size_bytes, category, stack), places in sorted(members.items()):
            paths = dict.fromkeys(module for module in allocations.module[places].tolist() if module != NONE)
            modules = tuple(self.modules[module] for module in paths)
            groups.append(Group(len(places), size_bytes, CATEGORIES[category], stack, modules, places[0]))
        return sorted(groups, key=lambda group: -group.total_bytes)

    def tree_at(self, state: int) -> ModuleNode:
        """Return the live bytes in a state as a tree of modules. The root's total covers all allocations."""
        return self._tree(state, self.allocations.module, self.modules.__getitem__)

    def lines_at(self, state: int) -> ModuleNode:
        """Return the live bytes in a state as a tree of the user's own calls, outermost first: `train.py:93 train`.

        Lines of libraries are left out. The root's total covers all allocations.
        """
        return self._tree(state, self.allocations.stack, lambda stack: _own_calls(self.stacks.of(stack)))

    def _tree(self, state: int, position: Column, path_of: Callable[[int], Sequence[str]]) -> ModuleNode:
        live, allocations = self.live_at(state), self.allocations
        sums: dict[tuple[int, int], int] = {}
        columns = (position[live], allocations.category[live], allocations.size_bytes[live])
        for place, category, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
            sums[place, category] = sums.get((place, category), 0) + size_bytes
        root = ModuleNode("")
        for (place, category), size_bytes in sums.items():
            root.add(path_of(place) if place != NONE else (), CATEGORIES[category], size_bytes)
        return root

    @property
    def reserved_peak_bytes(self) -> int | None:
        """Return the peak of reserved memory; None if unknown."""
        return int(self.reserved_bytes.max()) if self.reserved_bytes is not None else None


def _own_calls(frames: Sequence[Frame]) -> list[str]:
    calls: list[str | None] = []
    for frame in reversed(frames):
        file = owner(frame.filename)
        is_plumbing = file.is_library or file.is_in("sysbench", "worker") or file.is_in("sysbench", "commands")
        is_own = frame.filename.endswith(".py") and not is_plumbing and frame.name != "<module>"
        calls.append(f"{file.path[-1]}:{frame.line} {frame.name}" if is_own else None)
    return [call for call, _ in itertools.groupby(calls) if call]

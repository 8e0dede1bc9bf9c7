"""Recording of a cell on a device: all allocations and frees in order, and the category of each allocation.

A recording contains only requests to the allocator, so it is independent of memory capacity, and valid for every GPU
with the same kernels.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, Self

from sysbench.log.events import (
    AdaptedModelBuilt,
    AdaptedModelFacts,
    Compiled,
    OwnModelBuilt,
    OwnModelFacts,
    RecomputationCounted,
)
from sysbench.simulate.cuda.reductions import SplitReduction
from sysbench.simulate.depths import Depths
from sysbench.simulate.gpu import ScratchMemory
from sysbench.simulate.origins import Stack
from sysbench.snapshot import Category
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import Protocol


class Allocation(NamedTuple):
    """One request to the allocator."""

    size_bytes: int
    """Requested size, not rounded."""
    category: Category
    module: str
    """Path of the module that the allocation belongs to; empty if none."""
    stack: int
    """Position in `Recording.stacks`."""
    operator: str = ""
    """Name of the operator that made it: `_softmax`; empty if origins are not recorded."""
    stream: int = 0
    """Number of the owning CUDA stream; 0 is the default stream. FSDP2 communicates on its own streams."""


class Span(NamedTuple):
    """Events of a phase of a step, or of the build before the first step."""

    step: int
    """Number of the step, from 0; -1 before the first."""
    name: str
    """A phase, `BUILD` or `ATTENTION_TRIAL`."""
    first: int
    """Position of the first event in `Recording.events`."""
    end: int
    """Position after the last event."""


@dataclass(frozen=True)
class Recording:
    """All requests of a run to the allocator.

    events       in order: n allocates number n, and ~n (which is negative) frees it
    allocations  by number
    spans        in order; events between steps free the outputs of the previous step
    stacks       Python stacks of the allocations
    workspaces   numbers of the allocations that are workspaces of cuBLAS, whose size depends on the GPU
    reductions   of a generation of GPUs: reductions by the number of the allocation for their partial results; the
                 next one is for their semaphores; both sizes depend on the GPU, and are 0 before `with_scratch`
    """

    events: tuple[int, ...]
    allocations: tuple[Allocation, ...]
    spans: tuple[Span, ...]
    stacks: tuple[Stack, ...]
    workspaces: frozenset[int]
    reductions: Mapping[int, SplitReduction]

    def with_scratch(self, wanted: ScratchMemory) -> Self:
        """Return a copy of this recording with the workspaces and the reductions' scratch memory of a GPU."""
        sizes = dict.fromkeys(self.workspaces, wanted.workspaces.product_bytes)
        for number, reduction in self.reductions.items():
            sizes[number], sizes[number + 1] = reduction.scratch_bytes(wanted.multiprocessors)
        allocations = list(self.allocations)
        for number, size_bytes in sizes.items():
            allocations[number] = allocations[number]._replace(size_bytes=size_bytes)
        resized = replace(self, allocations=tuple(allocations), reductions={})
        return resized._without({number for number, size_bytes in sizes.items() if not size_bytes})

    def without_build_temporaries(self) -> Self:
        """Return a copy of this recording without the temporary allocations of the build.

        A sharded model can be built on `meta`, without memory, so that it never exists as a whole on any rank. One with
        quantized weights is built on the host.
        """
        end = max(span.end for span in self.spans if span.step < 0)
        return self._without({~event for event in self.events[:end] if event < 0})

    def _without(self, left_out: Container[int]) -> Self:
        kept = [number for number in range(len(self.allocations)) if number not in left_out]
        renumbered = {old: new for new, old in enumerate(kept)}
        is_kept = [(event if event >= 0 else ~event) not in left_out for event in self.events]
        events = [
            renumbered[event] if event >= 0 else ~renumbered[~event]
            for event, stays in zip(self.events, is_kept, strict=True)
            if stays
        ]
        kept_before = [*accumulate(is_kept, initial=0)]
        return replace(
            self,
            events=tuple(events),
            allocations=tuple(self.allocations[number] for number in kept),
            spans=tuple(span._replace(first=kept_before[span.first], end=kept_before[span.end]) for span in self.spans),
            workspaces=frozenset(renumbered[number] for number in self.workspaces & renumbered.keys()),
            reductions={
                renumbered[number]: reduction for number, reduction in self.reductions.items() if number in renumbered
            },
        )

    @property
    def measured(self) -> tuple[Span, ...]:
        """Return the spans of the measured step, which is the last one."""
        return tuple(span for span in self.spans if span.step == self.spans[-1].step)

    def live_bytes(self, sizes: Sequence[int] | None = None) -> Iterator[int]:
        """Yield the bytes that are allocated after each event, with these block sizes, or else those requested."""
        if sizes is None:
            sizes = [allocation.size_bytes for allocation in self.allocations]
        yield from accumulate(sizes[event] if event >= 0 else -sizes[~event] for event in self.events)

    def live_at(self, position: int) -> list[int]:
        """Return the numbers of the allocations that are live just before event `position`."""
        live: dict[int, None] = {}
        for event in self.events[:position]:
            if event >= 0:
                live[event] = None
            else:
                del live[~event]
        return list(live)


@dataclass(frozen=True)
class StepRecording(Recording):
    """Allocator requests of the training steps of `cell` under `protocol`."""

    cell: ModelCell
    protocol: Protocol
    own_model: OwnModelFacts | None = None
    """Facts about a custom model; None for the built-in one."""
    adapted_model: AdaptedModelFacts | None = None
    """Facts about the built-in model, if it has adapters."""
    compiled: Compiled | None = None
    """What the compiler made of the step; None if it is eager."""
    recomputed_flops: int = 0
    """FLOPs of one micro-batch that activation checkpointing computes again in backward."""
    depths: Depths | None = None
    """Of a compiled step that was continued from two shallow ones: the numbers of layers; None of any other."""

    def model_events(self, cell: str, *, with_flops: bool = True) -> Iterator[OwnModelBuilt | AdaptedModelBuilt]:
        """Yield the facts about a model without formulas as events of the cell with this key."""
        hidden = {} if with_flops else {"flops": None}
        if self.own_model is not None:
            yield OwnModelBuilt(at_s=time.time(), cell=cell, **self.own_model.model_dump() | hidden)
        if self.adapted_model is not None:
            yield AdaptedModelBuilt(at_s=time.time(), cell=cell, **self.adapted_model.model_dump() | hidden)

    def compiled_events(self, cell: str) -> Iterator[Compiled]:
        """Yield what the compiler made of the step, if it is compiled."""
        if self.compiled is not None:
            yield self.compiled.model_copy(update={"cell": cell})

    def recomputation_events(self, cell: str) -> Iterator[RecomputationCounted]:
        """Yield the FLOPs that the step computes again in backward, if there are any."""
        if self.recomputed_flops:
            yield RecomputationCounted(at_s=time.time(), cell=cell, flops=self.recomputed_flops)

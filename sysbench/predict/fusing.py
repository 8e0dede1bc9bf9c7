"""Effect of torch.compile on a step: each chain of elementwise kernels and reductions becomes one kernel.

The rules follow Inductor's scheduler (torch/_inductor/scheduler.py). Operators are fused if one reads the output of the
other or both read the same data, unless a matrix product or fused attention lies between them. A fused kernel reads
each of its inputs once, and writes only outputs that are needed elsewhere. Activations that only fused kernels of
backward need are recomputed in backward, as the min-cut partitioner does (torch/_functorch/partitioners.py). Inductor's
actual kernels depend on shapes, versions and its own measurements. The result is therefore an estimate, and is marked
as less certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sysbench.predict.trace import Kernel, Kind, Stage

COMPILED_PHASES = ("forward", "backward")
"""Compiled phases: only the model is compiled; loss, optimizer and zero_grad run eagerly."""

_FUSIBLE: frozenset[Kind] = frozenset({"map", "indexed", "transpose", "reduce", "softmax"})
_ROW_WISE: frozenset[Kind] = frozenset({"reduce", "softmax"})
_GATHERS = frozenset({"embedding", "index_select", "gather"})
"""Gathers, for which Inductor generates code as for elementwise operators; gradients of tables are not among them."""

Storages = Mapping[int, int]
"""Bytes touched in each storage, by its number."""


class Flow(NamedTuple):
    """One operator: the kernels that it launches when not fused, and the storages that it reads and writes."""

    kernels: tuple[Kernel, ...]
    reads: Storages
    writes: Storages
    module: str

    @property
    def fusible(self) -> bool:
        """Return whether Inductor generates code for this operator instead of calling a library."""
        return bool(self.kernels) and all(
            kernel.kind in _FUSIBLE or (kernel.kind == "embedding" and kernel.name in _GATHERS)
            for kernel in self.kernels
        )


Place = tuple[Stage, int | None]
"""A stage and a group within it; None stands for operators that are not fused."""


def fuse(stages: Mapping[Stage, Sequence[Flow]]) -> Iterator[tuple[Stage, str, tuple[Kernel, ...]]]:
    """Yield (stage, module, kernels) for each unfused operator and each fused group of the compiled phases, in order.

    `stages` are all stages of one step.
    """
    places: dict[Stage, list[Place]] = {
        stage: [(stage, group) for group in (_fusion_groups(flows) if _is_compiled(stage) else [None] * len(flows))]
        for stage, flows in stages.items()
    }
    members: dict[Place, list[Flow]] = {}
    readers: dict[int, set[Place]] = {}
    for stage, flows in stages.items():
        for place, flow in zip(places[stage], flows, strict=True):
            members.setdefault(place, []).append(flow)
            for storage in flow.reads:
                readers.setdefault(storage, set()).add(place)
    recomputed = {
        storage
        for place, flows in members.items()
        if place[0].phase == "forward" and place[1] is not None
        for flow in flows
        for storage in flow.writes
        if (others := readers.get(storage, set()) - {place}) and all(map(_is_fused_backward, others))
    }
    for stage in filter(_is_compiled, stages):
        remaining = {place: len(members[place]) for place in places[stage]}
        for place, flow in zip(places[stage], stages[stage], strict=True):
            remaining[place] -= 1
            if place[1] is None:
                yield stage, flow.module, flow.kernels
            elif not remaining[place]:
                moved = _moved_bytes(members[place])
                traffic_bytes = (
                    size_bytes
                    for (storage, is_read), size_bytes in moved.items()
                    if storage not in recomputed and (is_read or readers.get(storage) != {place})
                )
                yield stage, flow.module, (_kernel(members[place], sum(traffic_bytes)),)


def _is_compiled(stage: Stage) -> bool:
    return stage.phase in COMPILED_PHASES


def _is_fused_backward(place: Place) -> bool:
    return place[0].phase == "backward" and place[1] is not None


def _moved_bytes(flows: Sequence[Flow]) -> dict[tuple[int, bool], int]:
    """Return the bytes that a group of operators reads and writes, by (storage, whether it is read)."""
    moved: dict[tuple[int, bool], int] = {}
    written: set[int] = set()
    for flow in flows:
        for storage in flow.reads.keys() - written:
            moved[storage, True] = max(flow.reads[storage], moved.get((storage, True), 0))
        for storage, size_bytes in flow.writes.items():
            moved[storage, False] = max(size_bytes, moved.get((storage, False), 0))
        written |= flow.writes.keys()
    return moved


def _kernel(flows: Sequence[Flow], moved_bytes: int) -> Kernel:
    """Return the fused kernel of a group, row-wise if a row-wise one moves a quarter of its largest's bytes."""
    kernels = [kernel for flow in flows for kernel in flow.kernels]
    largest = max(kernels, key=lambda kernel: kernel.bytes)
    rows = next((kernel for kernel in kernels if kernel.kind in _ROW_WISE and 4 * kernel.bytes >= largest.bytes), None)
    elements = max(kernel.elements for kernel in kernels)
    if rows is None:
        return Kernel("map", "fused", largest.dtype, moved_bytes, elements)
    return Kernel("softmax", "fused", largest.dtype, moved_bytes, elements, dims=rows.dims)


def _fusion_groups(flows: Sequence[Flow]) -> list[int | None]:
    """Return the number of each operator's fusion group in a phase; None for operators that are not fused.

    Operators that share a storage belong to the same group if the longest chains of library calls that their inputs
    depend on are equally long.
    """
    parents: list[int] = []
    level_of: dict[int, int] = {}
    group_of_storage: dict[tuple[int, int], int] = {}
    groups: list[int | None] = []

    def root(group: int) -> int:
        while parents[group] != group:
            group = parents[group]
        return group

    for flow in flows:
        level = max((level_of.get(storage, 0) for storage in flow.reads), default=0)
        if not flow.fusible:
            groups.append(None)
            _raise_levels(level_of, flow.writes, level + 1)
            continue
        group = len(parents)
        parents.append(group)
        for storage in (*flow.reads, *flow.writes):
            other = group_of_storage.setdefault((storage, level), group)
            parents[root(other)] = root(group)
        _raise_levels(level_of, flow.writes, level)
        groups.append(group)
    return [None if group is None else root(group) for group in groups]


def _raise_levels(levels: dict[int, int], storages: Iterable[int], level: int) -> None:
    for storage in storages:
        levels[storage] = max(level, levels.get(storage, 0))

"""Compiled steps of deep models, whose compilation takes minutes, from those of two shallow ones.

All layers of a Transformer are alike, and so is what the compiler makes of them, but for the first and the last ones.
The requests of a step are continued from two depths to that of the whole model (`growth`), and checked: what is freed
was allocated before, in the same phase and with the same size; and the build allocates what that of the whole model
does. If a check fails, because layers differ, the whole model is compiled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, TypeVar

from sysbench.errors import UnavailableError
from sysbench.lab.workload.own import layers_are_alike
from sysbench.log.events import AdaptedModelFacts, Compiled, OwnModelFacts
from sysbench.simulate.compiler.growth import NUMBER, grown, loops
from sysbench.simulate.depths import Depths, depths_for_copies, with_layers
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import Allocation, Recording, StepRecording
from sysbench.simulate.steps import record
from sysbench.snapshot.block_sizes import MIN_BLOCK_BYTES
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import Protocol

_GROWING = ("parameters", "trainable_parameters", "parameter_dtypes", "flops", "graphs", "graph_breaks")
"""Facts about a model, and about what the compiler made of it, that grow with its depth."""

_Found = TypeVar("_Found")
_Facts = TypeVar("_Facts", OwnModelFacts | None, AdaptedModelFacts | None, Compiled | None)


def recorded(cell: ModelCell, protocol: Protocol, platform: Platform, *, origins: bool) -> StepRecording:
    """Record the cell under the protocol, as `record` does; a deep compiled one from two shallow ones if possible."""
    found = in_two_depths(cell, lambda each: record(each, protocol, platform, origins=origins))
    if found is not None:
        built = record(cell, protocol, platform, origins=origins, steps=False)
        if (recording := continued(cell, *found, built)) is not None:
            return recording
    return record(cell, protocol, platform, origins=origins)


def in_two_depths(cell: ModelCell, run: Callable[[ModelCell], _Found]) -> tuple[_Found, _Found, Depths] | None:
    """Run the two shallow cells that a compiled one can be continued from; None if there are none that are cheaper."""
    depths = depths_for_copies(cell) if cell.is_compiled else None
    if depths is None or (cell.own is not None and not layers_are_alike(cell.own)):
        return None
    try:
        small, large = (run(with_layers(cell, layers)) for layers in depths[:2])
    except UnavailableError:  # which the whole model gives its own reason for, if it has one
        return None
    return small, large, depths


def continued(
    cell: ModelCell, small: StepRecording, large: StepRecording, depths: Depths, built: StepRecording
) -> StepRecording | None:
    """Return the recording of `cell` by those of two depths; None if what they make does not repeat in deeper models.

    Of `built`, a recording of the whole model, only the build counts.
    """
    if small.reductions or large.reductions or _alike_at_any_depth(small) != _alike_at_any_depth(large):
        return None
    more = depths.steps
    requests = _continued_requests(small, large, more)
    if requests is None or _build(requests) != _build(built):
        return None
    return replace(
        requests,
        cell=cell,
        own_model=_grown_facts(small.own_model, large.own_model, more),
        adapted_model=_grown_facts(small.adapted_model, large.adapted_model, more),
        compiled=_grown_facts(small.compiled, large.compiled, more, cell=cell.key),
        depths=depths,
        recomputed_flops=_grown(small.recomputed_flops, large.recomputed_flops, more),
    )


def _continued_requests(small: StepRecording, large: StepRecording, more: int) -> StepRecording | None:
    known: dict[object, int] = {}
    of_small, of_large = _kinds(small, known), _kinds(large, known)
    events: list[int] = []
    allocations: list[Allocation] = []
    repeated: list[int] = []
    """For each allocation, the one of the deeper recording that it repeats."""
    live: defaultdict[int, set[int]] = defaultdict(set)
    """Numbers of live allocations by kind."""
    ends = [0]
    for (first, end), (large_first, large_end) in zip(_parts(small), _parts(large), strict=True):
        part = _in_order(small.events[first:end], of_small)
        large_part = _in_order(large.events[large_first:large_end], of_large)
        found = loops(_of_events(part, of_small), _of_events(large_part, of_large))
        if found is None:
            return None
        for element in grown(found, end - first, more):
            event = large_part[element.next]
            numbers = part[element.small], large_part[element.large], event
            one, other, following = (each if each >= 0 else ~each for each in numbers)
            kind = of_large[following]
            if event >= 0:
                number = len(allocations)
                made, again = large.allocations[other], large.allocations[following]
                before = small.allocations[one]
                module = element.name(before.module, made.module, again.module, more)
                size_bytes = element.number(before.size_bytes, made.size_bytes, again.size_bytes, more)
                allocations.append(again._replace(module=module, size_bytes=size_bytes))
                repeated.append(following)
                live[kind].add(number)
                events.append(number)
            elif not live[kind]:
                return None
            else:
                # The scheduler may use one of several alike buffers again. Which one it is changes with the depth.
                expected = element.number(one, other, following, more)
                freed = expected if expected in live[kind] else max(live[kind])
                live[kind].remove(freed)
                events.append(~freed)
        ends.append(len(events))
    spans = zip(large.spans, ends[1::2], ends[2::2], strict=False)
    return replace(
        large,
        events=tuple(events),
        allocations=tuple(allocations),
        spans=tuple(span._replace(first=first, end=end) for span, first, end in spans),
        workspaces=frozenset(number for number, source in enumerate(repeated) if source in large.workspaces),
    )


def _alike_at_any_depth(recording: StepRecording) -> tuple[object, ...]:
    own, compiled = recording.own_model, recording.compiled
    return (
        [(span.step, span.name) for span in recording.spans],
        None if own is None else (own.assumed, own.uncounted, own.loss, own.tokens),
        None if compiled is None else (compiled.breaks, compiled.fell_back),
    )


def _parts(recording: Recording) -> Iterator[tuple[int, int]]:
    """Yield the first event of each span and that after the last, and those of what lies between two spans."""
    bounds = [bound for span in recording.spans for bound in (span.first, span.end)]
    return pairwise([0, *bounds, len(recording.events)])


def _kinds(recording: Recording, known: dict[object, int]) -> list[int]:
    """Return a number from 1 for each allocation: the same for allocations that differ in nothing but their layer."""
    kinds = [0] * len(recording.allocations)
    for part, (first, end) in enumerate(_parts(recording)):
        for number in (event for event in recording.events[first:end] if event >= 0):
            made = recording.allocations[number]
            # Below a block, sizes may grow with the depth, as those of a step's seeds for dropout.
            size_bytes = max(made.size_bytes, MIN_BLOCK_BYTES)
            kind = made._replace(module=NUMBER.sub("#", made.module), stack=0, size_bytes=size_bytes)
            is_workspace = number in recording.workspaces
            kinds[number] = known.setdefault((part, kind, recording.stacks[made.stack], is_workspace), len(known) + 1)
    return kinds


def _in_order(events: Sequence[int], kinds: list[int]) -> list[int]:
    """Return the events with the frees between two allocations ordered by kind: compiled code has them in any order."""
    runs = groupby(events, key=lambda event: event < 0)
    return [
        event
        for are_frees, run in runs
        for event in (sorted(run, key=lambda event: (kinds[~event], event)) if are_frees else run)
    ]


def _of_events(events: Sequence[int], kinds: list[int]) -> list[int]:
    return [kinds[event] if event >= 0 else -kinds[~event] for event in events]


def _grown_facts(small: _Facts, large: _Facts, more: int, **changed: str) -> _Facts:
    if small is None or large is None:
        return large
    found = {name: (getattr(small, name), getattr(large, name)) for name in _GROWING if hasattr(large, name)}
    return large.model_copy(update={name: _grown(*each, more) for name, each in found.items()} | changed)


def _grown(small: Any, large: Any, more: int) -> Any:
    if isinstance(large, dict):
        return {name: _grown(small.get(name, 0), value, more) for name, value in large.items()}
    return large if large is None else small + more * (large - small)


def _build(recording: Recording) -> tuple[object, ...]:
    """Return what the build of the model allocates and frees."""
    events = recording.events[: max(span.end for span in recording.spans if span.step < 0)]
    made = [recording.allocations[event] for event in events if event >= 0]
    return {event for event in events if event < 0}, [(each.size_bytes, each.category, each.module) for each in made]

"""Timeline of a memory snapshot, with a category for each allocation. Categories that are not recorded are inferred.

Three facts are known about each allocation: the stack when it was made, the stack when it was released, and its
lifetime. Together they explain nearly all memory of a training step:

- Optimizer state: allocated by torch.optim or by the program's own optimizer (`own_optimizers`), and kept; or
  released by the optimizer, which replaces it.
- Activations: allocated in forward and released in backward, because they were saved for backward.
- Gradients: allocated in backward and not released there.
- Parameters or optimizer state: allocated before the trace and never released.

All other allocations remain unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import IntFlag
from typing import Final

import numpy as np

from sysbench.errors import UsageError
from sysbench.frames import owner
from sysbench.snapshot import CATEGORIES
from sysbench.snapshot.block_sizes import block_bytes, rounded_requests
from sysbench.snapshot.layout import ACTION_CODE, NONE, STATES, Annotation, Column, Frame, Snapshot
from sysbench.snapshot.lifetimes import Lifetimes, lifetimes
from sysbench.snapshot.own_optimizers import stacks_of_own_optimizers
from sysbench.snapshot.residents import resident_categories
from sysbench.snapshot.timeline import PHASES, UNKNOWN, Allocations, Phase, Timeline
from sysbench.trace.workspaces import (
    DEFAULT_BYTES,
    LARGE_BYTES,
    MOST_PER_STREAM,
    are_kept_workspaces,
    are_momentary,
)

_CODE: Final[Mapping[str, int]] = {name: code for code, name in enumerate(CATEGORIES)}
_RECORDED_CODE: Final[Mapping[str, int]] = {
    **_CODE,
    # torch.profiler's names (torch/profiler/_memory_profiler.py, `Category`), as _memory_viz writes them.
    "parameter": _CODE["parameters"],
    "gradient": _CODE["gradients"],
    "optimizer_state": _CODE["optimizer state"],
    "activation": _CODE["activations"],
    "input": _CODE["inputs"],
    "temporary": _CODE["temporaries"],
    "autograd_detail": _CODE["temporaries"],
}
"""Category codes by the names that snapshots record."""


class _Trait(IntFlag):
    """Evidence in a stack frame about the purpose of an allocation."""

    OPTIMIZER = 1
    BACKWARD = 2
    FORWARD = 4
    BUILDING = 8
    WORKSPACE = 16
    CLEARING = 32


_OUTSIDE, _FORWARD, _BACKWARD, _OPTIMIZER = range(4)
_PHASE_NAMES = {_FORWARD: "forward", _BACKWARD: "backward", _OPTIMIZER: "optimizer"}
_MIN_RUN = 3
"""Minimum number of allocations that interrupt a phase. A shorter run between two runs of a phase belongs to this
phase."""


def from_snapshot(snapshot: Snapshot, device: int | None = None) -> Timeline:
    """Build the timeline of one device; the default is the device with the most activity.

    Recorded categories are used unchanged. If there are none, categories are inferred, and the timeline is marked as
    inferred. Raises UsageError if the snapshot does not contain the device.
    """
    trace, blocks, segments = snapshot.trace, snapshot.blocks, snapshot.segments
    if device is None:
        # Compare by number of trace entries, then by bytes held.
        activity = {
            each: (int((trace.device == each).sum()), int(segments.total_bytes[segments.device == each].sum()))
            for each in snapshot.devices
        }
        device = max(activity, key=activity.__getitem__, default=0)
    if device not in snapshot.devices:
        available = ", ".join(map(str, snapshot.devices)) or "none"
        raise UsageError(f"the snapshot has no data of device {device} (devices: {available})")
    lives = lifetimes(snapshot, device)
    requested = _from_trace_or_block(lives, trace.size_bytes, blocks.requested_bytes)
    rounded = rounded_requests(requested, snapshot.settings)
    address = _from_trace_or_block(lives, trace.address, blocks.address).astype(np.uint64)
    stack = _position_from_trace_or_block(lives, trace.stack, blocks.stack).astype(np.int32)
    freed_stack = np.append(trace.stack, NONE)[lives.freed_row].astype(np.int32)
    recorded = _recorded_categories(snapshot, lives)
    stream = _from_trace_or_block(lives, trace.stream, segments.stream[blocks.segment])
    module, modules = np.full(len(stack), NONE, np.int32), tuple[tuple[str, ...], ...]()
    if recorded is None:
        category, phases = infer(snapshot, lives, stack, freed_stack, rounded, stream)
    else:
        category, phases = recorded, tuple(_marked_phases(snapshot.annotations, lives))
        module = _position_from_trace_or_block(lives, trace.label, blocks.label).astype(np.int32)
        modules = tuple(tuple(filter(None, label.split("."))) for label in snapshot.labels)
    free = (blocks.state == STATES.index("inactive")) & (segments.device[blocks.segment] == device)
    name = snapshot.metadata.get("device_name")
    return Timeline(
        allocations=Allocations(
            size_bytes=block_bytes(snapshot, device, lives, rounded, address),
            requested_bytes=requested,
            born=lives.born,
            died=lives.died,
            category=category,
            module=module,
            stack=stack,
            freed_stack=freed_stack,
            address=address,
        ),
        states=lives.states,
        phases=phases,
        modules=modules,
        stacks=snapshot.stacks,
        reserved_bytes=lives.reserved_bytes if snapshot.has_allocator else None,
        time_us=lives.time_us if snapshot.has_allocator else None,
        source=snapshot.source,
        inferred=recorded is None,
        device=device,
        device_name=name if isinstance(name, str) else None,
        failures=lives.failures,
        largest_free_bytes=int(blocks.size_bytes[free].max(initial=0)),
    )


def _from_trace_or_block(lives: Lifetimes, of_trace: Column, of_blocks: Column) -> Column:
    """Return a value for each allocation: from its trace entry, or from its block if it predates the trace."""
    row = np.where(lives.row == NONE, lives.freed_row, lives.row)
    from_block = np.append(of_blocks, of_blocks.dtype.type(0))[lives.block]
    from_trace = np.append(of_trace, of_trace.dtype.type(0))[row]
    return np.where(row == NONE, from_block, from_trace)


def _recorded_categories(snapshot: Snapshot, lives: Lifetimes) -> Column | None:
    codes = np.array([*(_RECORDED_CODE.get(name, UNKNOWN) for name in snapshot.categories), UNKNOWN], np.uint8)
    named = _position_from_trace_or_block(lives, snapshot.trace.category, snapshot.blocks.category)
    category: Column = codes[named]
    return None if (category == UNKNOWN).all() else category


def _position_from_trace_or_block(lives: Lifetimes, of_trace: Column, of_blocks: Column) -> Column:
    """Return positions like `_from_trace_or_block`, but NONE where only the release was recorded."""
    from_block = np.append(of_blocks, NONE)[lives.block]
    return np.where(lives.row == NONE, from_block, np.append(of_trace, NONE)[lives.row])


def _marked_phases(annotations: Iterable[Annotation], lives: Lifetimes) -> Iterator[Phase]:
    """Yield a phase for each START and the next END of the same name."""
    if lives.time_us is None:
        return
    # State 0 precedes the first event, and has no time.
    times = lives.time_us[1:]
    started: dict[str, int] = {}
    for mark in sorted(annotations, key=lambda mark: mark.time_us):
        if mark.name not in PHASES:
            continue
        state = int(np.searchsorted(times, mark.time_us, side="left"))
        if mark.stage == "START":
            started[mark.name] = state
        elif mark.name in started:
            yield Phase(mark.name, started.pop(mark.name), state + 1)
    for name, state in started.items():
        # The run ended in the middle of a phase, because memory ran out.
        yield Phase(name, state, lives.states)


# --- inference


def infer(
    snapshot: Snapshot, lives: Lifetimes, stack: Column, freed_stack: Column, size_bytes: Column, stream: Column
) -> tuple[Column, tuple[Phase, ...]]:
    """Infer categories and phases from stacks and lifetimes.

    `stack` and `freed_stack` are the stacks of allocation and release, as positions in `snapshot.stacks`, or NONE.
    `size_bytes` is the requested size rounded up to the allocator's unit; the allocator may return a larger block.
    """
    stacks = snapshot.stacks
    frame_traits = np.array([_trait_of(frame) for frame in stacks.frames], np.uint8)
    # A stack has the traits of all its frames. The extra entry, at NONE, is for allocations without a stack.
    stack_traits = (
        np.bitwise_or.reduceat(frame_traits[stacks.frame], stacks.start[:-1]) if len(stacks) else frame_traits[:0]
    )
    traits = np.append(stack_traits, 0)
    in_trace = np.flatnonzero(lives.born > 0)
    order = in_trace[np.argsort(lives.born[in_trace], kind="stable")]
    has_stack = stack != NONE
    # On CUDA, autograd runs on its own threads without Python code. If Python's stacks alone are recorded, it has none.
    is_stackless = ~has_stack & (lives.born > 0) & has_stack[in_trace].any()
    in_backward = ((traits[stack] & _Trait.BACKWARD) > 0) | is_stackless
    freed_in_backward = (traits[freed_stack] & _Trait.BACKWARD) > 0
    if (freed_stack != NONE).any() and not (traits & _Trait.BACKWARD).any():
        freed_in_backward |= (freed_stack == NONE) & (lives.freed_row != NONE)
    is_kept, first_backward = lives.died == lives.states, lives.born[in_backward].min(initial=lives.states)
    of_optimizer = stacks_of_own_optimizers(
        stacks,
        stack,
        size_bytes,
        is_parameter=is_kept & (lives.born < first_backward),
        is_training=in_backward | freed_in_backward | ((traits[stack] & _Trait.FORWARD) > 0),
        is_state=is_kept & (lives.born > first_backward),
    )
    traits[:-1][of_optimizer] |= _Trait.OPTIMIZER
    phases = _infer_phases(traits[stack[order]], is_stackless[order], lives.born[order], lives.states)
    freed_traits = traits[freed_stack] | np.where(freed_in_backward, _Trait.BACKWARD, 0).astype(np.uint8)
    category = _infer_categories(lives, traits[stack], freed_traits, size_bytes, stream, phases)
    # Without events, lifetimes give no evidence of the purpose.
    unexplained = (lives.born == 0) & is_kept & (traits[stack] == 0) & (category == UNKNOWN) & (lives.states > 1)
    residents = _in_order_of_making(snapshot, lives, np.flatnonzero(unexplained))
    _explain_residents(category, lives, residents, size_bytes, phases)
    return category, phases


# --- stacks


_ENGINE = re.compile(r"torch::autograd::(Engine|python::PythonEngine|generated|Node|PyNode|CppNode|AccumulateGrad)\b")
"""Functions of autograd's threads. Functions of forward are in `torch::autograd` too: VariableType, THPVariable."""


def _trait_of(frame: Frame) -> int:
    file = owner(frame.filename)
    # Omit the parameters of a C++ function: their types are not evidence.
    name = frame.name.partition("(")[0]
    trait = 0
    if file.is_in("torch", "optim") or name.startswith("Optimizer.step"):
        trait |= _Trait.OPTIMIZER
    if _ENGINE.search(name) or (name in ("_engine_run_backward", "backward") and file.package == "torch"):
        trait |= _Trait.BACKWARD
    if file.is_in("torch", "nn", "modules", "module.py"):
        trait |= _Trait.BUILDING if name in ("_apply", "to", "cuda") else 0
        trait |= _Trait.FORWARD if name.endswith("_call_impl") else 0
    if name == "__init__" or name.endswith("load_state_dict"):
        trait |= _Trait.BUILDING
    if name.endswith("zero_grad"):
        trait |= _Trait.CLEARING
    if "Workspace" in name or "CUDABlasHandle" in name:
        trait |= _Trait.WORKSPACE
    return trait


# --- phases


def _runs(label: Column) -> list[tuple[int, int, int]]:
    if not len(label):
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(label)) + 1])
    ends = np.append(starts[1:], len(label))
    return [(int(label[start]), int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def _infer_phases(trait: Column, is_stackless: Column, born: Column, states: int) -> tuple[Phase, ...]:
    label = np.select(
        [(trait & _Trait.OPTIMIZER) > 0, (trait & _Trait.BACKWARD) > 0, (trait & _Trait.FORWARD) > 0, is_stackless],
        [_OPTIMIZER, _BACKWARD, _FORWARD, _BACKWARD],
        _OUTSIDE,
    ).astype(np.uint8)
    runs = _runs(label)
    for before, (_, first, end), after in zip(runs, runs[1:], runs[2:], strict=False):
        if before[0] == after[0] and end - first < _MIN_RUN:
            label[first:end] = before[0]
    # Everything between forward and backward is the loss, and counts as forward.
    runs = _runs(label)
    for before, (kind, first, end), after in zip(runs, runs[1:], runs[2:], strict=False):
        if kind == _OUTSIDE and before[0] == _FORWARD and after[0] == _BACKWARD:
            label[first:end] = _FORWARD
    runs = _runs(label)
    starts = [int(born[first]) - 1 for _, first, _ in runs] + [states - 1]
    return tuple(
        Phase(_PHASE_NAMES[kind], starts[index], starts[index + 1] + 1)
        for index, (kind, _, _) in enumerate(runs)
        if kind != _OUTSIDE
    )


# --- categories


def _infer_categories(
    lives: Lifetimes,
    traits: Column,
    freed_traits: Column,
    size_bytes: Column,
    stream: Column,
    phases: tuple[Phase, ...],
) -> Column:
    names = np.array([*(phase.name for phase in phases), ""])
    born_in = _phase_of(lives.born, phases)
    phase, end = names[born_in], np.array([*(phase.end for phase in phases), 0])[born_in]
    is_kept, outlives_phase = lives.died == lives.states, lives.died >= end
    optimizer, backward, forward = (
        (traits & trait) > 0 for trait in (_Trait.OPTIMIZER, _Trait.BACKWARD, _Trait.FORWARD)
    )
    parameter_sizes = size_bytes[is_kept & (phase != "backward")]
    # A phase lasts until the first allocation of the next one, so what zero_grad releases in between, or what an
    # optimizer without allocations uses, dies within backward.
    outlives_work = (lives.died > _last_born(lives.born, born_in)) & ((freed_traits & _Trait.BACKWARD) == 0)
    outlives_backward = outlives_phase | (outlives_work & np.isin(size_bytes, parameter_sizes))
    died_in = names[_phase_of(lives.died, phases)]
    freed_in_backward = ((freed_traits & _Trait.BACKWARD) > 0) | (died_in == "backward")
    building = ((traits & _Trait.BUILDING) > 0) & ~optimizer & ~backward & ~forward
    first = min((phase.first for phase in phases), default=-1)
    state_sizes = size_bytes[optimizer & outlives_phase & (lives.born > 0)]
    is_replaced = _are_released_by_optimizer(lives, freed_traits, phases) & np.isin(size_bytes, state_sizes)
    category: Column = np.select(
        [
            (traits & _Trait.WORKSPACE) > 0,
            _are_workspaces(lives, size_bytes, stream, is_kept, phase),
            building & is_kept,
            lives.born == 0,
            optimizer & outlives_phase,
            (phase == "backward") & outlives_backward,
            (phase == "forward") & (outlives_phase | freed_in_backward),
            phase != "",
            # Without modules, the stacks of forward contain no line of a model.
            freed_in_backward,
            is_kept & (lives.born <= first),
        ],
        [
            _CODE["workspace"],
            _CODE["workspace"],
            _CODE["parameters"],
            _pre_trace_categories(lives, traits, size_bytes, is_kept, freed_in_backward, is_replaced),
            _CODE["optimizer state"],
            _CODE["gradients"],
            _CODE["activations"],
            _CODE["temporaries"],
            _CODE["activations"],
            # Models are loaded before the first step.
            _CODE["parameters"],
        ],
        _categories_between_phases(lives, phases, is_kept),
    ).astype(np.uint8)
    return category


def _in_order_of_making(snapshot: Snapshot, lives: Lifetimes, residents: Column) -> Column:
    """Return allocations that predate the trace in the order in which they were probably made.

    Whether addresses of segments ascend or descend is that of the segments which the trace has; they are taken to
    ascend if it has none. Within a segment, what was made first lies lowest.
    """
    block = lives.block[residents]
    if (block == NONE).any():
        return residents
    made = snapshot.trace.address[snapshot.trace.action == ACTION_CODE["segment_alloc"]].astype(np.int64)
    descends = len(made) > 1 and float((np.diff(made) < 0).mean()) > 0.5
    segment = snapshot.segments.address[snapshot.blocks.segment[block]].astype(np.int64)
    order = np.lexsort((snapshot.blocks.address[block], -segment if descends else segment))
    in_order: Column = residents[order]
    return in_order


def _explain_residents(
    category: Column, lives: Lifetimes, unexplained: Column, size_bytes: Column, phases: tuple[Phase, ...]
) -> None:
    """Change `category` for what was there before the recording and stays: its sizes tell what it may be.

    `unexplained` are these allocations, in the order in which they were made.
    """
    born_in = _phase_of(lives.born, phases)
    in_backward = np.array([*(phase.name for phase in phases), ""])[born_in] == "backward"
    is_gradient = category == _CODE["gradients"]
    gradients = _sizes_in_one_phase(size_bytes, born_in, is_gradient & in_backward)
    category[unexplained] = resident_categories(
        size_bytes[unexplained],
        gradients if len(gradients) else size_bytes[is_gradient & (lives.born == 0)],
        _sizes_in_one_phase(size_bytes, born_in, (category == _CODE["temporaries"]) & in_backward),
    )


def _are_released_by_optimizer(lives: Lifetimes, freed_traits: Column, phases: tuple[Phase, ...]) -> Column:
    """Return which allocations the optimizer releases, as it does with state that it replaces; `zero_grad` does not.

    Without stacks of releases, those are meant that the optimizer releases before its last allocation.
    """
    if not freed_traits.any():
        died_in = _phase_of(lives.died, phases)
        last = np.zeros(len(phases) + 1, np.int64)
        np.maximum.at(last, _phase_of(lives.born, phases), lives.born)
        in_optimizer = np.array([*(phase.name == "optimizer" for phase in phases), False])[died_in]
        return np.asarray(in_optimizer & (lives.died < last[died_in]))
    return np.asarray(((freed_traits & _Trait.OPTIMIZER) > 0) & ((freed_traits & _Trait.CLEARING) == 0))


def _last_born(born: Column, phase: Column) -> Column:
    """Return, for each allocation, the state after the last allocation of its phase."""
    last = np.zeros(int(phase.max(initial=0)) + 1, np.int64)
    np.maximum.at(last, phase, born)
    found: Column = last[phase]
    return found


def _sizes_in_one_phase(size_bytes: Column, phase: Column, selected: Column) -> Column:
    """Return the sizes of the selected allocations of the phase that has the most of them."""
    if not selected.any():
        return size_bytes[:0]
    sizes: Column = size_bytes[selected & (phase == np.bincount(phase[selected]).argmax())]
    return sizes


def _are_workspaces(lives: Lifetimes, size_bytes: Column, stream: Column, is_kept: Column, phase: Column) -> Column:
    default_size = (size_bytes == DEFAULT_BYTES) & is_kept
    large = size_bytes == LARGE_BYTES
    momentary = (large | (size_bytes == DEFAULT_BYTES)) & are_momentary(lives.born, lives.died) & (lives.born > 0)
    large_kept = large & is_kept & ((lives.born == 0) | np.isin(phase, ("forward", "backward")))
    # Another allocation of that size may be the gradient of a parameter.
    is_unambiguous = (large & ~momentary).sum() == large_kept.sum() <= MOST_PER_STREAM and not default_size.any()
    return np.asarray(momentary | are_kept_workspaces(default_size, stream) | (large_kept & is_unambiguous), np.bool_)


def _pre_trace_categories(
    lives: Lifetimes,
    traits: Column,
    size_bytes: Column,
    is_kept: Column,
    freed_in_backward: Column,
    is_replaced: Column,
) -> Column:
    """Return the categories of allocations that predate the trace."""
    kept_sizes = size_bytes[(lives.born == 0) & is_kept]
    return np.select(
        [
            (traits & _Trait.OPTIMIZER) > 0,
            (traits & _Trait.BACKWARD) > 0,
            (traits & _Trait.FORWARD) > 0,
            is_kept,
            is_replaced,
            freed_in_backward,
            # A gradient is released between steps, where zero_grad runs, and has the size of a parameter.
            np.isin(size_bytes, kept_sizes) | (len(kept_sizes) == 0),
        ],
        [
            _CODE["optimizer state"],
            _CODE["gradients"],
            _CODE["activations"],
            UNKNOWN,
            _CODE["optimizer state"],
            _CODE["activations"],
            _CODE["gradients"],
        ],
        # Outputs of the previous step: logits, the loss.
        _CODE["activations"],
    )


def _categories_between_phases(lives: Lifetimes, phases: tuple[Phase, ...], is_kept: Column) -> Column:
    """Return the categories of allocations outside all phases: inputs, temporaries, and kept outputs of forward."""
    if not phases:
        return np.full(len(lives.born), UNKNOWN)
    starts = np.array([phase.first for phase in phases if phase.name == "forward"] + [lives.states])
    following = starts[np.minimum(np.searchsorted(starts, lives.born), len(starts) - 1)]
    before = np.searchsorted([phase.first for phase in phases], lives.born, side="left") - 1
    after_forward = np.array([*(phase.name == "forward" for phase in phases), False])[before]
    # The last allocation made in the same gap between phases.
    last = np.zeros(len(phases) + 1, np.int64)
    np.maximum.at(last, before, np.where(lives.born < following, lives.born, 0))
    # What a loss needs only for itself is released before the first tensor of the forward it follows.
    ends = np.array([*(phase.end for phase in phases), 0])[before]
    released = np.full(len(phases) + 1, lives.states)
    np.minimum.at(
        released, before, np.where((lives.born < ends) & (lives.died > last[before]), lives.died, lives.states)
    )
    kept_until = np.where(released < lives.states, released, last + 1)[before]
    return np.select(
        [
            ~is_kept & (following < lives.states) & (lives.died > following),
            # Without a later step that would release them, kept tensors are still live.
            after_forward & np.where(following < lives.states, lives.died >= kept_until, is_kept),
            ~is_kept,
        ],
        [_CODE["inputs"], _CODE["activations"], _CODE["temporaries"]],
        UNKNOWN,
    )


def _phase_of(state: Column, phases: tuple[Phase, ...]) -> Column:
    """For each state, return the position of the phase whose events lead to it, or `len(phases)` if there is none."""
    if not phases:
        return np.zeros(len(state), np.int64)
    first = np.array([phase.first for phase in phases])
    end = np.array([phase.end for phase in phases])
    place = np.searchsorted(first, state, side="left") - 1
    return np.where((place >= 0) & (state < end[place]), place, len(phases))

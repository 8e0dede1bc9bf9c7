"""Inference of memory categories, for snapshots that do not record them.

Two facts are known about every allocation: its stack and its lifetime. Together they explain most of a training step:
what torch.optim allocates and keeps is optimizer state; what forward allocates and backward releases was saved for
backward; what backward allocates and leaves behind is a gradient. Everything else remains unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from sysbench.snapshot.layout import NONE, Column, Frame, Snapshot, Stacks
from sysbench.snapshot.lifetimes import Lifetimes
from sysbench.snapshot.timeline import CATEGORIES, UNKNOWN, Phase

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""cuBLAS's default workspace per handle and stream (getChosenWorkspaceSize in CublasHandlePool.cpp of ATen/cuda)."""

_CODE = {name: code for code, name in enumerate(CATEGORIES)}


class _Trait(IntFlag):
    """What a frame indicates about its stack."""

    OPTIMIZER = 1
    BACKWARD = 2
    MODULE = 4
    BUILDING = 8
    WORKSPACE = 16


_OUTSIDE, _FORWARD, _BACKWARD, _OPTIMIZER = range(4)
_PHASE_NAMES = {_FORWARD: "forward", _BACKWARD: "backward", _OPTIMIZER: "optimizer"}
_SHORTEST_RUN = 3
"""Number of allocations; a shorter stretch between two stretches of one phase does not interrupt that phase."""


@dataclass(frozen=True, eq=False)
class Inference:
    """Inferred category and module of each allocation, and the phases."""

    category: npt.NDArray[np.uint8]
    module: npt.NDArray[np.int32]
    modules: tuple[tuple[str, ...], ...]
    phases: tuple[Phase, ...]


def infer(snapshot: Snapshot, lives: Lifetimes, stack: npt.NDArray[np.int32], size_bytes: Column) -> Inference:
    """Infer from stacks (one position in `snapshot.stacks` per allocation) and lifetimes."""
    traits = _traits_of_stacks(snapshot.stacks)
    # The extra entry, at NONE, is for allocations without a stack: they have no traits.
    trait = np.append(traits, 0)[stack]
    in_trace = np.flatnonzero(lives.born > 0)
    order = in_trace[np.argsort(lives.born[in_trace], kind="stable")]
    label = _labels(trait[order], stack[order] != NONE)
    phases = _phases(label, lives.born[order], lives.states)
    category = _categories(lives, trait, size_bytes, phases)
    module, modules = _modules(snapshot.stacks, stack)
    return Inference(category, module, modules, phases)


# --- stacks


def _trait_of(frame: Frame) -> int:
    filename = frame.filename.replace("\\", "/")
    trait = 0
    if "torch/optim/" in filename or frame.name.startswith("Optimizer.step"):
        trait |= _Trait.OPTIMIZER
    if "torch::autograd::" in frame.name or (
        frame.name in ("_engine_run_backward", "backward") and "torch/" in filename
    ):
        trait |= _Trait.BACKWARD
    if filename.endswith("torch/nn/modules/module.py"):
        trait |= _Trait.BUILDING if frame.name in ("_apply", "to", "cuda") else 0
        trait |= _Trait.MODULE if frame.name.endswith("_call_impl") else 0
    if frame.name == "__init__" or frame.name.endswith("load_state_dict"):
        trait |= _Trait.BUILDING
    if "Workspace" in frame.name or "CUDABlasHandle" in frame.name:
        trait |= _Trait.WORKSPACE
    return trait


def _traits_of_stacks(stacks: Stacks) -> npt.NDArray[np.uint8]:
    """The union of the traits of all frames of each stack."""
    of_frame = np.array([_trait_of(frame) for frame in stacks.frames], np.uint8)
    if not len(stacks):
        return np.zeros(0, np.uint8)
    return np.bitwise_or.reduceat(of_frame[stacks.frame], stacks.start[:-1])


def _modules(stacks: Stacks, stack: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], tuple[tuple[str, ...], ...]]:
    """Calls that lead to an allocation, outermost first, without library calls: `model.py:88 forward`."""
    step = [_call(frame) for frame in stacks.frames]
    positions: dict[tuple[str, ...], int] = {}
    of_stack = np.full(len(stacks) + 1, NONE, np.int32)
    for index in np.unique(stack[stack != NONE]):
        calls = [step[frame] for frame in stacks.frame[stacks.start[index] : stacks.start[index + 1]][::-1]]
        path = tuple(call for call, before in zip(calls, [None, *calls], strict=False) if call and call != before)
        if path:
            of_stack[index] = positions.setdefault(path, len(positions))
    return of_stack[stack], tuple(positions)


def _call(frame: Frame) -> str | None:
    filename = frame.filename.replace("\\", "/")
    library = "/torch/" in filename or "site-packages/" in filename or "/lib/python" in filename
    if library or not filename.endswith(".py") or frame.name == "<module>":
        return None
    return f"{filename.rpartition('/')[2]}:{frame.line} {frame.name}"


# --- phases


def _labels(trait: npt.NDArray[np.uint8], has_stack: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """The phase that each allocation of the trace belongs to, in order."""
    # On CUDA, autograd runs on its own threads without Python code: these allocations have no stack, others have one.
    stackless = ~has_stack & has_stack.any()
    return np.select(
        [
            (trait & _Trait.OPTIMIZER) > 0,
            (trait & _Trait.BACKWARD) > 0,
            (trait & _Trait.MODULE) > 0,
            stackless,
        ],
        [_OPTIMIZER, _BACKWARD, _FORWARD, _BACKWARD],
        _OUTSIDE,
    ).astype(np.uint8)


def _runs(label: npt.NDArray[np.uint8]) -> list[tuple[int, int, int]]:
    """Stretches of equal labels, as (label, first, end)."""
    if not len(label):
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(label)) + 1])
    ends = np.append(starts[1:], len(label))
    return [(int(label[start]), int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def _phases(label: npt.NDArray[np.uint8], born: npt.NDArray[np.int64], states: int) -> tuple[Phase, ...]:
    smooth = label.copy()
    runs = _runs(label)
    for before, (_, first, end), after in zip(runs, runs[1:], runs[2:], strict=False):
        if before[0] == after[0] and end - first < _SHORTEST_RUN:
            smooth[first:end] = before[0]
    # What lies between forward and backward is the loss, and counts as forward.
    runs = _runs(smooth)
    for before, (kind, first, end), after in zip(runs, runs[1:], runs[2:], strict=False):
        if kind == _OUTSIDE and before[0] == _FORWARD and after[0] == _BACKWARD:
            smooth[first:end] = _FORWARD
    runs = _runs(smooth)
    begins = [int(born[first]) - 1 for _, first, _ in runs] + [states - 1]
    return tuple(
        Phase(_PHASE_NAMES[kind], begins[index], begins[index + 1] + 1)
        for index, (kind, _, _) in enumerate(runs)
        if kind != _OUTSIDE
    )


# --- categories


def _categories(
    lives: Lifetimes, trait: npt.NDArray[np.uint8], size_bytes: Column, phases: tuple[Phase, ...]
) -> npt.NDArray[np.uint8]:
    names = np.array([*(phase.name for phase in phases), ""])
    born_in = _phase_of(lives.born, phases)
    died_in = names[_phase_of(lives.died, phases)]
    phase, end = names[born_in], np.array([*(phase.end for phase in phases), 0])[born_in]
    # Without any phase, lifetimes say nothing about the purpose.
    passing = (lives.died < lives.states) & bool(phases)
    before, stays, outlives = lives.born == 0, lives.died == lives.states, lives.died >= end
    optimizer, backward = (trait & _Trait.OPTIMIZER) > 0, (trait & _Trait.BACKWARD) > 0
    building = ((trait & _Trait.BUILDING) > 0) & ~optimizer & ~backward & ((trait & _Trait.MODULE) == 0)
    workspace = ((trait & _Trait.WORKSPACE) > 0) | ((size_bytes == CUBLAS_WORKSPACE_BYTES) & stays)
    category = np.select(
        [
            workspace,
            building & stays,
            optimizer & (outlives | before),
            optimizer,
            before & (trait != 0) & backward,
            before & (died_in == "backward"),
            before & passing & (trait == 0),
            before & passing,
            phase == "backward",
            (phase == "forward") & outlives,
            phase == "forward",
            (phase == "") & passing & _reaches_model(lives, phases),
            (phase == "") & passing,
        ],
        [
            _CODE["workspace"],
            _CODE["parameters"],
            _CODE["optimizer state"],
            _CODE["temporaries"],
            _CODE["gradients"],
            _CODE["activations"],
            # Released between steps, where zero_grad runs.
            _CODE["gradients"],
            _CODE["activations"],
            np.where(outlives, _CODE["gradients"], _CODE["temporaries"]),
            _CODE["activations"],
            _CODE["temporaries"],
            _CODE["inputs"],
            _CODE["temporaries"],
        ],
        UNKNOWN,
    ).astype(np.uint8)
    residents = np.flatnonzero(before & stays & (trait == 0) & (category == UNKNOWN))
    gradients = np.flatnonzero((category == _CODE["gradients"]) & (phase == "backward"))
    if len(residents) and len(gradients):
        # Use the step with the most gradients.
        steps, counts = np.unique(born_in[gradients], return_counts=True)
        of_one_step = gradients[born_in[gradients] == steps[np.argmax(counts)]]
        category[residents] = _residents(size_bytes[residents], size_bytes[of_one_step])
    return category


def _phase_of(state: npt.NDArray[np.int64], phases: tuple[Phase, ...]) -> npt.NDArray[np.int64]:
    """Position of the phase whose events lead to each state; the number of phases for states outside all phases."""
    if not phases:
        return np.zeros(len(state), np.int64)
    first = np.array([phase.first for phase in phases])
    end = np.array([phase.end for phase in phases])
    place = np.searchsorted(first, state, side="left") - 1
    return np.where((place >= 0) & (state < end[place]), place, len(phases))


def _reaches_model(lives: Lifetimes, phases: tuple[Phase, ...]) -> npt.NDArray[np.bool_]:
    """Whether an allocation made outside all phases lives until the next forward, as a batch does."""
    starts = np.array([phase.first for phase in phases if phase.name == "forward"] + [lives.states])
    following = starts[np.minimum(np.searchsorted(starts, lives.born), len(starts) - 1)]
    return (following < lives.states) & (lives.died > following)


def _residents(size_bytes: Column, gradients_bytes: Column) -> npt.NDArray[np.uint8]:
    """Categories of memory that is always live and has no stack: parameters and optimizer state, told apart by count.

    There is one gradient for each parameter, of the same size. For each size, as many residents as gradients are
    parameters, in the order of addresses; the others are state (two for each parameter under Adam).
    """
    category = np.full(len(size_bytes), UNKNOWN, np.uint8)
    for size in np.unique(size_bytes):
        alike = np.flatnonzero(size_bytes == size)
        parameters = int((gradients_bytes == size).sum())
        if parameters:
            category[alike[:parameters]] = _CODE["parameters"]
            category[alike[parameters:]] = _CODE["optimizer state"]
    return category

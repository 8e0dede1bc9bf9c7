"""Meaning of the ranges in a trace: each marks a step, a phase, or a module of the model.

`sysbench.lab.ranges` lists the ranges of sysbench's own workload. Ranges of other programs are recognised by name:
`ProfilerStep#4` and `my_step_4` are steps, `Optimizer.step#AdamW.step` is the optimizer, and any other range marks a
submodule of the enclosing module. A range in a step is no other step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from sysbench.trace.columns import Nesting, depths, distinct, map_distinct, take_or_none
from sysbench.trace.recording import NAME, NONE, Integers, Ranges, Recording
from sysbench.trace.summary import PHASES

BACKWARD: Final = PHASES.index("backward")
FORWARD: Final = PHASES.index("forward")

MAX_NAME_LENGTH: Final = 200
"""Maximum length of a range's name in a module path, in characters."""
_MAX_PATH_DEPTH: Final = 32

_PHASE_NAMES: Final = (
    re.compile(r"zero[ _-]?grad(ients)?|Optimizer\.zero_grad#.*", re.IGNORECASE),
    re.compile(r"(forward|fwd)([ _-]?pass)?|DistributedDataParallel\.forward", re.IGNORECASE),
    re.compile(r"(compute[ _-]?)?loss", re.IGNORECASE),
    re.compile(r"(backward|bwd)([ _-]?pass)?", re.IGNORECASE),
    re.compile(r"optimi[sz]er([ _-]?step)?|Optimizer\.step#.*", re.IGNORECASE),
)
_STEP_NAMES: Final = (
    re.compile(r"step"),
    re.compile(r"ProfilerStep#?\*?\d*"),
    re.compile(r"((train(ing)?[ _-]?)?step|iter(ation)?)[ _#:-]*\d+", re.IGNORECASE),
)
"""Groups of step names, preferred first. Only ranges in the first group that occurs in the trace mark steps."""
_OWN_STEP_NAMES: Final = re.compile(r"(?!.*optim)[\w .:/#-]*(step|iter(ation)?|batch)[ _#:/-]*\d+", re.IGNORECASE)
"""Names that mark steps if no range has one of `_STEP_NAMES`: `my_step_12`."""
_MODULE_PATH: Final = re.compile(r"\w+(\.\w+)*")


@dataclass(frozen=True)
class RangeTree:
    """Ranges with their step, phase and module; one row for each range of the trace."""

    nesting: Nesting
    start_ns: Integers
    step: Integers
    """Number of the step, in chronological order; NONE outside all steps."""
    phase: Integers
    """Position in PHASES, or NONE."""
    module: Integers
    """Position in `modules`."""
    modules: tuple[str, ...]
    """Module paths; the first is the whole model, whose name is empty."""
    step_start_ns: Integers
    step_end_ns: Integers
    """Start and end of every step on the host, by step number."""
    step_name: Integers
    """Name of the range that marks each step."""
    marked_start_ns: Integers
    """Start of every marked step, also of those that are not counted."""
    marked_step: Integers
    """Number of every marked step; NONE if it is not counted."""
    milestones: Nesting
    """Ranges of steps and phases on all threads. They classify work on threads without such ranges of their own."""
    milestone: Integers
    """For each range in `milestones`, its index among all ranges."""

    @property
    def steps(self) -> int:
        """Return the number of marked steps."""
        return len(self.step_start_ns)

    @property
    def steps_left_out(self) -> int:
        """Return the number of marked steps that are not counted."""
        return len(self.marked_step) - self.steps

    def last_step_begun(self, at_ns: Integers) -> Integers:
        """For each time, return the number of the last step that began before it; NONE if there is none."""
        found = np.searchsorted(self.marked_start_ns, at_ns, side="right") - 1
        return take_or_none(self.marked_step, found)

    def without_steps_at(self, at_ns: Integers) -> RangeTree:
        """Return the tree without the steps that contain one of these times, unless that leaves no step."""
        last = np.searchsorted(self.step_start_ns, at_ns, side="right") - 1
        left_out = np.zeros(self.steps, bool)
        left_out[
            [
                row
                for row, at in zip(last.tolist(), at_ns.tolist(), strict=True)
                if row >= 0 and at < self.step_end_ns[row]
            ]
        ] = True
        if left_out.all() or not left_out.any():
            return self
        number = np.where(left_out, NONE, np.cumsum(~left_out) - 1)
        return replace(
            self,
            step=take_or_none(number, self.step),
            step_start_ns=self.step_start_ns[~left_out],
            step_end_ns=self.step_end_ns[~left_out],
            step_name=self.step_name[~left_out],
            marked_step=number,
        )

    def at(self, thread: Integers, at_ns: Integers) -> Integers:
        """For each time on a thread, return the index of the innermost range; NONE if there is none."""
        return self.nesting.innermost(thread, at_ns)

    def module_at(self, thread: Integers, at_ns: Integers) -> Integers:
        """For each time on a thread, return the position of the module in `modules`; 0 outside all ranges."""
        return np.maximum(take_or_none(self.module, self.at(thread, at_ns)), 0)

    def milestone_at(self, at_ns: Integers) -> Integers:
        """For each time, return the index of the innermost step or phase range on any thread; NONE if there is none."""
        found = self.milestones.innermost(np.zeros(len(at_ns), np.int64), at_ns)
        return take_or_none(self.milestone, found)


_STEP: Final = len(PHASES)
_TRANSPARENT: Final = _STEP + 1
_MODULE: Final = _STEP + 2
"""Meanings of names in addition to PHASES: a step, a step name that does not mark steps, a module."""

_FROM_TORCH: Final = (PHASES.index("zero_grad"), PHASES.index("optimizer"))
"""Phases that torch marks itself."""

_FROM_DDP: Final = "DistributedDataParallel.forward"
"""Range in which DDP calls the model; it adds nothing to module paths."""


def read(ranges: Ranges, names: Sequence[str], step_pattern: str | None = None) -> RangeTree:
    """Determine the meaning of each range from its name and its enclosing ranges, one nesting depth at a time.

    `step_pattern` is a regular expression for the names of steps, instead of the usual ones.
    """
    nesting = Nesting.of(ranges.thread, ranges.start_ns, ranges.duration_ns)
    parents, count = nesting.parents, len(ranges.name)
    meaning = _meanings(ranges.name, names, step_pattern)[ranges.name] if count else np.zeros(0, np.int64)
    depth = depths(parents)
    order = np.argsort(depth, kind="stable")
    levels = np.searchsorted(depth[order], np.arange(int(depth.max(initial=-1)) + 2))
    step, phase, module = np.full(count, NONE, np.int64), np.full(count, NONE, np.int64), np.zeros(count, np.int64)
    modules = _Modules(names)
    from_ddp = ranges.name == (names.index(_FROM_DDP) if _FROM_DDP in names else NONE)
    for first, beyond in pairwise(levels.tolist()):
        rows = order[first:beyond]
        parent = parents[rows]
        outer_step = np.where(parent == NONE, NONE, step[parent])
        # A range with the name of a step within a step, such as a round of gradient accumulation, is a module.
        meaning[rows[(meaning[rows] == _STEP) & (outer_step != NONE)]] = _MODULE
        row_meaning = meaning[rows]
        outer_phase = np.where(parent == NONE, NONE, phase[parent])
        outer_module = np.where(parent == NONE, 0, module[parent])
        is_step = row_meaning == _STEP
        is_phase = (row_meaning < _STEP) & (outer_phase == NONE)
        # A range `forward` inside forward is a module of that name. torch's own ranges add nothing.
        is_from_torch = np.isin(row_meaning, _FROM_TORCH) | from_ddp[rows]
        is_module = (row_meaning == _MODULE) | ((row_meaning < _STEP) & ~is_phase & ~is_from_torch)
        step[rows] = np.where(is_step, rows, outer_step)
        phase[rows] = np.where(is_step, NONE, np.where(is_phase, row_meaning, outer_phase))
        module[rows] = np.where(is_step | is_phase, 0, outer_module)
        module[rows[is_module]] = modules.numbers_of(outer_module[is_module], ranges.name[rows[is_module]])
    step_ranges = np.flatnonzero(meaning == _STEP)
    step_ranges = step_ranges[np.argsort(ranges.start_ns[step_ranges], kind="stable")]
    step_numbers = np.full(count, NONE, np.int64)
    step_numbers[step_ranges] = np.arange(len(step_ranges))
    milestone = np.flatnonzero(meaning <= _STEP)
    milestones = Nesting.of(
        np.zeros(len(milestone), np.int64), ranges.start_ns[milestone], ranges.duration_ns[milestone]
    )
    return RangeTree(
        nesting=nesting,
        start_ns=ranges.start_ns,
        step=take_or_none(step_numbers, step),
        phase=phase,
        module=module,
        modules=tuple(modules.paths),
        step_start_ns=ranges.start_ns[step_ranges],
        step_end_ns=(ranges.start_ns + ranges.duration_ns)[step_ranges],
        step_name=ranges.name[step_ranges],
        marked_start_ns=ranges.start_ns[step_ranges],
        marked_step=np.arange(len(step_ranges), dtype=np.int64),
        milestones=milestones,
        milestone=milestone,
    )


def of(recording: Recording) -> RangeTree:
    """Determine the meaning of the ranges of a recording. Steps that have lost device work are not counted."""
    tree = read(Ranges(*recording.ranges.columns()), recording.names, recording.step_pattern)
    return tree.without_steps_at(np.array(recording.lost_launches_ns, np.int64))


def step_names(used: Integers, names: Sequence[str], step_pattern: str | None) -> list[int]:
    """Return the indices in `names` of the names, among those in `used`, that mark steps."""
    return np.flatnonzero(_meanings(used, names, step_pattern) == _STEP).tolist()


def range_names(recording: Recording) -> frozenset[str]:
    """Return the names of all ranges, as long as they are compared with patterns."""
    used = distinct(recording.ranges.column(NAME)).tolist()
    return frozenset(recording.names[name][:MAX_NAME_LENGTH] for name in used)


def _meanings(used: Integers, names: Sequence[str], step_pattern: str | None) -> Integers:
    """Return the meaning of each name: a position in PHASES, or `_STEP`, `_TRANSPARENT` or `_MODULE`."""
    meaning = np.full(len(names), _MODULE, np.int64)
    texts = {name: names[name][:MAX_NAME_LENGTH] for name in distinct(used).tolist()}
    families = (*_STEP_NAMES, _OWN_STEP_NAMES) if step_pattern is None else (re.compile(step_pattern),)
    family = next((family for family in families if any(map(family.fullmatch, texts.values()))), None)
    for name, text in texts.items():
        phase = next((number for number, pattern in enumerate(_PHASE_NAMES) if pattern.fullmatch(text)), None)
        is_step = family is not None and family.fullmatch(text) is not None
        if phase is not None and not (is_step and step_pattern):
            meaning[name] = phase
        elif is_step:
            meaning[name] = _STEP
        elif any(pattern.fullmatch(text) for pattern in _STEP_NAMES):
            meaning[name] = _TRANSPARENT
    return meaning


class _Modules:
    """Module paths, numbered in order of first appearance; the first is the whole model."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.paths = [""]
        self._numbers = {"": 0}
        self._children: dict[int, int] = {}

    def numbers_of(self, outer: Integers, name: Integers) -> Integers:
        """Return the number of each module, given its parent's number and the index of its own name."""
        return map_distinct(self._number_of, outer * len(self._names) + name)

    def _number_of(self, pair: int) -> int:
        if pair not in self._children:
            parent, child = divmod(pair, len(self._names))
            path = module_path(self.paths[parent], self._names[child])
            if path not in self._numbers:
                self._numbers[path] = len(self.paths)
                self.paths.append(path)
            self._children[pair] = self._numbers[path]
        return self._children[pair]


def module_path(outer: str, name: str) -> str:
    """Return the path of the range `name` within `outer`; a name that is already a path is returned unchanged."""
    text = name[:MAX_NAME_LENGTH]
    if not (_MODULE_PATH.fullmatch(text) and text.count(".") < _MAX_PATH_DEPTH):
        # Replace dots within a name, so that they do not look like separators of the path.
        text = text.replace(".", "․") or "(no name)"
    if not outer or text.startswith(f"{outer}."):
        return text
    return f"{outer}.{text}" if outer.count(".") < _MAX_PATH_DEPTH else outer

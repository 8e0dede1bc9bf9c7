"""From a trace to what its tables are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from sysbench import hardware as known_hardware
from sysbench.analysis import kernel_classes, kernel_names, profile_checks, profile_rates, work_estimate
from sysbench.analysis.attention_parts import PARTS
from sysbench.analysis.attribution import Attribution, Work, attribute
from sysbench.analysis.device_use import device_use
from sysbench.analysis.grouping import distinct, grouped, summed
from sysbench.analysis.intervals import Stretches, union
from sysbench.analysis.kernel_statistics import Calls
from sysbench.analysis.operator_statistics import operator_statistics
from sysbench.analysis.range_tree import PHASES
from sysbench.analysis.trace import KERNEL, NONE, Integers, Trace
from sysbench.profile_summary import (
    EVERYWHERE,
    NO_PHASE,
    CopyStatistics,
    KernelClass,
    KernelName,
    KernelStatistics,
    ProfileSummary,
    Rate,
    SpentColumns,
)

if TYPE_CHECKING:
    from sysbench.hardware import Hardware
    from sysbench.specs.model import ModelCell

MOST_MODULES: Final = 4000
"""Modules that are told apart; where there are more, time is counted for what encloses them."""
MOST_RANGES: Final = 80
"""Folded modules that have kernel tables of their own: those that take most time."""
MOST_KERNELS: Final = 100
"""Kernels whose statistics are kept for each range: those that take most time in it. The time of all is in `spent`."""
_NUMBER: Final = re.compile(r"(^|\.)\d+(?=\.|$)")

STEP: Final = "step"
"""The range that is everything."""


def folded(path: str) -> str:
    """`layers.*.attention` for `layers.3.attention`: what stands for every layer."""
    return _NUMBER.sub(r"\1*", path)


def summarise(
    trace: Trace, cell: ModelCell | None = None, *, device: Hardware | None = None, ranges: Sequence[str] = ()
) -> ProfileSummary:
    """Everything that is shown of a trace.

    `cell` is the cell that was profiled, where it was one of ours: what is known of its model is held against the
    trace. `device` is the hardware, which is otherwise looked for under the name that the trace gives. `ranges` names
    modules that shall have a kernel table beside those that have one anyway (`layers.3.attention`, `forward/layers.3`).
    """
    whole = _Whole(trace, attribute(trace))
    return ProfileSummary(
        title=trace.title,
        format=trace.format,
        source=whole.work.source,
        devices=list(trace.devices),
        rank=trace.rank,
        steps=whole.steps,
        steps_marked=whole.steps_marked,
        window_ns=whole.windows.total_ns,
        busy_ns=whole.busy_ns,
        left_out=int((~whole.counted).sum()),
        left_out_ns=int(whole.found.work.duration_ns[~whole.counted].sum()),
        unlinked_ns=int(whole.work.duration_ns[whole.work.thread == NONE].sum()),
        phases=list(whole.phases),
        modules=list(whole.modules),
        names=whole.names,
        spent=whole.spent,
        kernels=list(_kernels(whole, ranges)),
        operators=operator_statistics(trace, whole.found, whole.operators_counted, whole.counted),
        copies=_copies(whole),
        device=device_use(whole.work, trace.launches, whole.windows) if whole.work.source == "device" else None,
        precisions=_precisions(whole),
        rates=list(_rates(whole, cell, device)),
        checks=list(
            profile_checks.checks(
                cell, whole.steps, whole.work, whole.operator, whole.names, whole.kernel, whole.phase_names
            )
        ),
        remarks=list(trace.remarks),
    )


class _Whole:
    """A trace with everything that several parts of its summary need."""

    def __init__(self, trace: Trace, found: Attribution) -> None:
        self.trace = trace
        self.found = found
        self.steps_marked = found.ranges.steps > 0
        self.steps = max(found.ranges.steps, 1)
        step = _steps(found)
        self.counted = step != NONE if self.steps_marked else np.ones(len(step), bool)
        self.work = _only(found.work, self.counted)
        self.step = step[self.counted]
        self.phase = found.phase[self.counted] + 1
        """Position in `phases`."""
        self.phases = (NO_PHASE, *PHASES)
        self.operator = found.operator[self.counted]
        self.modules, self.module = _bounded(found.ranges.modules, found.module[self.counted], self.work)
        self.kernels, self.kernel = grouped(self.work.name)
        """Distinct names, as the trace numbers them, and for every piece of work its position among them."""

    @cached_property
    def names(self) -> list[KernelName]:
        texts = [self.trace.names[name] for name in self.kernels.tolist()]
        return [_named(text) for text in texts]

    @property
    def phase_names(self) -> NDArray[np.str_]:
        """Of every piece of work."""
        return np.asarray(np.array(self.phases)[self.phase], np.str_)

    @cached_property
    def windows(self) -> Stretches:
        """The steps, each from its beginning until host and device are done with it."""
        starts, ends = self.found.ranges.step_start_ns, self.found.ranges.step_end_ns
        finished = self.work.start_ns + self.work.duration_ns
        if not self.steps_marked:
            if not len(finished):
                return Stretches(starts, ends)
            begin = min(int(self.work.start_ns.min()), int(self.work.at_ns.min()))
            return Stretches(np.array([begin], np.int64), np.array([int(finished.max())], np.int64))
        ends = ends.copy()
        if self.work.source == "device":
            np.maximum.at(ends, self.step, finished)
        return union(starts, ends)

    @cached_property
    def busy_ns(self) -> int:
        work = self.work
        if work.source == "device":
            return union(work.start_ns, work.start_ns + work.duration_ns).total_ns
        operators = self.trace.operators
        start = operators.start_ns[self.counted]
        return union(start, start + operators.duration_ns[self.counted]).total_ns

    @cached_property
    def operators_counted(self) -> NDArray[np.bool_]:
        """Operators in steps."""
        operators, ranges = self.trace.operators, self.found.ranges
        if not self.steps_marked:
            return np.ones(len(operators.name), bool)
        if self.work.source == "cpu":
            return self.counted
        around = ranges.at(operators.thread, operators.start_ns)
        elsewhere = ranges.milestone_at(operators.start_ns)
        here = np.where(around == NONE, NONE, ranges.step[around])
        there = np.where(elsewhere == NONE, NONE, ranges.step[elsewhere])
        return np.asarray((here != NONE) | (there != NONE))

    @cached_property
    def spent(self) -> SpentColumns:
        """Time and calls by phase, module and kernel."""
        keys = (self.phase * len(self.modules) + self.module) * len(self.kernels) + self.kernel
        spent, which = grouped(keys)
        outer, kernel = np.divmod(spent, max(len(self.kernels), 1))
        phase, module = np.divmod(outer, len(self.modules))
        return SpentColumns(
            phase=phase.tolist(),
            module=module.tolist(),
            kernel=kernel.tolist(),
            total_ns=summed(self.work.duration_ns, which, len(spent)).tolist(),
            calls=np.bincount(which, minlength=len(spent)).tolist(),
        )


def _steps(found: Attribution) -> Integers:
    """The step of every piece of work; what no launch is known of belongs to the last step that began before it."""
    before = np.searchsorted(found.ranges.step_start_ns, found.work.start_ns, side="right") - 1
    return np.where((found.step == NONE) & (found.work.thread == NONE), before, found.step)


def _only(work: Work, chosen: NDArray[np.bool_]) -> Work:
    if chosen.all():
        return work
    columns: dict[str, Any] = {
        name: column[chosen] for name, column in vars(work).items() if isinstance(column, np.ndarray)
    }
    return replace(work, **columns)


def _bounded(modules: tuple[str, ...], module: Integers, work: Work) -> tuple[tuple[str, ...], Integers]:
    """The modules that did something, in the order in which they began, and each row's position among them.

    Where they are too many, those that take most time: what is not told apart counts for the nearest one around it.
    """
    total = summed(work.duration_ns, module, len(modules))
    begun = np.full(len(modules), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(begun, module, work.at_ns)
    used = np.flatnonzero(np.bincount(module, minlength=len(modules)))
    kept = used[np.argsort(-total[used], kind="stable")][:MOST_MODULES]
    numbers = {EVERYWHERE: 0}
    for number in kept[np.argsort(begun[kept], kind="stable")].tolist():
        numbers.setdefault(modules[number], len(numbers))
    place = np.zeros(len(modules), np.int64)
    for number in used.tolist():
        path = modules[number]
        while path not in numbers:
            path = path.rpartition(".")[0]
        place[number] = numbers[path]
    return tuple(numbers), place[module]


def _named(text: str) -> KernelName:
    kind = kernel_classes.classified(text)
    return KernelName(
        name=text,
        short=kernel_names.shortened(text),
        kernel_class=kind or "other",
        placed=kind is not None,
        precision=kernel_classes.precision(text) if kind in ("matmul", "attention") else None,
    )


def _precisions(whole: _Whole) -> dict[str, int]:
    """Time of matrix products by the format in their names."""
    total = summed(whole.work.duration_ns, whole.kernel, len(whole.kernels))
    found: dict[str, int] = {}
    for name, total_ns in zip(whole.names, total.tolist(), strict=True):
        if name.kernel_class in ("matmul", "attention"):
            known = name.precision or "unknown"
            found[known] = found.get(known, 0) + total_ns
    return found


def _copies(whole: _Whole) -> list[CopyStatistics]:
    """Memory copied and set by the driver; copies that kernels make are among the kernels."""
    rows = []
    for kernel, name in enumerate(whole.names):
        here = (whole.kernel == kernel) & (whole.work.kind != KERNEL)
        if not here.any():
            continue
        moved = whole.work.bytes[here]
        rows.append(
            CopyStatistics(
                name=name.name,
                calls=int(here.sum()),
                total_ns=int(whole.work.duration_ns[here].sum()),
                bytes=int(moved.sum()) if (moved != NONE).all() else None,
            )
        )
    return sorted(rows, key=lambda row: -row.total_ns)


def _rates(whole: _Whole, cell: ModelCell | None, device: Hardware | None) -> Iterator[Rate]:
    """Attention's parts, then classes of kernels."""
    if whole.work.source == "cpu":
        hardware = None
    else:
        hardware = device or (known_hardware.find(whole.trace.devices[0]) if whole.trace.devices else None)
    by_part = profile_rates.by_part(whole.spent, whole.phases, whole.modules)
    by_class = profile_rates.by_class(whole.spent, whole.phases, whole.names)
    fused = any(part == "attention" for part, _ in by_class)
    classes = work_estimate.classes(cell, fused) if cell else _products_from_shapes(whole)
    for spent, amounts, order, kind in (
        (by_part, work_estimate.attention_parts(cell) if cell else {}, PARTS, "attention"),
        (by_class, classes, get_args(KernelClass), "class"),
    ):
        yield from profile_rates.rates(
            spent,
            amounts,
            order,
            kind,
            precision=cell.precision if cell else None,
            hardware=hardware,
            from_model=cell is not None,
        )


def _products_from_shapes(whole: _Whole) -> work_estimate.Amounts:
    """FLOPs of matrix products by phase, of one step; nothing where any product's shapes are missing."""
    operators = whole.trace.operators
    is_product = np.array([name.kernel_class == "matmul" for name in whole.names], bool)
    rows = np.flatnonzero(is_product[whole.kernel] & (whole.work.duration_ns > 0))
    launched = whole.operator[rows]
    if not len(rows) or (launched == NONE).any() or (operators.shapes[launched] == NONE).any():
        return {}
    caused, first = np.unique(launched, return_index=True)
    width = len(whole.trace.names)
    pairs, which = grouped(operators.name[caused] * width + operators.shapes[caused])
    flops = [
        profile_rates.product_flops(whole.trace.names[name], whole.trace.names[shapes])
        for name, shapes in (divmod(pair, width) for pair in pairs.tolist())
    ]
    found: work_estimate.Amounts = {}
    phases = whole.phase[rows[first]]
    for phase in distinct(phases).tolist():
        here = np.bincount(which[phases == phase], minlength=len(flops)).tolist()
        known = [each * times for each, times in zip(flops, here, strict=True) if each is not None and times]
        if len(known) == sum(times > 0 for times in here):
            found["matmul", whole.phases[phase]] = work_estimate.Amount(sum(known) // whole.steps, None)
    return found


# --- kernels by range


@dataclass(frozen=True)
class _Range:
    """What a range's kernels are chosen by: modules, and a phase or all of them."""

    name: str
    modules: NDArray[np.bool_]
    """For every module, whether it belongs to it."""
    phase: int | None


def _kernels(whole: _Whole, asked: Sequence[str]) -> Iterator[KernelStatistics]:
    calls = Calls.of(whole.kernel, whole.work.duration_ns, whole.work.launch_shape, whole.trace.work.launch_shapes)
    module, phase = whole.module[calls.place], whole.phase[calls.place]
    for each in _ranges(whole, asked):
        chosen = each.modules[module]
        chosen = chosen if each.phase is None else chosen & (phase == each.phase)
        yield from calls.within(each.name, chosen)[:MOST_KERNELS]


def _ranges(whole: _Whole, asked: Sequence[str]) -> Iterator[_Range]:
    everywhere = np.ones(len(whole.modules), bool)
    present = [phase for phase in distinct(whole.phase).tolist() if whole.phases[phase] != NO_PHASE]
    yield _Range(STEP, everywhere, None)
    for phase in present:
        yield _Range(whole.phases[phase], everywhere, phase)
    done = set()
    for name in [*_folded_by_time(whole), *asked]:
        before, slash, path = name.rpartition("/")
        wanted = [whole.phases.index(before)] if slash and before in whole.phases else present
        modules = _below(whole.modules, path)
        if path in done or not modules.any():
            continue
        done.add(path)
        if not slash:
            yield _Range(path, modules, None)
        for phase in wanted:
            yield _Range(f"{whole.phases[phase]}/{path}", modules, phase)


def _below(modules: Sequence[str], path: str) -> NDArray[np.bool_]:
    """The modules at the path, folded or not, and below it."""
    candidates = (folded(module) if "*" in path else module for module in modules)
    return np.array([module == path or module.startswith(f"{path}.") for module in candidates], bool)


def _folded_by_time(whole: _Whole) -> list[str]:
    """Folded modules, those that take most time together with everything below them first."""
    total: dict[str, int] = {}
    spent = summed(whole.work.duration_ns, whole.module, len(whole.modules))
    for path, total_ns in zip(whole.modules, spent.tolist(), strict=True):
        parts = folded(path).split(".") if path else []
        for depth in range(1, len(parts) + 1):
            above = ".".join(parts[:depth])
            total[above] = total.get(above, 0) + total_ns
    # `layers` says the same as `layers.*`.
    counted = [path for path in total if f"{path}.*" not in total]
    return sorted(counted, key=lambda path: -total[path])[:MOST_RANGES]

"""What the tables of profiles have in common: which profiles are shown, and what their time was spent on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sysbench.errors import UsageError, unknown
from sysbench.render.stack_lines import matching
from sysbench.render.table import Cell, Column, Measure, Table
from sysbench.spec.run import Selection
from sysbench.trace.kernel_statistics import STEP, folded
from sysbench.trace.range_tree import PHASES
from sysbench.trace.summary import KernelName, ProfileSummary

NS: Final = 1e-9
"""Seconds in a nanosecond."""

OTHERS: Final = "others"

FORWARD_BACKWARD: Final = ("forward", "loss", "backward")


@dataclass(frozen=True)
class Spent:
    """Time and calls of one kernel in one module and phase, over all steps."""

    phase: str
    module: str
    kernel: int
    total_ns: int
    calls: int


@dataclass(frozen=True)
class Shown:
    """One profile among those that are shown; `leading` tells it from the others."""

    leading: tuple[Cell, ...]
    summary: ProfileSummary

    @cached_property
    def spent(self) -> tuple[Spent, ...]:
        """Everything that time was spent on."""
        columns, summary = self.summary.spent, self.summary
        rows = zip(columns.phase, columns.module, columns.kernel, columns.total_ns, columns.calls, strict=True)
        return tuple(
            Spent(summary.phases[phase], summary.modules[module], kernel, total_ns, calls)
            for phase, module, kernel, total_ns, calls in rows
        )

    @property
    def total_ns(self) -> int:
        """All of it."""
        return sum(self.summary.spent.total_ns)

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases that took time, in order."""
        present = {self.summary.phases[phase] for phase in self.summary.spent.phase}
        return tuple(phase for phase in PHASES if phase in present)

    def name(self, spent: Spent) -> KernelName:
        """Of the kernel."""
        return self.summary.names[spent.kernel]

    def class_of(self, spent: Spent) -> str:
        """What the kernel does there."""
        return self.name(spent).class_in(spent.phase)

    def per_step(self, total_ns: float) -> Measure:
        """A time over all steps, as one of a single step."""
        return Measure(total_ns * NS / self.summary.steps)

    def calls_per_step(self, calls: int) -> Measure:
        """A number over all steps, as one of a single step."""
        return Measure(calls / self.summary.steps)


@dataclass(frozen=True)
class Profiles:
    """All profiles that are shown, and which part of them is wanted."""

    columns: tuple[Column, ...]
    """Headings of what tells them apart."""
    each: tuple[Shown, ...]
    selection: Selection

    @property
    def work(self) -> str:
        """What the rows of a kernel table are."""
        sources = {shown.summary.source for shown in self.each}
        return "operator" if sources == {"cpu"} else "kernel"

    @cached_property
    def launches_recorded(self) -> bool:
        """Whether any of the profiles knows with how many threads kernels were launched."""
        return any(row.launch_shapes for shown in self.each for row in shown.summary.kernels)

    def table(
        self,
        name: str,
        title: str,
        columns: Sequence[Column],
        rows: Callable[[Shown], Iterator[tuple[Cell, ...]]],
        axes: int = 1,
        notes: Sequence[str] = (),
    ) -> list[Table]:
        """A table of all profiles below each other; none where there is not a single row."""
        made = tuple((*shown.leading, *row) for shown in self.each for row in rows(shown))
        if not made:
            return []
        return [Table(name, title, (*self.columns, *columns), made, len(self.columns) + axes, tuple(notes))]

    def wanted(self, name: str) -> bool:
        """Whether the selection's pattern, if there is one, is found in a name as it was recorded."""
        return self.selection.kernel is None or name in self._matching

    def chosen(self, shown: Shown) -> list[Spent]:
        """What was spent in the range that was asked for, on kernels whose names are wanted; raises as `within`."""
        here = within(shown, self.selection.range)
        return [each for each in shown.spent if here.holds(each) and self.wanted(shown.name(each).name)]

    @cached_property
    def _matching(self) -> frozenset[str]:
        """All names in which the pattern is found: looked for once, since a pattern can take for ever."""
        names = {name.name for shown in self.each for name in shown.summary.names}
        names |= {operator.name for shown in self.each for operator in shown.summary.operators}
        return matching(self.selection.kernel, names) if self.selection.kernel else frozenset(names)


@dataclass(frozen=True)
class Within:
    """A range as somebody asked for it: a phase, modules with what is below them, or both; without either, all."""

    name: str
    phase: str | None
    path: str

    def holds(self, spent: Spent) -> bool:
        """Whether it was spent there."""
        return (self.phase is None or spent.phase == self.phase) and self._below(spent.module)

    def _below(self, module: str) -> bool:
        if not self.path:
            return True
        candidate = folded(module) if "*" in self.path else module
        return candidate == self.path or candidate.startswith(f"{self.path}.")


def within(shown: Shown, asked: str | None) -> Within:
    """The range that is meant: `forward`, `layers.*.attention`, `backward/softmax`; the last parts of a path suffice.

    Raises UsageError where there is none of the name, or several.
    """
    if asked is None or asked == STEP:
        return Within(STEP, None, "")
    if asked in shown.phases:
        return Within(asked, asked, "")
    before, slash, path = asked.partition("/")
    phase = before if slash and before in shown.phases else None
    path = path if phase else asked
    known = _paths(shown.summary.modules)
    if path in known:
        return Within(f"{phase}/{path}" if phase else path, phase, path)
    ending = sorted({folded(each) for each in known if each.endswith(f".{path}")})
    if len(ending) == 1:
        return Within(f"{phase}/{ending[0]}" if phase else ending[0], phase, ending[0])
    if ending:
        raise UsageError(f"--range {asked} could be any of {', '.join(ending[:6])}: write more of it")
    raise UsageError(f"--range {unknown(asked, 'a range of this profile', _offered(shown, known))}")


MOST_OFFERED: Final = 30


def _offered(shown: Shown, known: Mapping[str, None]) -> list[str]:
    """Ranges to choose from, as long as a line may be."""
    return [STEP, *shown.phases, *dict.fromkeys(folded(each) for each in known)][:MOST_OFFERED]


def _paths(modules: Sequence[str]) -> dict[str, None]:
    """Every module and every one above it, by itself and folded."""
    found: dict[str, None] = {}
    for module in modules:
        parts = module.split(".") if module else []
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            found[path] = None
            found[folded(path)] = None
    return found


def top(count: int, total: int) -> int:
    """How many rows of `total` are shown; 0 asks for all."""
    return total if count == 0 else min(count, total)

"""The profiles that tables show: what their time was spent on, and which part of it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sysbench.commands.profile.record import ProfileRecord
from sysbench.errors import UsageError, unknown
from sysbench.render.table import Cell, Column, Measure
from sysbench.spec.run import Selection
from sysbench.trace.range_tree import PHASES
from sysbench.trace.stack_lines import matching
from sysbench.trace.summary import STEP, KernelClass, KernelName, ProfileSummary, ancestry, folded

NS: Final = 1e-9
"""Seconds in a nanosecond."""

MOST_OFFERED: Final = 30
"""Ranges that a message lists."""


@dataclass(frozen=True)
class KernelTime:
    """Time and calls of one kernel in one module and phase, over all steps."""

    phase: str
    module: str
    number: int
    """Position in the profile's names."""
    name: KernelName
    total_ns: int
    calls: int

    @property
    def kernel_class(self) -> KernelClass:
        """The kernel's class in this phase."""
        return self.name.class_in(self.phase)


@dataclass(frozen=True)
class Profile:
    """One profile among those that are shown; `leading` tells it from the others."""

    leading: tuple[Cell, ...]
    summary: ProfileSummary

    @cached_property
    def times(self) -> tuple[KernelTime, ...]:
        """Everything that time was spent on."""
        columns, summary = self.summary.spent, self.summary
        rows = zip(columns.phase, columns.module, columns.kernel, columns.total_ns, columns.calls, strict=True)
        return tuple(
            KernelTime(summary.phases[phase], summary.modules[module], kernel, summary.names[kernel], total_ns, calls)
            for phase, module, kernel, total_ns, calls in rows
        )

    @property
    def total_ns(self) -> int:
        """The time of everything."""
        return sum(self.summary.spent.total_ns)

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases that took time, in order."""
        present = {self.summary.phases[phase] for phase in self.summary.spent.phase}
        return tuple(phase for phase in PHASES if phase in present)

    @property
    def label(self) -> str:
        """`rank 3`, or the file's name where it does not say its rank."""
        return f"rank {self.summary.rank}" if self.summary.rank is not None else self.summary.title

    def by_class(self, phases: Sequence[str] | None = None) -> dict[KernelClass, int]:
        """Nanoseconds of each kernel class, in some phases or in all."""
        found: dict[KernelClass, int] = {}
        for each in self.times:
            if phases is None or each.phase in phases:
                found[each.kernel_class] = found.get(each.kernel_class, 0) + each.total_ns
        return found

    def per_step(self, total_ns: float) -> Measure:
        """Seconds in a step, of nanoseconds over all steps."""
        return Measure(total_ns * NS / self.summary.steps)

    def calls_per_step(self, calls: int) -> Measure:
        """A count in a step, of one over all steps."""
        return Measure(calls / self.summary.steps)


@dataclass(frozen=True)
class Range:
    """A range that was asked for: a phase, modules with everything below them, or both; without either, all."""

    name: str
    phase: str | None
    path: str

    def holds(self, time: KernelTime) -> bool:
        """Whether this time was spent in the range."""
        if self.phase is not None and time.phase != self.phase:
            return False
        module = folded(time.module) if "*" in self.path else time.module
        return not self.path or module == self.path or module.startswith(f"{self.path}.")


def range_of(profile: Profile, asked: str | None) -> Range:
    """The range that is meant: `forward`, `layers.*.attention`, `backward/softmax`; the last parts of a path suffice.

    Raises UsageError where no range has this name, or several have.
    """
    if asked is None or asked == STEP:
        return Range(STEP, None, "")
    if asked in profile.phases:
        return Range(asked, asked, "")
    before, slash, path = asked.partition("/")
    phase = before if slash and before in profile.phases else None
    path = path if phase else asked
    above = (path for module in profile.summary.modules for path in ancestry(module))
    known = dict.fromkeys(each for path in above for each in (path, folded(path)))
    if path not in known:
        ending = sorted({folded(each) for each in known if each.endswith(f".{path}")})
        if len(ending) > 1:
            raise UsageError(f"--range {asked} could be any of {', '.join(ending[:6])}: write more of it")
        if not ending:
            offered = [STEP, *profile.phases, *dict.fromkeys(map(folded, known))][:MOST_OFFERED]
            raise UsageError(f"--range {unknown(asked, 'a range of this profile', offered)}")
        (path,) = ending
    return Range(f"{phase}/{path}" if phase else path, phase, path)


@dataclass(frozen=True)
class Profiles:
    """All profiles that are shown, and which part of them was asked for."""

    columns: tuple[Column, ...]
    """Headings of what tells them apart."""
    each: tuple[Profile, ...]
    selection: Selection
    record: ProfileRecord | None = None
    """The run that they are from; None for files of traces."""

    @property
    def predicted(self) -> bool:
        """Whether nothing in them was measured."""
        cells = self.record.cells if self.record else ()
        return any(cell.prediction for cell in cells) or (
            bool(self.each) and all(profile.summary.predicted for profile in self.each)
        )

    @property
    def work(self) -> str:
        """What the rows of a kernel table are."""
        return "operator" if {profile.summary.source for profile in self.each} == {"cpu"} else "kernel"

    @cached_property
    def launches_recorded(self) -> bool:
        """Whether any profile knows grids and blocks."""
        return any(row.launch_shapes for profile in self.each for row in profile.summary.kernels)

    def matches(self, name: str) -> bool:
        """Whether the selection's pattern, if there is one, is found in a name as it was recorded."""
        return self.selection.kernel is None or name in self._matching

    def chosen(self, profile: Profile) -> list[KernelTime]:
        """Time in the selected range, of kernels whose names match; raises as `range_of`."""
        here = range_of(profile, self.selection.range)
        return [each for each in profile.times if here.holds(each) and self.matches(each.name.name)]

    def top(self, count: int) -> int:
        """How many of so many rows are shown; `--top 0` asks for all."""
        return min(self.selection.top or count, count)

    @cached_property
    def slowest(self) -> int | None:
        """The position of the profile whose steps take longest; None where it does not stand out."""
        steps = [profile.summary.window_ns / profile.summary.steps for profile in self.each]
        *others, longest = sorted(steps)
        return steps.index(longest) if others and longest > (1 + SLOWER_SHARE) * others[-1] else None

    @cached_property
    def _matching(self) -> frozenset[str]:
        """All names in which the pattern is found: searched once and under a time limit, as patterns can be slow."""
        names = {name.name for profile in self.each for name in profile.summary.names}
        names |= {operator.name for profile in self.each for operator in profile.summary.operators}
        return matching(self.selection.kernel, names) if self.selection.kernel else frozenset(names)


SLOWER_SHARE: Final = 0.02
"""How much longer the slowest must take than the next to be marked."""

"""Profiles in the form that tables need: time by kernel, module and phase, restricted to the user's selection."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Final

from sysbench.commands.profile.record import Link, ProfileRecord
from sysbench.errors import UsageError, unknown
from sysbench.render.table import Cell, Column, Measure
from sysbench.spec.run import Selection
from sysbench.trace.ranks.summary import RanksSummary
from sysbench.trace.summary import STEP, KernelTime, ProfileSummary, ancestry, folded

NS: Final = 1e-9
"""Seconds in a nanosecond."""

MAX_SUGGESTIONS: Final = 30
"""Maximum number of ranges that a message lists."""


@dataclass(frozen=True)
class Profile:
    """One profile to show. `leading` holds the values that distinguish it from the other profiles."""

    leading: tuple[Cell, ...]
    summary: ProfileSummary
    excluded: bool = False
    """Whether cautions exclude the profile from findings."""

    @cached_property
    def times(self) -> tuple[KernelTime, ...]:
        return tuple(self.summary.times())

    @property
    def phases(self) -> tuple[str, ...]:
        return self.summary.phases_with_work

    @property
    def total_ns(self) -> int:
        return sum(self.summary.spent.total_ns)

    def per_step(self, total_ns: float) -> Measure:
        return Measure(total_ns * NS / self.summary.steps)

    def calls_per_step(self, calls: int) -> Measure:
        return Measure(calls / self.summary.steps)


@dataclass(frozen=True)
class RankComparison:
    """Comparison of the ranks of one run. `leading` holds the values that distinguish the run from other runs."""

    leading: tuple[Cell, ...]
    label: str
    """Name of the run in remarks; empty for the only run."""
    summary: RanksSummary
    link: Link | None = None
    """Measured upper limit of the bandwidth of the run's collectives; None for trace files."""


@dataclass(frozen=True)
class Range:
    """A selected range: a phase, a module path with all submodules, or both; the whole step if neither is given."""

    name: str
    phase: str | None
    path: str

    def contains(self, time: KernelTime) -> bool:
        if self.phase is not None and time.phase != self.phase:
            return False
        module = folded(time.module) if "*" in self.path else time.module
        return not self.path or module == self.path or module.startswith(f"{self.path}.")


def find_range(profile: Profile, requested: str | None) -> Range:
    """Find a range by name: `forward`, `layers.*.attention`, `backward/softmax`. The last parts of a path suffice."""
    if requested is None or requested == STEP:
        return Range(STEP, None, "")
    if requested in profile.phases:
        return Range(requested, requested, "")
    prefix, slash, path = requested.partition("/")
    phase = prefix if slash and prefix in profile.phases else None
    path = path if phase else requested
    ancestors = (path for module in profile.summary.modules for path in ancestry(module))
    known = dict.fromkeys(each for path in ancestors for each in (path, folded(path)))
    if path not in known:
        candidates = sorted({folded(each) for each in known if each.endswith(f".{path}")})
        if len(candidates) > 1:
            raise UsageError(f"--range {requested} is ambiguous: {', '.join(candidates[:6])}")
        if not candidates:
            suggestions = [STEP, *profile.phases, *dict.fromkeys(map(folded, known))][:MAX_SUGGESTIONS]
            raise UsageError(f"--range {unknown(requested, 'a range of this profile', suggestions)}")
        (path,) = candidates
    return Range(f"{phase}/{path}" if phase else path, phase, path)


@dataclass(frozen=True)
class Profiles:
    """All profiles to show, and the user's selection."""

    columns: tuple[Column, ...]
    """Headings of the profiles' `leading` values."""
    all: tuple[Profile, ...]
    selection: Selection
    record: ProfileRecord | None = None
    """The run of the profiles; None for trace files."""
    ranks: tuple[RankComparison, ...] = ()
    """Comparisons of ranks, one per run."""

    @property
    def predicted(self) -> bool:
        cells = self.record.cells if self.record else ()
        return any(cell.prediction for cell in cells) or (
            bool(self.all) and all(profile.summary.predicted for profile in self.all)
        )

    @property
    def work_noun(self) -> str:
        return "operator" if {profile.summary.source for profile in self.all} == {"cpu"} else "kernel"

    @property
    def per(self) -> str:
        """Return what times and counts refer to: `in the trace` if its steps are not known."""
        return "per step" if all(profile.summary.steps_marked for profile in self.all) else "in the trace"

    def matches(self, name: str) -> bool:
        return name in self._matching_names

    def selected_times(self, profile: Profile) -> list[KernelTime]:
        selected_range = find_range(profile, self.selection.range)
        return [time for time in profile.times if selected_range.contains(time) and self.matches(time.name.name)]

    def row_limit(self, count: int) -> int:
        """Return the number of rows to show out of `count`; `--top 0` shows all."""
        return min(self.selection.top or count, count)

    @cached_property
    def _matching_names(self) -> frozenset[str]:
        summaries = [profile.summary for profile in self.all]
        names = {name.name for summary in summaries for name in summary.names}
        names |= {operator.name for summary in summaries for operator in summary.operators}
        pattern = self.selection.kernel
        return matching_names(pattern.search, names, f"--kernel {pattern.pattern}") if pattern else frozenset(names)


TIME_LIMIT_S: Final = 2.0
"""Time limit, longer than a reasonable pattern needs for all names of a profile."""


def matching_names(matches: Callable[[str], object], names: Iterable[str], option: str) -> frozenset[str]:
    """Return the names that match; raises UsageError if that takes too long, as with repetitions in repetitions.

    The limit is a timer signal, for which `re` checks while it matches; there is none outside the main thread, or on
    systems without timer signals.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return frozenset(filter(matches, names))

    def stop(number: int, frame: FrameType | None) -> None:
        raise UsageError(f"{option} takes longer than {TIME_LIMIT_S:g} s on the names of this profile")

    previous_handler = signal.signal(signal.SIGALRM, stop)
    previous_timer = signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    try:
        return frozenset(filter(matches, names))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
        signal.setitimer(signal.ITIMER_REAL, *previous_timer)  # a timer that was set before fires, if slightly late

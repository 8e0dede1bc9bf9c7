"""Profiles in the form that tables need: time by kernel, module and phase, restricted to the user's selection."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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

    @property
    def label(self) -> str:
        """Return `rank 3`, or the file name if the trace contains no rank."""
        return f"rank {self.summary.rank}" if self.summary.rank is not None else self.summary.title

    def per_step(self, total_ns: float) -> Measure:
        """Convert nanoseconds over all steps to seconds per step."""
        return Measure(total_ns * NS / self.summary.steps)

    def calls_per_step(self, calls: int) -> Measure:
        """Convert a count over all steps to a count per step."""
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
        """Return the noun for rows of a kernel table: `operator` or `kernel`."""
        return "operator" if {profile.summary.source for profile in self.all} == {"cpu"} else "kernel"

    @cached_property
    def steps_marked(self) -> bool:
        """Return whether steps are known in all profiles; otherwise a whole trace counts as one step."""
        return all(profile.summary.steps_marked for profile in self.all)

    @property
    def per(self) -> str:
        """Return what times and counts refer to: `per step`, or `in the trace` if steps are not known."""
        return "per step" if self.steps_marked else "in the trace"

    @cached_property
    def launches_recorded(self) -> bool:
        """Return whether grids and blocks were recorded in any profile."""
        return any(row.launch_shapes for profile in self.all for row in profile.summary.kernels)

    def matches(self, name: str) -> bool:
        """Return whether a recorded name matches the selected pattern; always True if no pattern was given."""
        return self.selection.kernel is None or name in self._matching_names

    def selected_times(self, profile: Profile) -> list[KernelTime]:
        """Return the times of kernels with matching names in the selected range."""
        selected_range = find_range(profile, self.selection.range)
        return [each for each in profile.times if selected_range.contains(each) and self.matches(each.name.name)]

    def row_limit(self, count: int) -> int:
        """Return the number of rows to show out of `count`; `--top 0` shows all."""
        return min(self.selection.top or count, count)

    @cached_property
    def slowest_index(self) -> int | None:
        """Return the position of the profile with the longest steps; None if the difference is small."""
        steps = [profile.summary.window_ns / profile.summary.steps for profile in self.all]
        *shorter, longest = sorted(steps)
        return steps.index(longest) if shorter and longest > (1 + SLOWEST_MARGIN_SHARE) * shorter[-1] else None

    @cached_property
    def _matching_names(self) -> frozenset[str]:
        """Return all names that match the selected pattern, in one search with a time limit: patterns can be slow."""
        names = {name.name for profile in self.all for name in profile.summary.names}
        names |= {operator.name for profile in self.all for operator in profile.summary.operators}
        return matching_names(self.selection.kernel, names) if self.selection.kernel else frozenset(names)


SLOWEST_MARGIN_SHARE: Final = 0.02
"""The slowest profile is marked if its steps are longer than those of the next slowest by more than this share."""


# --- names that a pattern matches

TIME_LIMIT_S: Final = 2.0
"""Time limit, longer than a reasonable pattern needs for all names of a profile."""

MAX_NAME_LENGTH: Final = 2000
"""Number of characters of a name that are examined."""


class _TimeLimitExceededError(Exception):
    """Raised if the search exceeds its time limit."""


def matching_names(
    pattern: re.Pattern[str], names: Iterable[str], option: str = "--kernel", *, whole: bool = False
) -> frozenset[str]:
    """Return the names of which the pattern matches a part, or the whole; raises UsageError if it takes too long."""
    matches = pattern.fullmatch if whole else pattern.search
    try:
        with _time_limit(TIME_LIMIT_S):
            return frozenset(name for name in names if matches(name[:MAX_NAME_LENGTH]))
    except _TimeLimitExceededError:
        raise UsageError(
            f"{option} {pattern.pattern} takes longer than {TIME_LIMIT_S:.0f} s on the names of this profile: "
            "repetitions within repetitions, as in (a+)+, do that"
        ) from None


@contextmanager
def _time_limit(limit_s: float) -> Iterator[None]:
    """Raise _TimeLimitExceededError within the `with` block when the time limit is exceeded.

    The limit is enforced by a timer signal, for which `re` checks while matching. There is no limit on systems without
    timer signals, or outside the main thread.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TimeLimitExceededError

    previous_handler = signal.signal(signal.SIGALRM, stop)
    previous_timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
        signal.setitimer(signal.ITIMER_REAL, *previous_timer)  # a timer that was set before fires, if slightly late

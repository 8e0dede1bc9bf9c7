"""Progress of an experiment of several runs, and its remaining time."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from sysbench import units
from sysbench.log.events import CellFinished, CellStarted, Event, RunResumed, RunStarted
from sysbench.render import theme

MIN_HEIGHT_FOR_WARNINGS = 12
"""Fewest lines of a terminal that shows warnings above a screen."""


@dataclass(frozen=True)
class PendingCell:
    """A cell that has not been measured yet."""

    kind: str
    """Name of the cell's command."""
    expected_s: float | None = None
    """Expected duration of the cell, from an earlier run; None if unknown."""


@dataclass
class ExperimentProgress:
    """Progress of an experiment: run `number` of `count`, and all unfinished cells.

    A cell of unknown duration is expected to take the mean time of the finished cells of its command or, if there are
    none, the mean time of all finished cells.
    """

    count: int
    pending: dict[tuple[str, str], PendingCell]
    """Unfinished cells by run and key, in the order of the experiment."""
    number: int = 0
    run: str = ""
    _cell_start_s: float | None = None
    """Start of the current cell; the first cell of a run starts with its worker."""
    _durations_s: dict[str, list[float]] = field(default_factory=dict)
    """Durations of finished cells by command."""

    def start_run(self, number: int, run: str) -> None:
        """Switch to another run."""
        self.number, self.run, self._cell_start_s = number, run, None

    def drop_run(self, run: str) -> None:
        """Drop the unfinished cells of a run that has ended or is skipped."""
        self.pending = {name: each for name, each in self.pending.items() if name[0] != run}

    def update(self, event: Event) -> None:
        """Update the progress with an event of the current run."""
        if isinstance(event, RunStarted | RunResumed | CellStarted):
            self._cell_start_s = event.at_s if self._cell_start_s is None else self._cell_start_s
        elif isinstance(event, CellFinished):
            finished = self.pending.pop((self.run, event.cell), None)
            if finished is not None and self._cell_start_s is not None:
                self._durations_s.setdefault(finished.kind, []).append(event.at_s - self._cell_start_s)
            self._cell_start_s = None

    def remaining_s(self, now_s: float) -> float | None:
        """Return the expected seconds until all cells are finished; None if a duration cannot be estimated."""
        typical = {kind: statistics.fmean(took_s) for kind, took_s in self._durations_s.items()}
        all_s = [took_s for each in self._durations_s.values() for took_s in each]
        overall_mean_s = statistics.fmean(all_s) if all_s else None
        remaining_s = 0.0
        for each in self.pending.values():
            expected_s = each.expected_s
            if expected_s is None:
                expected_s = typical.get(each.kind, overall_mean_s)
            if expected_s is None:
                return None
            remaining_s += expected_s
        elapsed_s = now_s - self._cell_start_s if self._cell_start_s is not None else 0.0
        return max(0.0, remaining_s - elapsed_s)

    def describe(self, now_s: float) -> str:
        """Describe the progress: `run 7 of 15, about 12 min left in total`."""
        remaining_s = self.remaining_s(now_s) if self.pending else None
        remaining = f", about {units.duration(remaining_s)} left in total" if remaining_s is not None else ""
        return f"run {self.number} of {self.count}{remaining}"


@dataclass(frozen=True)
class WithTopLines:
    """A line, such as the progress of an experiment, and warnings, each on at most two lines, above a screen."""

    line: str
    warnings: tuple[str, ...]
    screen: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, then the screen in the remaining space; a low terminal shows no warnings."""
        width, height = max(1, options.max_width - 2), options.height or options.size.height
        line = Text(theme.terminal_line(self.line, options.encoding), theme.QUIET)
        line.truncate(width, overflow="ellipsis")
        lines = [line] if self.line else []
        for warning in self.warnings if height >= MIN_HEIGHT_FOR_WARNINGS else ():
            text = Text(theme.terminal_line(warning, options.encoding), theme.WARNING)
            lines += text.wrap(console, width)[:2]
        for each in lines:
            yield Text(" ", end="").append_text(each)
            yield Segment.line()
        yield from console.render(self.screen, options.update(height=max(1, height - len(lines))))


def initial_progress(runs: Mapping[str, Mapping[str, PendingCell]]) -> ExperimentProgress:
    """Return the progress of an experiment before its first run; `runs` maps each run to its cells by key."""
    pending = {(run, key): each for run, cells in runs.items() for key, each in cells.items()}
    return ExperimentProgress(len(runs), pending)

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


@dataclass(frozen=True)
class Waiting:
    """A cell that has not been measured yet."""

    kind: str
    """Name of the cell's command."""
    expected_s: float | None = None
    """Expected duration of the cell, from an earlier run; None if unknown."""


@dataclass
class Overall:
    """Progress of an experiment: run `number` of `count`, and all unfinished cells.

    A cell of unknown duration is expected to take the mean time of the finished cells of its command or, if there are
    none, the mean time of all finished cells.
    """

    count: int
    waiting: dict[tuple[str, str], Waiting]
    """Unfinished cells by run and key, in the order of the experiment."""
    number: int = 0
    run: str = ""
    _since_s: float | None = None
    """Start of the current cell; the first cell of a run starts with its worker."""
    _took_s: dict[str, list[float]] = field(default_factory=dict)
    """Durations of finished cells by command."""

    def turn_to(self, number: int, run: str) -> None:
        """Switch to another run."""
        self.number, self.run, self._since_s = number, run, None

    def leave(self, run: str) -> None:
        """Drop the unfinished cells of a run that has ended or is skipped."""
        self.waiting = {name: each for name, each in self.waiting.items() if name[0] != run}

    def take_in(self, event: Event) -> None:
        """Update the progress with an event of the current run."""
        if isinstance(event, RunStarted | RunResumed | CellStarted):
            self._since_s = event.at_s if self._since_s is None else self._since_s
        elif isinstance(event, CellFinished):
            over = self.waiting.pop((self.run, event.cell), None)
            if over is not None and self._since_s is not None:
                self._took_s.setdefault(over.kind, []).append(event.at_s - self._since_s)
            self._since_s = None

    def left_s(self, now_s: float) -> float | None:
        """Return the expected seconds until all cells are finished; None if a duration cannot be estimated."""
        typical = {kind: statistics.fmean(took_s) for kind, took_s in self._took_s.items()}
        all_s = [took_s for each in self._took_s.values() for took_s in each]
        anywhere_s = statistics.fmean(all_s) if all_s else None
        left_s = 0.0
        for each in self.waiting.values():
            expected_s = each.expected_s
            if expected_s is None:
                expected_s = typical.get(each.kind, anywhere_s)
            if expected_s is None:
                return None
            left_s += expected_s
        gone_s = now_s - self._since_s if self._since_s is not None else 0.0
        return max(0.0, left_s - gone_s)

    def said(self, now_s: float) -> str:
        """Describe the progress: `run 7 of 15, about 12 min left in total`."""
        left_s = self.left_s(now_s) if self.waiting else None
        left = f", about {units.duration(left_s)} left in total" if left_s is not None else ""
        return f"run {self.number} of {self.count}{left}"


@dataclass(frozen=True)
class Above:
    """A line, such as the progress of an experiment, above a screen."""

    line: str
    screen: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line, then the screen in the remaining space."""
        line = Text(f" {theme.fitted(self.line, options.encoding)}", theme.QUIET, end="")
        line.truncate(max(1, options.max_width - 1), overflow="ellipsis")
        yield line
        yield Segment.line()
        height = options.height or options.size.height
        yield from console.render(self.screen, options.update(height=max(1, height - 1)))


def begun(runs: Mapping[str, Mapping[str, Waiting]]) -> Overall:
    """Return the progress of an experiment before its first run; `runs` maps each run to its cells by key."""
    waiting = {(run, key): each for run, cells in runs.items() for key, each in cells.items()}
    return Overall(len(runs), waiting)

"""Progress of an experiment of several runs, and its remaining time."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from sysbench.log.events import CellFinished, CellStarted, Event, RunResumed, RunStarted, StageEntered
from sysbench.render.dashboard.remaining import remaining_text, round_remaining


@dataclass(frozen=True)
class PendingCell:
    """A cell that has not been measured yet."""

    kind: str
    expected_s: float | None = None
    """Duration in an earlier run; None if unknown."""


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
    _cell: str | None = None
    _cell_start_s: float | None = None
    """Start of the current cell; the first cell of a run starts with its worker."""
    _is_compiling: bool = False
    _durations_s: dict[str, list[float]] = field(default_factory=dict)

    def start_run(self, number: int, run: str) -> None:
        """Switch to another run of the experiment."""
        self.number, self.run = number, run
        self._cell, self._cell_start_s, self._is_compiling = None, None, False

    def drop_run(self, run: str) -> None:
        """Drop the unfinished cells of a run that has ended or is skipped."""
        self.pending = {name: cell for name, cell in self.pending.items() if name[0] != run}

    def update(self, event: Event) -> None:
        """Update the progress with an event of the current run."""
        if isinstance(event, RunStarted | RunResumed | CellStarted):
            self._cell_start_s = event.at_s if self._cell_start_s is None else self._cell_start_s
            self._cell = event.cell if isinstance(event, CellStarted) else None
        elif isinstance(event, StageEntered):
            self._is_compiling = event.stage == "compiling"
        elif isinstance(event, CellFinished):
            finished = self.pending.pop((self.run, event.cell), None)
            if finished is not None and self._cell_start_s is not None:
                self._durations_s.setdefault(finished.kind, []).append(event.at_s - self._cell_start_s)
            self._cell, self._cell_start_s, self._is_compiling = None, None, False

    def remaining_s(self, now_s: float, run_s: float | None = None) -> float | None:
        """Return the expected seconds until all cells are finished; None if they cannot be estimated.

        `run_s` is what the current run expects for itself, from the steps that it has measured; it replaces the
        estimate for this run. Without it, a cell that takes longer than expected makes the rest unknown, and so does
        one that compiles, unless the same cell took so long before.
        """
        pending_s = {name: self._expected_s(cell) for name, cell in self.pending.items()}
        if run_s is not None:
            pending_s = {name: each for name, each in pending_s.items() if name[0] != self.run}
        if any(each is None for each in pending_s.values()):
            return None
        remaining_s = sum(each for each in pending_s.values() if each is not None)
        if run_s is not None or self._cell_start_s is None:
            return remaining_s + (run_s or 0.0)
        # A cell that is not planned itself, such as a profile's reference, belongs to the next one.
        in_this_run = [name for name in pending_s if name[0] == self.run]
        name = next((name for name in in_this_run if name[1] == self._cell), next(iter(in_this_run), None))
        current_s = pending_s[name] if name is not None else None
        elapsed_s = now_s - self._cell_start_s
        if name is None or current_s is None or elapsed_s > current_s:
            return None
        return None if self._is_compiling and self.pending[name].expected_s is None else remaining_s - elapsed_s

    def _expected_s(self, cell: PendingCell) -> float | None:
        if cell.expected_s is not None:
            return cell.expected_s
        durations_s = self._durations_s.get(cell.kind) or [each for some in self._durations_s.values() for each in some]
        return statistics.fmean(durations_s) if durations_s else None

    def describe(self, now_s: float, run_s: float | None = None) -> str:
        """Describe the progress, with `run_s` as in `remaining_s`: `run 7 of 15, about 12 min left in total`."""
        remaining_s = self.remaining_s(now_s, run_s) if self.pending else None
        remaining = ""
        if remaining_s is not None:
            about = "about " if remaining_s >= 1 else ""
            remaining = f", {about}{remaining_text(round_remaining(remaining_s))} in total"
        elif self._is_compiling:
            remaining = ", compiling"
        return f"run {self.number} of {self.count}{remaining}"


def initial_progress(runs: Mapping[str, Mapping[str, PendingCell]]) -> ExperimentProgress:
    """Return the progress of an experiment before its first run; `runs` maps each run to its cells by key."""
    pending = {(run, key): cell for run, cells in runs.items() for key, cell in cells.items()}
    return ExperimentProgress(len(runs), pending)

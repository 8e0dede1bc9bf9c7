"""Expected durations of the runs of an experiment, before and during the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sysbench import units
from sysbench.commands.run.experiment import PlannedRun
from sysbench.log.durations import Durations
from sysbench.render.dashboard import overall
from sysbench.render.dashboard.overall import Overall, Waiting
from sysbench.spec.cell import RunCell


def cell_s(cell: RunCell, earlier: Durations) -> float | None:
    """Return a cell's duration in its latest measurement on such a device, or its predicted one; None if unknown."""
    return earlier.cells_s.get(cell.key, earlier.predicted_s.get(cell.key))


def run_s(planned: PlannedRun, earlier: Durations) -> float | None:
    """Return the expected duration of a run, including its worker's start; None if that of any cell is unknown."""
    cells_s = [cell_s(cell, earlier) for cell in planned.spec.cells()]
    known_s = [each for each in cells_s if each is not None]
    return sum(known_s) + earlier.beginning_s(planned.entry.command) if len(known_s) == len(cells_s) else None


def total(planned: Sequence[PlannedRun], earlier: Durations) -> str:
    """Describe the expected duration of all runs: `about 12 min in all`, or of those for which it is known."""
    made = [each for each in planned if each.entry.here != "left out"]
    known_s = [seconds for each in made if (seconds := run_s(each, earlier)) is not None]
    if len(known_s) == len(made):
        return f"about {units.duration(sum(known_s))} in all, {_by(earlier)}"
    if earlier.predicted_s:
        return f"about {units.duration(sum(known_s))} for {len(known_s)} of {len(made)} runs, {_by(earlier)}"
    if not known_s:
        return "the time it takes is unknown: none of its runs was measured on such a device before"
    return f"about {units.duration(sum(known_s))} for {len(known_s)} of {len(made)} runs; the others are new"


def _by(earlier: Durations) -> str:
    if not earlier.predicted_s:
        return "by what the same cells took before"
    before = "what the same cells took before, and " if earlier.cells_s else ""
    return f"by {before}PREDICTED steps; building models and starting workers come on top"


def begun(planned: Sequence[PlannedRun], earlier: Durations) -> Overall:
    """Return the progress before the first run; a worker's start counts towards the first cell of its run."""
    runs: dict[str, Mapping[str, Waiting]] = {}
    for each in planned:
        cells = {} if each.entry.here == "left out" else {cell.key: cell for cell in each.spec.cells()}
        starts_s = earlier.beginning_s(each.entry.command)
        waiting = {}
        for number, (key, cell) in enumerate(cells.items()):
            expected_s = cell_s(cell, earlier)
            beginning_s = 0.0 if number else starts_s
            waiting[key] = Waiting(each.entry.command, None if expected_s is None else expected_s + beginning_s)
        runs[each.entry.name] = waiting
    return overall.begun(runs)

"""How long the runs of an experiment will take, before they are made and while they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sysbench import units
from sysbench.commands.run.experiment import PlannedRun
from sysbench.log.durations import Durations
from sysbench.render.dashboard import overall
from sysbench.render.dashboard.overall import Overall, Waiting
from sysbench.spec.cell import RunCell


def cell_s(cell: RunCell, earlier: Durations) -> float | None:
    """What a cell took when it was last measured on such a device, or is predicted to take, in seconds; else None."""
    return earlier.cells_s.get(cell.key, earlier.predicted_s.get(cell.key))


def run_s(planned: PlannedRun, earlier: Durations) -> float | None:
    """What a run will take, its worker's start included; None where that of any cell is unknown."""
    cells_s = [cell_s(cell, earlier) for cell in planned.spec.cells()]
    known_s = [each for each in cells_s if each is not None]
    return sum(known_s) + earlier.beginning_s(planned.entry.command) if len(known_s) == len(cells_s) else None


def total(planned: Sequence[PlannedRun], earlier: Durations) -> str:
    """`about 12 min in all`, or of how many runs the time is known."""
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
    """All of it, before the first run; a worker's start is counted with the first cell of its run."""
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

"""`sysbench time`: options → spec → run → show."""

from __future__ import annotations

from dataclasses import replace

from sysbench.commands import running
from sysbench.commands.prediction_checks import refuse_cost_without_price, refuse_unpredictable
from sysbench.commands.showing import say
from sysbench.commands.surroundings import ALONE, RunResult, RunSurroundings
from sysbench.commands.time.spec import TimeOptions, TimeSpec


def perform(spec: TimeSpec, options: TimeOptions, surroundings: RunSurroundings = ALONE) -> RunResult:
    """Run all cells and return the result."""
    if spec.simulate:
        refuse_cost_without_price(options.columns, spec.price, spec.simulate)
        refuse_unpredictable(spec.simulate, spec.host, force=options.force)
        return RunResult(running.run_cells(spec, options.model_copy(update={"no_live": True}), surroundings))
    ceilings = True
    # JSON output and experiments (which end up in reports) need every column; otherwise the matmul ceilings are needed
    # only if one of their columns is shown.
    if options.json_path is None and surroundings.log_name is None and (options.tables or options.columns):
        from sysbench.commands.sheets import shows_column

        ceilings = shows_column("matmul_ceiling", options.columns, spec, options.tables, options.format)
    if surroundings is ALONE:
        from sysbench.commands.time.elsewhere import elsewhere_line, predicted_elsewhere

        if (found := predicted_elsewhere(spec, options)) is not None:
            say(elsewhere_line(found), options)
            surroundings = replace(surroundings, first_events=(found,))
    return RunResult(running.run_cells(spec, options, replace(surroundings, ceilings=ceilings)))

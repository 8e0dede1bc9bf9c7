"""`sysbench time`: options → spec → run → show."""

from __future__ import annotations

from dataclasses import replace

from sysbench import units
from sysbench.commands import running
from sysbench.commands.prediction_checks import refuse_cost_without_price, refuse_unpredictable
from sysbench.commands.showing import say
from sysbench.commands.surroundings import ALONE, RunSurroundings
from sysbench.commands.time.spec import TimeCell, TimeOptions, TimeSpec
from sysbench.commands.without_gpu import DEFAULT_GPU, is_without_gpu
from sysbench.spec.command_options import Given, command_options


@command_options(TimeSpec, TimeOptions)
def time(spec_given: Given, options_given: Given) -> None:
    """Time forward, backward and the optimizer step, by size, context, precision and more.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    """
    running.execute_command("time", spec_given, options_given)


def suited(spec: TimeSpec, options: TimeOptions) -> TimeSpec:
    """Return the spec; without a GPU, say first what its first step would take on one, which is known in seconds."""
    first = next(spec.cells(), None)
    elsewhere = options.on or options.quiet or spec.is_distributed
    if first is None or elsewhere or spec.simulate or spec.device != ("auto",) or first.own is not None:
        return spec
    from sysbench.render.dashboard.progress import show_status

    with show_status("starting the worker", silent=options.quiet):
        if not is_without_gpu():
            return spec
        line = _predicted_line(first)
    if line:
        say(line, options)
    return spec


def _predicted_line(cell: TimeCell) -> str:
    """Return what the step of a cell is predicted to take on DEFAULT_GPU; empty if it cannot be predicted."""
    from sysbench.engine.supervisor import simulate_aside
    from sysbench.log.predictions import MARK, StepPredicted

    events = simulate_aside(cell.model_copy(update={"simulate": DEFAULT_GPU, "device": "cpu", "threads": None}))
    predicted = next((event for event in events if isinstance(event, StepPredicted)), None)
    step = predicted.step if predicted is not None else None
    if predicted is None or step is None:
        return ""
    unit = units.time_scale(step.point_s)
    times = (time_s / unit.factor for time_s in (step.point_s, step.low_s, step.high_s))
    point, low, high = (f"{float(f'{time:.3g}'):,g}" for time in times)
    tokens_per_s = cell.grad_accum * cell.tokens / step.point_s
    return (
        f"no GPU here; {MARK}, for {predicted.gpu}: {cell.title} takes {point} {unit.symbol} a step ({low} to {high}), "
        f"{float(f'{tokens_per_s:.3g}'):,g} tokens/s → --simulate {DEFAULT_GPU} for more"
    )


def perform(spec: TimeSpec, options: TimeOptions, surroundings: RunSurroundings = ALONE) -> running.RunResult:
    """Run all cells and return the result."""
    if spec.simulate:
        refuse_cost_without_price(options.columns, spec.price, spec.simulate)
        refuse_unpredictable(spec.simulate, spec.host, force=options.force)
        return running.RunResult(running.run_cells(spec, options.model_copy(update={"no_live": True}), surroundings))
    ceilings = True
    # JSON output and experiments (which end up in reports) need every column; otherwise the matmul ceilings are needed
    # only if one of their columns is shown.
    if options.json_path is None and surroundings.log_name is None and (options.tables or options.columns):
        from sysbench.render import declared

        ceilings = declared.shows_column("matmul_ceiling", options.columns, spec, options.tables, options.format)
    return running.RunResult(running.run_cells(spec, options, replace(surroundings, ceilings=ceilings)))

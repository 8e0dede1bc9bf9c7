"""On a machine without a GPU: what the first step of a run is predicted to take on the GPU that is most often used."""

from __future__ import annotations

import time

from sysbench import units
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.commands.without_gpu import DEFAULT_GPU, is_without_gpu
from sysbench.log.predictions import MARK, PredictedElsewhere, StepPredicted
from sysbench.spec.run import RunOptions


def predicted_elsewhere(spec: TimeSpec, options: RunOptions) -> PredictedElsewhere | None:
    """Return the prediction for the first cell; None where there is a GPU, and for steps that cannot be predicted.

    Takes seconds, within which a worker starts for the run. A device that was named is what the user asks about, and
    the user's own model is not run twice.
    """
    first = next(spec.cells(), None)
    is_elsewhere = options.on or options.quiet or options.resume or spec.is_distributed
    if first is None or is_elsewhere or spec.device != ("auto",) or first.own is not None:
        return None
    from sysbench.render.dashboard.progress import show_status

    with show_status("starting the worker"):
        return _prediction_of(first) if is_without_gpu() else None


def _prediction_of(cell: TimeCell) -> PredictedElsewhere | None:
    from sysbench.engine.supervisor import simulate_aside

    events = simulate_aside(cell.model_copy(update={"simulate": DEFAULT_GPU, "device": "cpu", "threads": None}))
    found = next((event for event in events if isinstance(event, StepPredicted)), None)
    if found is None or found.step is None:
        return None
    tokens_per_s = cell.grad_accum * cell.tokens / found.step.point_s
    return PredictedElsewhere(
        at_s=time.time(), gpu=found.gpu, title=cell.title, step=found.step, tokens_per_s=tokens_per_s
    )


def elsewhere_line(found: PredictedElsewhere) -> str:
    """Return the prediction in one line: the time of a step with its interval, and the throughput."""
    step = units.seconds_with_interval(found.step.point_s, found.step.low_s, found.step.high_s)
    return (
        f"no GPU here; {MARK}, for {found.gpu}: a step of {found.title} takes {step}, "
        f"{float(f'{found.tokens_per_s:.2g}'):,g} tokens/s → --simulate {DEFAULT_GPU} for more"
    )

"""Cautions about a timed cell: those that every measured step can have, and those of its checks and rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sysbench import formulas, statistics, units
from sysbench.commands.time.record import RateRecord
from sysbench.commands.time.spec import TimeCell
from sysbench.log import cautions
from sysbench.log.collect import CellEvents
from sysbench.log.events import OwnModelBuilt, ReadingsLost
from sysbench.log.outcomes import Caution
from sysbench.spec.knobs import FP8, FP8_SPEEDUP


def judge(cell: TimeCell, seen: CellEvents, rates: RateRecord | None, lost: Sequence[ReadingsLost]) -> list[Caution]:
    """Return every caution about a cell, the most serious first; none for a cell without measured steps."""
    if not seen.steps or seen.started is None:
        return []
    wall = statistics.series([step.step.wall_s for step in seen.steps if step.step.wall_s is not None])
    warmup = [step.step.wall_s for step in seen.warmup if step.step.wall_s is not None]
    return [
        *_correctness(seen),
        *_lower_bound(cell, wall, rates),
        *cautions.stability(warmup, wall),
        *cautions.precision_of_the_median(wall, cell.until, cell.max_steps),
        *cautions.launch_bound(seen, cell.execution),
        *cautions.emulation(cell.precision if cell.precision in FP8 else cell.compute_precision, seen),
        *cautions.precision_overridden(cell.precision, seen),
        *cautions.environment_cautions(seen, lost),
        *cautions.compilation(seen),
        *cautions.phases_not_measured(cell.sync, seen),
    ]


def _correctness(seen: CellEvents) -> Iterator[Caution]:
    checked = seen.checked
    if checked is None:
        return
    if checked.loss is not None and not math.isfinite(checked.loss):
        yield Caution(
            code="loss-not-finite",
            message=f"the loss of the first measured step is {checked.loss}",
            remedy="timing is usually unaffected, but the model is not training: check the initialisation, the "
            "inputs and --precision",
        )
    if checked.gradients_present is False:
        yield Caution(
            code="gradients-missing",
            message="some parameters had no gradient, so the optimizer step updated fewer parameters than usual",
            remedy="report this as a bug, and attach the log"
            if seen.last(OwnModelBuilt) is None
            else "find the parameters that forward does not use, or that are detached",
        )
    if checked.parameters_changed is False:
        yield Caution(
            code="parameters-unchanged",
            message="the optimizer step changed no parameter: a no-op was timed",
            remedy="report this as a bug, and attach the log",
        )


def _lower_bound(cell: TimeCell, wall: statistics.Series, rates: RateRecord | None) -> Iterator[Caution]:
    """Warn if the step is faster than the measured ceiling or the data-sheet peak allows."""
    if rates is None:
        return
    if rates.ceiling_flops_per_s and rates.ceiling_share is None and rates.step_flops is not None:
        yield Caution(
            code="ceiling-doubtful",
            message="the step was faster than the measured matmul ceiling of "
            f"{units.flop_rate(rates.ceiling_flops_per_s)}",
            remedy="the share of the ceiling is omitted; close programs that may have slowed the ceiling "
            "measurement down, and measure again",
        )
    if rates.peak_flops_per_s is None or rates.step_flops is None or (shape := cell.shape_with_formulas) is None:
        return
    skippable = formulas.attention_forward_flops(shape, cell.ctx, cell.batch) / 2
    passes = rates.step_flops / formulas.forward_flops(shape, cell.ctx, cell.batch)
    bound_s = (rates.step_flops - passes * skippable) / rates.peak_flops_per_s
    if cell.precision in FP8:
        bound_s /= FP8_SPEEDUP
    if wall.median < bound_s:
        yield Caution(
            code="below-lower-bound",
            message=f"the median step is shorter than the {units.seconds(bound_s)} that its matrix products take at "
            "data-sheet peak",
            remedy="do not use this number; look for a missing synchronization or a phase that was skipped",
        )

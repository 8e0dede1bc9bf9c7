"""A whole training, extrapolated from one step: its duration and its cost."""

from __future__ import annotations

from sysbench.log.predictions import PredictedTime
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Amount, Count, Seconds, stored_unless


class Expected(Frozen):
    """An expected amount, with the ends of its interval; they are None if it is unknown how far it may be off."""

    point: Amount
    low: Amount | None
    high: Amount | None

    def times(self, factor: float) -> Expected:
        """Return the amount, multiplied."""
        low, high = (end if end is None else factor * end for end in (self.low, self.high))
        return Expected(point=factor * self.point, low=low, high=high)


class Training(Frozen):
    """A training on a number of tokens: as many steps as that takes, each as long as the known one."""

    tokens: Count
    steps: Amount
    duration_s: Expected
    cost: Expected | None = stored_unless(None)
    """Price of all GPUs for this long, in the user's currency; None without a price."""


def training(
    step_s: Expected, tokens: int, tokens_of_step: int, gpus: int = 1, price_per_hour: float | None = None
) -> Training:
    """Return the training on `tokens`, if a step takes `step_s` on `gpus` and trains on `tokens_of_step`."""
    steps = tokens / tokens_of_step
    duration_s = step_s.times(steps)
    cost = duration_s.times(gpus * price_per_hour / 3600) if price_per_hour else None
    return Training(tokens=tokens, steps=steps, duration_s=duration_s, cost=cost)


def of_prediction(step: PredictedTime) -> Expected:
    """Return the expected seconds of a predicted step."""
    return Expected(point=step.point_s, low=step.low_s, high=step.high_s)


def of_samples(median_s: Seconds, ci95_s: tuple[Seconds, Seconds] | None) -> Expected:
    """Return the expected seconds of a measured step: its median, with the 95% interval of the median."""
    low, high = ci95_s or (None, None)
    return Expected(point=median_s, low=low, high=high)

"""What is done to the workload: one generator of events for each kind of run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sysbench.errors import UsageError, unknown
from sysbench.events import DeviceInfo, Event
from sysbench.experiments import timing
from sysbench.specs.time import TimeCell

Experiment = Callable[[TimeCell, DeviceInfo], Iterator[Event]]

EXPERIMENTS: dict[str, Experiment] = {"time": timing.run}


def experiment_for(kind: str) -> Experiment:
    """The experiment behind a kind of run; raises UsageError for a kind there is not."""
    if kind not in EXPERIMENTS:
        raise UsageError(unknown(kind, "a kind of run", EXPERIMENTS))
    return EXPERIMENTS[kind]

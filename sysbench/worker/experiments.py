"""What is done to the workload: one generator of events for each kind of run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sysbench.log.events import DeviceInfo, Event
from sysbench.spec.kinds import Kind

Experiment = Callable[[Any, DeviceInfo, Path | None], Iterator[Event]]
"""From a cell of its kind, the device it is placed on, and where to leave what is too large for events."""


def experiment_for(kind: Kind) -> Experiment:
    """The experiment behind a kind of run."""
    experiment: Experiment = importlib.import_module(f"sysbench.commands.{kind}.measure").run
    return experiment

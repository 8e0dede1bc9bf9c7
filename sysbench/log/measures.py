"""Numbers of a cell that other commands compare, as the cell's own command names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sysbench.log.predictions import GpuPrediction, PredictedTime
from sysbench.log.records import CellRecord, PeakRecord, PhaseRecord, Samples
from sysbench.units import Unit

Better = Literal["lower", "higher"] | None

PROCESSOR_TIME = "CPU_time"
"""The name of the processor time of a step among amounts, over all threads."""


@dataclass(frozen=True)
class Amount:
    """A number without samples, such as a peak of memory."""

    value: float
    unit: Unit = "bytes"
    better: Better = "lower"
    exact: bool = True
    """Whether the number was counted; the gate of `compare` ignores numbers that were sampled."""
    headline: str = ""


@dataclass(frozen=True)
class Measures:
    """The numbers of a cell that `compare` and `report` put beside those of other cells, by quantity."""

    times: Mapping[str, Samples] = field(default_factory=dict)
    """Times with samples; lower is better."""
    amounts: Mapping[str, Amount] = field(default_factory=dict)
    prediction: GpuPrediction | None = None
    """None also if the step does not fit."""

    @property
    def predicted_times(self) -> Mapping[str, PredictedTime]:
        """Predicted times by quantity, the whole step first."""
        return self.prediction.times if self.prediction else {}


def phase_times(phases: Mapping[str, PhaseRecord]) -> dict[str, Samples]:
    """Return the samples of every phase that has some."""
    return {name: times for name, phase in phases.items() if (times := phase.times) is not None}


def peaks(memory: PeakRecord) -> dict[str, Amount]:
    """Return the known memory peaks."""
    amounts = {
        "allocated_peak": _bytes(memory.allocated_peak_bytes, headline="peak"),
        "reserved_peak": _bytes(memory.reserved_peak_bytes),
        "device_used_peak": _bytes(memory.device_used_peak_bytes, exact=False),
        "host_rss_peak": _bytes(memory.host_rss_peak_bytes, exact=False),
    }
    return {name: amount for name, amount in amounts.items() if amount is not None}


def _bytes(value: int | None, *, exact: bool = True, headline: str = "") -> Amount | None:
    return None if value is None else Amount(value, exact=exact, headline=headline)


@dataclass(frozen=True)
class StepNumber:
    """A number of a training step that runs of other commands may know from another source."""

    cell: CellRecord
    quantity: Literal["forward", "backward", "step", "peak"]
    source: Literal["measured", "profiled", "simulated", "predicted"]
    value: float
    """Seconds; bytes for the peak."""
    hardware: str
    """The hardware as all sources of the quantity name it: numbers of different hardware are not compared."""
    mode: str = ""
    interval: PredictedTime | None = None

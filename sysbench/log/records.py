"""The record of a run: a JSON summary, computed from the log and never edited by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Generic, get_args

from pydantic import ConfigDict, Field, SerializeAsAny
from typing_extensions import TypeVar

from sysbench import statistics
from sysbench.log.events import (
    CellOutcome,
    CodeFile,
    DeviceInfo,
    HostInfo,
    OwnModelFacts,
    ProcessPeaks,
    RunIdentity,
    ThreadsProbe,
    TorchInfo,
)
from sysbench.log.outcomes import (
    EXCLUDING,
    LACK_OF_MEMORY,
    Caution,
    CautionCode,
    RunStatus,
    Subject,
)
from sysbench.spec.cell import RunCell
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Bytes, Count, Finite, Flops, Moment, PositiveSeconds, Seconds, stored_unless
from sysbench.statistics.doubt import Cause


class DoubtRecord(Frozen):
    """The range in which a median may lie because of one cause, which is the code of a caution."""

    cause: Cause
    low_s: Seconds
    high_s: Seconds


_DOUBTS: Final = frozenset(get_args(Cause))
"""Codes of the cautions about times that an interval is wider for."""


class Samples(Frozen):
    """Raw samples in the order of measurement, with summary statistics; times are in seconds."""

    samples_s: Annotated[list[Seconds], Field(min_length=1)]
    mean_s: PositiveSeconds
    std_s: Seconds
    """Sample standard deviation (n − 1); 0 for one sample."""
    median_s: PositiveSeconds
    min_s: Seconds
    max_s: Seconds
    p5_s: Seconds
    p25_s: Seconds
    p75_s: Seconds
    p95_s: Seconds
    mad_s: Seconds
    """Median absolute deviation from the median, unscaled."""
    ci95_s: tuple[Seconds, Seconds] | None
    """95% interval of the median if the work is measured again, widened by all doubts; None for fewer than three
    samples, unless `repeat_sd` is known."""
    lag1_autocorrelation: Finite | None
    doubts: list[DoubtRecord] = stored_unless([])
    """Why the median may not be the time that the work takes by itself, and by how much."""
    repeat_sd: Finite = stored_unless(0.0)
    """Standard deviation of the logarithm of the median when the same work is measured again; 0 if it is not known to
    matter. Every interval contains it."""

    @cached_property
    def estimate(self) -> statistics.Estimate:
        """The samples with their doubts: the one source of intervals of their median and of ratios."""
        return statistics.estimate(
            self.samples_s,
            [statistics.Doubt(each.cause, each.low_s, each.high_s) for each in self.doubts],
            self.repeat_sd,
        )


class PhaseRecord(Frozen):
    """Times of one phase over the measured steps, by the host clock and, where available, by device events."""

    wall: Samples | None
    device: Samples | None
    enqueue_median_s: Seconds | None
    processor_median_s: Seconds | None = stored_unless(None)
    """Processor time of all threads of the process, where these compute the step: on a CPU."""

    @property
    def times(self) -> Samples | None:
        """Wall times; if there are none, as with `--sync step`, device times."""
        return self.wall or self.device


class PeakRecord(ProcessPeaks):
    """Memory peaks over the measured steps, in bytes; a field is None if not measured.

    `host_rss_peak_bytes` is the memory of the measured process and its children, sampled from outside during this cell;
    for a process that measured itself, its peak since it started.
    """

    device_used_peak_bytes: Bytes | None
    """Memory in use on the whole device, including other processes."""


class ModelRecord(Frozen):
    """The number of the model's parameters, and the FLOPs of a forward pass."""

    parameters: Count | None
    """None for a user's model that was never built."""
    parameters_without_lm_head: Count | None
    """None for a user's model, whose layers are unknown."""
    trainable_parameters: Count | None = stored_unless(None)
    """Parameters of the adapters, with `--lora`; None without it."""
    forward_flops: Flops | None
    """FLOPs of one forward pass over the batch, ignoring the causal mask; None if they could not be counted."""

    @property
    def frozen_parameters(self) -> int | None:
        """Parameters that are not trained, with `--lora`; None without it."""
        trained = self.trainable_parameters
        return None if trained is None or self.parameters is None else self.parameters - trained


class CellIdentity(Frozen):
    """Which cell a record describes, and where it ran."""

    model_config = ConfigDict(serialize_by_alias=True)

    key: str
    cell: SerializeAsAny[RunCell] = Field(alias="axes")
    """The cell's spec; each command has its own class."""
    device: DeviceInfo | None
    host: str | None = stored_unless(None)


class CellRecord(CellOutcome, CellIdentity):
    """The record of a cell: the fields common to all commands and all outcomes."""

    own_model: OwnModelFacts | None = stored_unless(None)
    """The user's model, as it ran; None for the built-in model, and for one that was never built."""
    cautions: list[Caution]

    @property
    def device_name(self) -> str | None:
        """Name of the device that the cell ran on; None if it never started."""
        return self.device.name if self.device else None

    @property
    def lacks_memory(self) -> bool:
        """Whether the cell ran out of memory, or was skipped because it would have."""
        return self.reason in LACK_OF_MEMORY

    @property
    def code_files(self) -> Sequence[CodeFile]:
        """Files of the user's code that the cell ran; empty if there are none, or if they are unknown."""
        return self.own_model.files if self.own_model else ()

    def excluding_cautions(self, subject: Subject = "times") -> list[CautionCode]:
        """Return the cautions that exclude this cell from findings about `subject`; empty if it can be relied on.

        A doubt about times that does not say by how much excludes them, because no interval is wider for it.
        """
        unmeasured = {caution.code for caution in self.cautions if not caution.numbers} & _DOUBTS
        excluded = {caution.code for caution in self.cautions} & EXCLUDING[subject]
        return sorted(excluded | unmeasured if subject == "times" else excluded)

    @cached_property
    def axes(self) -> dict[str, Any]:
        """The cell in JSON form, for code that accesses axes by name; code for one specific axis uses `cell`.

        If the cell was measured elsewhere, the hardware is added, so that equal cells on different GPUs remain
        distinct. The dtype of a user's model is added for titles, unless it is fp32.
        """
        axes = self.cell.axes
        if self.host is not None and self.device is not None and not self.cell.simulated:
            axes["hardware"] = self.device.name
        if self.own_model is not None and self.own_model.parameter_dtype not in (None, "fp32"):
            axes["parameter_dtype"] = self.own_model.parameter_dtype
        return axes

    def axis_value(self, axis: str) -> Any:
        """Return the value on an axis, also if it is the default and not stored; None without this axis."""
        return self.axes[axis] if axis in self.axes else self.cell.axis_value(axis)

    @cached_property
    def written_axes(self) -> tuple[tuple[str, str], ...]:
        """Pairs of axis and value as text, in alphabetical order; equal for cells that agree in all axes."""
        return tuple(sorted((axis, str(value)) for axis, value in self.axes.items()))


class ModelCellRecord(CellRecord):
    """The record of a cell that measures a Transformer."""

    model: ModelRecord


class EnvironmentRecord(Frozen):
    """The machine and software of the run."""

    host: HostInfo
    torch: TorchInfo | None
    """The number of threads is that chosen for the run, if it was chosen."""
    threads_probe: ThreadsProbe | None = stored_unless(None)
    """How the number of threads was chosen; None if torch's own was not questioned."""
    devices: list[DeviceInfo]
    driver: str | None

    @property
    def software(self) -> tuple[str, ...]:
        """The version of torch as shown in headings, `torch 2.13.0`; empty if no worker was ready."""
        return (f"torch {self.torch.torch}",) if self.torch else ()


AnyCell = TypeVar("AnyCell", bound=CellRecord)
CellsOf = TypeVar("CellsOf", bound=CellRecord, covariant=True, default=CellRecord)


class RunRecord(RunIdentity, Generic[CellsOf]):
    """The record of a run of any command."""

    started_at: Moment
    finished_at: Moment | None
    status: RunStatus
    environment: EnvironmentRecord
    damaged_lines: list[int] = stored_unless([])
    """Numbers of the log's lines that are no events; cells to which they belong are unfinished."""
    cells: list[CellsOf]


AnyRecord = TypeVar("AnyRecord", bound=RunRecord)


def typed(record: RunRecord, kind: type[AnyRecord]) -> AnyRecord:
    """Return the record of a command whose class is known; raises TypeError for a record of another command."""
    if not isinstance(record, kind):
        raise TypeError(f"{type(record).__name__} is no {kind.__name__}")
    return record

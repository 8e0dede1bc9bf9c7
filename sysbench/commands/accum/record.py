"""Events and record of `sysbench accum`."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sysbench.commands.accum.spec import AccumCell, Experiment, Order
from sysbench.log.events import Event, Source
from sysbench.log.records import CellRecord, RunRecord
from sysbench.rounding import FORMATS, ArithmeticSource, FormatName
from sysbench.spec.frozen import Frozen, check_equal_lengths
from sysbench.spec.quantities import Amount, Count, Finite, Number


def _within_fp32(value: float) -> float:
    if isfinite(value) and abs(value) > FORMATS["fp32"].largest:
        raise ValueError("it is beyond the range of fp32, the widest of all formats")
    return value


Rounded = Annotated[Number, AfterValidator(_within_fp32)]
"""A value in one of the formats."""


class SumResult(Frozen):
    """The sum of many copies of one number, computed as `accumulator += addend`."""

    accumulator: FormatName
    addend: FormatName
    """Format to which the number is rounded before the addition."""
    upcast: bool
    """Whether the rounded number is explicitly converted to the accumulator's format before the addition."""
    order: Order
    source: ArithmeticSource
    rounded_addend: Rounded
    result: Rounded


class SumMeasured(SumResult, Event):
    """The sum of a number that was added `count` times."""

    event: Literal["sum_measured"] = "sum_measured"
    cell: str


DtypePart = Literal["parameter", "input", "output", "logits", "loss", "gradient"]


class DtypeSeen(Frozen):
    """The dtype of one part of a model."""

    part: DtypePart
    name: str
    """Path of the parameter or module: `layers.0.attention.q`; empty for parts that exist once."""
    dtype: str
    """Torch's name of the dtype: `float16`."""


class DtypesMeasured(Event):
    """The dtypes of all parts of a model under autocast."""

    event: Literal["dtypes_measured"] = "dtypes_measured"
    cell: str
    precision: FormatName
    """Autocast's dtype."""
    source: Source
    """`simulated` if CUDA's rules were applied without CUDA."""
    seen: list[DtypeSeen]


class NormPoint(Frozen):
    """Statistics and error of layer norm at one scale of its inputs."""

    scale: Amount
    mean: Number
    variance: Number
    reciprocal_deviation: Number
    """rsqrt(variance + eps)."""
    bare_reciprocal_deviation: Number
    """rsqrt(variance), without eps."""
    relative_error: Number
    """Error of the outputs relative to fp64: ‖y − y64‖ / ‖y64‖."""


class NormMeasured(Event):
    """Layer norm at all input scales."""

    event: Literal["norm_measured"] = "norm_measured"
    cell: str
    dtype: FormatName
    statistics: FormatName
    source: ArithmeticSource
    points: list[NormPoint]


class SumRecord(SumResult):
    """A sum, and its error by source: `error = representation_error + accumulation_error`."""

    error: Number
    """result − value × count, computed exactly."""
    representation_error: Number
    """count × (rounded addend − value): the error of the addend's format."""
    accumulation_error: Number
    """result − count × rounded addend: the error of rounding the partial sums."""
    stall_step: Count | None
    """First step at which adding no longer changes the sum, computed exactly, even beyond `count`. None if the sum
    overflows first, and for orders other than sequential."""
    stall_at: Finite | None
    """The sum at step `stall_step`."""


class DtypeRecord(Frozen):
    """The dtype of one or more parts of a model under autocast, on this device and on CUDA."""

    precision: FormatName
    part: DtypePart
    name: str
    """Path, with `layers.*` if all layers agree; empty for unnamed parts, and if all parts of a kind are merged."""
    count: Count
    """Number of parts that have these dtypes."""
    here: str | None
    """Torch's name of the measured dtype."""
    on_cuda: str | None
    """Simulated dtype by CUDA's rules."""


class NormRecord(Frozen):
    """Input scales (powers of two) at which layer norm leaves the range of a format.

    A scale is None if layer norm stays within the range at all tested scales. The mean and the standard deviation of
    the inputs equal the scale.
    """

    dtype: FormatName
    """Format of inputs and outputs."""
    statistics: FormatName
    """Format of mean, variance and rsqrt."""
    mean_overflows_from: Amount | None
    variance_overflows_from: Amount | None
    variance_vanishes_to: Amount | None
    """Largest scale at which the variance is 0."""
    reciprocal_overflows_to: Amount | None
    """Largest scale at which rsqrt(variance), without eps, is infinite."""
    wrong_to: Amount | None
    """Largest scale below 1 at which outputs are wrong (see `sysbench.commands.accum.fold.WRONG`)."""
    wrong_from: Amount | None
    """Smallest scale above 1 at which outputs are wrong."""
    error_at_one: Number
    scales: list[Amount]
    relative_errors: list[Number]

    @model_validator(mode="after")
    def _points(self) -> Self:
        return check_equal_lengths(self, "scales", "relative_errors")


class AccumCellRecord(CellRecord):
    """Results of one experiment of `sysbench accum`; the fields of other experiments are empty."""

    cell: AccumCell = Field(alias="axes")

    experiment: Experiment
    sums: list[SumRecord]
    dtypes: list[DtypeRecord]
    norms: list[NormRecord]


class AccumRecord(RunRecord[AccumCellRecord]):
    """Record of a run of `sysbench accum`."""

    kind: Literal["accum"] = "accum"

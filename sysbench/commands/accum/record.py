"""What `sysbench accum` says of its cells: its own events, and its record."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sysbench.commands.accum.spec import AccumCell, Experiment, Order
from sysbench.log.events import Event, Source
from sysbench.log.records import CellRecord, RunRecord
from sysbench.rounding import FormatName
from sysbench.spec.frozen import Frozen, of_one_length
from sysbench.spec.quantities import Amount, Count, Exponent, Finite, Number

ArithmeticSource = Literal["device", "rounded"]
"""device   the device's own arithmetic in that format
rounded  arithmetic in a wider format, every result rounded to it, or of products the inputs
"""


class SumResult(Frozen):
    """One number added up, as `accumulator += addend`."""

    accumulator: FormatName
    addend: FormatName
    """What the number is rounded to before it is added."""
    upcast: bool
    """The rounded number is converted to the accumulator's format before, rather than by the addition."""
    order: Order
    source: ArithmeticSource
    rounded_addend: Number
    result: Number


class SumMeasured(SumResult, Event):
    """One number added up `count` times."""

    event: Literal["sum_measured"] = "sum_measured"
    cell: str
    drift: list[tuple[Count, Number]]
    """Steps and what the sum is after them; empty where there is no running sum."""


DtypePart = Literal["parameter", "input", "output", "logits", "loss", "gradient"]


class DtypeSeen(Frozen):
    """The type that something in a model has."""

    part: DtypePart
    name: str
    """The path of the parameter or module: `layers.0.attention.q`; empty where there is one only."""
    dtype: str
    """As torch calls it: `float16`."""


class DtypesMeasured(Event):
    """The types of everything in a model under autocast."""

    event: Literal["dtypes_measured"] = "dtypes_measured"
    cell: str
    precision: FormatName
    """What autocast is asked for."""
    source: Source
    """Simulated is what CUDA does, without CUDA."""
    seen: list[DtypeSeen]


class NormPoint(Frozen):
    """Layer norm of inputs of one scale."""

    scale: Amount
    mean: Number
    variance: Number
    reciprocal_deviation: Number
    """rsqrt(variance + eps)."""
    bare_reciprocal_deviation: Number
    """rsqrt(variance): what eps keeps from becoming infinite."""
    relative_error: Number
    """Of the outputs, against fp64: ‖y − y64‖ / ‖y64‖."""


class NormMeasured(Event):
    """Layer norm with inputs and outputs in one format and its statistics in another, over the scale of its inputs."""

    event: Literal["norm_measured"] = "norm_measured"
    cell: str
    dtype: FormatName
    statistics: FormatName
    source: ArithmeticSource
    points: list[NormPoint]


class GradientsMeasured(Event):
    """The parameters' gradients of one backward pass in fp32, by magnitude."""

    event: Literal["gradients_measured"] = "gradients_measured"
    cell: str
    gradients: Count
    zeros: Count
    by_exponent: dict[Exponent, Count]
    """How many are at least 2**exponent in magnitude and less than twice that."""


class ScaledBackward(Event):
    """The parameters' gradients of one backward pass under autocast, beside those in fp32.

    Counted are the gradients that are not zero in fp32.
    """

    event: Literal["scaled_backward"] = "scaled_backward"
    cell: str
    precision: FormatName
    scale: Amount
    """What the loss is multiplied by, and the gradients divided by in fp32."""
    gradients: Count
    lost: Count
    """Zero here."""
    overflowed: Count
    """Infinite or NaN here."""
    relative_error: Number
    """Of all gradients together: ‖g − g32‖ / ‖g32‖."""
    step_kept: bool
    """Whether torch's GradScaler lets the optimizer take the step."""


Accumulation = Literal["as it is", "reduced", "not reduced", "narrow"]
"""as it is     as the device forms sums by itself
reduced      parts of sums may be added in the format of the inputs (allow_…_reduced_precision_reduction)
not reduced  they may not
narrow       term by term, every sum rounded to the format of the inputs
"""


class ProductMeasured(Event):
    """The error of a matrix product against fp64, (m, k) × (k, m)."""

    event: Literal["product_measured"] = "product_measured"
    cell: str
    dtype: FormatName
    accumulation: Accumulation
    source: ArithmeticSource
    m: Count
    k: Count
    relative_error: Number
    """‖C − C64‖ / ‖C64‖, C64 being the product in fp64 of the same rounded inputs: accumulation alone."""
    total_error: Number
    """The same against the inputs before they were rounded."""


class SumRecord(SumResult):
    """One number added up, and where its error comes from: `error = representation_error + accumulation_error`."""

    error: Number
    """result − value × count, both exact."""
    representation_error: Number
    """count × (rounded addend − value): there before anything is added."""
    accumulation_error: Number
    """result − count × rounded addend: what rounding the sums did."""
    stall_step: Count | None
    """From this step on adding changes nothing, whether or not the sum went that far; computed exactly. None where
    it overflows first, and for other orders than one after the other."""
    stall_at: Finite | None
    """What the sum is then."""


class DriftRecord(Frozen):
    """A running sum on its way."""

    accumulator: FormatName
    addend: FormatName
    upcast: bool
    order: Order
    steps: list[Count]
    sums: list[Number]

    @model_validator(mode="after")
    def _points(self) -> Self:
        return of_one_length(self, "steps", "sums")


class DtypeRecord(Frozen):
    """The type of something in a model under autocast, on this device and on CUDA."""

    precision: FormatName
    part: DtypePart
    name: str
    """`layers.*` stands for every layer, where all are alike; nothing for what has no name, or stands for all."""
    count: Count
    """How many things this is said of."""
    here: str | None
    """Measured, as torch calls it."""
    on_cuda: str | None
    """Simulated by CUDA's rules."""


class NormRecord(Frozen):
    """Where layer norm leaves the range of a format, as scales of its inputs, which are powers of two.

    None where it does not within the scales that were tried. Inputs have mean 1 and deviation 1 times the scale.
    """

    dtype: FormatName
    statistics: FormatName
    mean_overflows_from: Amount | None
    variance_overflows_from: Amount | None
    variance_vanishes_to: Amount | None
    """The largest scale at which the variance is 0."""
    reciprocal_overflows_to: Amount | None
    """The largest at which rsqrt(variance), without eps, is not finite for want of a variance."""
    wrong_to: Amount | None
    """The largest small scale at which outputs are wrong (see `sysbench.commands.accum.fold.WRONG`)."""
    wrong_from: Amount | None
    """The smallest large one."""
    error_at_one: Number
    scales: list[Amount]
    relative_errors: list[Number]

    @model_validator(mode="after")
    def _points(self) -> Self:
        return of_one_length(self, "scales", "relative_errors")


class GradientsRecord(Frozen):
    """The gradients of one backward pass in fp32, by magnitude."""

    gradients: Count
    zeros: Count
    by_exponent: dict[Exponent, Count]


class ScaledRecord(Frozen):
    """What 16 bits leave of the gradients that are not zero in fp32, with the loss scaled."""

    precision: FormatName
    scale: Amount
    gradients: Count
    lost: Count
    lost_share: Amount
    overflowed: Count
    overflowed_share: Amount
    relative_error: Number
    step_kept: bool


class ProductRecord(Frozen):
    """The error of one matrix product against fp64."""

    dtype: FormatName
    accumulation: Accumulation
    source: ArithmeticSource
    m: Count
    k: Count
    relative_error: Number
    total_error: Number


class AccumCellRecord(CellRecord):
    """One experiment of `sysbench accum`; everything that another one is about is empty."""

    cell: AccumCell = Field(alias="axes")

    experiment: Experiment
    sums: list[SumRecord]
    drift: list[DriftRecord]
    dtypes: list[DtypeRecord]
    norms: list[NormRecord]
    gradients: GradientsRecord | None
    scaled: list[ScaledRecord]
    products: list[ProductRecord]


class AccumRecord(RunRecord[AccumCellRecord]):
    """The final summary of a run of `sysbench accum`."""

    kind: Literal["accum"] = "accum"

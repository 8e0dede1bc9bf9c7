"""Options and cells of `sysbench calibrate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from sysbench.errors import Refusal
from sysbench.spec.axes import choices
from sysbench.spec.axis import Axis
from sysbench.spec.cell import DeviceType, RunCell, RunSpec, parse_devices
from sysbench.spec.grid import EFFORT
from sysbench.spec.options import Option
from sysbench.spec.problems import precision_problem
from sysbench.spec.quantities import Seconds, Seed
from sysbench.spec.run import OUTPUT, SavedOptions
from sysbench.spec.steps import Precision

Part = Literal["matmul", "attention", "memory", "launch", "host", "link"]
"""matmul     products of matrices: large in three layouts, small, batched
attention  fused attention, forward and backward
memory     elementwise kernels, reductions, broadcasts, copies and transposes of large tensors
launch     kernels that do almost nothing: duration, gap to the next kernel, host time of a launch
host       host time per operator, from a narrow model with two depths
link       copies between GPU and host, and AdamW on the host: what offloading needs
"""

PARTS: tuple[Part, ...] = get_args(Part)

SHARE_OF_BUDGET: Mapping[Part, float] = {
    "matmul": 0.4, "attention": 0.1, "memory": 0.2, "launch": 0.05, "host": 0.2, "link": 0.05,
}  # fmt: skip
"""Fraction of a run's time that each part may take."""

BUDGET_S = 30.0


class CalibrateCell(RunCell):
    """One part of a calibration on one device."""

    kind: Literal["calibrate"] = "calibrate"
    part: Annotated[Part, Axis("work")]
    precisions: tuple[Precision, ...]
    """Precisions to measure; if empty, all that the device supports."""
    budget_s: Annotated[Seconds, EFFORT]
    """Total seconds for the measurements of the part, without setup."""
    seed: Seed

    @property
    def title(self) -> str:
        return self.part

    def problem(self, device: DeviceType | None) -> Refusal | None:
        return next(
            (found for precision in self.precisions if device and (found := precision_problem(precision, device))), None
        )


class CalibrateSpec(RunSpec):
    """Spec of a run of `sysbench calibrate`."""

    kind: Literal["calibrate"] = "calibrate"
    part: Annotated[
        tuple[Part, ...], BeforeValidator(choices("a part", PARTS)), Option(metavar="[PART,…]", positional=True)
    ] = Field(default=PARTS, description=f"Parts to measure: {', '.join(PARTS)}.")
    device: Annotated[tuple[str, ...], BeforeValidator(parse_devices), Option(metavar="NAME", common=True)] = Field(
        default=("auto",), max_length=1, description="auto, cuda, cuda:1, mps or cpu; one at a time."
    )
    precision: Annotated[
        tuple[Precision, ...],
        BeforeValidator(choices("a precision", get_args(Precision))),
        Option(metavar="NAME,…", common=True),
    ] = Field(default=(), description="Precisions of matrix products. Default: all that the device supports.")
    budget_s: Annotated[Seconds, Option(flags=("--budget",), metavar="S", common=True)] = Field(
        default=BUDGET_S, gt=0, description="Approximate total duration of the measurements in seconds."
    )
    seed: Annotated[Seed, Option(metavar="N")] = Field(default=0, description="Seed for matrices and parameters.")

    def cells(self) -> Iterator[CalibrateCell]:
        whole = sum(SHARE_OF_BUDGET[part] for part in self.part)
        for part in self.part:
            yield CalibrateCell(
                device=self.device[0],
                part=part,
                precisions=self.precision,
                budget_s=self.budget_s * SHARE_OF_BUDGET[part] / whole,
                seed=self.seed,
            )


class CalibrateOptions(SavedOptions):
    """Options for input and output files."""

    out: Annotated[Path, Option(metavar="PATH", panel=OUTPUT, common=True)] = Field(
        default=Path("runs"),
        description="Directory for the log and the record; a name that ends in .toml is the file for the rates "
        "instead.",
    )
    host: Annotated[Path | None, Option(metavar="FILE", panel=OUTPUT, common=True)] = Field(
        default=None, description="Also write the host's own rates to this file, for --host of time and profile."
    )
    rates_file: Path | None = None
    """The file of rates; None is the one in the user's directory. Not on the command line: `--out FILE.toml`."""

    @model_validator(mode="before")
    @classmethod
    def _file_of_rates(cls, given: object) -> object:
        if isinstance(given, dict) and str(given.get("out", "")).endswith(".toml"):
            rest = {name: value for name, value in given.items() if name != "out"}
            return {**rest, "rates_file": Path(given["out"])}
        return given

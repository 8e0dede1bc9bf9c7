"""Spec, cell and options of `sysbench time`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from sysbench.spec import hardware
from sysbench.spec.axes import choices, integers, share, texts
from sysbench.spec.model import STEP, Mode, ModelCell, ModelSpec, Precision
from sysbench.spec.options import Option
from sysbench.spec.quantities import Share, Size, Steps
from sysbench.spec.ranks import NODE_RANKS, Interconnect
from sysbench.spec.run import SavedOptions

Sync = Literal["phase", "step"]

MEASUREMENT = "Measurement"
PREDICTION = "Prediction"


def _prices(value: object) -> dict[str, float]:
    """Parse `h100=2.5,4090=0.4` into prices by slug."""
    if isinstance(value, dict):
        return value
    found = {}
    for text in texts(value):
        name, _, number = text.partition("=")
        try:
            price = float(number)
        except ValueError:
            raise ValueError(f"{text} is not GPU=PRICE, such as h100=2.5") from None
        found[hardware.gpus(name)[0]] = price
    return found


def _is_none(value: object) -> bool:
    return value is None


class TimeCell(ModelCell):
    """One point of a timing grid."""

    kind: Literal["time"] = "time"
    warmup: Steps
    steps: Size
    until: Share | None
    max_steps: Size
    sync: Sync
    simulate: str | None = Field(default=None, exclude_if=_is_none)
    """GPU to predict for, by the name that `sysbench.spec.hardware.named` takes; None to measure. Measured cells are
    stored without this field, as in versions without predictions."""
    host: Path | None = Field(default=None, exclude_if=_is_none)
    """File of the host to predict for."""
    interconnect: Interconnect | None = Field(default=None, exclude_if=_is_none)
    """Network between nodes to predict for; None within one node."""

    @property
    def simulated(self) -> str | None:
        """The GPU to predict for."""
        return self.simulate

    @property
    def against_ceiling(self) -> Precision | None:
        """Precision of the matmul ceiling with which a measured step is compared."""
        return None if self.simulate else self.computed_in

    @property
    def ranks_refused(self) -> str | None:
        """Why the cell cannot be one of several ranks; None if it can."""
        if self.simulate and self.execution == "compiled":
            return "compiled steps of several ranks are measured, not predicted: leave out --compile or --simulate"
        if self.simulate and self.ranks > NODE_RANKS and self.interconnect is None:
            return f"nodes have {NODE_RANKS} GPUs; say what links several: --interconnect ib-400"
        return None


class TimeSpec(ModelSpec):
    """A run of `sysbench time`."""

    kind: Literal["time"] = "time"
    mode: Annotated[
        tuple[Mode, ...],
        BeforeValidator(choices("a mode", get_args(Mode))),
        Option(metavar="MODE,…", panel=STEP),
    ] = Field(default=("train",), description=f"Which phases a step has: {', '.join(get_args(Mode))}.")
    warmup: Annotated[tuple[int, ...], BeforeValidator(integers(0)), Option(metavar="AXIS", panel=MEASUREMENT)] = Field(
        default=(5,), description="Steps before measuring; kept and shown, not counted."
    )
    steps: Annotated[tuple[int, ...], BeforeValidator(integers(1)), Option(metavar="AXIS", panel=MEASUREMENT)] = Field(
        default=(10,), description="Steps measured; at least this many with --until."
    )
    until: Annotated[float | None, BeforeValidator(share), Option(metavar="SHARE", panel=MEASUREMENT)] = Field(
        default=None,
        gt=0,
        lt=1,
        description="Measure until the 95 % interval of the median step is at most this wide, as a share of it: 1%.",
    )
    max_steps: Annotated[Size, Option(metavar="N", panel=MEASUREMENT)] = Field(
        default=1000, description="Give up on --until after this many steps."
    )
    sync: Annotated[Sync, Option(metavar="KIND", panel=MEASUREMENT)] = Field(
        default="phase",
        description="phase synchronizes on both sides of every phase; step only around the whole, unperturbed step.",
    )

    simulate: Annotated[hardware.Gpus, Option(metavar="GPU,…", panel=PREDICTION)] = Field(
        default=(),
        exclude_if=lambda value: not value,
        description="Predict the times on these GPUs, which need not be here, instead of measuring: "
        "a100-80gb,h100. With --plan: hold the predicted memory against them.",
    )
    host: Annotated[Path | None, Option(metavar="FILE", panel=PREDICTION)] = Field(
        default=None,
        exclude_if=_is_none,
        description="With --simulate: the host that issues the work, as sysbench calibrate --host has written it; "
        "without it the one that was calibrated with the GPU, or a typical one.",
    )
    interconnect: Annotated[Interconnect | None, Option(metavar="NAME", panel=PREDICTION)] = Field(
        default=None,
        exclude_if=_is_none,
        description="With --simulate and more than 8 ranks: the network between nodes of 8 GPUs, with an adapter of so "
        f"many Gbit/s for each: {', '.join(get_args(Interconnect))}.",
    )
    price: Annotated[
        dict[str, PositiveFloat], BeforeValidator(_prices), Option(metavar="GPU=PRICE,…", panel=PREDICTION)
    ] = Field(
        default={},
        exclude_if=lambda value: not value,
        description="With --simulate: what an hour of a GPU costs you, in any currency: h100=2.5,a100-80gb=1.4.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.simulate and self.device != ("auto",):
            raise ValueError("--device names the device to measure on; with --simulate nothing is measured")
        for name in ("host", "price", "interconnect"):
            if getattr(self, name) and not self.simulate:
                raise ValueError(f"--{name} needs --simulate GPU: nothing is predicted otherwise")
        if other := set(self.price) - set(self.simulate):
            raise ValueError(f"--price names {', '.join(sorted(other))}, which --simulate does not")
        return self

    def cells(self) -> Iterator[TimeCell]:
        """Yield every cell in the order of measurement; the GPUs of a cell follow each other."""
        points = [{**point, "device": "cpu"} if self.simulate else point for point in self.grid()]
        for point, mode, warmup, steps, gpu in itertools.product(
            points, self.mode, self.warmup, self.steps, self.simulate or (None,)
        ):
            yield TimeCell(
                **point,
                mode=mode,
                warmup=warmup,
                steps=steps,
                until=self.until,
                max_steps=max(self.max_steps, steps),
                sync=self.sync,
                simulate=gpu,
                host=self.host,
                interconnect=self.interconnect if point["ranks"] > NODE_RANKS else None,
            )


class TimeOptions(SavedOptions):
    """Run options of `sysbench time`."""

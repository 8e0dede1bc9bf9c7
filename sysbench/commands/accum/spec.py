"""Spec, cell and options of `sysbench accum`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from sysbench.rounding import FormatName
from sysbench.spec.axes import choices, integers
from sysbench.spec.axis import Axis
from sysbench.spec.cell import RunCell, RunSpec, parse_devices
from sysbench.spec.grid import DEFAULT_VOCAB, EFFORT, SIZES
from sysbench.spec.model import ModelCell
from sysbench.spec.options import Option
from sysbench.spec.quantities import Amount, Finite, Seconds, Seed, Size

Experiment = Literal["sums", "autocast", "norm"]
"""sums      sums of one repeated number
autocast  dtypes of all parts of a model under autocast
norm      layer norm in formats of different range, by input scale
"""

Order = Literal["sequential", "pairwise", "kahan", "blocked"]

TOY = "toy"
"""A two-layer model for autocast, in addition to the sizes of the Transformer."""

EXPERIMENTS: tuple[Experiment, ...] = get_args(Experiment)
ORDERS: tuple[Order, ...] = get_args(Order)

DTYPES: Mapping[Experiment, tuple[FormatName, ...]] = {
    "sums": ("fp32", "tf32", "fp16", "bf16", "fp8-e4m3", "fp8-e5m2"),
    "autocast": ("fp16", "bf16"),
    "norm": ("fp32", "bf16", "fp16"),
}
"""Formats of each experiment."""

MAX_STEPS = 100_000_000
"""Largest number of steps of a sum; `--budget` further limits the predicted duration."""

SUMS = "Sums"
MODELS = "Models under autocast"
NORM = "Layer norm"


def _experiments(value: object) -> tuple[str, ...]:
    names: tuple[str, ...] = choices("an experiment", (*EXPERIMENTS, "all"))(value)
    return EXPERIMENTS if "all" in names else names


def _number(value: object, what: str = "a number") -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ValueError(f"{value} is not {what}") from None


def _summand(value: object) -> float:
    number = _number(value)
    if not math.isfinite(number) or number == 0:
        raise ValueError(f"{value} cannot be summed: any finite number other than 0 is allowed")
    if not 1e-30 <= abs(number) <= 1e30:
        raise ValueError(f"{value} is out of range; use a magnitude from 1e-30 to 1e30")
    return number


def _share(value: object) -> float:
    if not 0 <= (number := _number(value)) <= 1:
        raise ValueError(f"{value} is out of range: it must be 0 to 1")
    return number


def _integer(minimum: int, maximum: int) -> BeforeValidator:
    """Return a validator that accepts integers in the range, also in notations such as 1e6."""
    within = integers(minimum, maximum)

    def parse(value: object) -> int:
        number = _number(value, "a whole number")
        if not math.isfinite(number) or number != int(number):
            raise ValueError(f"{value} is not a whole number")
        (whole,) = within(int(number))
        return whole

    return BeforeValidator(parse)


class AccumCell(RunCell):
    """One experiment; fields that do not affect it are None, so that they do not distinguish cells."""

    named_by_title = True
    takes_times = False

    kind: Literal["accum"] = "accum"
    experiment: Experiment
    dtypes: tuple[FormatName, ...]
    size: str | None = None
    ctx: Size | None = None
    batch: Size | None = None
    value: Finite | None = None
    count: Size | None = None
    orders: Annotated[tuple[Order, ...] | None, Axis("setting")] = None
    block: Size | None = None
    budget_s: Annotated[Seconds | None, EFFORT] = None
    width: Size | None = None
    eps: Amount | None = None
    seed: Seed

    @property
    def title(self) -> str:
        return f"{self.experiment} {self.size}" if self.size else self.experiment

    @property
    def step(self) -> ModelCell | None:
        if self.size is None or self.size == TOY or self.ctx is None or self.batch is None:
            return None
        return ModelCell(
            size=self.size,
            model=SIZES[self.size].model_copy(update={"vocab": DEFAULT_VOCAB}),
            ctx=self.ctx,
            batch=self.batch,
            precision="fp32",
            device=self.device,
            attention="naive",
            execution="eager",
            optimizer="foreach",
            seed=self.seed,
            mode="forward-backward",
        )


class AccumSpec(RunSpec):
    """A run of `sysbench accum`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, validate_default=True)

    kind: Literal["accum"] = "accum"
    experiment: Annotated[
        tuple[Experiment, ...],
        BeforeValidator(_experiments),
        Option(metavar="[EXPERIMENT,…]", positional=True),
    ] = Field(
        default=("sums",),
        description=f"{', '.join(EXPERIMENTS)}, or all.",
    )
    dtype: Annotated[
        tuple[FormatName, ...],
        BeforeValidator(choices("a format", get_args(FormatName))),
        Option(metavar="NAME,…", common=True),
    ] = Field(
        default=(),
        description=f"Formats to test: {', '.join(get_args(FormatName))}.",
    )
    device: Annotated[tuple[str, ...], BeforeValidator(parse_devices), Option(metavar="NAME,…", common=True)] = Field(
        default=("auto",),
        description="auto, cuda, cuda:1, mps or cpu. auto picks the first available of cuda, mps, cpu.",
    )
    seed: Annotated[Seed, Option(metavar="N")] = Field(default=0, description="Seed of parameters, tokens and inputs.")
    value: Annotated[float, BeforeValidator(_summand), Option(metavar="X", panel=SUMS, common=True)] = Field(
        default=0.01, description="Number to add."
    )
    count: Annotated[int, _integer(1, MAX_STEPS), Option(metavar="N", panel=SUMS, common=True)] = Field(
        default=1000, description="How many times to add the number."
    )
    order: Annotated[
        tuple[Order, ...],
        BeforeValidator(choices("an order of summation", ORDERS)),
        Option(metavar="NAME,…", panel=SUMS),
    ] = Field(default=ORDERS, description="Order of summation: " + ", ".join(ORDERS) + ".")
    block: Annotated[int, _integer(2, MAX_STEPS), Option(metavar="N", panel=SUMS)] = Field(
        default=32, description="Block size of blocked summation."
    )
    budget_s: Annotated[Seconds, Option(flags=("--budget",), metavar="S", panel=SUMS)] = Field(
        default=60.0, gt=0, description="Refuse sums that would take longer than this many seconds."
    )
    size: Annotated[
        tuple[str, ...],
        BeforeValidator(choices("a model", (TOY, *SIZES))),
        Option(metavar="NAME,…", panel=MODELS, values=(TOY, *SIZES), common=True),
    ] = Field(
        default=(),
        description=f"Models: {', '.join((TOY, *SIZES))}. Default: toy.",
    )
    ctx: Annotated[int, _integer(1, 1_000_000), Option(flags=("--ctx", "--seq-len"), metavar="N", panel=MODELS)] = (
        Field(default=16, description="Context length of the Transformer, in tokens.")
    )
    batch: Annotated[
        int, _integer(1, 1_000_000), Option(flags=("--batch", "--batch-size"), metavar="N", panel=MODELS)
    ] = Field(default=4, description="Sequences in a batch.")
    width: Annotated[int, _integer(2, 1_000_000), Option(metavar="N", panel=NORM)] = Field(
        default=1024, description="norm: size of the normalised dimension."
    )
    eps: Annotated[float, BeforeValidator(_share), Option(metavar="X", panel=NORM)] = Field(
        default=1e-5, description="norm: eps, which is added to the variance."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for experiment in self.experiment:
            known = DTYPES[experiment]
            if self.dtype and not set(self.dtype) & set(known):
                names = ",".join(self.dtype)
                raise ValueError(f"--dtype {names} is not a format of {experiment}; allowed: {', '.join(known)}")
        everything = {name for experiment in self.experiment for name in DTYPES[experiment]}
        for name in self.dtype:
            if name not in everything:
                raise ValueError(f"--dtype {name} is not a format of {', '.join(self.experiment)}")
        return self

    def cells(self) -> Iterator[AccumCell]:
        """Yield the experiments in the given order; an experiment on a model is repeated for each model."""
        for device in self.device:
            for experiment in self.experiment:
                for size in (self.size or (TOY,)) if experiment == "autocast" else (None,):
                    yield AccumCell(
                        device=device,
                        experiment=experiment,
                        dtypes=tuple(name for name in DTYPES[experiment] if not self.dtype or name in self.dtype),
                        size=size,
                        seed=self.seed,
                        **self._particulars(experiment),
                    )

    def _particulars(self, experiment: Experiment) -> dict[str, object]:
        match experiment:
            case "sums":
                fields = ("value", "count", "block", "budget_s")
                return {"orders": self.order, **{name: getattr(self, name) for name in fields}}
            case "norm":
                return {"width": self.width, "eps": self.eps}
            case "autocast":
                return {"batch": self.batch, "ctx": self.ctx}

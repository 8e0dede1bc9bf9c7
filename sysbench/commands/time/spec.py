"""Spec, cell and options of `sysbench time`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from sysbench.spec import hardware
from sysbench.spec.axes import parse_amount, parse_share
from sysbench.spec.axis import Axis
from sysbench.spec.cell import asks_for
from sysbench.spec.grid import EFFORT, HOST, HOST_LINK, PREDICTION, STEPS, WARMUP
from sysbench.spec.knobs import FP8, NONE
from sysbench.spec.model import ModelCell, ModelSpec
from sysbench.spec.options import MEASUREMENT, Option, flag_of
from sysbench.spec.quantities import (
    Count,
    Share,
    Size,
    Steps,
    TimeLimit,
    limit_in_seconds,
    stored_unless,
    time_limit_word,
)
from sysbench.spec.ranks import NODE_RANKS, Interconnect
from sysbench.spec.run import SavedOptions
from sysbench.spec.steps import Precision, Sync

SYNC = Axis("setting", default="phase", comparison="controlled", phrase="synchronized by {}")

Effort = Literal["warmup", "steps"]

EFFORTS: tuple[Effort, ...] = get_args(Effort)


class TimeCell(ModelCell):
    """One point of a timing grid."""

    kind: Literal["time"] = "time"
    warmup: Annotated[Steps, replace(WARMUP, default=(5,)), Option(metavar="AXIS", panel=MEASUREMENT, common=True)] = (
        Field(description="Warm-up steps before measuring; recorded and shown, but not counted.")
    )
    steps: Annotated[Size, replace(STEPS, default=(10,)), Option(metavar="AXIS", panel=MEASUREMENT, common=True)] = (
        Field(description="Steps to measure; with --until, at least this many.")
    )
    until: Annotated[
        Share | None, BeforeValidator(parse_share), EFFORT, Option(metavar="SHARE", panel=MEASUREMENT, common=True)
    ] = Field(
        description="Measure until the 95% CI of the median step is at most this wide, relative to the median, "
        "e.g. 1%.",
    )
    max_steps: Annotated[Size, EFFORT]
    """Number of steps after which --until gives up."""
    max_time: Annotated[
        TimeLimit, EFFORT, Option(metavar="TIME", panel=MEASUREMENT, common=True, word=time_limit_word)
    ] = stored_unless(
        "auto",
        description="Measure each cell for at most this long, with fewer warm-up steps and steps if necessary: 90s, "
        "3m, none, or auto: 3m on a CPU, where --warmup and --steps are obeyed if given, and none on a GPU.",
    )
    exact: Annotated[tuple[Effort, ...], EFFORT] = stored_unless(EFFORTS)
    """Numbers of steps that only a `max_time` in seconds may cut."""
    sync: Annotated[Sync, SYNC, Option(metavar="KIND", panel=MEASUREMENT)] = Field(
        description='"phase" synchronizes before and after every phase; "step" only before and after the whole step, '
        "which perturbs it less.",
    )
    simulate: Annotated[str | None, hardware.SIMULATED, Option(metavar="GPU,…", panel=PREDICTION, common=True)] = (
        stored_unless(
            None,
            description="Predict the times on these GPUs, which need not be present, instead of measuring: "
            "a100-80gb,h100. With --plan: compare predicted memory with theirs.",
        )
    )
    host: Annotated[Path | None, HOST, Option(metavar="FILE", panel=PREDICTION)] = stored_unless(
        None,
        description="With --simulate: rates of the host that launches the kernels, as written by sysbench calibrate "
        "--host; by default those of the host calibrated with the GPU, or of a typical one.",
    )
    interconnect: Annotated[
        Interconnect | None,
        Axis("setting", applies_to=(("ranks", ()),)),
        Option(metavar="NAME", panel=PREDICTION),
    ] = stored_unless(
        None,
        description="With --simulate and more than 8 ranks: the network between nodes of 8 GPUs, with one adapter of "
        f"that many Gbit/s per GPU: {', '.join(get_args(Interconnect))}.",
    )
    host_link: Annotated[
        hardware.LinkSpeed, HOST_LINK, Option(metavar="RATE", panel=PREDICTION, word=hardware.rate_word)
    ] = stored_unless(
        None,
        description="With --simulate and --offload: rate of copies between GPU and host, such as 25GB/s. "
        "Default: the one that sysbench calibrate measured.",
    )

    @property
    def simulated(self) -> str | None:
        return self.simulate

    def limit_s(self, device_type: str) -> float | None:
        """Return the time limit in seconds on this type of device; None if nothing may be cut."""
        is_given = self.max_time == "auto" and set(self.exact) == set(EFFORTS)
        return None if is_given else limit_in_seconds(self.max_time, device_type)

    def may_cut(self, effort: Effort) -> bool:
        """Whether a time limit cuts the number of warm-up steps or of steps: the default one spares given numbers."""
        return self.max_time != "auto" or effort not in self.exact

    @property
    def keeps_steps(self) -> bool:
        return self.simulate is None and self.ranks == 1

    @property
    def ceiling_precision(self) -> Precision | None:
        """Precision of the matmul ceiling with which a measured step is compared; None if it is predicted, or fp8."""
        return None if self.simulate or self.precision in FP8 else self.compute_precision

    @property
    def ranks_unsupported_reason(self) -> str | None:
        if self.simulate and self.ranks > NODE_RANKS and self.interconnect is None:
            return f"a node has {NODE_RANKS} GPUs; name the network between nodes: --interconnect ib-400"
        return None


@asks_for(TimeCell)
class TimeSpec(ModelSpec):
    """A run of `sysbench time`."""

    kind: Literal["time"] = "time"
    exact: tuple[Effort, ...] = Field(default=(), description="Numbers of steps that were given, not defaults.")
    price: Annotated[
        hardware.Prices,
        Option(metavar="GPU=PRICE,…", panel=PREDICTION),
    ] = stored_unless(
        {},
        description="With --simulate: price of a GPU hour in any currency: h100=2.5,a100-80gb=1.4.",
    )

    max_steps: Size = 1000
    """Number of steps after which --until gives up, unless --steps is larger. Not on the command line."""
    tokens: Annotated[
        Count | None, BeforeValidator(parse_amount), Option(metavar="N", panel=PREDICTION, common=True)
    ] = Field(
        default=None,
        ge=1,
        exclude_if=lambda value: value is None,
        description="Tokens of the whole training, such as 1B: adds its hours, and its cost with --price.",
    )

    @model_validator(mode="before")
    @classmethod
    def _note_given_steps(cls, fields: object) -> object:
        """Note which numbers of steps were given; all are in specs that were stored without this note."""
        if not isinstance(fields, dict) or "exact" in fields:
            return fields
        return {**fields, "exact": tuple(name for name in EFFORTS if name in fields)}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.simulate and self.device != ("auto",):
            raise ValueError(
                "--device names the device to measure on, but --simulate measures nothing: drop one of them"
            )
        for name in ("host", "price", "interconnect", "host_link"):
            if getattr(self, name) and not self.simulate:
                raise ValueError(f"{flag_of(name)} needs --simulate GPU: it only affects predictions")
        if self.host_link and set(self.offload) <= {NONE}:
            raise ValueError("--host-link is the rate of what --offload copies: add --offload optimizer")
        if self.tokens is not None and self.mode != ("train",):
            raise ValueError("--tokens is the size of a training: --mode must be train")
        if other := set(self.price) - set(self.simulate):
            raise ValueError(f"--price names {', '.join(sorted(other))}, but --simulate does not")
        return self

    @property
    def unused(self) -> tuple[str, ...]:
        return ("warmup", "steps", "until", "max_time") if self.simulate else ()

    def cells(self) -> Iterator[TimeCell]:
        """Yield every cell in the order of measurement; cells that differ only in the GPU are consecutive."""
        device = {"device": "cpu"} if self.simulate else {}
        for point in self.grid():
            point.update(device, max_steps=max(self.max_steps, point["steps"]), exact=self.exact)
            point["interconnect"] = self.interconnect if point["ranks"] > NODE_RANKS else None
            yield TimeCell(**point)


class TimeOptions(SavedOptions):
    """Run options of `sysbench time`."""

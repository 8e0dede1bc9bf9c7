"""What `sysbench time` can be asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from sysbench.spec.axes import choices, integers, share
from sysbench.spec.model import STEP, Mode, ModelCell, ModelSpec, Precision
from sysbench.spec.options import Option
from sysbench.spec.quantities import Share, Size, Steps
from sysbench.spec.run import EXECUTION, SavedOptions

Sync = Literal["phase", "step"]

MEASUREMENT = "Measurement"


class TimeCell(ModelCell):
    """One point of a timing grid."""

    kind: Literal["time"] = "time"
    warmup: Steps
    steps: Size
    until: Share | None
    max_steps: Size
    sync: Sync

    @property
    def against_ceiling(self) -> Precision:
        """A step is held against the fastest matrix product."""
        return self.precision


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

    def cells(self) -> Iterator[TimeCell]:
        """Every cell of the run, in the order in which it is measured."""
        for point, mode, warmup, steps in itertools.product(list(self.grid()), self.mode, self.warmup, self.steps):
            yield TimeCell(
                **point,
                mode=mode,
                warmup=warmup,
                steps=steps,
                until=self.until,
                max_steps=max(self.max_steps, steps),
                sync=self.sync,
            )


class TimeOptions(SavedOptions):
    """What goes with timing alone."""

    simulate: Annotated[str | None, Option(metavar="GPU", panel=EXECUTION)] = Field(
        default=None, description="With --plan: hold the predicted memory against this GPU, which need not be here."
    )

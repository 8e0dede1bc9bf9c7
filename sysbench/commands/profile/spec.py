"""What `sysbench profile` can be asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from sysbench.commands.time.spec import TimeCell
from sysbench.spec.axes import choices, integers
from sysbench.spec.model import MODEL, STEP, DeviceType, Mode, ModelCell, ModelSpec
from sysbench.spec.options import Option

Profiler = Literal["torch", "nsys"]
"""torch  torch.profiler: operators and, on CUDA, kernels
nsys   Nsight Systems around the worker: kernels and ranges
"""

MOST_ACTIVE = 3
"""One step of a large model is more than a gigabyte of trace."""

PROFILE = "Profile"


class ProfileCell(ModelCell):
    """One point of a grid of profiles."""

    kind: Literal["profile"] = "profile"
    profiler: Profiler
    active: int
    warmup: int
    steps: int
    shapes: bool

    @property
    def needs_fresh_worker(self) -> bool:
        """A process that has been profiled stays slower, and what it has cached would be missing in the profile."""
        return True

    @property
    def timed_first(self) -> TimeCell | None:
        """The same step, unprofiled and unperturbed: it is synchronized as a whole, as the profiled one is."""
        if not self.steps:
            return None
        shared = {name: getattr(self, name) for name in ModelCell.model_fields}
        return TimeCell(**shared, warmup=self.warmup, steps=self.steps, until=None, max_steps=self.steps, sync="step")

    def unavailable(self, device: DeviceType) -> str | None:
        """Why this combination does not exist, or None."""
        if self.profiler == "nsys" and device != "cuda":
            return f"--with nsys sees kernels of NVIDIA's GPUs; on {device} there is --with torch"
        return super().unavailable(device)


class ProfileSpec(ModelSpec):
    """A run of `sysbench profile`."""

    kind: Literal["profile"] = "profile"
    ctx: Annotated[tuple[int, ...], BeforeValidator(integers(1)), Option(metavar="AXIS", panel=MODEL)] = Field(
        default=(256,), description="Context length, in tokens."
    )
    mode: Annotated[
        tuple[Mode, ...],
        BeforeValidator(choices("a mode", get_args(Mode))),
        Option(metavar="MODE,…", panel=STEP),
    ] = Field(default=("train",), description=f"Which phases a step has: {', '.join(get_args(Mode))}.")
    profiler: Annotated[
        tuple[Profiler, ...],
        BeforeValidator(choices("a profiler", get_args(Profiler))),
        Option(flags=("--with",), metavar="NAME,…", panel=PROFILE),
    ] = Field(
        default=("torch",),
        description="torch is torch.profiler; nsys is Nsight Systems around the same step. They are never both on.",
    )
    active: Annotated[
        tuple[int, ...], BeforeValidator(integers(1, MOST_ACTIVE)), Option(metavar="AXIS", panel=PROFILE)
    ] = Field(default=(1,), description=f"Steps that are profiled, 1 to {MOST_ACTIVE}.")
    warmup: Annotated[tuple[int, ...], BeforeValidator(integers(0)), Option(metavar="AXIS", panel=PROFILE)] = Field(
        default=(3,), description="Steps before those, in every process."
    )
    steps: Annotated[tuple[int, ...], BeforeValidator(integers(0)), Option(metavar="AXIS", panel=PROFILE)] = Field(
        default=(5,),
        description="Steps timed first, unprofiled and in a process of their own; 0 leaves that out.",
    )
    shapes: Annotated[bool, Option(panel=PROFILE)] = Field(
        default=False, description="Record the shapes of what operators get."
    )

    def cells(self) -> Iterator[ProfileCell]:
        """Every cell of the run, in the order in which it is profiled."""
        axes = itertools.product(list(self.grid()), self.mode, self.profiler, self.active, self.warmup, self.steps)
        for point, mode, profiler, active, warmup, steps in axes:
            yield ProfileCell(
                **point,
                mode=mode,
                profiler=profiler,
                active=active,
                warmup=warmup,
                steps=steps,
                shapes=self.shapes,
            )

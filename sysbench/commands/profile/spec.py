"""Spec, cells and options of `sysbench profile`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from sysbench.errors import Refusal
from sysbench.spec import hardware
from sysbench.spec.axes import choices, integers, split_words
from sysbench.spec.axis import Axis
from sysbench.spec.cell import DeviceType, RunCell, asks_for, cell_of
from sysbench.spec.grid import HOST, PREDICTION, STEPS, WARMUP
from sysbench.spec.model import ModelCell, ModelSpec
from sysbench.spec.options import Option
from sysbench.spec.quantities import Size, Steps, stored_unless
from sysbench.spec.run import OUTPUT, VIEW, RunOptions, Selection, Sort, run_names

Profiler = Literal["torch", "nsys"]
"""torch  torch.profiler: operators and, on CUDA, kernels
nsys   Nsight Systems around the worker: kernels and ranges
"""

MAX_ACTIVE_STEPS = 3
"""Maximum number of profiled steps: the trace of one step of a large model exceeds a gigabyte."""

PROFILE = "Profile"


class ProfileCell(ModelCell):
    """One point of a grid of profiles."""

    kind: Literal["profile"] = "profile"
    profiler: Annotated[
        Profiler,
        Axis(
            "effort",
            "with {}",
            parse=choices("a profiler", get_args(Profiler)),
            default=("torch",),
            comparison="treatment",
        ),
        Option(flags=("--with",), metavar="NAME,…", panel=PROFILE),
    ] = Field(description="torch uses torch.profiler, nsys uses Nsight Systems. One profiler per run.")
    active: Annotated[
        Size,
        Axis("effort", "{} profiled step", parse=integers(1, MAX_ACTIVE_STEPS), default=(1,), is_count=True),
        Option(metavar="AXIS", panel=PROFILE),
    ] = Field(description=f"Number of profiled steps, 1 to {MAX_ACTIVE_STEPS}.")
    warmup: Annotated[Steps, replace(WARMUP, default=(3,)), Option(metavar="AXIS", panel=PROFILE)] = Field(
        description="Number of warm-up steps in every process."
    )
    steps: Annotated[Steps, replace(STEPS, parse=integers(0), default=(5,)), Option(metavar="AXIS", panel=PROFILE)] = (
        Field(description="Number of unprofiled steps, timed first in a separate process; 0 skips them.")
    )
    shapes: Annotated[bool, Axis("setting", default=False), Option(panel=PROFILE)] = Field(
        description="Record the input shapes of operators."
    )
    simulate: Annotated[str | None, hardware.SIMULATED, Option(metavar="GPU,…", panel=PREDICTION, common=True)] = (
        stored_unless(
            None,
            description="Predict the profile on these GPUs instead of profiling; no GPU is needed: a100-80gb,h100.",
        )
    )
    host: Annotated[Path | None, HOST, Option(metavar="FILE", panel=PREDICTION)] = stored_unless(
        None,
        description="With --simulate: file of the host that issues the work, written by sysbench calibrate --host.",
    )

    @property
    def simulated(self) -> str | None:
        return self.simulate

    @property
    def needs_fresh_worker(self) -> bool:
        """Whether the cell needs a new process.

        Profiled cells do: a profiled process stays slower, and its caches would hide work from the next profile.
        """
        return self.simulate is None

    @property
    def reference_time_cell(self) -> RunCell | None:
        """Return the cell that times the unprofiled step (one synchronization per step); None if no step is timed."""
        if not self.steps or self.simulate:
            return None
        shared = {name: getattr(self, name) for name in ModelCell.model_fields}
        own = {"warmup": self.warmup, "steps": self.steps, "until": None, "max_steps": self.steps, "sync": "step"}
        return cell_of({**shared, **own, "kind": "time"})

    @property
    def ranks_unsupported_reason(self) -> str | None:
        if self.simulate:
            return "several ranks are profiled, not predicted; sysbench time --simulate predicts their steps"
        return "--with nsys records one process only; use --with torch for ranks" if self.profiler == "nsys" else None

    def unavailable(self, device: DeviceType) -> Refusal | None:
        if self.profiler == "nsys" and device != "cuda":
            return Refusal("only records kernels of NVIDIA GPUs", f"on {device}, use --with torch", "--with nsys")
        return super().unavailable(device)


@asks_for(ProfileCell, ctx=(256,))
class ProfileSpec(ModelSpec):
    """A run of `sysbench profile`."""

    kind: Literal["profile"] = "profile"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.simulate:
            if self.host:
                raise ValueError("--host needs --simulate GPU: without it, nothing is predicted")
            return self
        for given, option in (
            (self.device != ("auto",), "--device"),
            (self.profiler != ("torch",), "--with"),
            (self.active != (1,), "--active"),
            (self.shapes, "--shapes"),
        ):
            if given:
                raise ValueError(f"{option} applies only to profiling on a device; with --simulate nothing runs")
        return self

    @property
    def unused(self) -> tuple[str, ...]:
        return ("warmup", "steps") if self.simulate else ()

    def cells(self) -> Iterator[ProfileCell]:
        """Yield every cell of the run in profiling order; cells that differ only in the simulated GPU are adjacent."""
        device = {"device": "cpu"} if self.simulate else {}
        for point in self.grid():
            yield ProfileCell(**{**point, **device})


def _parse_paths(value: object) -> tuple[Path, ...]:
    """Parse several paths separated by commas, or one existing path that contains a comma."""
    if isinstance(value, str):
        names = (value,) if Path(value).exists() else split_words(value)
        if "" in (value, *names):
            raise ValueError(f"{value or '(nothing)'} is not a list of file names")
        return tuple(Path(name) for name in names)
    return (value,) if isinstance(value, Path) else tuple(value)  # type: ignore[arg-type]


def _check_regex(value: object) -> object:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value} is not a regular expression: {error}") from None
    return value


class ProfileOptions(RunOptions):
    """Options of `sysbench profile`: what to show, and files to write.

    With several cells, the name of each file includes the cell.
    """

    source: Annotated[
        tuple[Path, ...],
        BeforeValidator(_parse_paths),
        Option(flags=("--from",), metavar="FILE,…", panel=OUTPUT, common=True, completions=run_names),
    ] = Field(
        default=(),
        description="Show traces instead of profiling: .json, .json.gz, .nsys-rep or .sqlite from any program, one per "
        "rank, or a directory of them; or a finished log or record. Needs no torch.",
    )
    step_pattern: Annotated[str | None, BeforeValidator(_check_regex), Option(metavar="REGEX", panel=VIEW)] = Field(
        default=None,
        description="Names of the ranges that mark steps in a trace of --from, if they are not found: round-\\d+.",
    )
    range: Annotated[str | None, Option(metavar="NAME", panel=VIEW)] = Field(
        default=None, description="Show only work launched in one range: forward, layers.3.attention, softmax."
    )
    kernel: Annotated[str | None, BeforeValidator(_check_regex), Option(metavar="REGEX", panel=VIEW)] = Field(
        default=None, description="Show only kernels (on a CPU, operators) whose full name matches."
    )
    top: Annotated[int, Option(metavar="N", panel=VIEW)] = Field(
        default=20, ge=0, description="Number of rows in a long table; 0 shows all."
    )
    sort: Annotated[Sort, Option(metavar="COLUMN", panel=VIEW)] = Field(
        default="total", description=f"Sort kernels by: {', '.join(get_args(Sort))}."
    )
    trace: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT, common=True)] = Field(
        default=None,
        description="Keep the trace: .json or .json.gz, which open in Perfetto; with nsys .nsys-rep or .sqlite.",
    )
    window: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None,
        description="Write a slice of the trace (--range, or one step) small enough for a browser: at most 100 MB, "
        ".json or .json.gz.",
    )
    flame: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT, common=True)] = Field(
        default=None, description="Write a flame graph of phases, modules and kernels: an .html page."
    )

    @property
    def selection(self) -> Selection:
        kernel = re.compile(self.kernel) if self.kernel is not None else None
        return Selection(self.range, kernel, self.top, self.sort)

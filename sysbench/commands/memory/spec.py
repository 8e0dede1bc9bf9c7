"""Spec, cells and options of `sysbench memory`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from sysbench.errors import Refusal
from sysbench.spec import hardware
from sysbench.spec.axes import choices
from sysbench.spec.axis import Axis
from sysbench.spec.cell import DeviceType, asks_for
from sysbench.spec.grid import MODE
from sysbench.spec.model import GridCell, ModelCell, ModelSpec
from sysbench.spec.options import STEP, Option
from sysbench.spec.ranks import Strategy
from sysbench.spec.run import OUTPUT, RunOptions, run_names
from sysbench.spec.steps import PROCEDURES, Phase, Protocol, SearchAxis

SIMULATION = "Simulation"


def search_goal(axis: SearchAxis) -> str:
    """Return the aim of a search along an axis as words: `largest batch`, `fewest ranks`."""
    return "fewest ranks" if axis == "ranks" else f"largest {axis}"


PLACEHOLDER_RANKS = 4
"""Placeholder for the number of ranks in a cell that searches for the fewest: every strategy allows it."""


class MemoryCell(GridCell):
    """One point of a grid of memory measurements or simulations."""

    takes_times = False

    kind: Literal["memory"] = "memory"
    mode: Annotated[
        Protocol,
        replace(MODE, parse=choices("a mode", get_args(Protocol)), default=("forward", "train")),
        Option(metavar="MODE,…", panel=STEP, common=True),
    ] = Field(
        description="inference keeps no graph; forward keeps graph and loss; forward-backward adds gradients; "
        "train-first is the first step, in which the optimizer allocates its state; train is a later step.",
    )
    simulate: Annotated[str | None, hardware.SIMULATED, Option(metavar="GPU,…", panel=SIMULATION, common=True)] = Field(
        description="Simulate these GPUs, which need not be present, instead of measuring: a100-80gb, or 24GiB.",
    )
    find: Annotated[SearchAxis | None, Axis("setting"), Option(metavar="AXIS", panel=SIMULATION, common=True)] = Field(
        description="With --simulate: find the largest batch or ctx that fits, starting from the given value, or the "
        "fewest ranks that fit.",
    )

    @property
    def phases(self) -> tuple[Phase, ...]:
        return PROCEDURES[self.mode].phases

    @property
    def is_first_step(self) -> bool:
        """Whether the measured step is the first one, before which the optimizer has no state."""
        return PROCEDURES[self.mode].earlier_steps == 0

    @property
    def comparability_key(self) -> tuple[str, ...]:
        """Properties that two cells must share for their `memory_dimensions` to be comparable."""
        return (self.mode, *super().comparability_key)

    @property
    def step(self) -> ModelCell:
        # A simulated step is on another device than the process that simulates it.
        device = "cuda" if self.simulate is not None else self.device
        return self.step_with(mode=PROCEDURES[self.mode].mode, device=device)

    @property
    def simulated(self) -> str | None:
        return self.simulate

    @property
    def needs_fresh_worker(self) -> bool:
        """Whether the cell needs a new process.

        Measured cells do, because the peak of a process's resident memory cannot be reset, and cuBLAS keeps its
        workspaces.
        """
        return self.simulate is None

    @property
    def runs_despite_oom(self) -> bool:
        """Whether to run a cell that is expected not to fit: yes, because its allocation history shows the reason."""
        return True

    @property
    def ranks_unsupported_reason(self) -> None:
        return None

    def problem(self, device: DeviceType | None) -> Refusal | None:
        given = f"--execution {self.execution}"
        if self.uses_cuda_graphs:
            return Refusal(
                "keeps tensors in the pool of CUDA graphs, whose replays the allocator does not see",
                "nearest: --execution compiled; sysbench time reports the pool in its reserved memory",
                given,
            )
        return super().problem(device)


@asks_for(MemoryCell)
class MemorySpec(ModelSpec):
    """A run of `sysbench memory`."""

    kind: Literal["memory"] = "memory"

    @model_validator(mode="before")
    @classmethod
    def _mode_with_backward(cls, given: object) -> object:
        """Make `train` the default mode with --grad-accum, because accumulation needs a backward pass."""
        if isinstance(given, dict) and "grad_accum" in given and "mode" not in given:
            return {**given, "mode": "train"}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.find is not None and not self.simulate:
            raise ValueError("--find needs --simulate GPU: it tries sizes on a GPU until one does not fit")
        if self.find == "ranks" and self.ranks != (1,):
            raise ValueError("--find ranks searches for the value of --ranks: drop one of them")
        if self.find == "ranks" and "ddp" in self.strategy:
            raise ValueError(
                "--find ranks: with --strategy ddp every rank holds the whole model, so more ranks do not save "
                "memory. Allowed: fsdp2, hsdp, tp, zero1, zero2"
            )
        if self.simulate and self.device != ("auto",):
            raise ValueError(
                "--device names the device to measure on, but --simulate measures nothing: drop one of them"
            )
        return self

    @model_validator(mode="after")
    def _refuse_list_to_search(self) -> Self:
        """Refuse several values of the searched axis."""
        if self.find is not None and self.find != "ranks":
            values = getattr(self, self.find)
            if len(values) > 1 and values != type(self).model_fields[self.find].default:
                listed = ",".join(map(str, values))
                raise ValueError(
                    f"--find {self.find} starts from one value of --{self.find}, not from {listed}. "
                    f"Give one: --{self.find} {values[0]}"
                )
        return self

    @property
    def is_distributed(self) -> bool:
        return super().is_distributed or self.find == "ranks"

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        return self.strategy or (("fsdp2",) if self.find == "ranks" else ("ddp",))

    def cells(self) -> Iterator[MemoryCell]:
        search_start: dict[str, object] = {self.find: getattr(self, self.find)[:1]} if self.find else {}
        if self.find == "ranks":
            search_start = {"ranks": (PLACEHOLDER_RANKS,), "strategy": self.strategies}
        # A simulation runs on the CPU, regardless of the devices present.
        device = {"device": "cpu"} if self.simulate else {}
        for gpu in self.simulate or (None,):
            one_gpu = {"simulate": (gpu,) if gpu else ()}
            for point in self.model_copy(update={**search_start, **one_gpu}).grid():
                yield MemoryCell(**{**point, **device})


class MemoryOptions(RunOptions):
    """Options of `sysbench memory`. Of several cells, the largest that fits gets the given names, the others labels."""

    source: Annotated[
        Path | None, Option(flags=("--from",), metavar="FILE", panel=OUTPUT, common=True, completions=run_names)
    ] = Field(
        default=None, description="Show a finished log or record, or a snapshot, instead of measuring. Needs no torch."
    )
    require_fit: Annotated[bool, Option(panel=OUTPUT, common=True)] = Field(
        default=False, description="Exit with 3 if a step does not fit, and say by how much: a check for CI."
    )
    snapshot: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT, common=True)] = Field(
        default=None,
        description="Write the allocations as a snapshot for PyTorch's memory viewer (pytorch.org/memory_viz).",
    )
    figure: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw memory over time by category: .png, .svg or .pdf."
    )
    page: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT, common=True)] = Field(
        default=None,
        description="Write an offline HTML page with a zoomable timeline of every allocation and its stack.",
    )

"""Base classes of cells and specs, with the properties that the engine uses for every command."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from sysbench.command import command_of, kinds
from sysbench.errors import Refusal
from sysbench.spec.axes import integers, split_words
from sysbench.spec.axis import Axis, add_axes
from sysbench.spec.quantities import Size, stored_unless
from sysbench.spec.validation import STORED, invalid_spec

if TYPE_CHECKING:
    from sysbench.spec.model import ModelCell, Phase, Precision

DeviceType = Literal["cpu", "cuda", "mps"]

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")

_CANONICAL = json.JSONEncoder(sort_keys=True)


def parse_devices(value: object) -> tuple[str, ...]:
    """Parse comma-separated device names; raises ValueError for an invalid name."""
    names = split_words(value)
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise ValueError(f"{name or '(nothing)'} is not a device. (auto, cpu, mps, cuda, cuda:0, cuda:1, …)")
    return names


Devices = Annotated[
    tuple[str, ...],
    BeforeValidator(parse_devices),
    Axis("device", unset="none", order=10, name_order=10, comparison="controlled"),
]

Threads = Annotated[
    tuple[int, ...],
    BeforeValidator(integers(1, 4096)),
    Axis("choice", "{} thread", is_count=True, unset="default threads", order=12, name_order=50),
]
"""An axis of CPU thread counts; the limit exceeds the core count of any current machine."""


class RunCell(BaseModel):
    """One unit of work for a worker; each command has its own subclass, identified by `kind`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)

    if TYPE_CHECKING:  # a field of every command's own cell, with the kind as default

        @property
        def kind(self) -> str:
            """Name of the command to which the cell belongs."""

    device: str
    threads: Size | None = stored_unless(None)
    """Number of CPU threads for computation; None leaves it to torch."""

    @property
    def axes(self) -> dict[str, Any]:
        """The cell in JSON form, without the axes that are not stored."""
        return self.model_dump(mode="json")

    def axis_value(self, axis: str) -> Any:
        """Return the value on an axis; None if this kind of cell does not have it."""
        return getattr(self, axis, None)

    @property
    def key(self) -> str:
        """Short hash of the cell, equal for equal cells in all runs; resume and compare match cells by this key."""
        canonical = _CANONICAL.encode(self.axes)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    named_by_title: ClassVar[bool] = False
    """Whether a report names a cell by its title instead of the axes in which it differs from other cells."""

    @property
    def simulated(self) -> str | None:
        """The simulated GPU; None if the cell is measured on a real device."""
        return None

    @property
    def ceiling_precision(self) -> Precision | None:
        """Precision of the matmul ceiling that is measured before this cell, for comparison; None if not needed."""
        return None

    @property
    def keeps_steps(self) -> bool:
        """Whether a resumed run keeps the steps that an interrupted attempt at the cell has measured."""
        return False

    @property
    def needs_fresh_worker(self) -> bool:
        """Whether the cell needs a new process: peaks and workspaces of earlier cells would distort its results."""
        return False

    @property
    def reference_time_cell(self) -> RunCell | None:
        """A cell to measure before this one, in a separate process; None for most cells."""
        return None

    @property
    def runs_despite_oom(self) -> bool:
        """Whether to run this cell even if it will not fit, because a failure on a GPU yields an allocation history."""
        return False

    @property
    def step(self) -> ModelCell | None:
        """The Transformer training step that the cell runs; None if it runs none."""
        return None

    @property
    def workers(self) -> int:
        """Number of workers that measure the cell together, one for each rank; 1 for a simulation."""
        return 1 if self.step is None or self.simulated is not None else self.step.ranks

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the training step that run, in order; empty if the cell runs no training step."""
        return self.step.phases if self.step is not None else ()

    @property
    def is_first_step(self) -> bool:
        """Whether the measured step is the very first one, before which the optimizer has no state."""
        return False

    @property
    def memory_dimensions(self) -> tuple[int, ...]:
        """Sizes that increase the cell's memory when they grow; empty for cells of fixed size."""
        return ()

    @property
    def comparability_key(self) -> tuple[str, ...]:
        """Properties that two cells must share for their memory dimensions to be comparable."""
        return ()

    @property
    def title(self) -> str:
        """Short description of the cell: the values with the largest effect on its memory."""
        return self.key

    def problem(self, device: DeviceType | None) -> Refusal | None:
        """Return the reason why this cell cannot run, or None if it can."""
        return None

    def unavailable(self, device: DeviceType) -> Refusal | None:
        """Return why this type of device does not support the cell's combination of options; None if it does."""
        return None


def threads_problem(cell: RunCell, device: DeviceType | None) -> Refusal | None:
    """Return the reason why `threads` cannot be set for this type of device, or None if it can."""
    if cell.threads is None or device in (None, "cpu"):
        return None
    given, sets = "--threads", "sets how many threads compute on a CPU"
    if cell.simulated is not None:
        return Refusal(f"{sets}, but --simulate predicts a GPU", "drop one of them", given)
    return Refusal(f"{sets}, not on {device}", "leave it out, or use --device cpu", given)


class RunSpec(BaseModel):
    """The input of one run; each command has its own subclass with its axes, identified by `kind`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, validate_default=True, allow_inf_nan=False)

    def __init__(self, **fields: Any) -> None:
        """Build the spec from its fields; raises SpecError, with one line, for an invalid field."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise invalid_spec(type(self), error) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Give the class of the cells the axes that only the spec declares."""
        if "cell_class" in vars(cls):
            add_axes(cls.cell_class, cls)

    # Otherwise pydantic would call it from `model_validate`, which reports all errors by itself.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    cell_class: ClassVar[type[RunCell]]
    """Class of the cells, for specs whose axes are fields of it without being declared again."""

    if TYPE_CHECKING:  # a field of every command's own spec, with the kind as default

        @property
        def kind(self) -> str:
            """Name of the command to which the spec belongs."""

    @property
    def python_call(self) -> str | None:
        """The sysbench call in the user's program that started the run; None for runs from the command line."""
        return None

    @property
    def unused(self) -> tuple[str, ...]:
        """Fields without an effect on this run: those that say how to measure, if --simulate predicts instead."""
        return ()

    def cells(self) -> Iterator[Any]:
        """Yield every cell of the run in the order of measurement."""
        raise NotImplementedError


def spec_of(fields: Mapping[str, object]) -> RunSpec:
    """Build a spec from its stored fields."""
    if "kind" not in fields:
        raise ValueError(f"it does not name the command that wrote it (kind: {', '.join(kinds())})")
    spec = command_of(str(fields["kind"])).models().spec.model_validate(fields, context=STORED)
    assert isinstance(spec, RunSpec)
    return spec


def cell_of(axes: Mapping[str, object]) -> RunCell:
    """Build a cell from its stored fields."""
    cell = command_of(str(axes.get("kind"))).models().cell.model_validate(axes)
    assert isinstance(cell, RunCell)
    return cell

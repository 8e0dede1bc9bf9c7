"""Base classes of cells and specs, with the properties that the engine uses for every command."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from sysbench.command import command_of, kinds
from sysbench.errors import Refusal
from sysbench.spec.axes import integers, split_words
from sysbench.spec.axis import Axis, find_axis
from sysbench.spec.options import DEVICE, Option
from sysbench.spec.quantities import Size, stored_unless
from sysbench.spec.steps import Phase, Precision
from sysbench.spec.validation import STORED, find_option, invalid_spec

DeviceType = Literal["cpu", "cuda", "mps"]

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")

_CANONICAL = json.JSONEncoder(sort_keys=True)


MAX_THREADS = 4096
"""More than any machine has cores."""


def parse_devices(value: object) -> tuple[str, ...]:
    """Parse comma-separated device names; raises ValueError for an invalid name."""
    names = split_words(value)
    for name in names:
        if not _DEVICE.fullmatch(name):
            meant = " Did you mean cuda?" if name in ("gpu", "nvidia") else ""
            raise ValueError(f"{name or '(nothing)'} is not a device.{meant} (auto, cpu, mps, cuda, cuda:0, cuda:1, …)")
    return names


class RunCell(BaseModel):
    """One unit of work for a worker; each command has its own subclass, identified by `kind`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)

    if TYPE_CHECKING:  # a field of every command's own cell, with the kind as default

        @property
        def kind(self) -> str:
            """Name of the command to which the cell belongs."""

    device: Annotated[
        str,
        Axis("device", unset="none", parse=parse_devices, default=("auto",), comparison="controlled"),
        Option(metavar="NAME,…", panel=DEVICE, common=True),
    ] = Field(description="auto, cuda, cuda:1, mps or cpu. auto picks the first available of cuda, mps, cpu.")
    threads: Annotated[
        Size | None,
        Axis("choice", "{} thread", is_count=True, unset="default threads", parse=integers(1, MAX_THREADS)),
        Option(metavar="AXIS", panel=DEVICE),
    ] = stored_unless(None, description="Number of CPU threads for computation. Default: torch's own choice.")

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

    takes_times: ClassVar[bool] = True
    """Whether times are measured, which other processes disturb."""

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
    def step(self) -> RunCell | None:
        """The Transformer training step that the cell runs, a `ModelCell`; None if it runs none."""
        return None

    @property
    def workers(self) -> int:
        """Number of workers that measure the cell together, one for each rank; 1 for a simulation."""
        return 1

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

    def __init__(self, **fields: object) -> None:
        """Build the spec from its fields; raises SpecError, with one line, for an invalid field."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise invalid_spec(type(self), error) from None

    # Otherwise pydantic would call it from `model_validate`, which reports all errors by itself.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    cell_class: ClassVar[type[RunCell]]
    """Class of the cells, for specs that ask for the fields of their cells."""

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


Spec = TypeVar("Spec", bound=RunSpec)


def asks_for(cell: type[RunCell], **defaults: object) -> Callable[[type[Spec]], type[Spec]]:
    """Return a decorator that gives a spec a field for each field of its cells that has an Option.

    An axis becomes a tuple of values, and a setting remains one value. `defaults` are those that differ from what the
    cell declares. A field that the spec or a base of it declares remains as it is.
    """

    def decorate(spec: type[Spec]) -> type[Spec]:
        fields: dict[str, Any] = {
            name: _asked(field, defaults.get(name))
            for name, field in cell.model_fields.items()
            if find_option(field) is not None and (name not in spec.model_fields or name in defaults)
        }
        made = create_model(spec.__name__, __base__=spec, __module__=spec.__module__, __doc__=spec.__doc__, **fields)
        made.cell_class = cell
        return made

    return decorate


def _asked(field: FieldInfo, default: object) -> tuple[object, object]:
    """Return type and default of a spec's field that holds the values for a field of its cells."""
    kind: Any = field.annotation
    metadata, axis = field.metadata, find_axis(field)
    is_always_stored = field.is_required()
    if default is None:
        default = axis.default if axis is not None and is_always_stored else field.default
    if axis is not None and axis.parse is not None:
        kind, metadata = tuple[kind, ...], [BeforeValidator(axis.parse), axis, find_option(field)]
        default = default if isinstance(default, tuple) else () if default is None else (default,)
    description = field.description
    found = Field(default=default, description=description) if is_always_stored else stored_unless(default, description)
    return Annotated[(kind, *metadata)], found


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

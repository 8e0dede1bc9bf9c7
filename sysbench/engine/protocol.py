"""What the engine asks of a worker, and how the two find each other.

Commands go one way and events (`sysbench.log.events`) the other, each a message of JSON over a local socket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SerializeAsAny, TypeAdapter, model_validator

from sysbench.command import measuring, of_package
from sysbench.log.events import DeviceInfo
from sysbench.spec.cell import RunCell
from sysbench.spec.frozen import Frozen
from sysbench.spec.model import Precision

MESSAGE_LIMIT_BYTES = 16 * 1024**2
"""No message is longer than this; what claims to be is not one of ours."""


class AboutCell(Frozen):
    """What is asked about one cell, with the package of its command, where the worker finds what reads it."""

    package: str = ""
    cell: SerializeAsAny[RunCell]

    @model_validator(mode="before")
    @classmethod
    def _with_package(cls, fields: dict[str, Any]) -> dict[str, Any]:
        cell = fields["cell"]
        if isinstance(cell, RunCell):
            return {"package": measuring(cell.kind).package, **fields}
        return {**fields, "cell": of_package(fields["package"]).cell_class.model_validate(cell)}


class Measure(AboutCell):
    """Do with one cell what its kind says; answered by events, the last of which is its CellFinished."""

    command: Literal["measure"] = "measure"
    device: DeviceInfo
    artifact: Path | None = None
    """Where to leave what is too large for events (a memory snapshot); None when nobody wants it."""


class MeasureCeiling(Frozen):
    """Find what a matrix product reaches; answered by CeilingMeasured or CeilingFailed."""

    command: Literal["measure_ceiling"] = "measure_ceiling"
    device: DeviceInfo
    precision: Precision


class Foresee(AboutCell):
    """Say by simulation whether a cell will fit into what is free on its device; answered by MemoryForeseen.

    Nothing is allocated there. A worker that was asked this should measure nothing afterwards.
    """

    command: Literal["foresee"] = "foresee"
    device: DeviceInfo
    free_bytes: int


class Exit(Frozen):
    """Nothing more is wanted; answered by the end of the process."""

    command: Literal["exit"] = "exit"
    orderly: bool
    """Whether Python and its libraries shall be torn down, which is when profilers save what they have. It takes torch
    a few tenths of a second."""


Command = Annotated[Measure | MeasureCeiling | Foresee | Exit, Field(discriminator="command")]

_COMMAND: TypeAdapter[Command] = TypeAdapter(Command, config=ConfigDict(defer_build=True))


def decode(message: bytes) -> Command:
    """The command in a message; raises pydantic.ValidationError when there is none."""
    return _COMMAND.validate_json(message)


def encode(command: Command) -> bytes:
    """One command as a message."""
    return command.model_dump_json().encode()

"""Commands from the engine to a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, SerializeAsAny, TypeAdapter, model_validator

from sysbench.log.events import DeviceInfo
from sysbench.log.kinds import command_of, load
from sysbench.spec.cell import RunCell
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Count, Seconds, Size
from sysbench.spec.steps import Precision

MESSAGE_LIMIT_BYTES = 16 * 1024**2
"""Longest message in bytes; a longer one does not come from sysbench."""


class AboutCell(Frozen):
    """A request about one cell."""

    package: str = ""
    cell: SerializeAsAny[RunCell]

    @model_validator(mode="before")
    @classmethod
    def _with_package(cls, fields: dict[str, object]) -> dict[str, object]:
        cell = fields["cell"]
        if isinstance(cell, RunCell):
            return {"package": command_of(cell.kind).package, **fields}
        return {**fields, "cell": load(str(fields["package"])).models().cell.model_validate(cell)}


class Rank(Frozen):
    """The worker's rank, and the rendezvous of the cell's ranks."""

    number: Count
    store: str
    """Where the ranks rendezvous: the URL of a file, or of a port on rank 0's node."""
    patience_s: Seconds
    """Longest time that a collective operation waits for ranks that do not join it."""


class Measure(AboutCell):
    """A request to run one cell; answered by events, the last of which is CellFinished."""

    command: Literal["measure"] = "measure"
    device: DeviceInfo
    artifact: Path | None = None
    """Path for results that are too large for events (a memory snapshot); None if not needed."""
    rank: Rank | None = None
    """None for a worker that runs the cell alone."""
    threads: Size | None = None
    """Number of CPU threads that the run has chosen, for a cell that sets none; None leaves it to torch."""
    earlier_s: tuple[Seconds, ...] = ()
    """Times of the steps that an earlier attempt at the cell has measured; they need not be measured again."""


class ProbeThreads(Frozen):
    """A request to find out how many CPU threads are worth using now; answered by ThreadsProbed."""

    command: Literal["probe_threads"] = "probe_threads"


class MeasureCeiling(Frozen):
    """A request to measure the matmul ceiling; answered by CeilingMeasured or CeilingFailed."""

    command: Literal["measure_ceiling"] = "measure_ceiling"
    device: DeviceInfo
    precision: Precision
    threads: Size | None = None


class Exit(Frozen):
    """A request to end the worker; answered by the end of the process."""

    command: Literal["exit"] = "exit"
    orderly: bool
    """Whether Python and its libraries shut down cleanly, which profilers need to save their data. For torch this takes
    a few tenths of a second.
    """


Command = Annotated[Measure | ProbeThreads | MeasureCeiling | Exit, Field(discriminator="command")]

_COMMAND: TypeAdapter[Command] = TypeAdapter(Command, config=ConfigDict(defer_build=True))


def decode(message: bytes) -> Command:
    """Decode a message; raises pydantic.ValidationError if it is not a command."""
    return _COMMAND.validate_json(message)


def encode(command: Command) -> bytes:
    """Encode a command as a message."""
    return command.model_dump_json().encode()

"""Every kind of run there is: what belongs to a command is found here by its `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from sysbench.commands.accum.spec import AccumCell, AccumSpec
from sysbench.commands.attention.spec import AttentionCell, AttentionSpec
from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.commands.profile.spec import ProfileCell, ProfileSpec
from sysbench.commands.time.spec import TimeCell, TimeSpec

Kind = Literal["time", "memory", "profile", "attention", "accum"]

Spec = Annotated[TimeSpec | MemorySpec | ProfileSpec | AttentionSpec | AccumSpec, Field(discriminator="kind")]
Cell = Annotated[TimeCell | MemoryCell | ProfileCell | AttentionCell | AccumCell, Field(discriminator="kind")]

_SPEC: TypeAdapter[Spec] = TypeAdapter(Spec, config=ConfigDict(defer_build=True))
_CELL: TypeAdapter[Cell] = TypeAdapter(Cell, config=ConfigDict(defer_build=True))


def spec_of(fields: Mapping[str, Any]) -> Spec:
    """The spec that was written down as these fields; raises pydantic.ValidationError."""
    return _SPEC.validate_python(fields)


def cell_of(axes: Mapping[str, Any]) -> Cell:
    """The cell that was written down as these fields; raises pydantic.ValidationError."""
    return _CELL.validate_python(axes)

"""Columns of the long tables for data frames, which follow from the classes of the records.

A row is a cell, the name of one of its phases, and the record of the phase; a cell without phases has one row without
a phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

from sysbench.log.records import PeakRecord, PhaseRecord
from sysbench.render.declared import Field, Reader, adapter_columns
from sysbench.units import Unit

_UNITS: Mapping[str, Unit] = {"_bytes": "bytes", "_s": "s"}
"""Unit of a field by the end of its name."""


def flattened(
    model: type[BaseModel], get: Reader[object], *only: str, prefix: str = "", keys: Sequence[str] = ()
) -> Iterator[Field]:
    """Yield a column for each value that a class of records declares, including those of nested records.

    `get(row)` returns the record of a row, or None. With `only`, the other fields have no column. A pair is an interval
    and has two columns, a mapping has one for each of the `keys`, and lists have none.
    """
    for name, info in model.model_fields.items():
        kind, part = _without_none(info.annotation), _part(get, name)
        if only and name not in only:
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from flattened(kind, part, prefix=f"{name}_")
        elif get_origin(kind) is tuple:
            for position, end in enumerate(("low", "high")):
                yield _column(f"{prefix}{name.removesuffix('_s')}_{end}_s", _part(part, position))
        elif get_origin(kind) is dict:
            yield from (_column(f"{key}_bytes", _part(part, key)) for key in keys)
        elif get_origin(kind) is not list:
            yield _column(f"{prefix}{name}", part, is_number=kind in (int, float))


def in_step_row(get: Reader[object]) -> Reader[object]:
    """Return a function that shows a value of the cell only in its `step` row, so that sums over rows count it once."""
    return lambda row: get(row[0]) if row[1] in ("step", None) else None


def cell_columns(*, has_model: bool = True) -> tuple[Field, ...]:
    """Return the columns of a row's cell that do not depend on the phase: device, parameters, outcome."""
    model = (
        Field("parameters", unit="count", get=lambda row: row[0].model.parameters),
        *adapter_columns(lambda row: row[0].model),
    )
    return (
        Field("device_name", "device name", get=lambda row: row[0].device_name),
        *(model if has_model else ()),
        Field("outcome", get=lambda row: row[0].outcome),
    )


PHASE = Field("phase", get=itemgetter(1))
"""The column of the phase's name."""


def phase_columns() -> Iterator[Field]:
    """Yield the columns of a phase's times: every statistic, for both clocks."""
    return flattened(PhaseRecord, itemgetter(2))


def peak_columns(get: Reader[object]) -> Iterator[Field]:
    """Yield the columns of a cell's memory peaks; `get(cell)` returns what has them."""
    return flattened(PeakRecord, in_step_row(get))


def cautions(row: Any) -> str:
    """Return the codes of the cell's cautions."""
    return " ".join(caution.code for caution in row[0].cautions)


def _without_none(annotation: object) -> object:
    kind = get_args(annotation)[0] if NoneType in get_args(annotation) else annotation
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _part(get: Reader[Any], name: str | int) -> Reader[Any]:
    def part(row: Any) -> Any:
        whole = get(row)
        if isinstance(whole, Mapping):
            return whole.get(name, 0)
        return whole[name] if isinstance(name, int) and whole is not None else getattr(whole, str(name), None)

    return part


def _column(name: str, get: Reader[Any], *, is_number: bool = True) -> Field:
    suffix = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")
    key = name.removesuffix(suffix)
    title = key.replace("_", " ").replace("ci95", "95%")
    if is_number:
        return Field(key, title, _UNITS.get(suffix, "number"), get=get)
    words = {True: "yes", False: "no"}
    return Field(key, title, get=lambda row: words.get(value, value) if (value := get(row)) is not None else None)

"""The columns that a run can have, as its declared tables know before it begins: what `--columns` may name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sysbench.command import Kind, measuring
from sysbench.errors import UsageError
from sysbench.render import chosen_columns
from sysbench.render.chosen_columns import Name, is_known
from sysbench.render.declared import DeclaredTable
from sysbench.spec.cell import RunSpec
from sysbench.spec.run import Format


def names_in(kind: Kind, table: str, spec: RunSpec | None = None) -> tuple[Name, ...]:
    """The columns that a table can have beside its axes; with a spec, those whose names come from its values too."""
    declared: DeclaredTable = measuring(kind).part("tables")[table]
    return tuple(dict.fromkeys(declared.names(_values(spec))))


def refuse_unknown(names: Sequence[str], spec: RunSpec, tables: Sequence[str], form: Format) -> None:
    """Raise UsageError for a column that the tables that will be shown of a run cannot have; before it is made."""
    if not names:
        return
    known = _of_tables(spec, tables, form)
    for name in names:
        elsewhere = [
            table for table in measuring(spec.kind).part("tables") if is_known(name, names_in(spec.kind, table, spec))
        ]
        if elsewhere and not is_known(name, known):
            which = f"the table{'' if len(elsewhere) == 1 else 's'} {', '.join(elsewhere)}"
            raise UsageError(f"--columns {name} is in {which}: add --tables {elsewhere[0]}")
    chosen_columns.refuse_unknown(names, known)


def shows(key: str, names: Sequence[str], spec: RunSpec, tables: Sequence[str], form: Format) -> bool:
    """Whether what will be shown of a run can have the column with this key, given the `names` on the command line."""
    columns = [name for name in _of_tables(spec, tables, form) if name.key == key]
    instead = [name for name in names if not name.startswith(chosen_columns.ADDED)]
    return bool(columns) if not instead else any(chosen_columns.is_any(name, columns) for name in names)


def possible(kind: Kind, tables: Sequence[str]) -> list[Name]:
    """The columns of these tables, or of all that a command has, which a run may have or not."""
    return [name for table in tables or measuring(kind).part("tables") for name in names_in(kind, table)]


def _of_tables(spec: RunSpec, tables: Sequence[str], form: Format) -> list[Name]:
    """The columns of the tables that will be shown of a run of this spec, asked for or not."""
    command = measuring(spec.kind)
    shown = tables or ((command.long_table,) if form == "csv" else ())
    if not shown:
        shown = command.part("usual_tables")(spec) if command.usual_tables else tuple(command.part("tables"))
    return [name for table in shown for name in names_in(spec.kind, table, spec)]


def _values(spec: RunSpec | None) -> dict[str, list[str]]:
    """What stands for a name in braces: the values of each axis, the phases of the steps."""
    values: dict[str, list[str]] = {"source": ["measured", "simulated"]}
    cells: Sequence[Any] = list(spec.cells()) if spec is not None else []
    for cell in cells:
        for axis, value in cell.model_dump().items():
            if isinstance(value, int | str):
                known = values.setdefault(axis, [])
                if str(value) not in known:
                    known.append(str(value))
    phases = dict.fromkeys(phase for cell in cells for phase in getattr(cell, "phases", ()))
    return {**values, "phase": [*phases, "step"], "device": ["cpu", "mps", "cuda", *values.get("device", [])]}

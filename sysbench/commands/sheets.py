"""What a record shows: its sheet, its tables, and the columns that they can have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Console

from sysbench.command import Kind
from sysbench.commands.kinds import command_of
from sysbench.errors import UsageError
from sysbench.log.cautions import fewer_threads
from sysbench.log.records import RunRecord
from sysbench.render import column_selection, output
from sysbench.render.column_selection import is_known
from sysbench.render.remarks import damaged_lines
from sysbench.render.table import Column, Remark, Sheet, Table
from sysbench.spec.cell import RunCell, RunSpec
from sysbench.spec.run import Format, Selection


def sheet(record: RunRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Return a record's sheet with the tables called `names`, or with the default tables; `selection` is for profiles.

    Raises UsageError for a table or a part that does not exist, or for which this record has no data.
    """
    content = without_headlines(record, names, selection)
    headlines = command_of(record.kind).results().headlines
    if headlines is None:
        return content
    findings = [Remark("finding", each.text) for each in headlines(record.cells)]
    notes = [remark for remark in content.remarks if remark.kind == "note"]
    others = [remark for remark in content.remarks if remark.kind != "note"]
    return replace(content, remarks=(*others, *findings, *notes))


def without_headlines(record: RunRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Return a record's sheet without findings, for reports, which show them elsewhere."""
    made = command_of(record.kind).results().sheet(record, names, selection)
    threads = fewer_threads(record.environment.threads_probe, record.kind)
    remarks = [
        *([damaged_lines(record)] if record.damaged_lines else []),
        *([Remark("note", *threads)] if threads else []),
        *made.remarks,
    ]
    return replace(made, remarks=tuple(remarks))


def nonempty_tables(record: RunRecord, names: Iterable[str], selection: Selection | None = None) -> list[Table]:
    """Return the tables called `names`, without those for which the record has no data."""
    view = command_of(record.kind).results()
    if view.build_tables is not None:
        return view.build_tables(record, names, selection or Selection())
    return [table for name in names for table in view.tables[name](record)]


def show(
    record: RunRecord,
    console: Console,
    form: Format = "terminal",
    tables: Iterable[str] = (),
    selection: Selection | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Print the named tables of a record; by default those of its command, as CSV the long one of cells and phases.

    Raises UsageError for a table or a column that does not exist, or for which this record has no data.
    """
    names = tuple(tables)
    if form == "csv":
        names = names or (command_of(record.kind).results().long_table,)
    possible = possible_columns(record.kind, names) if columns else ()
    output.show_sheet(sheet(record, names, selection), console, form, columns, possible)


def column_names(kind: Kind, table: str, spec: RunSpec | None = None) -> tuple[Column, ...]:
    """Return the names of the columns that a table can have; those that contain an axis value only with `spec`."""
    return tuple(dict.fromkeys(command_of(kind).results().tables[table].names(_values(spec))))


def refuse_unknown_columns(names: Sequence[str], spec: RunSpec, tables: Sequence[str], form: Format) -> None:
    """Raise UsageError if one of `names` cannot be a column of the tables that the run will show."""
    if not names:
        return
    known, all_tables = _column_names(spec, tables, form), command_of(spec.kind).results().tables
    for name in names:
        elsewhere = [table for table in all_tables if is_known(name, column_names(spec.kind, table, spec))]
        if elsewhere and not is_known(name, known):
            which = f"the table{'' if len(elsewhere) == 1 else 's'} {', '.join(elsewhere)}"
            raise UsageError(f"--columns {name} is in {which}: add --tables {elsewhere[0]}")
    column_selection.refuse_unknown(names, known)


def shows_column(key: str, names: Sequence[str], spec: RunSpec, tables: Sequence[str], form: Format) -> bool:
    """Whether the output of a run can have the column with this key, given the names in `--columns`."""
    columns = [name for name in _column_names(spec, tables, form) if name.key == key]
    instead = [name for name in names if not name.startswith(column_selection.ADD_PREFIX)]
    return bool(columns) if not instead else any(column_selection.matches_any(name, columns) for name in names)


def possible_columns(kind: Kind, tables: Sequence[str]) -> list[Column]:
    """Return the names of all columns that these tables, by default all tables of the command, can have."""
    return [name for table in tables or command_of(kind).results().tables for name in column_names(kind, table)]


def _column_names(spec: RunSpec, tables: Sequence[str], form: Format) -> list[Column]:
    view = command_of(spec.kind).results()
    shown = tables or ((view.long_table,) if form == "csv" else view.default_tables(spec))
    return [name for table in shown for name in column_names(spec.kind, table, spec)]


def _values(spec: RunSpec | None) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {"source": ["measured", "simulated"]}
    cells: Sequence[RunCell] = list(spec.cells()) if spec is not None else []
    for cell in cells:
        for axis, value in cell.model_dump().items():
            if isinstance(value, int | str):
                known = values.setdefault(axis, [])
                if str(value) not in known:
                    known.append(str(value))
    phases = dict.fromkeys(phase for cell in cells for phase in getattr(cell, "phases", ()))
    return {**values, "phase": [*phases, "step"], "device": ["cpu", "mps", "cuda", *values.get("device", [])]}

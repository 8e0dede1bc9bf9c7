"""Adding a command is a folder and one line: everything that other commands can, it can."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import sysbench
from sysbench import commands
from tests.cli.running import Ran, answered

FILES = {
    "__init__.py": """
'''Count.'''
from sysbench.command import Models
from sysbench.commands.cell_command import CellCommand
from sysbench.commands.kinds import ReportLayout, Results
from sysbench.log.kinds import Records


class Count(CellCommand):
    help = __doc__
    report = ReportLayout(9, "Counting")

    def models(self):
        from .spec import CountCell, CountOptions, CountSpec

        return Models(CountSpec, CountCell, CountOptions)

    def records(self):
        from .fold import fold
        from .record import CountRecord

        return Records(CountRecord, fold)

    def measure(self):
        from .measure import run

        return run

    def plan(self, cells, gpu=None):
        from .tables import plan

        return plan(cells)

    def results(self):
        from . import compared, findings, tables

        return Results(
            tables=tables.TABLES,
            default_tables=lambda spec: tuple(tables.TABLES),
            sheet=tables.sheet,
            findings=findings.of_run,
            terms=compared.terms,
            measures=compared.measures,
        )

    def screen(self):
        from .live import Lines

        return Lines


COMMAND = Count()
""",
    "spec.py": '''
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from sysbench.spec.axes import integers
from sysbench.spec.cell import RunCell, RunSpec
from sysbench.spec.options import Option
from sysbench.spec.run import SavedOptions


class CountCell(RunCell):
    kind: Literal["count"] = "count"
    device: str = "cpu"
    upto: int


class CountSpec(RunSpec):
    kind: Literal["count"] = "count"
    upto: Annotated[tuple[int, ...], BeforeValidator(integers(0)), Option(metavar="N,…")] = Field(
        default=(3,), description="How far."
    )

    def cells(self) -> Iterator[CountCell]:
        for upto in self.upto:
            yield CountCell(upto=upto)


class CountOptions(SavedOptions):
    """As of every command."""
''',
    "record.py": """
from typing import Literal

from pydantic import Field

from sysbench.log.events import Event
from sysbench.log.records import CellRecord, RunRecord

from .spec import CountCell


class Counted(Event):
    event: Literal["counted"] = "counted"
    cell: str
    total: int


class CountCellRecord(CellRecord):
    cell: CountCell = Field(alias="axes")
    total: int | None


class CountRecord(RunRecord[CountCellRecord]):
    kind: Literal["count"] = "count"
""",
    "measure.py": """
import time

from .record import Counted


def run(cell, device, artifact=None):
    yield Counted(at_s=time.time(), cell=cell.key, total=sum(range(cell.upto + 1)))
""",
    "fold.py": """
from sysbench.log.collect import CellEvents, collect, cell_fields, run_fields

from .record import CountCellRecord, Counted, CountRecord
from .spec import CountSpec


def fold(events):
    run = collect(events)
    cells = []
    for cell in CountSpec.model_validate(run.started.spec).cells():
        seen = run.cells.get(cell.key, CellEvents())
        counted = seen.last(Counted)
        cells.append(CountCellRecord(**cell_fields(cell, seen), cautions=[], total=counted.total if counted else None))
    return CountRecord(**run_fields(run), cells=cells)
""",
    "tables.py": """
from sysbench.render import remarks
from sysbench.render.declared import DeclaredTable, Field, leading_fields
from sysbench.render.table import Column, Sheet, Table

CELLS = DeclaredTable(
    "cells",
    "what was counted",
    rows=lambda record: record.cells,
    leading=leading_fields(Field("upto", "up to", get=lambda cell: cell.cell.upto)),
    columns=(Field("total", "total", "count", get=lambda cell: cell.total),),
)
TABLES = {"cells": CELLS}


def sheet(record, names=(), selection=None):
    tables = [table for name in names or TABLES for table in TABLES[name](record)]
    return Sheet(("counting",), tuple(tables), tuple(remarks.outcomes(record)))


def plan(cells, gpu=None):
    columns = (Column("upto", "up to"),)
    return Sheet(("counting",), (Table("plan", "cells", columns, tuple((cell.upto,) for cell in cells), 1),))
""",
    "findings.py": """
from sysbench.render.findings import Statement


def of_run(record):
    return [Statement(f"counting to {cell.cell.upto} gives {cell.total}", (cell,)) for cell in record.cells]
""",
    "compared.py": """
from sysbench.log.measures import Amount, Measures
from sysbench.render.terms import Term


def measures(cell):
    return Measures(amounts={"total": Amount(cell.total, "count", better="higher")} if cell.total else {})


def terms(cells):
    yield Term("total", "the sum of all numbers counted.")
""",
    "live.py": """
from sysbench.render.dashboard.screen import LinesOnly


class Lines(LinesOnly):
    result = staticmethod(lambda cell: f"counted: {cell.outcome}")
    label = classmethod(lambda cls, cell, state: f"up to {cell.cell.upto}")
""",
}


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """`sysbench`, with a command `count` that lives in a package elsewhere and is named in one line."""
    package = tmp_path / "elsewhere" / "count"
    package.mkdir(parents=True)
    for name, text in FILES.items():
        (package / name).write_text(text.lstrip())
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(commands, "PACKAGES", (*commands.PACKAGES, "count"))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.chdir(tmp_path)
    return answered


def test_it_is_listed_planned_run_shown_and_continued(count: Callable[..., Ran]) -> None:
    assert "Count." in count("--help").out
    assert json.loads(count("count", "--plan", "--json", "-").out)["tables"][0]["rows"] == [{"upto": 3}]

    ran = count("count", "--upto", "3,10", "--no-live")
    assert ran.code == 0, ran.err
    assert "counted: ok" in ran.err
    assert "55" in ran.out
    assert count("count", "--from", "latest").out == ran.out
    assert count("count", "--from", "latest", "--format", "csv").out.splitlines() == ["upto,total", "3,6", "10,55"]
    assert (
        "cels is not a table. Did you mean cells?" in count("count", "--from", "latest", "--tables", "cels").complaint
    )

    (log,) = Path("runs").glob("*-count.jsonl")
    kept = [line for line in log.read_text().splitlines(keepends=True) if "cell_finished" not in line]
    log.write_text("".join(kept))
    log.with_suffix(".json").unlink()
    assert sysbench.load("latest").rows()[0]["upto"] == 3
    continued = count("count", "--resume", "latest")
    assert continued.code == 0, continued.err
    assert [cell.outcome for cell in sysbench.load("count:latest").cells] == ["ok", "ok"]


def test_it_can_be_run_from_python(count: Callable[..., Ran]) -> None:
    run = sysbench.run("count --upto 4")
    assert run.rows() == [{"upto": 4, "total": 10}]
    assert "<table" in run._repr_html_()


def test_two_runs_are_compared_in_its_own_unit_and_direction(count: Callable[..., Ran]) -> None:
    for name, upto in (("more", "3,10"), ("fewer", "3,10")):
        assert count("count", "--upto", upto, "--out", name, "--quiet").code == 0
    (log,) = Path("fewer").glob("*.jsonl")
    log.write_text(log.read_text().replace('"total":55', '"total":50'))
    log.with_suffix(".json").unlink()

    shown = count("compare", "more", "fewer", "--format", "csv", "--tables", "amounts")
    assert shown.out.splitlines()[1:] == ["3,total,count,6,6,0,0.0", "10,total,count,55,50,-5,-0.0909090909"]
    gated = count("compare", "more", "fewer", "--gate", "5%")
    assert gated.code == 3
    assert "Count: 1 of 2 numbers changed, by -9.1%." in gated.out
    assert "total fell from 55 to 50" in gated.out
    assert count("compare", "fewer", "more", "--gate", "5%").code == 0


def test_its_runs_are_reported_with_their_findings_tables_and_terms(count: Callable[..., Ran]) -> None:
    assert count("count", "--upto", "4", "--quiet").code == 0
    reported = count("report", "latest", "-o", "report.md")
    assert reported.code == 0, reported.err
    report = Path("report.md").read_text()
    assert "Counting to 4 gives 10." in report
    assert "what was counted" in report
    assert "the sum of all numbers counted." in report

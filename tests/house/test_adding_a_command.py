"""Adding a command is a folder and one line: everything that other commands can, it can."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "__init__.py": '''
from sysbench.command import Command

COMMAND = Command(
    name="count",
    package=__name__,
    help="Count.",
    spec="spec:CountSpec",
    cell="spec:CountCell",
    options="spec:CountOptions",
    record="record:CountRecord",
    plan="tables:plan",
)
''',
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
    upto: Annotated[tuple[int, ...], BeforeValidator(integers), Option(metavar="N,…")] = Field(
        default=(3,), description="How far."
    )

    def cells(self) -> Iterator[CountCell]:
        for upto in self.upto:
            yield CountCell(upto=upto)


class CountOptions(SavedOptions):
    """As of every command."""
''',
    "command.py": '''
import typer

from sysbench.commands import running, saved
from sysbench.spec.command_options import command_options, validated

from .spec import CountOptions, CountSpec


@command_options(CountSpec, CountOptions)
def count(spec_given, options_given):
    """Count."""
    options = running.options_of("count", options_given)
    running.refuse_unknown_tables("count", options)
    if options.source is not None:
        running.show(saved.record(options.source, "count"), options)
        return
    spec = validated(CountSpec, {**running.resumed("count", options.resume), **spec_given})
    if options.plan:
        running.show_plan(spec, options, None)
        return
    raise typer.Exit(running.exit_code(perform(spec, options).record))


def perform(spec, options):
    return running.Performed(running.carry_out(spec, options))


def refuse_wrong_files(options):
    pass
''',
    "record.py": '''
from typing import Literal

from pydantic import Field

from sysbench.log.events import CellEvent
from sysbench.log.records import CellRecord, RunRecord

from .spec import CountCell


class Counted(CellEvent):
    event: Literal["counted"] = "counted"
    total: int


class CountCellRecord(CellRecord):
    cell: CountCell = Field(alias="axes")
    total: int | None


class CountRecord(RunRecord[CountCellRecord]):
    kind: Literal["count"] = "count"
''',
    "measure.py": '''
import time

from .record import Counted


def run(cell, device, artifact=None):
    if cell.upto < 0:
        raise ValueError("it goes up only")
    yield Counted(at_s=time.time(), cell=cell.key, total=sum(range(cell.upto + 1)))
''',
    "fold.py": '''
FOLD
''',
    "tables.py": '''
from sysbench.render import remarks
from sysbench.render.declared import DeclaredTable, Field, along
from sysbench.render.table import Column, Sheet, Table

CELLS = DeclaredTable(
    "cells",
    "what was counted",
    rows=lambda record: record.cells,
    leading=along(lambda record: ("upto",)),
    columns=(Field("total", "total", "count", get=lambda cell: cell.total),),
)
TABLES = {"cells": CELLS}


def sheet(record, names=(), selection=None):
    tables = [table for name in names or TABLES for table in TABLES[name](record)]
    return Sheet(("counting",), tuple(tables), tuple(remarks.outcomes(record)))


def plan(cells):
    columns = (Column("upto", "up to"),)
    return Sheet(("counting",), (Table("plan", "cells", columns, tuple((cell.upto,) for cell in cells), 1),))
''',
    "live.py": '''
LIVE
''',
}

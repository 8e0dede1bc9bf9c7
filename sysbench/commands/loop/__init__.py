"""Show what sysbench.measure or sysbench.record measured in a program of your own.

The program itself measures: with sysbench.record("run.json"): …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sysbench.command import Models
from sysbench.commands.cell_command import CellCommand
from sysbench.commands.kinds import ReportLayout, Results
from sysbench.log.kinds import Records

if TYPE_CHECKING:
    from sysbench.commands.loop.record import LoopCellRecord, LoopRecord
    from sysbench.commands.loop.spec import LoopCell, LoopOptions, LoopSpec
    from sysbench.log.events import Event


class _Loop(CellCommand):
    help = __doc__
    also_called = "watch record"
    report = ReportLayout(6, "Your own loop", ("phases", "memory"))
    runs_in_worker = False
    verdicts = ("step",)

    def function(self) -> Callable[..., None]:
        from sysbench.commands.loop.command import loop

        return loop

    def models(self) -> Models[LoopSpec, LoopCell, LoopOptions]:
        from sysbench.commands.loop.spec import LoopCell, LoopOptions, LoopSpec

        return Models(LoopSpec, LoopCell, LoopOptions)

    def records(self) -> Records:
        from sysbench.commands.loop.fold import fold
        from sysbench.commands.loop.record import LoopRecord

        return Records(LoopRecord, fold)

    def measure(self) -> Callable[..., Iterator[Event]]:
        raise ValueError("sysbench loop runs no cells: a program of the user's has measured them")

    def results(self) -> Results[LoopSpec, LoopCellRecord, LoopRecord]:
        from sysbench.commands.loop import tables

        return Results(
            tables=tables.TABLES,
            default_tables=tables.usual,
            sheet=tables.sheet,
            findings=tables.findings,
            measures=tables.measures,
        )


COMMAND = _Loop()

"""Find what makes a training step fit into memory, what makes it faster, and what it costs.

Every combination shown is simulated, so neither a GPU nor a guess is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sysbench.command import Models
from sysbench.commands.cell_command import CellCommand
from sysbench.commands.kinds import Launch, ReportLayout, Results
from sysbench.log.kinds import Records

if TYPE_CHECKING:
    from sysbench.commands.fit.live import FitScreen
    from sysbench.commands.fit.record import FitCellRecord, FitRecord
    from sysbench.commands.fit.spec import FitCell, FitOptions, FitSpec
    from sysbench.log.events import Event


class _Fit(CellCommand):
    help = __doc__
    also_called = "suggest search optimize fits"
    report = ReportLayout(7, "What makes a step fit", ("asked", "causes", "changes", "learning"))

    def models(self) -> Models[FitSpec, FitCell, FitOptions]:
        from sysbench.commands.fit.spec import FitCell, FitOptions, FitSpec

        return Models(FitSpec, FitCell, FitOptions)

    def records(self) -> Records:
        from sysbench.commands.fit.fold import fold
        from sysbench.commands.fit.record import FitRecord

        return Records(FitRecord, fold)

    def measure(self) -> Callable[..., Iterator[Event]]:
        from sysbench.commands.fit.measure import run

        return run

    def launch(self) -> Launch[FitSpec, FitOptions, FitRecord]:
        from sysbench.commands.fit import command

        return Launch(
            perform=command.perform,
            suited=command.suited,
            refuse_files=command.refuse_unwritable,
            write_files=command.write_files,
            gate=command.gate,
        )

    def results(self) -> Results[FitSpec, FitCellRecord, FitRecord]:
        from sysbench.commands.fit import findings, tables

        return Results(
            tables=tables.TABLES,
            default_tables=tables.default_tables,
            sheet=tables.sheet,
            findings=findings.of_run,
        )

    def screen(self) -> type[FitScreen]:
        from sysbench.commands.fit.live import FitScreen

        return FitScreen


COMMAND = _Fit()

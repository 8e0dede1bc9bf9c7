"""See what rounding does: to sums, under autocast and in layer norm.

Without an experiment: 0.01 added to itself a thousand times, in every format and order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from sysbench.command import Models
from sysbench.commands.cell_command import CellCommand
from sysbench.commands.kinds import ReportLayout, Results
from sysbench.log.kinds import Records

if TYPE_CHECKING:
    from sysbench.commands.accum.record import AccumCellRecord, AccumRecord
    from sysbench.commands.accum.spec import AccumCell, AccumSpec
    from sysbench.log.events import Event
    from sysbench.render.table import Sheet
    from sysbench.spec.hardware import Hardware
    from sysbench.spec.run import SavedOptions


class _Accum(CellCommand):
    help = __doc__
    also_called = "accumulate rounding numerics precision"
    report = ReportLayout(4, "Rounding")
    runs_anywhere = True

    def models(self) -> Models[AccumSpec, AccumCell, SavedOptions]:
        from sysbench.commands.accum.spec import AccumCell, AccumSpec
        from sysbench.spec.run import SavedOptions

        return Models(AccumSpec, AccumCell, SavedOptions)

    def records(self) -> Records:
        from sysbench.commands.accum.fold import fold
        from sysbench.commands.accum.record import AccumRecord

        return Records(AccumRecord, fold)

    def measure(self) -> Callable[..., Iterator[Event]]:
        from sysbench.commands.accum.measure import run

        return run

    def plan(self, cells: Sequence[AccumCell], gpu: Hardware | None = None) -> Sheet:
        from sysbench.commands.accum.tables import plan

        return plan(cells)

    def results(self) -> Results[AccumSpec, AccumCellRecord, AccumRecord]:
        from sysbench.commands.accum import findings, tables

        return Results(
            tables=tables.TABLES,
            default_tables=tables.usual,
            sheet=tables.sheet,
            findings=findings.of_run,
            measures=tables.measures,
        )


COMMAND = _Accum()

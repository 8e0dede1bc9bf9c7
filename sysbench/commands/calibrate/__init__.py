"""Measure the device and host rates that predictions are based on.

Takes about 30 s. Writes the rates to ~/.config/sysbench/hardware/, where --simulate looks first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from sysbench.command import Models
from sysbench.commands.cell_command import CellCommand
from sysbench.commands.kinds import Launch, ReportLayout, Results
from sysbench.log.kinds import Records

if TYPE_CHECKING:
    from sysbench.commands.calibrate.record import CalibrateCellRecord, CalibrateRecord
    from sysbench.commands.calibrate.spec import CalibrateCell, CalibrateOptions, CalibrateSpec
    from sysbench.log.events import Event
    from sysbench.render.table import Sheet
    from sysbench.spec.hardware import Hardware


class _Calibrate(CellCommand):
    help = __doc__
    also_called = "rates calibration bandwidth"
    report = ReportLayout(5, "Calibration")

    def models(self) -> Models[CalibrateSpec, CalibrateCell, CalibrateOptions]:
        from sysbench.commands.calibrate.spec import CalibrateCell, CalibrateOptions, CalibrateSpec

        return Models(CalibrateSpec, CalibrateCell, CalibrateOptions)

    def records(self) -> Records:
        from sysbench.commands.calibrate.fold import fold
        from sysbench.commands.calibrate.record import CalibrateRecord

        return Records(CalibrateRecord, fold)

    def measure(self) -> Callable[..., Iterator[Event]]:
        from sysbench.commands.calibrate.measure import run

        return run

    def launch(self) -> Launch[CalibrateSpec, CalibrateOptions, CalibrateRecord]:
        from sysbench.commands.calibrate import command

        return Launch(
            perform=command.perform,
            refuse_files=command.refuse_unwritable,
            write_files=command.write,
            show=command.show,
        )

    def plan(self, cells: Sequence[CalibrateCell], gpu: Hardware | None = None) -> Sheet:
        from sysbench.commands.calibrate.tables import plan

        return plan(cells)

    def results(self) -> Results[CalibrateSpec, CalibrateCellRecord, CalibrateRecord]:
        from sysbench.commands.calibrate import tables

        return Results(
            tables=tables.TABLES,
            default_tables=lambda spec: ("rates",),
            long_table="rates",
            sheet=tables.sheet,
            findings=tables.of_run,
        )


COMMAND = _Calibrate()

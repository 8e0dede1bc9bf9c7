"""Time forward, backward and the optimizer step, by size, context, precision and more.

Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sysbench.command import Models
from sysbench.commands.cell_command import CellCommand
from sysbench.commands.kinds import Launch, ReportLayout, Results
from sysbench.log.kinds import Records

if TYPE_CHECKING:
    from sysbench.commands.time.live import TimeScreen
    from sysbench.commands.time.record import TimeCellRecord, TimeRecord
    from sysbench.commands.time.spec import TimeCell, TimeOptions, TimeSpec
    from sysbench.log.events import Event


class _Time(CellCommand):
    help = __doc__
    also_called = "bench benchmark measure step speed train predict latency throughput"
    report = ReportLayout(
        0,
        "Time of a training step",
        (
            "predicted",
            "gpus",
            "choices",
            "scaling",
            "training",
            "summary",
            "ranks",
            "device",
            "precision",
            "execution",
            "attention",
            "optimizer",
        ),
    )
    verdicts = ("step",)
    can_alternate = True

    def models(self) -> Models[TimeSpec, TimeCell, TimeOptions]:
        from sysbench.commands.time.spec import TimeCell, TimeOptions, TimeSpec

        return Models(TimeSpec, TimeCell, TimeOptions)

    def records(self) -> Records:
        from sysbench.commands.time.fold import fold
        from sysbench.commands.time.record import TimeRecord

        return Records(TimeRecord, fold)

    def measure(self) -> Callable[..., Iterator[Event]]:
        from sysbench.commands.time.measure import run

        return run

    def launch(self) -> Launch[TimeSpec, TimeOptions, TimeRecord]:
        from sysbench.commands.time import command

        return Launch(perform=command.perform)

    def results(self) -> Results[TimeSpec, TimeCellRecord, TimeRecord]:
        from sysbench.commands.time import compared, figures, findings, predicted, record, tables, terms

        return Results(
            tables=tables.TABLES,
            default_tables=tables.usual,
            sheet=tables.sheet,
            headlines=findings.headlines,
            findings=findings.of_run,
            figures=figures.of_run,
            terms=terms.terms,
            measures=compared.measures,
            step_numbers=compared.step_numbers,
            completed_together=record.share_ceilings,
            expected_duration_s=predicted.taken_s,
        )

    def screen(self) -> type[TimeScreen]:
        from sysbench.commands.time.live import TimeScreen

        return TimeScreen


COMMAND = _Time()

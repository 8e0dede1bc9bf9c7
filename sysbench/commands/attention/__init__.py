"""Sweep attention by head dimension, sequence length and implementation; see where it breaks.

Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from sysbench.command import Models
from sysbench.commands.cell_command import CellCommand
from sysbench.commands.kinds import Launch, ReportLayout, Results
from sysbench.log.kinds import Records

if TYPE_CHECKING:
    from sysbench.commands.attention.live import AttentionScreen
    from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
    from sysbench.commands.attention.spec import AttentionOptions, AttentionSpec
    from sysbench.log.events import Event
    from sysbench.render.table import Sheet
    from sysbench.spec.attention import AttentionCell
    from sysbench.spec.hardware import Hardware


class _Attention(CellCommand):
    help = __doc__
    also_called = "attn flash sdpa sweep"
    report = ReportLayout(3, "Attention", ("comparison", "crossovers", "frontier", "accounting"))
    verdicts = ("forward", "backward")
    can_alternate = True

    def models(self) -> Models[AttentionSpec, AttentionCell, AttentionOptions]:
        from sysbench.commands.attention.spec import AttentionOptions, AttentionSpec
        from sysbench.spec.attention import AttentionCell

        return Models(AttentionSpec, AttentionCell, AttentionOptions)

    def records(self) -> Records:
        from sysbench.commands.attention.fold import fold
        from sysbench.commands.attention.record import AttentionRecord

        return Records(AttentionRecord, fold)

    def measure(self) -> Callable[..., Iterator[Event]]:
        from sysbench.commands.attention.measure import run

        return run

    def launch(self) -> Launch[AttentionSpec, AttentionOptions, AttentionRecord]:
        from sysbench.commands.attention import command

        return Launch(
            perform=command.perform,
            suited=command.suited,
            refuse_files=command.refuse_unwritable,
            write_files=command.draw,
        )

    def plan(self, cells: Sequence[AttentionCell], gpu: Hardware | None = None) -> Sheet:
        from sysbench.commands.attention.tables import plan

        return plan(cells)

    def results(self) -> Results[AttentionSpec, AttentionCellRecord, AttentionRecord]:
        from sysbench.commands.attention import compared, figures, findings, fold, tables

        return Results(
            tables=tables.TABLES,
            default_tables=tables.usual,
            sheet=tables.sheet,
            findings=findings.of_run,
            figures=figures.of_run,
            measures=compared.measures,
            expected_duration_s=fold.taken_s,
        )

    def screen(self) -> type[AttentionScreen]:
        from sysbench.commands.attention.live import AttentionScreen

        return AttentionScreen


COMMAND = _Attention()

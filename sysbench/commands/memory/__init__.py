"""See where the memory of a step goes and whether it fits, on a GPU or without one.

Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
--from also accepts a memory snapshot of any program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sysbench.command import Models
from sysbench.commands.cell_command import CellCommand
from sysbench.commands.kinds import Launch, ReportLayout, Results
from sysbench.log.kinds import Records

if TYPE_CHECKING:
    from pathlib import Path

    from sysbench.commands.artefacts import Artefact
    from sysbench.commands.memory.live import MemoryScreen
    from sysbench.commands.memory.record import MemoryCellRecord, MemoryRecord
    from sysbench.commands.memory.spec import MemoryCell, MemoryOptions, MemorySpec
    from sysbench.log.events import Event


class _Memory(CellCommand):
    help = __doc__
    also_called = "mem vram oom snapshot peak"
    report = ReportLayout(
        2,
        "Memory of a training step",
        ("summary", "ranks", "phases", "categories"),
        ("largest", "modules"),
        picture_caption="Memory over time by category",
    )

    def models(self) -> Models[MemorySpec, MemoryCell, MemoryOptions]:
        from sysbench.commands.memory.spec import MemoryCell, MemoryOptions, MemorySpec

        return Models(MemorySpec, MemoryCell, MemoryOptions)

    def records(self) -> Records:
        from sysbench.commands.memory.fold import fold
        from sysbench.commands.memory.record import MemoryRecord

        return Records(MemoryRecord, fold)

    def measure(self) -> Callable[..., Iterator[Event]]:
        from sysbench.commands.memory.measure import run

        return run

    def launch(self) -> Launch[MemorySpec, MemoryOptions, MemoryRecord]:
        from sysbench.commands.memory import command

        return Launch(
            perform=command.perform,
            suited=command.suited,
            refuse_files=command.validate_output_formats,
            gate=command.gate,
            show=command.show,
        )

    def results(self) -> Results[MemorySpec, MemoryCellRecord, MemoryRecord]:
        from sysbench.commands.memory import compared, figures, findings, tables, terms

        return Results(
            tables=tables.TABLES,
            default_tables=tables.default_tables,
            sheet=tables.sheet,
            headlines=findings.headlines,
            findings=findings.of_run,
            figures=figures.of_run,
            terms=terms.terms,
            measures=compared.measures,
            step_numbers=compared.step_numbers,
        )

    def screen(self) -> type[MemoryScreen]:
        from sysbench.commands.memory.live import MemoryScreen

        return MemoryScreen

    def artefact(self, path: Path, beginning: bytes) -> Artefact | None:
        from sysbench.commands.memory.snapshot_file import read

        return read(path, beginning)


COMMAND = _Memory()

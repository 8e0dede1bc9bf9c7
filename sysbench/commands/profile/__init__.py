"""Show which kernels take the time, by the part of the model that launched them.

Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
--from shows traces that any program has recorded with torch.profiler or nsys.
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
    from sysbench.commands.profile.live import ProfileScreen
    from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
    from sysbench.commands.profile.spec import ProfileCell, ProfileOptions, ProfileSpec
    from sysbench.log.events import Event


class _Profile(CellCommand):
    help = __doc__
    also_called = "trace prof profiler kernels flame nsys nsight"
    report = ReportLayout(
        1,
        "Where the time goes",
        ("summary", "communication", "collectives", "classes", "attention", "device", "kernels"),
        ("tree",),
    )
    verdicts = ("step",)

    def models(self) -> Models[ProfileSpec, ProfileCell, ProfileOptions]:
        from sysbench.commands.profile.spec import ProfileCell, ProfileOptions, ProfileSpec

        return Models(ProfileSpec, ProfileCell, ProfileOptions)

    def records(self) -> Records:
        from sysbench.commands.profile.fold import fold
        from sysbench.commands.profile.record import ProfileRecord

        return Records(ProfileRecord, fold)

    def measure(self) -> Callable[..., Iterator[Event]]:
        from sysbench.commands.profile.measure import run

        return run

    def launch(self) -> Launch[ProfileSpec, ProfileOptions, ProfileRecord]:
        from sysbench.commands.profile import command, files

        return Launch(perform=command.perform, refuse_files=files.validate_output_formats, show=command.show)

    def results(self) -> Results[ProfileSpec, ProfileCellRecord, ProfileRecord]:
        from sysbench.commands.profile import compared, figures, findings, fold, tables, terms

        return Results(
            tables=tables.TABLES,
            default_tables=tables.default_tables,
            long_table="kernels",
            sheet=tables.sheet,
            build_tables=tables.non_empty_tables,
            headlines=findings.findings,
            findings=findings.of_run,
            figures=figures.of_run,
            terms=terms.terms,
            measures=compared.measures,
            step_numbers=compared.step_numbers,
            expected_duration_s=fold.estimated_duration_s,
        )

    def screen(self) -> type[ProfileScreen]:
        from sysbench.commands.profile.live import ProfileScreen

        return ProfileScreen

    def artefact(self, path: Path, beginning: bytes) -> Artefact | None:
        from sysbench.commands.profile.trace_file import read

        return read(path, beginning)


COMMAND = _Profile()

"""Command line of `sysbench memory`: run a spec, or show a finished run or a memory snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands import refusals, running, showing
from sysbench.commands.memory.spec import MemoryOptions, MemorySpec, search_goal
from sysbench.commands.surroundings import ALONE, RunSurroundings
from sysbench.commands.without_gpu import DEFAULT_GPU, is_without_gpu, say_simulating
from sysbench.errors import UsageError
from sysbench.log import storage
from sysbench.log.file_names import labels_of, path_of_rank, paths_of, paths_of_ranks
from sysbench.log.records import typed
from sysbench.log.storage import ScratchDirectory
from sysbench.spec.command_options import Given, command_options

if TYPE_CHECKING:
    from sysbench.commands.memory.record import MemoryCellRecord
    from sysbench.snapshot.timeline import Timeline


@command_options(MemorySpec, MemoryOptions)
def memory(spec_given: Given, options_given: Given) -> None:
    """See where the memory of a step goes and whether it fits, on a GPU or without one.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    --from also accepts a memory snapshot of any program.
    """
    running.execute_command("memory", spec_given, options_given)


def suited(spec: MemorySpec, options: MemoryOptions) -> MemorySpec:
    """Return the spec; without a GPU, and unless a device was named, it simulates DEFAULT_GPU.

    What a step needs of a host's memory answers no question about GPUs, and filling that memory takes minutes. Own
    models, compiled steps and several ranks are measured, because not all of them can be simulated. Raises UsageError
    for `--require-fit` without a GPU, whose answer would be about another one than the user means.
    """
    if spec.simulate or spec.device != ("auto",) or spec.is_distributed:
        return spec
    measured = any(cell.own or cell.is_compiled for cell in spec.cells())
    if measured and not options.require_fit:
        return spec
    if not is_without_gpu():
        return spec
    if options.require_fit:
        raise UsageError("--require-fit needs a GPU, and none is here. Name the one to fit on: --simulate a100-40gb")
    say_simulating(options)
    return MemorySpec(**{**spec.model_dump(exclude_unset=True), "simulate": DEFAULT_GPU})


def perform(spec: MemorySpec, options: MemoryOptions, surroundings: RunSurroundings = ALONE) -> running.RunResult:
    """Run the spec and write the requested files: a figure, a page and snapshots for each cell.

    Raises UsageError if the figure has an unknown format, and OutputError if a file cannot be written.
    """
    from sysbench.commands.memory.record import MemoryRecord
    from sysbench.engine.provisions import Provisions

    validate_output_formats(options)
    cells = list(spec.cells())
    labels = labels_of(cells)
    snapshots, figures, pages = (paths_of(path, labels) for path in (options.snapshot, options.figure, options.page))
    of_ranks = [path for cell in cells if snapshots for path in paths_of_ranks(snapshots[cell.key], cell.workers)]
    for path in (*of_ranks, *figures.values(), *pages.values()):
        storage.refuse_unwritable(path)
    with ScratchDirectory() as directory:
        # Figures and pages are drawn from snapshots, which the user need not keep.
        temporary = {key: Path(directory) / f"{key}.pickle" for key in labels if figures or pages}
        recorded = snapshots or temporary
        record = typed(running.run_cells(spec, options, surroundings, Provisions(recorded)), MemoryRecord)
        saved: list[Path] = []
        for cell in record.cells:
            if cell.key not in recorded or cell.snapshot is None:
                continue
            path = recorded[cell.key]
            if snapshots:
                saved += [path for path in paths_of_ranks(path, cell.cell.workers) if path.is_file()]
            fullest = path_of_rank(path, cell.fullest_rank.rank if cell.fullest_rank else 0)
            saved += _draw_cell(cell, fullest, figures.get(cell.key), pages.get(cell.key))
        return running.RunResult(record, showing.report_saved(map(showing.Saved, saved), options))


def validate_output_formats(options: MemoryOptions) -> None:
    refusals.refuse_unsupported_figure(options.figure)


def show(path: Path, options: MemoryOptions) -> None:
    """Show a log, a record or a memory snapshot; draw a snapshot if requested. Raises LogError for other files."""
    from sysbench.log.runs import is_log_or_record

    if path.suffix.lower() in (".json", ".jsonl") or is_log_or_record(path):
        from sysbench.commands import saved

        for name in ("snapshot", "figure", "page"):
            if getattr(options, name) is not None:
                raise UsageError(
                    f"--{name} needs all allocations, which {path} lacks: pass the snapshot to --from instead"
                )
        refusals.refuse_unknown_tables("memory", options)
        record = saved.record(path, "memory")
        showing.show_saved(record, options)
        running.refuse_at_gate(record, options)
        return
    from sysbench.commands.memory.snapshot_tables import sheet
    from sysbench.snapshot.categories import from_snapshot
    from sysbench.snapshot.snapshot import read

    if options.snapshot is not None:
        raise UsageError(f"--snapshot would only copy {path}")
    if options.require_fit:
        raise UsageError(f"--require-fit needs a run: {path} does not say whether anything fits")
    validate_output_formats(options)
    for target in (options.figure, options.page, options.json_path):
        if target not in (None, "-"):
            storage.refuse_unwritable(Path(target))
    timeline = from_snapshot(read(path))
    showing.show_sheet(sheet(timeline, path.name, options.tables), options, options.columns)
    drawn = draw(timeline, path.stem, options.figure, options.page)
    showing.report_saved(map(showing.Saved, drawn), options)


def _draw_cell(cell: MemoryCellRecord, snapshot: Path, figure: Path | None, page: Path | None) -> Iterator[Path]:
    if not snapshot.is_file() or (figure is None and page is None):
        return
    from sysbench.snapshot.categories import from_snapshot
    from sysbench.snapshot.snapshot import read

    words = [cell.shown_cell.title.replace(", ", " · "), cell.cell.precision, cell.cell.mode]
    if cell.cell.strategy is not None and cell.cell.find != "ranks":
        rank = cell.fullest_rank.rank if cell.fullest_rank else 0
        words += [f"rank {rank} of {cell.cell.ranks}", cell.cell.strategy]
    words += [search_goal(cell.cell.find)] if cell.cell.find else []
    yield from draw(from_snapshot(read(snapshot)), " · ".join(words), figure, page)


def draw(timeline: Timeline, title: str, figure: Path | None, page: Path | None) -> Iterator[Path]:
    from sysbench.commands.memory import page as memory_page
    from sysbench.commands.memory import timeline_figure as memory_figure

    if figure is not None:
        memory_figure.write(figure, timeline, title)
        yield figure
    if page is not None:
        memory_page.write(page, timeline, title)
        yield page

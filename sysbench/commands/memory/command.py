"""Command line of `sysbench memory`: run a spec, or show a finished run or a memory snapshot."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sysbench.commands import refusals, running, showing
from sysbench.commands.memory.spec import MemoryCell, MemoryOptions, MemorySpec, search_goal
from sysbench.commands.surroundings import ALONE, RunResult, RunSurroundings
from sysbench.commands.without_gpu import DEFAULT_GPU, is_without_gpu, say_simulating
from sysbench.errors import UsageError
from sysbench.log import storage
from sysbench.log.file_names import labels_of, path_of_rank, paths_of, paths_of_ranks
from sysbench.log.records import typed
from sysbench.log.storage import ScratchDirectory

if TYPE_CHECKING:
    from sysbench.commands.memory.record import MemoryCellRecord, MemoryRecord
    from sysbench.snapshot.timeline import Timeline


def suited(spec: MemorySpec, options: MemoryOptions) -> MemorySpec:
    """Return the spec; without a GPU, and unless a device was named, it simulates DEFAULT_GPU.

    What a step needs of a host's memory answers no question about GPUs, and filling that memory takes minutes. Own
    models and several ranks are measured, because not all of them can be simulated. Raises UsageError
    for `--require-fit` without a GPU, whose answer would be about another one than the user means.
    """
    if spec.simulate or spec.device != ("auto",) or spec.is_distributed:
        return spec
    measured = any(cell.own for cell in spec.cells())
    if measured and not options.require_fit:
        return spec
    if not is_without_gpu():
        return spec
    if options.require_fit:
        raise UsageError("--require-fit needs a GPU, and none is here. Name the one to fit on: --simulate a100-40gb")
    say_simulating(options)
    return MemorySpec(**{**spec.model_dump(exclude_unset=True), "simulate": DEFAULT_GPU})


def perform(spec: MemorySpec, options: MemoryOptions, surroundings: RunSurroundings = ALONE) -> RunResult:
    """Run the spec and write the requested files: a figure, a page and snapshots for each cell.

    Raises UsageError if the figure has an unknown format, and OutputError if a file cannot be written.
    """
    from sysbench.commands.memory import record as records
    from sysbench.engine.provisions import Provisions

    validate_output_formats(options)
    with _CellFiles(spec, options) as files:
        provisions = Provisions(files.recorded)
        record = typed(running.run_cells(spec, options, surroundings, provisions, files.write), records.MemoryRecord)
        return RunResult(record, tuple(files.written))


class _CellFiles:
    """The snapshots, figures and pages of the cells. Of several cells, the largest that fits has the requested name."""

    def __init__(self, spec: MemorySpec, options: MemoryOptions) -> None:
        """Choose all paths; raises OutputError if one cannot be written."""
        cells = list(spec.cells())
        labels = labels_of(cells)
        self._options = options
        self._snapshots, self._figures, self._pages = (
            paths_of(path, labels) for path in (options.snapshot, options.figure, options.page)
        )
        of_ranks = [path for cell in cells for path in self._of_ranks(cell)]
        requested = [path for path in (options.snapshot, options.figure, options.page) if path is not None]
        for path in (*requested, *of_ranks, *self._figures.values(), *self._pages.values()):
            storage.refuse_unwritable(path.absolute())
        # Figures and pages are drawn from snapshots, which the user need not keep.
        self._scratch = ScratchDirectory()
        temporary = {key: Path(self._scratch.name) / f"{key}.pickle" for key in labels}
        self.recorded = self._snapshots or (temporary if self._figures or self._pages else {})
        """Path of the snapshot of each cell, by key."""
        self.written: list[Path] = []
        """All files written, the requested names first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def _of_ranks(self, cell: MemoryCell) -> list[Path]:
        return paths_of_ranks(self._snapshots[cell.key], cell.workers) if self._snapshots else []

    def write(self, record: MemoryRecord) -> Iterator[str]:
        """Draw figures and pages, and give the largest cell that fits the requested names; yield what was written."""
        for cell in record.cells:
            if cell.key not in self.recorded or cell.snapshot is None:
                continue
            self.written += [path for path in self._of_ranks(cell.cell) if path.is_file()]
            rank = cell.fullest_rank.rank if cell.fullest_rank else 0
            fullest = path_of_rank(self.recorded[cell.key], rank)
            self.written += _draw_cell(cell, fullest, self._figures.get(cell.key), self._pages.get(cell.key))
        largest = record.largest_fitting
        named = [] if largest is None else list(self._name_after_request(largest))
        self.written = [*named, *(path for path in self.written if path not in named)]
        yield from map(self._described, named)
        if beside := len(self.written) - len(named):
            yield f"{beside} more beside {'it' if len(named) == 1 else 'them'}"

    def _name_after_request(self, largest: MemoryCellRecord) -> Iterator[Path]:
        for path, by_cell in (
            (self._options.snapshot, self._snapshots),
            (self._options.figure, self._figures),
            (self._options.page, self._pages),
        ):
            own = by_cell.get(largest.key)
            if path is None or own is None or not own.is_file():
                continue
            if own != path.absolute():
                storage.write_atomically(path, own.read_bytes())
            yield path.absolute()

    def _described(self, path: Path) -> str:
        name = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
        if self._options.snapshot is None or path != self._options.snapshot.absolute():
            return name
        return f"{name} (to open it: pytorch.org/memory_viz, or sysbench memory --from {shlex.quote(name)})"


def validate_output_formats(options: MemoryOptions) -> None:
    refusals.refuse_unsupported_figure(options.figure)


def gate(record: MemoryRecord, options: MemoryOptions) -> Iterator[str]:
    """Yield the cells that do not fit, if that is what `--require-fit` guards against."""
    if options.require_fit:
        from sysbench.commands.memory.verdicts import shortage
        from sysbench.render.sentences.phrases import namer

        name = namer(record.cells, ("simulate",))
        for cell in record.cells:
            if cell.does_not_fit:
                yield f"{name(cell) or cell.cell.title}: {shortage(cell)}"


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

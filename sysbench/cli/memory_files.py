"""The files that a run of `sysbench memory` leaves beside its record: snapshots, pictures, pages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysbench.cli.file_names import labels_of, paths_of
from sysbench.engine import storage
from sysbench.errors import UsageError
from sysbench.records import RunRecord
from sysbench.specs.memory import MemoryCell, MemorySpec
from sysbench.specs.run import MemoryOptions

if TYPE_CHECKING:
    from sysbench.analysis.timeline import Timeline

AXES = ("simulate", "size", "batch", "ctx", "attention", "execution", "optimizer", "precision", "mode", "device")
"""In the order in which names say them."""

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Files:
    """Where everything goes, by the keys of cells."""

    snapshots: Mapping[str, Path]
    """Where workers leave snapshots: where they were asked for, or in a directory that is removed in the end."""
    kept: frozenset[Path]
    """Those of them that somebody asked for."""
    figures: Mapping[str, Path]
    pages: Mapping[str, Path]
    titles: Mapping[str, str]

    @classmethod
    @contextmanager
    def prepared(cls, spec: MemorySpec, options: MemoryOptions) -> Iterator[Files]:
        """Names for all files; raises UsageError and OutputError for those that could not be written."""
        refuse_other_pictures(options.figure)
        cells = list(spec.cells())
        labels = labels_of(cells, AXES)
        snapshots, figures, pages = (
            paths_of(path, labels) for path in (options.snapshot, options.figure, options.page)
        )
        for path in (*snapshots.values(), *figures.values(), *pages.values()):
            storage.refuse_unwritable(path)
        titles = {cell.key: _title(cell) for cell in cells}
        kept = frozenset(snapshots.values())
        if snapshots or not (figures or pages):
            yield cls(snapshots, kept, figures, pages, titles)
            return
        with tempfile.TemporaryDirectory(prefix="sysbench-") as directory:
            here = {key: Path(directory) / f"{key}.pickle" for key in labels}
            yield cls(here, kept, figures, pages, titles)

    def draw(self, record: RunRecord[Any]) -> Iterator[Path]:
        """Draw what was asked for of every cell that left a snapshot; yields every file there is now."""
        for cell in record.cells:
            path = self.snapshots.get(cell.key)
            if path is None or cell.snapshot is None or not path.is_file():
                continue
            if path in self.kept:
                yield path
            figure, page = self.figures.get(cell.key), self.pages.get(cell.key)
            if figure is not None or page is not None:
                from sysbench.analysis.snapshot import read
                from sysbench.analysis.timeline_sources import from_snapshot

                yield from draw(from_snapshot(read(path)), self.titles[cell.key], figure, page)


def draw(timeline: Timeline, title: str, figure: Path | None, page: Path | None) -> Iterator[Path]:
    """Draw a timeline into these files; yields each that is written."""
    from sysbench.views import memory_figure, memory_page

    if figure is not None:
        memory_figure.write(figure, timeline, title)
        yield figure
    if page is not None:
        memory_page.write(page, timeline, title)
        yield page


def refuse_other_pictures(path: Path | None) -> None:
    """Raise UsageError for a picture in a format that there is not."""
    if path is not None and path.suffix.lower() not in PICTURE_SUFFIXES:
        raise UsageError(f"--figure {path} must end in {', '.join(PICTURE_SUFFIXES)}")


def _title(cell: MemoryCell) -> str:
    found = f" · largest {cell.find}" if cell.find else ""
    return f"{cell.size} · ctx {cell.ctx} · batch {cell.batch} · {cell.precision} · {cell.mode}{found}"

"""`sysbench memory --from FILE`: a snapshot of anyone's, or a log or record of ours."""

from __future__ import annotations

from pathlib import Path

from sysbench.cli import running
from sysbench.engine import storage
from sysbench.errors import UsageError
from sysbench.specs.run import MemoryOptions

_RECORDS = (".json", ".jsonl")


def show(path: Path, options: MemoryOptions) -> None:
    """Show what the file holds, and draw it where that is wanted; raises LogError for a file that is neither."""
    if path.suffix.lower() in _RECORDS:
        _show_record(path, options)
    else:
        _show_snapshot(path, options)


def _show_record(path: Path, options: MemoryOptions) -> None:
    from sysbench.cli import saved

    for name in ("snapshot", "figure", "page"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name} needs every allocation, which {path} does not hold: give its snapshot to --from"
            )
    running.refuse_unknown_tables("memory", options)
    running.show(saved.record(path, "memory"), options)


def _show_snapshot(path: Path, options: MemoryOptions) -> None:
    from sysbench.analysis.snapshot import read
    from sysbench.analysis.timeline_sources import from_snapshot
    from sysbench.cli.memory_files import draw, refuse_other_pictures
    from sysbench.cli.output import results
    from sysbench.views import summary
    from sysbench.views.snapshot_tables import sheet

    if options.json_path is not None:
        raise UsageError("--json writes the record of a run; a snapshot has none")
    if options.snapshot is not None:
        raise UsageError(f"--snapshot would only copy {path}")
    refuse_other_pictures(options.figure)
    for target in (options.figure, options.page):
        if target is not None:
            storage.refuse_unwritable(target)
    timeline = from_snapshot(read(path))
    content = sheet(timeline, path.name, options.tables)
    with results() as console:
        summary.show_sheet(content, console, options.format, options.columns)
    drawn = draw(timeline, path.stem, options.figure, options.page)
    running.said_to_be_saved(map(running.Saved, drawn), options)

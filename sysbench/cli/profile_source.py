"""`sysbench profile --from FILE,…`: traces of anyone's, or a log or record of ours."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sysbench.cli import running
from sysbench.cli.profile_files import draw, ranges_wanted, refuse_other_endings
from sysbench.cli.waiting import waiting
from sysbench.engine import storage
from sysbench.errors import UsageError
from sysbench.specs.run import ProfileOptions

_OURS = re.compile(rb'\s*\{\s*"schema_version"')
"""How a record begins, and no trace."""

_BEGINNING_BYTES = 256


def show(paths: Sequence[Path], options: ProfileOptions) -> None:
    """Show what the files hold, and write what is wanted of it; raises LogError for a file that is none of these."""
    if options.trace is not None:
        raise UsageError("--trace keeps the trace of a run; --from has one already")
    refuse_other_endings(options)
    ours = [path for path in paths if _is_ours(path)]
    if not ours:
        _show_traces(paths, options)
    elif len(paths) == 1:
        _show_record(paths[0], options)
    else:
        raise UsageError(f"--from takes one log or record, or several traces; {ours[0]} is a log or record")


def _is_ours(path: Path) -> bool:
    if path.suffix != ".json":
        return path.suffix == ".jsonl"
    try:
        with path.open("rb") as file:
            return _OURS.match(file.read(_BEGINNING_BYTES)) is not None
    except OSError:
        return False  # whoever reads it says why it cannot be read


def _show_record(path: Path, options: ProfileOptions) -> None:
    from sysbench.cli import saved

    for name in ("window", "flame"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} needs a trace, which {path} is not: give that to --from")
    running.show(saved.record(path, "profile"), options)


def _show_traces(paths: Sequence[Path], options: ProfileOptions) -> None:
    from sysbench.cli.output import results
    from sysbench.engine.traces import summary_of
    from sysbench.records import TraceRecord
    from sysbench.views import profile_tables, summary
    from sysbench.views.sheets import LONG

    if len(paths) > 1 and (options.window or options.flame):
        raise UsageError("--window and --flame are of one trace: give --from one file")
    for target in (options.window, options.flame, options.json_path and Path(options.json_path)):
        if target and str(target) != "-":
            storage.refuse_unwritable(target)
    with waiting("reading", silent=options.quiet) as progress:
        summaries = [summary_of(path, ranges=ranges_wanted(options), progress=progress) for path in paths]
    written = TraceRecord(summaries=summaries).model_dump_json(indent=1) + "\n"
    if options.json_path not in (None, "-"):
        storage.write_atomically(Path(options.json_path), written.encode())
    with results() as console:
        if options.json_path == "-":
            sys.stdout.write(written)
        else:
            named = [(each.title, each) for each in summaries]
            # As of a record: CSV has no place for several tables.
            tables = options.tables or ((LONG["profile"],) if options.format == "csv" else ())
            content = profile_tables.sheet_of(named, tables, options.selection)
            summary.show_sheet(content, console, options.format, options.columns)
    for path in draw(paths[0], summaries[0], paths[0].name, options.window, options.flame, options.range):
        running.say(f"saved  {path}", options)

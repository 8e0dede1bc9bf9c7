"""Sheets about earlier runs: a list of runs, or a single run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sysbench import units
from sysbench.commands.history.earlier_runs import EarlierRun, cells_by_outcome
from sysbench.render.table import Column, Measure, Remark, Sheet, Table, Word

_COLUMNS = (
    Column("name", "name"),
    Column("command", "command", importance=2),
    Column("what", "what", elastic=True),
    Column("began", "started (UTC)", importance=3),
    Column("outcome", "outcome"),
    Column("size", "size", "bytes", importance=2, wide_range=True),
)


def run_list(runs: Sequence[EarlierRun], directory: Path) -> Sheet:
    rows = tuple((run.name, run.kind, run.what, _when(run), _outcome(run), Measure(run.size_bytes)) for run in runs)
    total = f"{len(runs)} run{'' if len(runs) == 1 else 's'}, {units.size(sum(run.size_bytes for run in runs))}"
    return Sheet(
        (f"runs in {directory}", total), (Table("history", "newest first", _COLUMNS, rows, 1),) if rows else ()
    )


def run_details(run: EarlierRun) -> Sheet:
    """Return a run's spec, outcome and files, the commands that accept it, and its missing cells."""
    files = tuple((str(path), Measure(path.stat().st_size)) for path in run.files)
    columns = (Column("file", "file"), Column("size", "size", "bytes", wide_range=True))
    next_commands = {
        "": f"sysbench report {run.path} writes a report",
        "run": f"sysbench report {run.path} writes a report; sysbench run --resume {run.path} runs the missing cells",
        "compare": f"sysbench compare {run.path} shows its result",
    }
    next_command = next_commands.get(run.kind, f"sysbench {run.kind} --from {run.path} shows its tables")
    remarks = [Remark("note", f"started {_when(run)} UTC"), Remark("note", next_command)]
    tables = [Table("files", units.size(run.size_bytes), columns, files, 1)]
    if (log := run.resumable_log) is not None:
        tables.append(_cells(run))
        resume = f"sysbench {run.kind} --resume {shlex.quote(str(log))} runs the remaining cells"
        remarks.append(Remark("note", "the run is in progress" if run.in_progress else resume))
    what_is_complete = run.kind in ("", "compare") or run.what.startswith("sysbench.")
    command = run.what if what_is_complete else f"sysbench {run.kind} {run.what}".rstrip()
    subject = (run.name, command, run.outcome)
    return Sheet(subject, tuple(table for table in tables if table.rows), tuple(remarks))


def _cells(run: EarlierRun) -> Table:
    columns = (Column("outcome", "outcome"), Column("cells", "cells", elastic=True))
    return Table("cells", "cells", columns, tuple(cells_by_outcome(run).items()), 1)


def _when(run: EarlierRun) -> str:
    return f"{datetime.fromtimestamp(run.began_s, UTC):%Y-%m-%d %H:%M}"


def _outcome(run: EarlierRun) -> Word:
    return Word(run.outcome, "plain" if run.complete else "bad")

"""Sheets about earlier runs: a list of runs, or a single run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sysbench import units
from sysbench.commands.history.earlier import Earlier
from sysbench.render.table import Column, Measure, Remark, Sheet, Table, Word

_COLUMNS = (
    Column("name", "name"),
    Column("command", "command", importance=2),
    Column("what", "what", importance=1, elastic=True),
    Column("began", "started (UTC)", importance=3),
    Column("outcome", "outcome"),
    Column("size", "size", "bytes", importance=2, wide_range=True),
)


def listing(every: Sequence[Earlier], title: str) -> Sheet:
    """Return a list of runs in the given order."""
    rows = tuple(
        (each.name, each.kind, each.what, _when(each), _outcome(each), Measure(each.size_bytes)) for each in every
    )
    total = f"{len(every)} run{'' if len(every) == 1 else 's'}, {units.size(sum(each.size_bytes for each in every))}"
    return Sheet((title, total), (Table("history", "newest first", _COLUMNS, rows, 1),) if rows else ())


def single(each: Earlier) -> Sheet:
    """Return details of a run: its spec, its outcome, its files, and the commands that accept it."""
    files = tuple((str(path), Measure(path.stat().st_size)) for path in each.files)
    columns = (Column("file", "file"), Column("size", "size", "bytes", wide_range=True))
    ways = {
        "": f"sysbench report {each.path} writes a report",
        "run": f"sysbench report {each.path} writes a report; sysbench run --resume {each.path} runs the missing cells",
        "compare": f"sysbench compare {each.path} shows its result",
    }
    again = ways.get(each.kind, f"sysbench {each.kind} --from {each.path} shows its tables")
    remarks = (Remark("note", f"started {_when(each)} UTC"), Remark("note", again))
    called = each.kind in ("", "compare") or each.what.startswith("sysbench.")
    repeat = each.what if called else f"sysbench {each.kind} {each.what}".rstrip()
    subject = (each.name, repeat, each.outcome)
    return Sheet(subject, (Table("files", units.size(each.size_bytes), columns, files, 1),), remarks)


def _when(each: Earlier) -> str:
    return f"{datetime.fromtimestamp(each.began_s, UTC):%Y-%m-%d %H:%M}"


def _outcome(each: Earlier) -> Word:
    return Word(each.outcome, "plain" if each.outcome.startswith("complete") else "bad")

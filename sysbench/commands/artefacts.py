"""Input files that are not runs: traces, memory snapshots, and tables that sysbench wrote with `--json`.

`report` shows each file in its own section, and `compare` compares two files of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from sysbench.errors import LogError
from sysbench.log.storage import cannot_read
from sysbench.render.csv import SheetRecord
from sysbench.render.table import Sheet
from sysbench.spec.validation import first_error
from sysbench.trace.ranks.summary import RanksSummary
from sysbench.trace.summary import ProfileSummary

if TYPE_CHECKING:
    from sysbench.snapshot.timeline import Timeline

BINARY_TRACE_SUFFIXES = (".json.gz", ".sqlite", ".nsys-rep")
"""Suffixes of traces that are not text."""

SNAPSHOT_SUFFIXES = (".pickle", ".pickle.gz", ".pkl")
"""Suffixes of memory snapshots."""


@dataclass(frozen=True)
class TraceArtefact:
    """Summaries of one or more traces."""

    name: str
    summaries: tuple[ProfileSummary, ...]
    ranks: RanksSummary | None = None
    kind: Literal["trace"] = "trace"

    @property
    def sheet(self) -> Sheet:
        """The tables that `profile --from` shows."""
        from sysbench.commands.profile.tables import traces_sheet

        return traces_sheet([(each.title, each) for each in self.summaries], ranks=self.ranks)


@dataclass(frozen=True)
class TablesArtefact:
    """The tables of a memory snapshot, or other tables that sysbench wrote as JSON."""

    name: str
    sheet: Sheet
    kind: Literal["snapshot", "plan"]
    timeline: Timeline | None = None
    """All allocations of a snapshot; None if only its tables are known, which have the largest groups."""


Artefact = TraceArtefact | TablesArtefact


def is_simulated(artefact: Artefact) -> bool:
    """Whether this is the snapshot of a simulated run, which its subject says: `simulated for a GPU with 24GiB`."""
    if isinstance(artefact, TraceArtefact):
        return False
    return any(phrase.startswith("simulated for ") for phrase in artefact.sheet.subject[1:])


def read(path: Path) -> Artefact | None:
    """Return the trace, snapshot or tables in a file; None for a directory, a log, a record or a missing file.

    Raises LogError if the file cannot be read.
    """
    name = path.name.lower()
    with _as_log_errors(path):
        if not path.is_file():
            return None
    if name.endswith(SNAPSHOT_SUFFIXES):
        from sysbench.commands.memory.snapshot_tables import sheet
        from sysbench.snapshot import snapshot
        from sysbench.snapshot.categories import from_snapshot

        timeline = from_snapshot(snapshot.read(path))
        return TablesArtefact(path.name, sheet(timeline, path.name), "snapshot", timeline)
    with _as_log_errors(path), path.open("rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
    if not name.endswith(BINARY_TRACE_SUFFIXES) and not _TRACE_START.search(beginning):
        return _read_saved_json(path, beginning)
    from sysbench.trace import traces

    return TraceArtefact(path.name, (traces.summary_of(traces.read(path)),))


_BEGINNING_BYTES = 4096

_TRACE_START = re.compile(rb'\A\s*\[|"(traceEvents|schemaVersion|deviceProperties|distributedInfo)"')
"""Matches the beginning of a file in Chrome's trace format, but not of files that sysbench writes."""


def _read_saved_json(path: Path, beginning: bytes) -> Artefact | None:
    """Return the trace or the tables that `profile --from`, `memory --from` or `--plan` wrote with `--json`.

    Return None for a record.
    """
    from sysbench.commands.profile.record import TraceRecord

    with _as_log_errors(path):
        if b'"kind": "traces"' in beginning:
            record = TraceRecord.model_validate_json(path.read_bytes())
            return TraceArtefact(path.name, tuple(record.summaries), record.ranks)
        if b'"kind": "tables"' in beginning:
            sheet = SheetRecord.model_validate_json(path.read_bytes()).sheet
            snapshot = any(table.name == "categories" for table in sheet.tables)
            return TablesArtefact(path.name, sheet, "snapshot" if snapshot else "plan")
    return None


@contextmanager
def _as_log_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValidationError as error:
        raise LogError(f"{path} is not in sysbench's format: {first_error(error)}") from None

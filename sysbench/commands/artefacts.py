"""Traces, memory snapshots, and what `--from FILE --json` wrote of them: taken wherever finished runs are.

`report` gives each a section of its own, `compare` holds two of a kind against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from sysbench.errors import LogError
from sysbench.log.storage import reason
from sysbench.render.csv import SheetRecord
from sysbench.render.table import Sheet
from sysbench.spec.validation import first_fault
from sysbench.trace.summary import ProfileSummary

TRACES = (".json", ".json.gz", ".sqlite", ".nsys-rep")
"""How the names of traces end."""

SNAPSHOTS = (".pickle", ".pickle.gz", ".pkl")
"""How the names of memory snapshots end."""


@dataclass(frozen=True)
class TraceArtefact:
    """One trace or several, each as its summary."""

    name: str
    summaries: tuple[ProfileSummary, ...]
    kind: Literal["trace"] = "trace"

    @property
    def sheet(self) -> Sheet:
        """The tables that `profile --from` shows."""
        from sysbench.commands.profile.tables import sheet_of

        return sheet_of([(each.title, each) for each in self.summaries])


@dataclass(frozen=True)
class TablesArtefact:
    """A memory snapshot as its tables, or other tables that sysbench wrote as JSON."""

    name: str
    sheet: Sheet
    kind: Literal["snapshot", "plan"]


Artefact = TraceArtefact | TablesArtefact


def read(path: Path) -> Artefact | None:
    """The trace, snapshot or tables in a file; None where it is a directory, a log or a record, or is not there.

    Raises LogError for what cannot be read.
    """
    name = path.name.lower()
    if not path.is_file():
        return None
    if name.endswith(SNAPSHOTS):
        return _snapshot(path)
    if not name.endswith(TRACES):
        return None
    with _refused(path), path.open("rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
    if name.endswith(".json") and not _TRACE.search(beginning):
        return _written(path, beginning)
    return _trace(path)


def _snapshot(path: Path) -> Artefact:
    from sysbench.commands.memory.snapshot_tables import sheet
    from sysbench.snapshot.snapshot import read
    from sysbench.snapshot.timeline_sources import from_snapshot

    return TablesArtefact(path.name, sheet(from_snapshot(read(path)), path.name), "snapshot")


def _trace(path: Path) -> Artefact:
    from sysbench.trace import traces

    return TraceArtefact(path.name, (traces.summary_of(traces.read(path)),))


_BEGINNING_BYTES = 4096

_TRACE = re.compile(rb'\A\s*\[|"(traceEvents|schemaVersion|deviceProperties|distributedInfo)"')
"""How Chrome's trace format begins, and nothing that sysbench writes."""


def _written(path: Path, beginning: bytes) -> Artefact | None:
    """What `profile --from … --json`, `memory --from … --json` or `--plan --json` wrote; None for a record."""
    from sysbench.commands.profile.record import TraceRecord

    with _refused(path):
        if b'"kind": "traces"' in beginning:
            return TraceArtefact(path.name, tuple(TraceRecord.model_validate_json(path.read_bytes()).summaries))
        if b'"kind": "tables"' in beginning:
            sheet = SheetRecord.model_validate_json(path.read_bytes()).sheet
            snapshot = any(table.name == "categories" for table in sheet.tables)
            return TablesArtefact(path.name, sheet, "snapshot" if snapshot else "plan")
    return None


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(f"cannot read {path}: {reason(error)}") from error
    except ValidationError as error:
        raise LogError(f"{path} is not as sysbench writes it: {first_fault(error)}") from None

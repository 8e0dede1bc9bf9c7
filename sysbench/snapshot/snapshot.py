"""Memory snapshots as `torch.cuda.memory._dump_snapshot` writes them: safe reading, and writing for viewers.

A snapshot is returned as columns: one row per trace entry, per segment and per block, with a table of distinct stacks.
Layouts since 2022 are supported: without `allocator_settings`, without addresses of blocks, with `history` in place of
`frames`, without traces, and a bare list of segments. Sources of the layout: torch/cuda/memory.py (`_snapshot`),
torch/csrc/cuda/Module.cpp and memory_snapshot.cpp, torch/utils/viz/MemoryViz.js.

sysbench's own snapshots contain more, in keys that viewers ignore: a trace entry or a block may have `category` and, in
`user_metadata`, the path of its module; `external_annotations` mark phases by entries with `name`, `stage` (START or
END), `time_us` and `device`; and the key `sysbench` holds a dict of plain values, in which `source: simulated` marks a
snapshot that was not measured.
"""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sysbench.errors import LogError, OutputError
from sysbench.snapshot.collector import SnapshotCollector
from sysbench.snapshot.layout import Snapshot
from sysbench.snapshot.plain_pickle import DEFAULT_BUDGET_BYTES, ByteStream, UnreadableError, load

_FOREIGN = {
    b"PK\x03\x04": "is a zip archive, as torch.save writes, not a memory snapshot",
    b"{": "looks like JSON, not like a pickled memory snapshot",
    b"[": "looks like JSON, not like a pickled memory snapshot",
    b"SQLi": "is an SQLite database, not a memory snapshot",
}
"""First bytes of other kinds of files."""


def read(path: Path, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> Snapshot:
    """Read a snapshot from a file, plain or gzipped.

    Nothing in the file is ever executed, and reading needs little more than `budget_bytes` of memory. Raises LogError
    with a one-line message for a file that is missing, hostile, truncated, or not a snapshot.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
            file.seek(0)
            if not head:
                raise LogError(f"{path} is empty")
            for magic, what in _FOREIGN.items():
                if head.startswith(magic):
                    raise LogError(f"{path} {what}")
            if head.startswith(b"\x1f\x8b"):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    return _load(path, unpacked, budget_bytes)
            return _load(path, file, budget_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogError(f"{path} is truncated or damaged: its gzip stream does not unpack") from error
    except IsADirectoryError:
        raise LogError(f"{path} is a directory, not a memory snapshot") from None
    except OSError as error:
        raise LogError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error


def of(snapshot: Mapping[str, Any] | list[Any]) -> Snapshot:
    """Convert a snapshot from Python objects to columns; raises LogError if it is not a snapshot."""
    return _load(Path("the snapshot"), io.BytesIO(pickle.dumps(snapshot, protocol=4)), DEFAULT_BUDGET_BYTES)


def write(path: Path, snapshot: Mapping[str, Any]) -> None:
    """Write a snapshot that the public viewer can read: pickle protocol 4, with JSON types and tuples only.

    Raises OutputError if the file cannot be written, and ValueError if the snapshot holds other types.
    """
    _refuse_rich_types(snapshot)
    content = pickle.dumps(_with_unknown_category(dict(snapshot)), protocol=4)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _load(path: Path, stream: ByteStream, budget_bytes: int) -> Snapshot:
    collector = SnapshotCollector()
    try:
        return collector.snapshot(load(stream, collector.finish, budget_bytes))
    except UnreadableError as problem:
        raise LogError(f"{path} {problem}") from None


# --- writing

_PLAIN = frozenset({dict, list, tuple, str, int, float, bool, type(None)})
"""Types that the public viewer's unpickler supports (MemoryViz.js, `unpickle`)."""


def _refuse_rich_types(snapshot: Mapping[str, Any]) -> None:
    """Raise ValueError for the first value that the viewer could not read."""
    seen: set[int] = set()
    open_values: list[Any] = [dict(snapshot)]
    while open_values:
        value = open_values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        rich = set(map(type, items)) - _PLAIN
        if rich:
            raise ValueError(f"a snapshot cannot hold a {sorted(kind.__name__ for kind in rich)[0]}")
        open_values.extend(item for item in items if isinstance(item, dict | list | tuple))


def _with_unknown_category(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Add `unknown` to the snapshot's categories, unless it has no categories.

    If it is missing, the public viewer tries to add it and fails because of a misspelt name (MemoryViz.js,
    `snapshot.categores`). Any entry may hold the category; an entry with the action `snapshot` has no other meaning.
    """
    traces = snapshot.get("device_traces", [])
    present = {entry.get("category") for trace in traces for entry in trace} - {None}
    if not present or "unknown" in present:
        return snapshot
    index = next(index for index, trace in enumerate(traces) if trace)
    mark = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [], "category": "unknown"}
    marked = [[*trace, mark] if position == index else trace for position, trace in enumerate(traces)]
    return {**snapshot, "device_traces": marked}

"""Memory snapshots: what `torch.cuda.memory._dump_snapshot` writes, read without trusting it and written for viewers.

A snapshot comes out as columns: one row per trace entry, per segment and per block, with a table of distinct stacks.
Layouts since 2022 are read: without `allocator_settings`, without addresses of blocks, with `history` in place of
`frames`, without traces, and a bare list of segments. Sources of the layout: torch/cuda/memory.py (`_snapshot`),
torch/csrc/cuda/Module.cpp and memory_snapshot.cpp, torch/utils/viz/MemoryViz.js.

Snapshots of our own say more, in keys that viewers pass over: a trace entry or a block may carry `category` and, in
`user_metadata`, the path of its module; `external_annotations` mark phases by entries with `name`, `stage`
(START or END), `time_us` and `device`; and the key `sysbench` holds a dict of plain values, in which
`source: simulated` says that nothing was measured.
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
"""What other files begin with."""


def read(path: Path, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> Snapshot:
    """The snapshot in a file, plain or gzipped.

    Nothing in the file is ever executed, and reading it takes little more than `budget_bytes` of memory. Raises
    LogError with one line for a file that is hostile, truncated, foreign or not there.
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
    """The columns of a snapshot that is at hand as Python objects; raises LogError when it is none."""
    return _load(Path("the snapshot"), io.BytesIO(pickle.dumps(snapshot, protocol=4)), DEFAULT_BUDGET_BYTES)


def write(path: Path, snapshot: Mapping[str, Any]) -> None:
    """Write a snapshot so that the public viewer reads it: protocol 4, and nothing but what JSON has, and tuples.

    Raises OutputError when the file cannot be written, and ValueError when the snapshot holds something else.
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
"""What the public viewer's unpickler knows (MemoryViz.js, `unpickle`)."""


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
    """The snapshot with `unknown` among its categories, if it has any.

    Where it is missing, the public viewer means to add it and fails over a misspelt name (MemoryViz.js,
    `snapshot.categores`). Any entry may carry it; a `snapshot` mark says nothing else.
    """
    traces = snapshot.get("device_traces", [])
    present = {entry.get("category") for trace in traces for entry in trace} - {None}
    if not present or "unknown" in present:
        return snapshot
    index = next(index for index, trace in enumerate(traces) if trace)
    mark = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [], "category": "unknown"}
    marked = [[*trace, mark] if position == index else trace for position, trace in enumerate(traces)]
    return {**snapshot, "device_traces": marked}

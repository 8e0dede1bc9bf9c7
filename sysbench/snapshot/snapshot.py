"""Memory snapshots in the format of `torch.cuda.memory._dump_snapshot`: safe reading, and writing for viewers.

A snapshot is returned as columns: one row per trace entry, per segment and per block, with a table of distinct stacks.
The file's dicts become columns while the file is still being read. All layouts since 2022 are supported, including
those without `allocator_settings`, block addresses or traces, those with `history` in place of `frames`, and a bare
list of segments. Sources of the layout: torch/cuda/memory.py (`_snapshot`), torch/csrc/cuda/Module.cpp and
memory_snapshot.cpp, torch/utils/viz/MemoryViz.js.

Snapshots written by sysbench have additional keys, which viewers ignore. A trace entry or a block may have a `category`
and, in `user_metadata`, the path of its module. `external_annotations` mark phases with entries that have `name`,
`stage` (START or END), `time_us` and `device`. The key `sysbench` holds a dict of plain values, in which `source:
simulated` marks a snapshot that was not measured.
"""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat, takewhile
from operator import is_, itemgetter
from pathlib import Path
from types import NoneType
from typing import Any, Final

import numpy as np

from sysbench.errors import LogError
from sysbench.log.storage import cannot_read, cannot_write
from sysbench.snapshot.layout import (
    ACTION_CODE,
    NONE,
    STATES,
    Annotation,
    Blocks,
    Column,
    Frame,
    Segments,
    Snapshot,
    Stacks,
    Trace,
)
from sysbench.snapshot.plain_pickle import DEFAULT_BUDGET_BYTES, ByteStream, UnreadableError, load

_FOREIGN = {
    b"PK\x03\x04": "is a zip archive, as torch.save writes, not a memory snapshot",
    b"{": "looks like JSON, not like a pickled memory snapshot",
    b"[": "looks like JSON, not like a pickled memory snapshot",
    b"SQLi": "is an SQLite database, not a memory snapshot",
}
"""First bytes of other file formats, and messages for them."""

METADATA_KEY: Final = "sysbench"
"""Key of sysbench's additions to a snapshot."""

MAX_SIZE_BYTES: Final = 1 << 42
"""Largest size that is believed, 4 TiB: more than any device has, but the sum of a million of them fits 64 bits."""

MAX_DIVISIONS: Final = 1 << 20

_BATCH_ROWS: Final = 1 << 11
_PICKLE_BATCH_ITEMS: Final = 1000
"""Batch size in which pickle fills lists (`_BATCHSIZE` in Lib/pickle.py): after a full batch, more may follow."""


def read(path: Path, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> Snapshot:
    """Read a snapshot from a file, plain or gzipped.

    Nothing in the file is ever executed, and reading needs little more than `budget_bytes` of memory. Raises LogError
    with a one-line message for a file that is missing, malicious, truncated, or not a snapshot.
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
        raise LogError(f"{path} is truncated or damaged: its gzip stream cannot be decompressed") from error
    except IsADirectoryError:
        raise LogError(f"{path} is a directory, not a memory snapshot") from None
    except OSError as error:
        raise cannot_read(path, error) from error


def of(snapshot: Mapping[str, Any] | list[Any]) -> Snapshot:
    """Convert a snapshot from Python objects to columns; raises LogError if the objects are not a snapshot."""
    return _load(Path("the snapshot"), io.BytesIO(pickle.dumps(snapshot, protocol=4)), DEFAULT_BUDGET_BYTES)


def write(path: Path, snapshot: Mapping[str, object]) -> None:
    """Write a snapshot of plain values for the public viewer; raises OutputError if the file cannot be written."""
    content = pickle.dumps(_with_unknown_category(dict(snapshot)), protocol=4)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise cannot_write(path, error) from error


def _load(path: Path, stream: ByteStream, budget_bytes: int) -> Snapshot:
    collector = SnapshotCollector()
    try:
        return collector.snapshot(load(stream, collector.finish, budget_bytes))
    except UnreadableError as problem:
        raise LogError(f"{path} {problem}") from None


# --- writing


def _with_unknown_category(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Add the category `unknown` to a snapshot, unless the snapshot has no categories at all.

    Without this category, the public viewer tries to add it and fails because of a misspelt name (MemoryViz.js,
    `snapshot.categores`). The category is added by an entry whose action is `snapshot`, which has no other effect.
    """
    traces = snapshot.get("device_traces", [])
    recorded = {entry.get("category") for trace in traces for entry in trace} - {None}
    if not recorded or "unknown" in recorded:
        return snapshot
    index = next(index for index, trace in enumerate(traces) if trace)
    entry = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [], "category": "unknown"}
    extended = [[*trace, entry] if position == index else trace for position, trace in enumerate(traces)]
    return {**snapshot, "device_traces": extended}


# --- from dicts to columns


class _Names(dict[object, int]):
    """Map from distinct texts to positions, in order of first appearance; NONE for a missing text."""

    def __init__(self) -> None:
        super().__init__({None: NONE, "": NONE})
        self.texts: list[str] = []

    def __missing__(self, text: object) -> int:
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.40} is not a text")
        position = self[text] = len(self.texts)
        self.texts.append(text)
        return position

    def column(self, texts: Iterable[object]) -> Column:
        return np.fromiter(map(self.__getitem__, texts), np.int32)


_STATE_CODE: Final = {name: code for code, name in enumerate(STATES)}
# The documentation uses this name for the state that the code calls `active_pending_free`.
_STATE_CODE["active_awaiting_free"] = _STATE_CODE["active_pending_free"]


class _Stack(int):
    """Position of a stack in the table. Replaces the frames in a list of frames."""


_FRAME: Final = object()
"""The only key of a dict that replaces a frame; its value is the frame's position in the table."""


_MAX_REMEMBERED_BYTES: Final = 64 << 20


class _StackTable:
    """Table of distinct frames and stacks.

    Frames and lists of frames are replaced in place, because a pickle may refer to the same object again; later
    references then find the replacement. Most lists hold the same frame objects as an earlier list, which is found by
    the addresses of the objects.
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[bytes, _Stack] = {}
        self._by_addresses: dict[bytes, _Stack] = {}
        self._remembered_bytes = 0
        self._records: list[dict[object, Any]] = []
        """All frame objects: as long as they exist, no other object has their addresses."""

    def add(self, items: list[Any]) -> None:
        """Add a list of frames to the table and replace the list's content; leave a list of anything else unchanged."""
        addresses = np.fromiter(items, object, len(items)).tobytes()
        stack = self._by_addresses.get(addresses)
        if stack is None:
            for record in items:
                if type(record) is dict and "filename" in record:
                    self._replace(record)
            try:
                key = array("I", map(itemgetter(_FRAME), items)).tobytes()
            except (KeyError, TypeError):
                return
            stack = self._stacks.setdefault(key, _Stack(len(self._stacks)))
            self._remembered_bytes += len(addresses)
            if self._remembered_bytes <= _MAX_REMEMBERED_BYTES:
                self._by_addresses[addresses] = stack
        items[:] = [stack]

    def _replace(self, record: dict[object, Any]) -> None:
        filename, line, name = record["filename"], record.get("line"), record.get("name")
        frame = Frame(
            filename if isinstance(filename, str) else "",
            line if isinstance(line, int) else 0,
            name if isinstance(name, str) else "",
        )
        record.clear()
        self._records.append(record)
        record[_FRAME] = self._frames.setdefault(frame, len(self._frames))

    def position(self, frames: Any) -> int:
        """Return the position of a stack; NONE for an empty one. Raises TypeError if the frames are malformed."""
        if not frames:
            return NONE
        if type(frames) is list:
            if type(frames[0]) is not _Stack:
                self.add(frames)
            if len(frames) == 1 and type(frames[0]) is _Stack:
                return frames[0]
        raise TypeError("the frames are malformed")

    def columns(self) -> Stacks:
        frame = np.frombuffer(b"".join(self._stacks), dtype=np.uint32)
        lengths = np.array([len(key) // frame.itemsize for key in self._stacks], dtype=np.int64)
        return Stacks(frames=tuple(self._frames), frame=frame, start=_starts(lengths))


class _Rows:
    """Converts dicts of one kind to columns, in batches. In its list, each added dict is replaced with this object."""

    def __init__(self, kind: str, columns_of: Callable[[list[dict[object, Any]]], dict[str, Column]]) -> None:
        self.kind = kind
        self.count = 0
        self._columns_of = columns_of
        self._unpacked: list[dict[object, Any]] = []
        self._batches: list[dict[str, Column]] = []

    def add(self, records: list[dict[object, Any]]) -> None:
        """Add dicts as rows. The dicts are emptied when their batch is converted."""
        self.count += len(records)
        self._unpacked += records
        if len(self._unpacked) >= _BATCH_ROWS:
            self.pack()

    def columns(self) -> dict[str, Column]:
        """Return all rows as columns and remove them from this object."""
        self.pack()
        # Convert column by column, so that at most one column exists twice at any time.
        return {name: np.concatenate([batch.pop(name) for batch in self._batches]) for name in list(self._batches[0])}

    def pack(self) -> None:
        if self._batches and not self._unpacked:
            return
        records, self._unpacked = self._unpacked, []
        try:
            self._batches.append(self._columns_of(records))
        except (KeyError, OverflowError, TypeError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise UnreadableError(f"is not a memory snapshot: in a {self.kind}, {reason}") from None
        for record in records:
            record.clear()


def _codes(known: Mapping[str, int], names: Iterable[Any]) -> Column:
    """Convert names to codes; 0 for an unknown name."""
    return np.fromiter((known.get(name, 0) for name in names), np.uint8)


def _numbers(values: Sequence[object], kind: type[np.generic] = np.int64) -> Column:
    """Convert integers to a column; None counts as 0."""
    if not set(map(type, values)) <= {int, NoneType}:
        wrong = next(value for value in values if type(value) not in (int, NoneType))
        raise TypeError(f"{wrong!r:.40} is not an integer")
    return np.fromiter((value or 0 for value in values), kind, len(values))


def _sizes(values: Sequence[object]) -> Column:
    """Convert sizes in bytes to a column; raises TypeError for a size that no memory has, so that sums are exact."""
    sizes = _numbers(values)
    _refuse_impossible(sizes)
    return sizes


def _refuse_impossible(sizes: Column) -> None:
    for size in sizes[(sizes < 0) | (sizes > MAX_SIZE_BYTES)][:1]:
        raise TypeError(f"a size is {size} bytes")


class SnapshotCollector:
    """Converts the lists of a snapshot to columns while the file is being read."""

    def __init__(self) -> None:
        self._stacks = _StackTable()
        self._categories = _Names()
        self._labels = _Names()
        self._entries = _Rows("trace entry", self._entry_columns)
        self._blocks = _Rows("block", self._block_columns)
        self._segments = _Rows("segment", self._segment_columns)
        self._kinds = {"action": self._entries, "state": self._blocks, "total_size": self._segments}

    def finish(self, items: list[Any]) -> None:
        """Convert the list's latest items: dicts of one kind to rows, or frames to a stack."""
        if type(items[0]) is dict and (_FRAME in items[0] or "filename" in items[0]):
            if len(items) % _PICKLE_BATCH_ITEMS:
                self._stacks.add(items)
            return
        latest = list(takewhile(lambda item: type(item) is dict, reversed(items)))[::-1]
        if not latest:
            return
        for key, rows in self._kinds.items():
            if key in latest[0] and all(key in record for record in latest):
                for other in self._kinds.values():
                    if other is not rows:
                        # Packing assigns numbers to names, so rows are packed in the order of the file.
                        other.pack()
                rows.add(latest)
                items[len(items) - len(latest) :] = [rows] * len(latest)
                return

    def _entry_columns(self, entries: list[dict[object, object]]) -> dict[str, Column]:
        sizes = _numbers([entry.get("size") for entry in entries])
        _refuse_impossible(sizes[[entry["action"] != "oom" for entry in entries]])  # anything can be asked for
        return {
            "action": _codes(ACTION_CODE, (entry["action"] for entry in entries)),
            # An `oom` entry has device_free instead of an address.
            "address": _numbers([entry.get("addr") or entry.get("device_free") for entry in entries], np.uint64),
            "size_bytes": sizes,
            "stream": _numbers([entry.get("stream") for entry in entries]),
            "time_us": _numbers([entry.get("time_us") for entry in entries]),
            "stack": np.array([self._stacks.position(entry.get("frames")) for entry in entries], np.int32),
            "category": self._categories.column(entry.get("category") for entry in entries),
            "label": self._labels.column(entry.get("user_metadata") for entry in entries),
        }

    def _block_columns(self, blocks: list[dict[object, object]]) -> dict[str, Column]:
        # In the layout of 2022, the history of a block begins with its latest use. That entry holds the fields that
        # newer layouts store in the block itself.
        used: list[dict[object, Any]] = []
        for block in blocks:
            history = block.get("history")
            latest = history[0] if isinstance(history, list) and history else None
            used.append({"real_size": block["size"], **(latest if isinstance(latest, dict) else {})})
        both = list(zip(blocks, used, strict=True))
        return {
            "address": _numbers([block.get("address") for block in blocks], np.uint64),
            "size_bytes": _sizes([block["size"] for block in blocks]),
            "requested_bytes": _sizes([block.get("requested_size", use["real_size"]) for block, use in both]),
            "state": _codes(_STATE_CODE, (block["state"] for block in blocks)),
            "stack": np.array(
                [self._stacks.position(block.get("frames", use.get("frames"))) for block, use in both], np.int32
            ),
            "category": self._categories.column(block.get("category") for block in blocks),
            "label": self._labels.column(block.get("user_metadata") for block in blocks),
        }

    def _segment_columns(self, segments: list[dict[object, Any]]) -> dict[str, Column]:
        for segment in segments:
            if type(segment["blocks"]) is not list or not all(map(is_, segment["blocks"], repeat(self._blocks))):
                raise TypeError("the blocks are malformed")
        return {
            "device": _numbers([segment.get("device") for segment in segments], np.int32),
            "address": _numbers([segment["address"] for segment in segments], np.uint64),
            "total_bytes": _sizes([segment["total_size"] for segment in segments]),
            "stream": _numbers([segment.get("stream") for segment in segments]),
            "expandable": np.array([bool(segment.get("is_expandable")) for segment in segments], bool),
            "blocks": _numbers([len(segment["blocks"]) for segment in segments]),
        }

    def snapshot(self, root: object) -> Snapshot:
        """Return the snapshot; raises UnreadableError if it is inconsistent or not a snapshot."""
        if isinstance(root, list) and root and root[0] is self._segments:
            root = {"segments": root}
        if not isinstance(root, dict) or not ({"segments", "device_traces"} & root.keys()):
            raise UnreadableError(f"is a pickle, but not of a memory snapshot: it contains {_describe(root)}")
        traces = _as_list(root.get("device_traces"))
        if not all(isinstance(trace, list) for trace in traces):
            raise UnreadableError("is not a memory snapshot: its device_traces are not lists")
        _refuse_misplaced(_as_list(root.get("segments")), self._segments)
        _refuse_misplaced(list(chain.from_iterable(traces)), self._entries)
        segment_columns = self._segments.columns()
        blocks_per_segment = segment_columns.pop("blocks")
        if self._blocks.count != blocks_per_segment.sum():
            raise UnreadableError("is not a memory snapshot: it has blocks outside its segments")
        segments = Segments(first_block=_starts(blocks_per_segment), **segment_columns)
        segment_of_block = np.repeat(np.arange(len(segments)), blocks_per_segment)
        metadata, settings = root.get(METADATA_KEY), root.get("allocator_settings")
        return Snapshot(
            trace=Trace(
                device=np.repeat(np.arange(len(traces), dtype=np.int32), [len(trace) for trace in traces]),
                **self._entries.columns(),
            ),
            segments=segments,
            blocks=_with_addresses(Blocks(segment=segment_of_block, **self._blocks.columns()), segments),
            stacks=self._stacks.columns(),
            categories=tuple(self._categories.texts),
            labels=tuple(self._labels.texts),
            annotations=tuple(_annotations(_as_list(root.get("external_annotations")))),
            settings=_settings(settings),
            metadata=metadata if isinstance(metadata, dict) else {},
        )


def _settings(value: object) -> dict[str, object]:
    settings = value if isinstance(value, dict) else {}
    divisions = settings.get("roundup_power2_divisions", {})
    if isinstance(divisions, dict) and all(
        str(key).isdecimal() and type(count) is int and 0 <= count <= MAX_DIVISIONS for key, count in divisions.items()
    ):
        return settings
    raise UnreadableError(f"is damaged: its roundup_power2_divisions are {divisions!r:.60}")


def _with_addresses(blocks: Blocks, segments: Segments) -> Blocks:
    """Compute addresses of blocks that have none, as in old layouts, where blocks fill their segment without gaps."""
    start = _starts(blocks.size_bytes)
    offset = start[:-1] - start[segments.first_block[:-1]][blocks.segment]
    computed = segments.address[blocks.segment] + offset.astype(np.uint64)
    return replace(blocks, address=np.where(blocks.address == 0, computed, blocks.address))


def _starts(lengths: Column) -> Column:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _annotations(entries: list[object]) -> Iterable[Annotation]:
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        name, stage, time_us = entry.get("name"), entry.get("stage"), entry.get("time_us")
        device = entry.get("device", 0)
        if isinstance(name, str) and isinstance(stage, str) and isinstance(time_us, int) and isinstance(device, int):
            yield Annotation(name, stage, time_us, device)


def _refuse_misplaced(found: list[object], rows: _Rows) -> None:
    """Raise UnreadableError unless `found` consists of exactly the dicts that were added to `rows`."""
    misfit = next((item for item in found if item is not rows), None)
    if misfit is not None:
        raise UnreadableError(f"is not a memory snapshot: {_describe(misfit)} where a {rows.kind} was expected")
    if len(found) != rows.count:
        raise UnreadableError(f"is not a memory snapshot: it has a {rows.kind} in the wrong place")


def _describe(value: object) -> str:
    if isinstance(value, dict):
        keys = ", ".join(str(key)[:30] for key in list(value)[:6])
        return f"a dict with {keys}{', …' if len(value) > 6 else ''}" if value else "an empty dict"
    if isinstance(value, list | tuple):
        kind = type(value).__name__
        return f"a {kind} of {len(value)}" if value else f"an empty {kind}"
    return f"a {value.kind}" if isinstance(value, _Rows) else f"a value of type {type(value).__name__}"

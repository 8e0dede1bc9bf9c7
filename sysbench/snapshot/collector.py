"""Turns the dicts of a memory snapshot into columns while they are still being read.

Every layout since 2022 is known here: addresses of blocks left out, `history` in place of `frames`, no traces, a bare
list of segments. Sources: torch/cuda/memory.py (`_snapshot`), torch/csrc/cuda/Module.cpp and memory_snapshot.cpp.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from operator import is_
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
from sysbench.snapshot.pickled_rows import decode_numbers, encode_number
from sysbench.snapshot.plain_pickle import UnreadableError

METADATA_KEY: Final = "sysbench"

_STATE_CODE: Final[Mapping[object, int]] = {
    **{name: code for code, name in enumerate(STATES)},
    # The documentation's name for what the code calls active_pending_free.
    "active_awaiting_free": STATES.index("active_pending_free"),
}

_NUMBERS: Final = ("addr", "device_free", "size", "stream", "time_us")
_OBJECTS: Final = ("action", "frames", "category", "user_metadata")
_FRAMES: Final = _OBJECTS.index("frames")
_BATCH_ROWS: Final = 1 << 13
_ENTRY_BYTES: Final = 50
_FRAME_BYTES: Final = 250
_STACK_BYTES: Final = 150
"""What each costs to keep, beside the frames of a stack."""

_BLOCK_COLUMNS: Final = {
    "address": "Q",
    "size_bytes": "q",
    "requested_bytes": "q",
    "state": "B",
    "stack": "i",
    "category": "i",
    "label": "i",
}
_SEGMENT_COLUMNS: Final = {
    "device": "i",
    "address": "Q",
    "total_bytes": "q",
    "allocated_bytes": "q",
    "active_bytes": "q",
    "stream": "q",
    "expandable": "B",
    "stack": "i",
    "blocks": "q",
}


class _Frame:
    """Stands for a frame that is in its table."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class _Stack:
    """Stands for a list of frames that is in its table."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class _Row:
    """Stands for every dict of one kind whose values have become a row."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


_ENTRY: Final = _Row("trace entry")
_BLOCK: Final = _Row("block")
_SEGMENT: Final = _Row("segment")


class _Names(dict[object, int]):
    """Positions of distinct texts, given as they come; no text at all is NONE."""

    def __init__(self) -> None:
        super().__init__({None: NONE, "": NONE})
        self.texts: list[str] = []

    def __missing__(self, text: object) -> int:
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.40} is not a text")
        position = self[text] = len(self.texts)
        self.texts.append(text)
        return position


class _ActionCodes(dict[object, int]):
    """Codes of actions; 0 for one that is not known."""

    def __missing__(self, action: object) -> int:
        return 0


_ACTION_CODES: Final = _ActionCodes(ACTION_CODE)


class _TraceRows:
    """Trace entries, decoded a batch at a time."""

    def __init__(self, categories: _Names, labels: _Names) -> None:
        self.count = 0
        self._categories = categories
        self._labels = labels
        self._numbers: list[tuple[bytes, ...]] = []
        self._objects: list[list[object]] = []
        self._batches: list[dict[str, Column]] = []

    def add(self, numbers: tuple[bytes, ...], objects: list[object]) -> None:
        """One more row: its numbers as opcodes in the order of `_NUMBERS`, its objects in that of `_OBJECTS`."""
        self.count += 1
        self._numbers.append(numbers)
        self._objects.append(objects)
        if len(self._numbers) == _BATCH_ROWS:
            self._decode()

    def columns(self) -> dict[str, Column]:
        """All rows, as the columns of `Trace` but for the device; afterwards there are none left.

        Raises UnreadableError.
        """
        self._decode()
        # Column by column, so that nothing is there twice for longer than it takes to join it.
        return {name: np.concatenate([batch.pop(name) for batch in self._batches]) for name in list(self._batches[0])}

    def _decode(self) -> None:
        numbers = zip(*self._numbers, strict=True) if self._numbers else [()] * len(_NUMBERS)
        objects = zip(*self._objects, strict=True) if self._objects else [()] * len(_OBJECTS)
        self._numbers, self._objects = [], []
        address, device_free, size, stream, time = (decode_numbers(column) for column in numbers)
        if (size < 0).any():
            raise UnreadableError("is not a memory snapshot: the size of a trace entry is below zero")
        actions, stacks, categories, labels = objects
        try:
            columns = {
                "action": _coded(_ACTION_CODES, actions, np.uint8),
                "stack": np.fromiter(map(_stack, stacks), np.int32, len(stacks)),
                "category": _coded(self._categories, categories, np.int32),
                "label": _coded(self._labels, labels, np.int32),
            }
        except TypeError as error:
            raise UnreadableError(f"is not a memory snapshot: in a trace entry, {error}") from None
        # An `oom` has device_free in place of an address; whichever is missing counts as 0.
        columns |= {"address": (address + device_free).view(np.uint64), "size_bytes": size}
        self._batches.append(columns | {"stream": stream, "time_us": time})


def _coded(codes: Mapping[object, int], values: Sequence[object], kind: type[np.generic]) -> Column:
    return np.fromiter(map(codes.__getitem__, values), kind, len(values))


class SnapshotCollector:
    """Takes the containers of a snapshot as they are completed and keeps columns of them."""

    row: object = _ENTRY
    row_numbers = _NUMBERS
    row_objects = _OBJECTS

    def __init__(self) -> None:
        self._frames: dict[Frame, _Frame] = {}
        self._stacks: dict[bytes, _Stack] = {}
        self._stacks_bytes = 0
        self._categories = _Names()
        self._labels = _Names()
        self._rows = _TraceRows(self._categories, self._labels)
        self._blocks = {name: array(code) for name, code in _BLOCK_COLUMNS.items()}
        self._segments = {name: array(code) for name, code in _SEGMENT_COLUMNS.items()}

    @property
    def kept_bytes(self) -> int:
        """What rows, frames and stacks take."""
        columns = (*self._blocks.values(), *self._segments.values())
        tables = sum(len(column) * column.itemsize for column in columns)
        return tables + _ENTRY_BYTES * self._rows.count + _FRAME_BYTES * len(self._frames) + self._stacks_bytes

    def add_row(self, numbers: tuple[bytes, ...], objects: list[object]) -> None:
        """One trace entry."""
        if type(objects[_FRAMES]) is list:
            objects[_FRAMES] = self._complete(objects[_FRAMES])
        self._rows.add(numbers, objects)

    def finish_list(self, items: list[object]) -> object:
        """A list of frames becomes a stack."""
        if not items or set(map(type, items)) != {_Frame}:
            return items
        key = array("I", [frame.index for frame in items]).tobytes()  # type: ignore[attr-defined]
        known = self._stacks.get(key)
        if known is None:
            known = self._stacks[key] = _Stack(len(self._stacks))
            self._stacks_bytes += len(key) + _STACK_BYTES
        return known

    def finish_dict(self, record: dict[object, object]) -> object:
        """Frames, trace entries, blocks and segments become rows; whatever else there is stays."""
        try:
            if "action" in record:
                return self._entry(record)
            if "filename" in record:
                return self._frame(record)
            if "state" in record and "size" in record:
                return self._block(record)
            if "blocks" in record and "total_size" in record:
                return self._segment(record)
        except (TypeError, OverflowError, KeyError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise UnreadableError(f"is not a memory snapshot: in {_shown(record)}, {reason}") from None
        return record

    def _entry(self, record: dict[object, object]) -> object:
        numbers = tuple(encode_number(_whole_or_none(record.get(key))) for key in _NUMBERS)
        self.add_row(numbers, [record.get(key) for key in _OBJECTS])
        return _ENTRY

    def _frame(self, record: dict[object, object]) -> object:
        filename, line, name = record["filename"], record.get("line"), record.get("name")
        frame = Frame(
            filename if isinstance(filename, str) else "",
            line if isinstance(line, int) else 0,
            name if isinstance(name, str) else "",
        )
        known = self._frames.get(frame)
        if known is None:
            known = self._frames[frame] = _Frame(len(self._frames))
        return known

    def _block(self, record: dict[object, object]) -> object:
        column, first = self._blocks, _first(record.get("history"))
        size, state = _whole(record["size"]), record["state"]
        column["address"].append(_whole(record.get("address", 0)))
        column["size_bytes"].append(size)
        column["requested_bytes"].append(_whole(record.get("requested_size", first.get("real_size", size))))
        column["state"].append(_STATE_CODE.get(state, 0) if isinstance(state, str) else 0)
        column["stack"].append(_stack(self._complete(record.get("frames", first.get("frames")))))
        column["category"].append(self._categories[record.get("category")])
        column["label"].append(self._labels[record.get("user_metadata")])
        return _BLOCK

    def _segment(self, record: dict[object, object]) -> object:
        column, blocks = self._segments, record["blocks"]
        if not isinstance(blocks, list) or not all(map(is_, blocks, repeat(_BLOCK))):
            raise TypeError("its blocks are not blocks")
        column["device"].append(_whole(record.get("device", 0)))
        column["address"].append(_whole(record["address"]))
        column["total_bytes"].append(_whole(record["total_size"]))
        column["allocated_bytes"].append(_whole(record.get("allocated_size", NONE)))
        column["active_bytes"].append(_whole(record.get("active_size", NONE)))
        column["stream"].append(_whole(record.get("stream") or 0))
        column["expandable"].append(bool(record.get("is_expandable", False)))
        column["stack"].append(_stack(self._complete(record.get("frames"))))
        column["blocks"].append(len(blocks))
        return _SEGMENT

    def _complete(self, frames: object) -> object:
        """Frames whose list was long enough that there might have been more."""
        return self.finish_list(frames) if isinstance(frames, list) else frames

    def snapshot(self, root: object) -> Snapshot:
        """Everything that was collected, once it hangs together. Raises UnreadableError when it does not."""
        if isinstance(root, list) and root and root[0] is _SEGMENT:
            root = {"segments": root}
        if not isinstance(root, dict) or not ({"segments", "device_traces"} & root.keys()):
            raise UnreadableError(f"is a pickle, but not of a memory snapshot: it holds {_shown(root)}")
        _refuse_misplaced(_listed(root.get("segments")), _SEGMENT, len(self._segments["address"]))
        if len(self._blocks["address"]) != sum(self._segments["blocks"]):
            raise UnreadableError("is not a memory snapshot: it has blocks outside its segments")
        metadata, settings = root.get(METADATA_KEY), root.get("allocator_settings")
        segments = self._segment_columns()
        return Snapshot(
            trace=self._trace(_listed(root.get("device_traces"))),
            segments=segments,
            blocks=self._block_columns(segments),
            stacks=self._stack_table(),
            categories=tuple(self._categories.texts),
            labels=tuple(self._labels.texts),
            annotations=tuple(_annotations(_listed(root.get("external_annotations")))),
            settings=settings if isinstance(settings, dict) else {},
            metadata=metadata if isinstance(metadata, dict) else {},
        )

    def _trace(self, device_traces: list[Any]) -> Trace:
        if not all(isinstance(trace, list) for trace in device_traces):
            raise UnreadableError("is not a memory snapshot: its device_traces are not lists")
        lengths = [len(trace) for trace in device_traces]
        _refuse_misplaced(list(chain.from_iterable(device_traces)), _ENTRY, self._rows.count)
        device = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        return Trace(device=device, **self._rows.columns())

    def _segment_columns(self) -> Segments:
        columns = _columns(self._segments)
        first_block = _starts(columns.pop("blocks"))
        expandable = columns.pop("expandable").astype(bool)
        return Segments(expandable=expandable, first_block=first_block, **columns)

    def _block_columns(self, segments: Segments) -> Blocks:
        columns = _columns(self._blocks)
        segment = np.repeat(np.arange(len(segments)), np.diff(segments.first_block))
        # Old layouts leave addresses out: blocks fill their segment without gaps.
        start = _starts(columns["size_bytes"])
        offset = start[:-1] - start[segments.first_block[:-1]][segment]
        computed = segments.address[segment] + offset.astype(np.uint64)
        columns["address"] = np.where(columns["address"] == 0, computed, columns["address"])
        return Blocks(segment=segment, **columns)

    def _stack_table(self) -> Stacks:
        frame = np.frombuffer(b"".join(self._stacks), dtype=np.uint32)
        lengths = np.array([len(key) // frame.itemsize for key in self._stacks], dtype=np.int64)
        return Stacks(frames=tuple(self._frames), frame=frame, start=_starts(lengths))


def _starts(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _columns(arrays: Mapping[str, array[Any]]) -> dict[str, Column]:
    return {name: np.array(column, dtype=column.typecode) for name, column in arrays.items()}


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is not a whole number")
    return value


def _whole_or_none(value: object) -> int | None:
    return None if value is None else _whole(value)


def _stack(frames: object) -> int:
    if type(frames) is _Stack:
        return frames.index
    if not frames:
        return NONE
    raise TypeError("the frames are not frames")


def _first(history: object) -> Mapping[object, object]:
    """The latest use of a block, in the layout of 2022."""
    first = history[0] if isinstance(history, list) and history else None
    return first if isinstance(first, dict) else {}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _annotations(entries: list[Any]) -> Iterable[Annotation]:
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        name, stage, time_us = entry.get("name"), entry.get("stage"), entry.get("time_us")
        device = entry.get("device", 0)
        if isinstance(name, str) and isinstance(stage, str) and isinstance(time_us, int) and isinstance(device, int):
            yield Annotation(name, stage, time_us, device)


def _refuse_misplaced(rows: list[object], expected: _Row, collected: int) -> None:
    """Everything that became a row must be where rows of its kind belong."""
    if not all(map(is_, rows, repeat(expected))):
        misfit = next(row for row in rows if row is not expected)
        raise UnreadableError(f"is not a memory snapshot: {_shown(misfit)} stands where a {expected.kind} belongs")
    if len(rows) != collected:
        raise UnreadableError(f"is not a memory snapshot: it has a {expected.kind} in the wrong place")


def _shown(value: object) -> str:
    """What something is, in a few words."""
    if isinstance(value, dict):
        keys = ", ".join(str(key)[:30] for key in list(value)[:6])
        return f"a dict with {keys}{', …' if len(value) > 6 else ''}" if value else "an empty dict"
    if isinstance(value, list | tuple):
        kind = type(value).__name__
        return f"a {kind} of {len(value)}" if value else f"an empty {kind}"
    return f"a {value.kind}" if isinstance(value, _Row) else f"a {type(value).__name__}"

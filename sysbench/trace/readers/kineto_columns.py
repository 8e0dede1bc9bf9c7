"""Conversion of Kineto's events to columns, including collectives with their arguments.

Kineto copies the arguments of each `record_param_comms` to the kernels launched within it (libkineto, output_json.cpp;
torch/csrc/profiler/util.h defines their names). Backends on the host, such as gloo, record a range with the shapes of
the inputs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from decimal import Decimal
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.trace.attribution import resolve_forward_threads
from sysbench.trace.columns import map_distinct
from sysbench.trace.kernels.names import classify
from sysbench.trace.readers.kineto_events import Event, ExactEvent
from sysbench.trace.recording import (
    CALLED,
    COPY,
    HOST_RAN,
    KERNEL,
    KERNEL_RAN,
    NAME,
    NONE,
    SET,
    Chunk,
    Collectives,
    DeviceWork,
    Integers,
    Launches,
    Operators,
    Packed,
    ProcessGroup,
    Ranges,
    Recording,
    Table,
    column_index,
)

_WORK: Final = (
    (KERNEL, re.compile(r"(\w+_)?kernel|mtia_ccp_events")),
    (COPY, re.compile(r"(\w+_)?memcpy")),
    (SET, re.compile(r"(\w+_)?memset")),
)
"""Categories of device work: in current files, in files before 2022 (`memcpy`), from MTIA (libkineto,
ActivityType.cpp), and from vendors that prefix the device name (`mlu_memcpy`)."""
_OPERATORS: Final = frozenset({"cpu_op", "operator"})
_RANGES: Final = frozenset({"user_annotation"})
_LAUNCHES: Final = re.compile(r"(\w+_)?(runtime|driver)")
_DEVICE_TYPE: Final = re.compile(
    r"(?!cuda|hip|rocm|gpu|cpu|glow|user)([a-z0-9]+)(_(runtime|driver|ccp_events|memcpy|memset)|:[a-z0-9]+)"
)
"""A device that is neither CUDA's nor ROCm's, in a category (`xpu_runtime`) or in a backend (`mtia:hccl`)."""
_PARTS: Final = {"work": DeviceWork, "launches": Launches, "operators": Operators, "ranges": Ranges}
"""The tables that together hold every event, with their columns."""

_EXACT_MICROSECONDS: Final = 2**53 / 1000
"""Beyond this many microseconds, floats do not represent every nanosecond."""
_LATEST_US: Final = 2**62 // 1000
"""Larger times, after the year 2116, are no microseconds."""

_CALL: Final = re.compile(r"c10d::\w+|record_param_comms")
_ON_HOST: Final = re.compile(r"(gloo|mpi|ucc):\w+")
"""Backends whose ranges last as long as the collective; other ranges (`nccl:all_reduce`) end with the launch."""

_KINDS: Final[dict[str, tuple[int, Callable[[str], bool]]]] = {
    "work": (KERNEL_RAN, lambda name: classify(name) == "communication"),
    "operators": (CALLED, lambda name: _CALL.fullmatch(name) is not None),
    "ranges": (HOST_RAN, lambda name: _ON_HOST.fullmatch(name) is not None),
}


class _Numbers(dict[Any, int]):
    """Numbers texts in order of appearance; `texts` has the texts by number."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[Any] = []

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        self.texts.append(key)
        return number


class _Shapes(dict[bytes, int]):
    """Map from the JSON text of input shapes to the index of that text among the names; NONE for an empty text."""

    def __init__(self, names: _Numbers) -> None:
        super().__init__({b"": NONE})
        self._names = names

    def __missing__(self, written: bytes) -> int:
        text = written.decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text))  # spelled as torch does, so that other spellings match
        number = self[written] = self._names[text]
        return number


class _LaunchShapes(dict[tuple[object, object], int]):
    """Map from a grid and a block to the row in `rows`; NONE if either is unknown."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def __missing__(self, key: tuple[Any, Any]) -> int:
        grid, block = key
        number = NONE
        if grid is not None and block is not None and all(abs(each) < 2**63 for each in (*grid, *block)):
            number = len(self.rows)
            self.rows.append((*grid, *block))
        self[key] = number
        return number


class Part(msgspec.Struct):
    """What the process that reads one part of a file returns about it, except the rows."""

    names: list[str]
    threads: list[tuple[int | str, int | str]]
    launch_shapes: list[tuple[int, ...]]
    device_types: list[str]
    without_duration: int
    ends_at_event: bool
    """Whether the part ends at the end of an event; False for the last part, which is not checked."""
    remarks: list[str]


class InexactError(Exception):
    """Raised if times are too large for floats, so that the events must be decoded as `ExactEvent`."""


class Columns:
    """Columns of the events of a file, filled piece by piece."""

    def __init__(self) -> None:
        self._names = _Numbers()
        self._threads = _Numbers()
        self._shapes = _Shapes(self._names)
        self._launch_shapes = _LaunchShapes()
        self._tables = {which: Table(len(fields(part))) for which, part in _PARTS.items()}
        self._tables["collectives"] = Table(len(fields(Collectives)))
        self._table_by_category: dict[str, str | None] = {}
        self._device_types: dict[str, None] = {}
        self._without_duration = 0

    @property
    def is_empty(self) -> bool:
        """Return whether no event has been stored."""
        return not any(len(table) for table in self._tables.values())

    def add(self, events: Sequence[Event] | Sequence[ExactEvent]) -> None:
        """Add the events of one piece; if floats cannot represent the times, raise InexactError and add nothing."""
        timed = {which: self._timed(found) for which, found in self._by_table(events).items() if found}
        for which, (found, start_ns, duration_ns) in timed.items():
            if found:
                columns = self._columns_of(which, found)
                self._tables[which].add((start_ns, duration_ns, *columns))
                rows, arguments = self._collectives(which, found, columns[0])
                if rows:
                    self._tables["collectives"].add((start_ns[rows], duration_ns[rows], columns[0][rows], *arguments))

    def _by_table(self, events: Sequence[Any]) -> dict[str, list[Any]]:
        by_table: dict[str, list[Any]] = {which: [] for which in _PARTS}
        lists = {category: by_table[table] if table else None for category, table in self._table_by_category.items()}
        for event in events:
            if event.ph != "X":
                continue
            try:
                chosen = lists[event.cat]
            except KeyError:
                table = self._table_by_category[event.cat] = _table_for(event.cat)
                self._device_types |= dict.fromkeys(_device_types(event.cat))
                chosen = lists[event.cat] = by_table[table] if table else None
            if chosen is not None:
                chosen.append(event)
        return by_table

    def _timed(self, events: list[Any]) -> tuple[list[Any], Integers, Integers]:
        if isinstance(events[0], ExactEvent):
            return self._timed_exactly(events)
        start = np.array([event.ts for event in events], np.float64)
        duration = np.array([event.dur for event in events], np.float64)
        has_duration = ~np.isnan(duration)
        if not has_duration.all():
            events = [event for event, lasts in zip(events, has_duration.tolist(), strict=True) if lasts]
            self._without_duration += len(start) - len(events)
            start, duration = start[has_duration], duration[has_duration]
        if events and max(np.abs(start).max(), np.abs(duration).max()) > _EXACT_MICROSECONDS:
            raise InexactError
        return events, np.rint(start * 1000).astype(np.int64), np.rint(duration * 1000).astype(np.int64)

    def _timed_exactly(self, events: list[Any]) -> tuple[list[Any], Integers, Integers]:
        timed = [
            (event, int((event.ts * 1000).to_integral_value()), int((event.dur * 1000).to_integral_value()))
            for event in events
            if _is_known(event.ts) and _is_known(event.dur)
        ]
        self._without_duration += len(events) - len(timed)
        start, duration = np.array([times for _, *times in timed], np.int64).reshape(-1, 2).T
        return [event for event, *_ in timed], start, duration

    def _columns_of(self, which: str, events: list[Any]) -> tuple[NDArray[Any], ...]:
        """Return all columns of these events except the times, in the column order of `trace.recording`."""
        names, threads, shapes = self._names, self._threads, self._shapes
        launch_shapes = self._launch_shapes
        name = np.array([names[event.name] for event in events], np.int32)
        arguments = [event.args for event in events]
        if which == "work":
            return (
                name,
                np.array([_kind_of_work(event.cat) for event in events], np.int8),
                _numbers([argument.device for argument in arguments]),
                _numbers([argument.stream for argument in arguments]),
                _numbers([argument.correlation for argument in arguments]),
                np.array([launch_shapes[argument.grid, argument.block] for argument in arguments], np.int32),
                _numbers([argument.bytes for argument in arguments]),
            )
        thread = np.array([threads[event.pid, event.tid] for event in events], np.int32)
        if which == "launches":
            return (name, thread, _numbers([argument.correlation for argument in arguments]))
        if which == "ranges":
            return (name, thread)
        return (
            name,
            thread,
            _numbers([argument.sequence for argument in arguments]),
            _numbers([argument.forward_thread for argument in arguments]),
            np.array([shapes[bytes(argument.shapes)] for argument in arguments], np.int32),
        )

    def _collectives(self, which: str, events: list[Any], name: NDArray[Any]) -> tuple[list[int], list[Integers]]:
        """Return the positions of the collectives, and the values of the `Collectives` columns from `source` onwards.

        `name` is the name index of each event.
        """
        if which not in _KINDS:
            return [], []
        source, holds = _KINDS[which]
        rows = np.flatnonzero(map_distinct(lambda number: holds(self._names.texts[number]), name, bool)).tolist()
        columns = np.array([self._collective_arguments(source, events[at].args) for at in rows], np.int64)
        return rows, [*columns.reshape(-1, 10).T]

    def _collective_arguments(self, source: int, given: Any) -> tuple[int, ...]:
        elements = _number(given.in_elements)
        dtype = _text(given.dtype)
        if source == HOST_RAN and elements == NONE:
            elements, dtype = _inputs(_decoded(given.shapes), _decoded(given.types))
        return (
            source,
            NONE if given.correlation is None or abs(given.correlation) >= 2**63 else given.correlation,
            self._text_number(_text(given.collective)),
            elements,
            _number(given.out_elements),
            self._text_number(str(dtype)),
            _number(given.group_size),
            self._text_number(_text(given.group)),
            self._text_number(_text(given.ranks)),
            _number(given.collective_sequence),
        )

    def _text_number(self, text: str) -> int:
        return self._names[text] if text else NONE

    def part(self, ends_at_event: bool, remarks: list[str]) -> Part:
        """Return everything except the rows, for transfer to another process."""
        return Part(
            names=self._names.texts,
            threads=self._threads.texts,
            launch_shapes=self._launch_shapes.rows,
            device_types=[*self._device_types],
            without_duration=self._without_duration,
            ends_at_event=ends_at_event,
            remarks=remarks,
        )

    def rows(self) -> Iterator[tuple[str, Chunk]]:
        """Yield pairs of a table's name and a packed chunk of its rows."""
        for which, table in self._tables.items():
            for chunk in table.packed():
                yield which, chunk

    def append_part(self, part: Part, rows: Iterable[tuple[str, Chunk]]) -> None:
        """Add the next part of the file, read by another process."""
        names = _renumbered(self._names[name] for name in part.names)
        threads = _renumbered(self._threads[thread] for thread in part.threads)
        shapes = _renumbered(self._launch_shapes[row[:3], row[3:]] for row in part.launch_shapes)
        renumbered = {
            "work": [(column_index(DeviceWork, "launch_shape"), shapes)],
            "launches": [(column_index(Launches, "thread"), threads)],
            "operators": [(column_index(Operators, "thread"), threads), (column_index(Operators, "shapes"), names)],
            "ranges": [(column_index(Ranges, "thread"), threads)],
            "collectives": [
                (column_index(Collectives, each), names) for each in ("collective", "dtype", "group", "ranks")
            ],
        }
        self._device_types |= dict.fromkeys(part.device_types)
        self._without_duration += part.without_duration
        for which, chunk in rows:
            for column, lookup in ((NAME, names), *renumbered[which]):
                chunk[column] = Packed.of(lookup[chunk[column].numbers()])
            self._tables[which].extend([chunk])

    def recording(self, title: str, header: dict[str, Any], remarks: Iterable[str]) -> Recording:
        """Return the complete recording, with times as in the file. No events may be added afterwards."""
        all_remarks = list(remarks)
        if self._without_duration:
            all_remarks.append(f"{self._without_duration:,} events without a duration were omitted")
        resolve_forward_threads(self._tables["operators"])
        given, listed = header.get("distributedInfo"), header.get("deviceProperties")
        distributed = given if isinstance(given, dict) else {}
        # Kineto lists the names of CUDA's and ROCm's devices only.
        types = [*self._device_types, *_device_types(str(distributed.get("backend")))]
        devices = listed if isinstance(listed, list) and listed else [{"name": each} for each in dict.fromkeys(types)]
        return Recording(
            title=title,
            names=tuple(self._names.texts),
            **self._tables,
            step_pattern=None,
            launch_shapes=np.array(self._launch_shapes.rows, np.int64).reshape(-1, 6),
            origin_ns=0,
            lost_launches_ns=(),
            devices=tuple(str(device.get("name", "")) if isinstance(device, dict) else "" for device in devices),
            rank=_whole(distributed.get("rank")),
            world_size=_whole(distributed.get("world_size")),
            groups=tuple(_process_groups(distributed.get("pg_config"))),
            host=str(header["host_name"]) if header.get("host_name") else None,
            clock_ns=_whole(header.get("baseTimeNanoseconds")) or 0,
            predicted=header.get("source") == "predicted",
            remarks=tuple(all_remarks),
        )


@cache
def _kind_of_work(category: str) -> int:
    return next(kind for kind, known in _WORK if known.fullmatch(category.lower()))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**62 else None


def _process_groups(listed: object) -> Iterator[ProcessGroup]:
    for each in listed if isinstance(listed, list) else ():
        ranks = each.get("ranks") if isinstance(each, dict) else None
        if isinstance(ranks, list) and ranks and all(_whole(rank) is not None for rank in ranks):
            yield ProcessGroup(str(each.get("pg_name", "")), tuple(ranks))


def _is_known(microseconds: Decimal | None) -> bool:
    return microseconds is not None and microseconds.is_finite() and abs(microseconds) < _LATEST_US


def _renumbered(numbers: Iterable[int]) -> Integers:
    """Return a lookup table from another process's numbers to this one's. Its last entry maps NONE (-1) to NONE."""
    return np.array([*numbers, NONE], np.int64)


def _table_for(category: str) -> str | None:
    lower = category.lower()
    if any(known.fullmatch(lower) for _, known in _WORK):
        return "work"
    if lower in _OPERATORS:
        return "operators"
    if lower in _RANGES:
        return "ranges"
    return "launches" if _LAUNCHES.fullmatch(lower) else None


def _device_types(text: str) -> list[str]:
    """Return `MTIA` for the category `mtia_runtime` or the backend `mtia:hccl`; nothing for those of CUDA and ROCm."""
    found = (_DEVICE_TYPE.fullmatch(part.strip()) for part in text.lower().split(","))
    return [each[1].upper().replace("PRIVATEUSE", "PrivateUse") for each in found if each]


def _numbers(values: list[int | None]) -> Integers:
    try:
        return np.array(values, np.int64)
    except (OverflowError, TypeError):
        return np.array([NONE if value is None or abs(value) >= 2**63 else value for value in values], np.int64)


def _decoded(raw: msgspec.Raw) -> object:
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(raw) if bytes(raw) else None
    return None


def _number(raw: msgspec.Raw) -> int:
    value = _decoded(raw)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**50 else NONE


def _text(raw: msgspec.Raw) -> str:
    """Decode a string; return any other value, such as a list of ranks, as JSON text."""
    value = _decoded(raw)
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def _inputs(shapes: object, types: object) -> tuple[int, str]:
    """Return the number of elements in all input tensors together (NONE if not recorded), and the type of the first."""
    if not (isinstance(shapes, list) and isinstance(types, list) and len(shapes) == len(types)):
        return NONE, ""
    tensors = [
        (shape, dtype)
        for shape, dtype in zip(shapes, types, strict=True)
        if dtype and isinstance(shape, list) and all(isinstance(each, int) and each >= 0 for each in shape)
    ]
    if not tensors:
        return NONE, ""
    elements = sum(math.prod(shape) for shape, _ in tensors)
    return elements if elements < 2**50 else NONE, str(tensors[0][1])

"""A window of time in a trace: find it, cut out its events, and write them as Chrome JSON.

The rows of the window stay packed: the recording can be summarised and released before the slice is written.

Perfetto and chrome://tracing can open the file ("Trace Event Format", the Chromium project). Host threads are threads
of process 0, streams of device n are threads of process n + 1, and arrows lead from launches to kernels. Categories and
arguments have Kineto's names.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.errors import UsageError, nearest
from sysbench.trace.columns import distinct
from sysbench.trace.range_tree import step_names
from sysbench.trace.recording import (
    COPY,
    DURATION,
    KERNEL,
    NAME,
    NONE,
    SET,
    START,
    DeviceWork,
    Integers,
    Launches,
    Operators,
    Ranges,
    Recording,
    Table,
    Trace,
    column_index,
)

Booleans = NDArray[np.bool_]

_WORK_CORRELATION: Final = column_index(DeviceWork, "correlation")
_LAUNCH_CORRELATION: Final = column_index(Launches, "correlation")

_Part = Ranges | Operators | Launches | DeviceWork

MAX_BYTES: Final = 100_000_000
"""Maximum size before compression. Chrome's own viewer fails at 500 to 800 MB, and is slow long before that."""

_MIN_EVENT_BYTES: Final = 80
"""Minimum size of an event in the file."""

MAX_ROWS: Final = MAX_BYTES // _MIN_EVENT_BYTES
"""Largest number of rows in a slice."""

_END: Final = b"\n]}\n"
_EVENTS_PER_BATCH: Final = 65_536
_ENCODER: Final = msgspec.json.Encoder()

_HOST = 0
_MAX_NAME_LENGTH = 10_000
"""Maximum length of a name. Template kernels can have names of thousands of characters that differ only at the end."""

_CATEGORIES: dict[type, str] = {Ranges: "user_annotation", Operators: "cpu_op", Launches: "cuda_runtime"}
_KINDS: dict[int, str] = {KERNEL: "kernel", COPY: "gpu_memcpy", SET: "gpu_memset"}


@dataclass(frozen=True)
class Window:
    """A window of time in a trace."""

    start_ns: int
    end_ns: int
    range: str | None
    """Name of the range that defines the window; None for the whole trace."""

    def holds(self, start_ns: Integers) -> Booleans:
        """Return whether each event starts in the window; one that starts earlier would be cut off."""
        return (start_ns >= self.start_ns) & (start_ns <= self.end_ns)


@dataclass(frozen=True)
class TraceSlice:
    """The rows that start in a window or were launched in it."""

    window: Window
    recording: Recording
    """The rows of the window; if there are too many to write, the earliest of them."""
    last_ns: int
    """Latest start of any row; work launched in the window may start after the window ends."""
    devices: tuple[int, ...]
    """Numbers of all devices in the trace."""


def find_window(recording: Recording, wanted: str | None) -> Window:
    """Return the window of the first range named `wanted`; if there is none, of the first whose name ends in `.wanted`.

    A phase before a slash is ignored. If `wanted` is None, the window is the first step, or the whole trace if no steps
    are marked. Raises UsageError, which suggests the nearest name, if no range matches `wanted`.
    """
    start_ns, duration_ns, name = (recording.ranges.column(at) for at in (START, DURATION, NAME))
    name_texts = {each: recording.names[each] for each in distinct(name).tolist()}
    if wanted is None:
        matching = step_names(name, recording.names, recording.step_pattern)
    else:
        path = wanted.rpartition("/")[2]
        matching = [each for each, text in name_texts.items() if text == path]
        matching = matching or [each for each, text in name_texts.items() if text.endswith(f".{path}")]
    if matching:
        rows = np.flatnonzero(np.isin(name, matching))
        first = rows[np.argmin(start_ns[rows])]
        begin_ns = int(start_ns[first])
        return Window(begin_ns, begin_ns + int(duration_ns[first]), recording.names[name[first]])
    if wanted is not None:
        suggestion = nearest(wanted, set(name_texts.values()))
        raise UsageError(
            f"--range {wanted} not found in this trace" + (f". Did you mean {suggestion}?" if suggestion else "")
        )
    ends = [
        int((begin + duration).max()) for table in recording.tables for begin, duration in table.chunks(START, DURATION)
    ]
    return Window(0, max(ends, default=0), None)


def extract_slice(recording: Recording, window: Window, max_rows: int) -> TraceSlice:
    """Extract the rows that start in the window, and the work launched in the window, regardless of when the work runs.

    If there are more than `max_rows` rows, only the earliest are kept, including ties with the last of them.
    """
    chosen = replace(
        recording,
        work=recording.work.filter(_launched_in(window, recording.launches), START, _WORK_CORRELATION),
        launches=recording.launches.filter(window.holds, START),
        operators=recording.operators.filter(window.holds, START),
        ranges=recording.ranges.filter(window.holds, START),
    )
    bounds = [found for table in chosen.tables if (found := table.bounds(START))]
    devices = [distinct(numbers) for (numbers,) in recording.work.chunks(column_index(DeviceWork, "device"))]
    return TraceSlice(
        window=window,
        recording=_earliest_rows(max_rows, chosen),
        last_ns=max((last for _, last in bounds), default=window.start_ns),
        devices=tuple(distinct(np.concatenate(devices)).tolist()) if devices else (),
    )


def _launched_in(window: Window, launches: Table) -> Callable[[Integers, Integers], Booleans]:
    """Return a predicate: whether work was launched in the window or, if the launch is unknown, starts in it."""
    all_launches = distinct(launches.column(_LAUNCH_CORRELATION))
    chunks = [
        correlation[window.holds(start_ns)] for start_ns, correlation in launches.chunks(START, _LAUNCH_CORRELATION)
    ]
    window_launches = distinct(np.concatenate(chunks)) if chunks else all_launches

    def launched(start_ns: Integers, correlation: Integers) -> Booleans:
        has_number = correlation != NONE
        linked, launched_in_window = (
            has_number & _is_in_sorted(launches, correlation) for launches in (all_launches, window_launches)
        )
        found: Booleans = launched_in_window | (window.holds(start_ns) & ~linked)
        return found

    return launched


def _is_in_sorted(ordered: Integers, numbers: Integers) -> Booleans:
    if not len(ordered):
        return np.zeros(len(numbers), bool)
    found: Booleans = ordered[np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)] == numbers
    return found


def _earliest_rows(rows: int, recording: Recording) -> Recording:
    """Return a recording with only the `rows` earliest rows of all tables, including ties with the last one."""
    if sum(map(len, recording.tables)) <= rows:
        return recording
    # The earliest starts are selected while they are collected, so that they are never all in memory.
    earliest: list[Integers] = []
    for (start_ns,) in chain.from_iterable(table.chunks(START) for table in recording.tables):
        earliest.append(start_ns)
        if sum(map(len, earliest)) > 2 * rows:
            earliest = [np.partition(np.concatenate(earliest), rows)[:rows]]
    latest_ns = int(np.partition(np.concatenate(earliest), rows - 1)[rows - 1])

    def early(start_ns: Integers) -> Booleans:
        return start_ns <= latest_ns

    work, launches, operators, ranges = (table.filter(early, START) for table in recording.tables)
    return replace(recording, work=work, launches=launches, operators=operators, ranges=ranges)


def write(path: Path, slice_: TraceSlice, max_bytes: int) -> int | None:
    """Write a slice to .json or .json.gz, at most `max_bytes` before compression; raises OSError if that fails.

    Returns the start of the omitted part, in nanoseconds; None if everything was written.
    """
    # Kineto's header.
    recorded = slice_.recording
    header: dict[str, object] = {"displayTimeUnit": "ns"}
    if recorded.devices:
        header["deviceProperties"] = [{"id": number, "name": name} for number, name in enumerate(recorded.devices)]
    if recorded.predicted:
        header["source"] = "predicted"
    if recorded.rank is not None:
        header["distributedInfo"] = {"rank": recorded.rank}
    beginning = _ENCODER.encode(header)[:-1] + b',"traceEvents":[\n'
    separator, size_bytes = b"", len(beginning) + len(_END)
    with gzip.open(path, "wb", compresslevel=4) if path.suffix.lower() == ".gz" else path.open("wb") as file:
        file.write(beginning)
        for start_ns, event in _events(slice_):
            line = separator + _ENCODER.encode(event)
            size_bytes += len(line)
            if size_bytes > max_bytes:
                file.write(_END)
                return start_ns
            file.write(line)
            separator = b",\n"
        file.write(_END)
    return None


def _events(slice_: TraceSlice) -> Iterator[tuple[int, dict[str, object]]]:
    trace = slice_.recording.whole()
    suffix = ", PREDICTED" if trace.predicted else ""
    processes = {_HOST: f"{trace.title}{suffix}"}
    for device in slice_.devices:
        device_name = trace.devices[device] if 0 <= device < len(trace.devices) else "device"
        processes[device + 1] = f"{device_name} {device}{suffix}"
    for process, name in processes.items():
        yield slice_.window.start_ns, {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    parts: tuple[_Part, ...] = (trace.ranges, trace.operators, trace.launches, trace.work)
    kind = np.repeat(np.arange(len(parts)), [len(part.start_ns) for part in parts])
    row = np.concatenate([np.arange(len(part.start_ns)) for part in parts])
    start_ns = np.concatenate([part.start_ns for part in parts])
    order = np.lexsort((kind, start_ns))
    correlation = trace.launches.correlation
    has_work = (correlation != NONE) & np.isin(correlation, trace.work.correlation)
    for first in range(0, len(order), _EVENTS_PER_BATCH):
        here = order[first : first + _EVENTS_PER_BATCH]
        for each, position, at_ns in zip(*(column[here].tolist() for column in (kind, row, start_ns)), strict=True):
            event = {**_place(trace, parts[each], position), "args": _arguments(trace, parts[each], position)}
            yield at_ns, event
            if parts[each] is trace.launches and has_work[position]:
                yield at_ns, {**_flow_event(event), "ph": "s"}
            elif parts[each] is trace.work and trace.work.correlation[position] != NONE:
                yield at_ns, {**_flow_event(event), "ph": "f", "bp": "e"}


def _place(trace: Trace, part: _Part, row: int) -> dict[str, object]:
    if isinstance(part, DeviceWork):
        lane = {"cat": _KINDS[int(part.kind[row])], "pid": int(part.device[row]) + 1, "tid": int(part.stream[row])}
    else:
        lane = {"cat": _CATEGORIES[type(part)], "pid": _HOST, "tid": int(part.thread[row])}
    times = {"ts": int(part.start_ns[row]) / 1000, "dur": int(part.duration_ns[row]) / 1000}
    return {"ph": "X", "name": trace.names[part.name[row]][:_MAX_NAME_LENGTH], **times, **lane}


def _arguments(trace: Trace, part: _Part, row: int) -> dict[str, object]:
    if isinstance(part, Launches):
        return _without_missing(correlation=part.correlation[row])
    if isinstance(part, Operators):
        # Kineto counts threads from 1; 0 stands for none.
        numbers = {"Sequence number": part.sequence[row], "Fwd thread id": part.forward_thread[row] + 1}
        shapes = {"Input Dims": _shapes(trace.names[part.shapes[row]])} if part.shapes[row] != NONE else {}
        return {**_without_missing(**numbers), **shapes}
    if isinstance(part, Ranges):
        return {}
    numbers = {"correlation": part.correlation[row], "bytes": part.bytes[row]}
    arguments = {"device": int(part.device[row]), "stream": int(part.stream[row]), **_without_missing(**numbers)}
    if part.launch_shape[row] != NONE:
        shape = trace.launch_shapes[part.launch_shape[row]].tolist()
        return {**arguments, "grid": shape[:3], "block": shape[3:]}
    return arguments


@lru_cache(maxsize=65_536)
def _shapes(text: str) -> object:
    try:
        return msgspec.Raw(_ENCODER.encode(msgspec.json.decode(text)))
    except (msgspec.DecodeError, RecursionError):
        return text


def _without_missing(**numbers: np.int64) -> dict[str, object]:
    return {name: int(number) for name, number in numbers.items() if number != NONE}


def _flow_event(event: dict[str, Any]) -> dict[str, object]:
    number = event["args"]["correlation"]
    return {"name": "launch", "cat": "launch", "id": number, **{key: event[key] for key in ("pid", "tid", "ts")}}

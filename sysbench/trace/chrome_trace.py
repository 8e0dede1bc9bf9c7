"""Writes a slice of a trace as Chrome JSON, from a recording of any profiler.

Perfetto and chrome://tracing can open it. The format is that of "Trace Event Format" by the Chromium project; a thread
of the host is a thread of process 0, a stream of device n one of process n + 1, and arrows lead from launches to
kernels. Categories and arguments have Kineto's names, so that tools for torch's traces can read slices too.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.trace.recording import (
    COPY,
    KERNEL,
    NONE,
    SET,
    DeviceWork,
    Integers,
    Launches,
    Operators,
    Ranges,
    Trace,
)
from sysbench.trace.window import Cut

_Part = Ranges | Operators | Launches | DeviceWork

LARGEST_BYTES: Final = 100_000_000
"""Size before compression; Chrome's own viewer fails at 500 to 800 MB, and is slow long before that."""

_SMALLEST_BYTES: Final = 80
"""Lower bound of the size of an event."""

MOST_ROWS: Final = LARGEST_BYTES // _SMALLEST_BYTES
"""Largest number of rows in a slice."""

_END: Final = b"\n]}\n"
_AT_A_TIME: Final = 65_536
_ENCODER: Final = msgspec.json.Encoder()

_HOST = 0
_LONGEST_NAME = 10_000
"""Names of template kernels may have thousands of characters, and differ in the last ones."""

_CATEGORIES: dict[type, str] = {Ranges: "user_annotation", Operators: "cpu_op", Launches: "cuda_runtime"}
_KINDS: dict[int, str] = {KERNEL: "kernel", COPY: "gpu_memcpy", SET: "gpu_memset"}


@dataclass(frozen=True)
class Written:
    """The part of a slice that was written."""

    events: int
    cut_off_ns: int | None
    """Start of the omitted part, if the file would have become too large; None if everything was written."""


def write(path: Path, cut: Cut, largest_bytes: int) -> Written:
    """Write a slice to .json or .json.gz, up to a size of `largest_bytes`; raises OSError."""
    # Kineto's header.
    recorded = cut.recording
    header: dict[str, object] = {"displayTimeUnit": "ns"}
    if recorded.devices:
        header["deviceProperties"] = [{"id": number, "name": name} for number, name in enumerate(recorded.devices)]
    if recorded.predicted:
        header["source"] = "predicted"
    if recorded.rank is not None:
        header["distributedInfo"] = {"rank": recorded.rank}
    beginning = _encode(header)[:-1] + b',"traceEvents":[\n'
    events, size_bytes = 0, len(beginning) + len(_END)
    with gzip.open(path, "wb", compresslevel=4) if path.suffix.lower() == ".gz" else path.open("wb") as file:
        file.write(beginning)
        for start_ns, event in _events(cut):
            line = (b",\n" if events else b"") + _encode(event)
            size_bytes += len(line)
            if size_bytes > largest_bytes:
                file.write(_END)
                return Written(events, start_ns)
            file.write(line)
            events += 1
        file.write(_END)
    return Written(events, None)


def _encode(content: dict[str, object]) -> bytes:
    return _ENCODER.encode(content)


def _events(cut: Cut) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield names of processes, then all events by start time, each with that time; truncation then cuts at a time."""
    trace = cut.recording.whole()
    mark = ", PREDICTED" if trace.predicted else ""
    processes = {_HOST: f"{trace.title}{mark}"}
    for device in cut.devices:
        known = trace.devices[device] if 0 <= device < len(trace.devices) else "device"
        processes[device + 1] = f"{known} {device}{mark}"
    for process, name in processes.items():
        yield cut.window.start_ns, {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    parts: tuple[_Part, ...] = (trace.ranges, trace.operators, trace.launches, trace.work)
    kind = np.repeat(np.arange(len(parts)), [len(part.start_ns) for part in parts])
    row = np.concatenate([np.arange(len(part.start_ns)) for part in parts])
    start_ns = np.concatenate([part.start_ns for part in parts])
    order = np.lexsort((kind, start_ns))
    number = trace.launches.correlation
    leads = (number != NONE) & np.isin(number, trace.work.correlation)
    for first in range(0, len(order), _AT_A_TIME):
        here = order[first : first + _AT_A_TIME]
        for each, position, at_ns in zip(*(column[here].tolist() for column in (kind, row, start_ns)), strict=True):
            part = parts[each]
            found = _work(trace, position) if isinstance(part, DeviceWork) else _on_host(trace, part, position, leads)
            yield from ((at_ns, event) for event in found)


def _on_host(
    trace: Trace, part: Ranges | Operators | Launches, row: int, leads: NDArray[np.bool_]
) -> Iterator[dict[str, object]]:
    event = _complete(trace, part.name, part.start_ns, part.duration_ns, row)
    event |= {"cat": _CATEGORIES[type(part)], "pid": _HOST, "tid": int(part.thread[row])}
    event["args"] = _arguments(trace, part, row)
    yield event
    if isinstance(part, Launches) and leads[row]:
        yield {**_arrow(event, int(part.correlation[row])), "ph": "s"}


def _work(trace: Trace, row: int) -> Iterator[dict[str, object]]:
    work = trace.work
    event = _complete(trace, work.name, work.start_ns, work.duration_ns, row)
    device, stream = int(work.device[row]), int(work.stream[row])
    arguments = {"device": device, "stream": stream, **_known(correlation=work.correlation[row], bytes=work.bytes[row])}
    if work.launch_shape[row] != NONE:
        shape = trace.launch_shapes[work.launch_shape[row]].tolist()
        arguments |= {"grid": shape[:3], "block": shape[3:]}
    event |= {"cat": _KINDS[int(work.kind[row])], "pid": device + 1, "tid": stream, "args": arguments}
    yield event
    if work.correlation[row] != NONE:
        yield {**_arrow(event, int(work.correlation[row])), "ph": "f", "bp": "e"}


def _arguments(trace: Trace, part: Ranges | Operators | Launches, row: int) -> dict[str, object]:
    if isinstance(part, Launches):
        return _known(correlation=part.correlation[row])
    if not isinstance(part, Operators):
        return {}
    # Kineto counts threads from 1; 0 stands for none.
    arguments = _known(**{"Sequence number": part.sequence[row], "Fwd thread id": part.forward_thread[row] + 1})
    if part.shapes[row] != NONE:
        arguments["Input Dims"] = _shapes(trace.names[part.shapes[row]])
    return arguments


@lru_cache(maxsize=65_536)
def _shapes(text: str) -> object:
    """Parse shapes that are written as lists; return others unchanged."""
    try:
        return msgspec.Raw(_ENCODER.encode(msgspec.json.decode(text)))
    except (msgspec.DecodeError, RecursionError):
        return text


def _known(**numbers: np.int64) -> dict[str, object]:
    return {name: int(number) for name, number in numbers.items() if number != NONE}


def _complete(trace: Trace, name: Integers, start_ns: Integers, duration_ns: Integers, row: int) -> dict[str, object]:
    """Return an event with start and duration in microseconds with three decimals, which are whole nanoseconds."""
    return {
        "ph": "X",
        "name": trace.names[name[row]][:_LONGEST_NAME],
        "ts": int(start_ns[row]) / 1000,
        "dur": int(duration_ns[row]) / 1000,
    }


def _arrow(event: dict[str, object], number: int) -> dict[str, object]:
    return {"name": "launch", "cat": "launch", "id": number, **{key: event[key] for key in ("pid", "tid", "ts")}}

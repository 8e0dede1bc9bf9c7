"""A slice of a trace, small enough for a browser: in Chrome's JSON, whichever profiler recorded it.

Perfetto and chrome://tracing open it. The format is that of "Trace Event Format" by the Chromium project; a thread of
the host is a thread of process 0, a stream of device n one of process n + 1, and arrows lead from launches to kernels.
Categories and arguments are called as Kineto calls them, so that what reads torch's traces reads slices too.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sysbench.analysis.trace import (
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
from sysbench.errors import UsageError, nearest

Rows = NDArray[np.intp]
_Part = Ranges | Operators | Launches | DeviceWork

LARGEST_BYTES = 100_000_000
"""Before compression; Chrome's own viewer ends at 500 to 800 MB, and takes its time long before."""

_HOST = 0
_LONGEST_NAME = 1000
_SMALLEST_BYTES = 60
"""No event takes less."""

_CATEGORIES: dict[type, str] = {Ranges: "user_annotation", Operators: "cpu_op", Launches: "cuda_runtime"}
_KINDS: dict[int, str] = {KERNEL: "kernel", COPY: "gpu_memcpy", SET: "gpu_memset"}


@dataclass(frozen=True)
class Window:
    """A stretch of time in a trace."""

    start_ns: int
    end_ns: int
    range: str | None
    """The name of the range that it is of; None for the whole trace."""


@dataclass(frozen=True)
class Written:
    """What became of it."""

    events: int
    complete: bool
    """False where the rest of the window would have made the file too large."""


def find(trace: Trace, wanted: str | None) -> Window:
    """The first range called `wanted`, or whose path ends so; without a name the first step, or else everything.

    Raises UsageError, with the nearest name, when there is none.
    """
    ranges = trace.ranges
    here = [trace.names[each] for each in ranges.name.tolist()]
    tail = (wanted or "step").rpartition("/")[2]
    found = [row for row, name in enumerate(here) if name == tail]
    found = found or [row for row, name in enumerate(here) if name.endswith(f".{tail}")]
    if found:
        first = min(found, key=lambda row: int(ranges.start_ns[row]))
        start_ns = int(ranges.start_ns[first])
        return Window(start_ns, start_ns + int(ranges.duration_ns[first]), here[first])
    if wanted is not None:
        guess = nearest(wanted, set(here))
        raise UsageError(f"--range {wanted} is not in this trace" + (f". Did you mean {guess}?" if guess else ""))
    columns = (trace.work, trace.launches, trace.operators, trace.ranges)
    ends = [int((each.start_ns + each.duration_ns).max()) for each in columns if len(each.start_ns)]
    return Window(0, max(ends, default=0), None)


def write(path: Path, trace: Trace, window: Window, *, largest_bytes: int = LARGEST_BYTES) -> Written:
    """Write what happens in the window, and what was launched in it, to .json or .json.gz."""
    events, size_bytes, complete = 0, 0, True
    with gzip.open(path, "wb", compresslevel=4) if path.suffix == ".gz" else path.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        for event in _events(trace, window, largest_bytes // _SMALLEST_BYTES):
            line = (b",\n" if events else b"") + json.dumps(event, separators=(",", ":")).encode()
            size_bytes += len(line)
            if size_bytes > largest_bytes:
                complete = False
                break
            file.write(line)
            events += 1
        file.write(b"\n]}\n")
    return Written(events, complete)


def _events(trace: Trace, window: Window, most: int) -> Iterator[dict[str, object]]:
    """Names of processes, then everything by its beginning, so that a cut is a cut in time."""
    yield from _labels(trace)
    parts: tuple[_Part, ...] = (trace.ranges, trace.operators, trace.launches, trace.work)
    launches = _beginning_in(trace.launches, window)
    chosen = [
        _beginning_in(trace.ranges, window),
        _beginning_in(trace.operators, window),
        launches,
        _launched(trace, launches, window),
    ]
    kind = np.repeat(np.arange(len(parts)), [len(rows) for rows in chosen])
    row = np.concatenate(chosen)
    start_ns = np.concatenate([part.start_ns[rows] for part, rows in zip(parts, chosen, strict=True)])
    order = np.lexsort((kind, start_ns))[:most]
    with_work = set(trace.work.correlation[chosen[-1]].tolist())
    for each, position in zip(kind[order].tolist(), row[order].tolist(), strict=True):
        part = parts[each]
        yield from (
            _work(trace, position) if isinstance(part, DeviceWork) else _on_host(trace, part, position, with_work)
        )


def _beginning_in(part: _Part, window: Window) -> Rows:
    """What began before would reach into the window without its beginning."""
    return np.flatnonzero((part.start_ns >= window.start_ns) & (part.start_ns <= window.end_ns))


def _launched(trace: Trace, launches: Rows, window: Window) -> Rows:
    """What was launched in the window, whenever it ran; of what nobody is known to have launched, what ran in it."""
    correlation, known = trace.work.correlation, trace.launches.correlation
    here = np.isin(correlation, known[launches]) & (correlation != NONE)
    here[_beginning_in(trace.work, window)] |= ~np.isin(correlation, known)[_beginning_in(trace.work, window)]
    return np.flatnonzero(here)


def _on_host(
    trace: Trace, part: Ranges | Operators | Launches, row: int, with_work: set[int]
) -> Iterator[dict[str, object]]:
    event = _complete(trace, part.name, part.start_ns, part.duration_ns, row)
    event |= {"cat": _CATEGORIES[type(part)], "pid": _HOST, "tid": int(part.thread[row])}
    event["args"] = _arguments(trace, part, row)
    yield event
    if isinstance(part, Launches) and int(part.correlation[row]) in with_work:
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
    # Kineto counts threads from 1, and 0 says that there is none.
    arguments = _known(**{"Sequence number": part.sequence[row], "Fwd thread id": part.forward_thread[row] + 1})
    if part.shapes[row] != NONE:
        arguments["Input Dims"] = _shapes(trace.names[part.shapes[row]])
    return arguments


def _shapes(text: str) -> object:
    """As lists where they are written as lists."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _known(**numbers: np.int64) -> dict[str, object]:
    return {name: int(number) for name, number in numbers.items() if number != NONE}


def _complete(trace: Trace, name: Integers, start_ns: Integers, duration_ns: Integers, row: int) -> dict[str, object]:
    """An event with a beginning and a duration, in microseconds with three decimals: whole nanoseconds."""
    return {
        "ph": "X",
        "name": trace.names[name[row]][:_LONGEST_NAME],
        "ts": int(start_ns[row]) / 1000,
        "dur": int(duration_ns[row]) / 1000,
    }


def _arrow(event: dict[str, object], number: int) -> dict[str, object]:
    return {"name": "launch", "cat": "launch", "id": number, **{key: event[key] for key in ("pid", "tid", "ts")}}


def _labels(trace: Trace) -> Iterator[dict[str, object]]:
    yield _label(_HOST, trace.title)
    for device in sorted(set(trace.work.device.tolist())):
        known = trace.devices[device] if 0 <= device < len(trace.devices) else "device"
        yield _label(device + 1, f"{known} {device}")


def _label(process: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}

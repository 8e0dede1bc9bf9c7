"""Events of Kineto's JSON become columns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.analysis import forward_threads
from sysbench.analysis.trace import COPY, KERNEL, NONE, SET, DeviceWork, Integers, Launches, Operators, Ranges, Trace

_NONE_RECORDED: Final = msgspec.Raw(b"")


class Arguments(msgspec.Struct, gc=False):
    """Of an event, as far as anybody asks; others are not even decoded."""

    device: int | None = None
    stream: int | None = None
    correlation: int | None = None
    bytes: int | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    sequence: int | None = msgspec.field(default=None, name="Sequence number")
    forward_thread: int | None = msgspec.field(default=None, name="Fwd thread id")
    shapes: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="Input Dims")


_NO_ARGUMENTS: Final = Arguments()


class _AnyEvent(msgspec.Struct, gc=False):
    name: str = ""
    cat: str = ""
    ph: str = ""
    pid: int | str = 0
    tid: int | str = 0
    args: Arguments = msgspec.field(default_factory=lambda: _NO_ARGUMENTS)


class Event(_AnyEvent, gc=False):
    """One event, with times in microseconds that a float holds to the nanosecond."""

    ts: float = 0.0
    dur: float | None = None


class EpochEvent(_AnyEvent, gc=False):
    """One event with times that a float would not hold."""

    ts: Decimal = Decimal(0)
    dur: Decimal | None = None


_WORK: Final = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": SET,
    "memset": SET,
}
"""Categories of today's files, and of those before 2022."""
_OPERATORS: Final = frozenset({"cpu_op", "operator"})
_RANGES: Final = frozenset({"user_annotation"})
_LAUNCHES: Final = re.compile(r"(.*_)?(runtime|driver)")
_OURS: Final = ("work", "launches", "operators", "ranges")

_NANOSECONDS_SINCE_1973: Final = 10**17
"""Times of more than this are nanoseconds: as microseconds they would lie in the year 5138."""


class _Numbers(dict[Any, int]):
    """Counts what it is asked for, in the order in which it is first asked."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Columns:
    """Grows with every piece of a file."""

    def __init__(self) -> None:
        self._names = _Numbers()
        self._threads = _Numbers()
        self._parts: dict[str, list[tuple[NDArray[Any], ...]]] = {which: [] for which in _OURS}
        self._rooms: dict[str, str | None] = {}
        self._without_duration = 0
        self._in_nanoseconds: bool | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found that anything could be told from."""
        return not any(self._parts.values())

    def add(self, events: Sequence[Event | EpochEvent]) -> None:
        """Take in the events of one piece."""
        sorted_: dict[str, list[Any]] = defaultdict(list)
        rooms = self._rooms
        for event in events:
            if event.ph == "X":
                category = event.cat
                if category not in rooms:
                    rooms[category] = _room_of(category)
                room = rooms[category]
                if room is not None:
                    sorted_[room].append(event)
        for which, found in sorted_.items():
            lasting = [event for event in found if event.dur is not None]
            self._without_duration += len(found) - len(lasting)
            if lasting:
                self._parts[which].append(self._of(which, lasting))

    def _of(self, which: str, events: list[Any]) -> tuple[NDArray[Any], ...]:
        names, threads = self._names, self._threads
        start = self._nanoseconds([event.ts for event in events])
        duration = self._nanoseconds([event.dur for event in events])
        name = np.array([names[event.name] for event in events], np.int32)
        arguments = [event.args for event in events]
        if which == "work":
            return (start, duration, name, *_of_work(events, arguments))
        thread = np.array([threads[event.pid, event.tid] for event in events], np.int32)
        if which == "launches":
            return (start, duration, name, thread, _numbers([each.correlation for each in arguments]))
        if which == "ranges":
            return (start, duration, name, thread)
        shapes = [names[bytes(each.shapes).decode()] if each.shapes else NONE for each in arguments]
        return (
            start,
            duration,
            name,
            thread,
            _numbers([each.sequence for each in arguments]),
            _numbers([each.forward_thread for each in arguments]),
            np.array(shapes, np.int32),
        )

    def _nanoseconds(self, times: list[Any]) -> Integers:
        if self._in_nanoseconds is None:
            self._in_nanoseconds = bool(times) and float(times[0]) > _NANOSECONDS_SINCE_1973
        factor = 1 if self._in_nanoseconds else 1000
        if times and isinstance(times[0], Decimal):
            return np.array([int((time * factor).to_integral_value()) for time in times], np.int64)
        return np.rint(np.array(times, np.float64) * factor).astype(np.int64)

    def trace(self, title: str, header: dict[str, Any], remarks: Iterable[str]) -> Trace:
        """Everything, from the first moment on; what is needed for it is let go of meanwhile."""
        said = list(remarks)
        if self._without_duration:
            said.append(f"{self._without_duration:,} events without a duration were left out")
        if self._in_nanoseconds:
            said.append("times are taken for nanoseconds: as microseconds they would lie in the far future")
        work, launches, operators, ranges = (self._whole(which) for which in _OURS)
        origin = min(int(part[0].min()) for part in (work, launches, operators, ranges) if len(part[0]))
        for part in (work, launches, operators, ranges):
            part[0] -= origin
        work[7:] = [np.stack(work[first : first + 3], axis=1) for first in (7, 10)] + work[13:]
        operators[5] = forward_threads.resolved(operators[3], operators[4], operators[5])
        return Trace(
            title=title,
            format="kineto",
            names=tuple(self._names),
            work=DeviceWork(*work),
            launches=Launches(*launches),
            operators=Operators(*operators),
            ranges=Ranges(*ranges),
            origin_ns=origin,
            devices=_devices(header),
            rank=_rank(header),
            remarks=tuple(said),
        )

    def _whole(self, which: str) -> list[Integers]:
        parts = self._parts.pop(which)
        columns = {"work": 14, "launches": 5, "operators": 7, "ranges": 4}[which]
        if not parts:
            return [np.zeros(0, np.int64) for _ in range(columns)]
        return [np.concatenate([part[at] for part in parts]).astype(np.int64, copy=False) for at in range(columns)]


def _room_of(category: str) -> str | None:
    lower = category.lower()
    if lower in _WORK:
        return "work"
    if lower in _OPERATORS:
        return "operators"
    if lower in _RANGES:
        return "ranges"
    return "launches" if _LAUNCHES.fullmatch(lower) else None


def _of_work(events: list[Any], arguments: list[Arguments]) -> tuple[NDArray[Any], ...]:
    kind = np.array([_WORK[event.cat.lower()] for event in events], np.int8)
    numbers = (_numbers([getattr(each, name) for each in arguments]) for name in ("device", "stream", "correlation"))
    unknown = (NONE, NONE, NONE)
    shapes = [np.array([getattr(each, name) or unknown for each in arguments], np.int64) for name in ("grid", "block")]
    sizes = _numbers([each.bytes for each in arguments])
    return (kind, *numbers, *(shape[:, axis] for shape in shapes for axis in range(3)), sizes)


def _numbers(values: list[int | None]) -> Integers:
    try:
        return np.array([NONE if value is None else value for value in values], np.int64)
    except OverflowError:
        return np.array([NONE if value is None or abs(value) >= 2**63 else value for value in values], np.int64)


def _devices(header: dict[str, Any]) -> tuple[str, ...]:
    found = header.get("deviceProperties")
    if not isinstance(found, list):
        return ()
    return tuple(str(each.get("name", "")) if isinstance(each, dict) else "" for each in found)


def _rank(header: dict[str, Any]) -> int | None:
    distributed = header.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    return rank if isinstance(rank, int) else None

"""Reads a trace, whichever profiler wrote it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sysbench.analysis import forward_threads
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
from sysbench.errors import LogError

Event = dict[str, Any]
_WORK = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": SET}


def read(path: Path) -> Trace:
    """The trace in a file; raises LogError for one that holds none."""
    try:
        content = path.read_bytes()
        events = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)["traceEvents"]
    except FileNotFoundError:
        raise LogError(f"cannot read {path}: no such file") from None
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise LogError(f"{path} is not a trace: {error}") from error
    return _Builder([event for event in events if event.get("ph") == "X" and "dur" in event]).trace(path.name)


class _Builder:
    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._names: dict[str, int] = {}
        self._threads: dict[Any, int] = {}
        self._origin = min((event["ts"] for event in events), default=0)

    def trace(self, title: str) -> Trace:
        work = [event for event in self._events if event.get("cat") in _WORK]
        launches = self._of("cuda_runtime", "cuda_driver")
        operators, ranges = self._of("cpu_op"), self._of("user_annotation")
        threads, sequence = self._thread(operators), self._number(operators, "Sequence number")
        return Trace(
            title=title,
            format="kineto",
            work=self._work(work),
            launches=Launches(*self._stretch(launches), self._thread(launches), self._number(launches, "correlation")),
            operators=Operators(
                *self._stretch(operators),
                threads,
                sequence,
                forward_threads.resolved(threads, sequence, self._number(operators, "Fwd thread id")),
                self._shapes(operators),
            ),
            ranges=Ranges(*self._stretch(ranges), self._thread(ranges)),
            origin_ns=round(self._origin * 1000),
            names=tuple(self._names),
        )

    def _of(self, *categories: str) -> list[Event]:
        return [event for event in self._events if event.get("cat") in categories]

    def _stretch(self, events: Sequence[Event]) -> tuple[Integers, Integers, Integers]:
        return (
            _column(round((event["ts"] - self._origin) * 1000) for event in events),
            _column(round(event["dur"] * 1000) for event in events),
            _column(self._name(event["name"]) for event in events),
        )

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _thread(self, events: Sequence[Event]) -> Integers:
        return _column(self._threads.setdefault((e["pid"], e["tid"]), len(self._threads)) for e in events)

    def _number(self, events: Sequence[Event], key: str) -> Integers:
        return _column(event.get("args", {}).get(key, NONE) for event in events)

    def _shapes(self, events: Sequence[Event]) -> Integers:
        dimensions = (event.get("args", {}).get("Input Dims") for event in events)
        return _column(NONE if each is None else self._name(json.dumps(each)) for each in dimensions)

    def _work(self, events: Sequence[Event]) -> DeviceWork:
        return DeviceWork(
            *self._stretch(events),
            kind=_column(_WORK[event["cat"]] for event in events),
            device=self._number(events, "device"),
            stream=self._number(events, "stream"),
            correlation=self._number(events, "correlation"),
            grid=_triples(events, "grid"),
            block=_triples(events, "block"),
            bytes=self._number(events, "bytes"),
        )


def _column(values: Iterable[int]) -> Integers:
    return np.fromiter(values, np.int64)


def _triples(events: Sequence[Event], key: str) -> Integers:
    rows = [event.get("args", {}).get(key, [NONE] * 3) for event in events]
    return np.array(rows, np.int64).reshape(len(rows), 3)

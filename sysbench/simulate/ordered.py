"""Simulated CUDA streams and events, in place of torch's CPU streams, which do nothing.

Streams record which launches wait for which other launches, so that a trace shows which kernels may overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

Mark = tuple[Hashable, int]
"""The stage and the position of a launch."""

_numbers = itertools.count()


class OrderedStream(torch.cpu.Stream):
    """A stream that records which launches it waits for.

    number  unique number of the stream
    last    latest launch on the stream
    """

    def __init__(self, priority: int = -1) -> None:
        super().__init__(priority)
        self.number = next(_numbers)
        self.last: Mark | None = None
        self._waits: list[Mark] = []

    def record_event(self) -> OrderedEvent:  # type: ignore[override]
        """Return an event that completes when all launches on the stream so far have completed."""
        event = OrderedEvent()
        event.record(self)
        return event

    def wait_event(self, event: OrderedEvent | None) -> None:
        """Make later launches on this stream wait for the event."""
        if event is not None and event.mark is not None and event.stream is not self:
            self._waits.append(event.mark)

    def wait_stream(self, stream: OrderedStream) -> None:
        """Make later launches on this stream wait for all launches so far on another stream."""
        self.wait_event(stream.record_event())

    def take_waits(self, stage: Hashable) -> list[int]:
        """Return the positions in `stage` of the launches that the stream's next launch waits for; clear all waits."""
        waits, self._waits = self._waits, []
        return [position for of, position in waits if of == stage]


class OrderedEvent(torch.cpu.Event):
    """An event, which marks a position in a stream."""

    def __init__(self) -> None:
        self.stream: OrderedStream | None = None
        self.mark: Mark | None = None

    def record(self, stream: object = None) -> OrderedEvent:  # type: ignore[override]
        """Mark the current end of a stream; by default, of torch's current stream."""
        current = stream or torch.cpu.current_stream()
        if isinstance(current, OrderedStream):
            self.stream, self.mark = current, current.last
        return self

    def wait(self, stream: Any = None) -> None:
        """Make a stream wait for this event; by default, torch's current stream."""
        (stream or torch.cpu.current_stream()).wait_event(self)


@contextmanager
def ordered_streams() -> Iterator[None]:
    """Context manager in which torch's CPU streams and events are ordered ones."""
    replacements = [
        *((name, OrderedStream()) for name in ("_current_stream", "_default_cpu_stream")),
        ("Stream", OrderedStream),
        ("Event", OrderedEvent),
    ]
    with ExitStack() as restored:
        for name, replacement in replacements:
            restored.callback(setattr, torch.cpu, name, getattr(torch.cpu, name))
            setattr(torch.cpu, name, replacement)
        yield

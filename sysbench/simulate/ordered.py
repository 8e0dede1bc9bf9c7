"""CUDA's streams and events for torch code that runs on a CPU, where torch's own streams do nothing.

They record which launches wait for which others, so that a trace knows which kernels may overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

import torch

Mark = tuple[Hashable, int]
"""The stage and the position of a launch."""

_numbers = itertools.count()


class OrderedStream(torch.cpu.Stream):
    """A stream that records its waits.

    `number` is distinct for each stream; `last` is the latest launch on it.
    """

    def __init__(self, priority: int = -1) -> None:
        super().__init__(priority)
        self.number = next(_numbers)
        self.last: Mark | None = None
        self._waits: list[Mark] = []

    def record_event(self) -> OrderedEvent:  # type: ignore[override]
        """Return an event that completes after everything on the stream so far."""
        event = OrderedEvent()
        event.record(self)
        return event

    def wait_event(self, event: OrderedEvent | None) -> None:
        """Make later launches wait for the event."""
        if event is not None and event.mark is not None and event.stream is not self:
            self._waits.append(event.mark)

    def wait_stream(self, stream: OrderedStream) -> None:
        """Make later launches wait for everything on another stream so far."""
        self.wait_event(stream.record_event())

    def take_waits(self, stage: Hashable) -> list[int]:
        """Return the launches of this stage that the next one on the stream waits for, and forget them."""
        waits, self._waits = self._waits, []
        return [position for of, position in waits if of == stage]


class OrderedEvent(torch.cpu.Event):
    """An event: a position in a stream."""

    def __init__(self) -> None:
        self.stream: OrderedStream | None = None
        self.mark: Mark | None = None

    def record(self, stream: Any = None) -> OrderedEvent:  # type: ignore[override]
        """Record everything on the stream so far; by default, on the current stream."""
        current = stream or torch.cpu.current_stream()
        if isinstance(current, OrderedStream):
            self.stream, self.mark = current, current.last
        return self

    def wait(self, stream: Any = None) -> None:
        """Make a stream wait for this event."""
        (stream or torch.cpu.current_stream()).wait_event(self)

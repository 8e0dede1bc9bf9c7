"""CUDA's streams and events as torch's code uses them on a CPU, where torch's own do nothing.

They note what has to end before what, so that a trace knows which kernels may overlap.
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
    """A stream whose waits are noted.

    number  distinct for each stream
    last    the latest launch on it
    """

    def __init__(self, priority: int = -1) -> None:
        super().__init__(priority)
        self.number = next(_numbers)
        self.last: Mark | None = None
        self._waits: list[Mark] = []

    def record_event(self) -> OrderedEvent:  # type: ignore[override]
        """Return an event at which everything on the stream so far is done."""
        event = OrderedEvent()
        event.record(self)
        return event

    def wait_event(self, event: OrderedEvent | None) -> None:
        """Let what is launched from now on begin after the event."""
        if event is not None and event.mark is not None and event.stream is not self:
            self._waits.append(event.mark)

    def wait_stream(self, stream: OrderedStream) -> None:
        """Let what is launched from now on begin after everything on another stream so far."""
        self.wait_event(stream.record_event())

    def take_waits(self, stage: Hashable) -> list[int]:
        """Return the launches of this stage that the next one on the stream waits for, and forget them."""
        waits, self._waits = self._waits, []
        return [position for of, position in waits if of == stage]


class OrderedEvent(torch.cpu.Event):
    """A moment of a stream."""

    def __init__(self) -> None:
        self.stream: OrderedStream | None = None
        self.mark: Mark | None = None

    def record(self, stream: Any = None) -> OrderedEvent:  # type: ignore[override]
        """Stand for everything on the stream so far: by default, on the current one."""
        current = stream or torch.cpu.current_stream()
        if isinstance(current, OrderedStream):
            self.stream, self.mark = current, current.last
        return self

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for this."""
        (stream or torch.cpu.current_stream()).wait_event(self)

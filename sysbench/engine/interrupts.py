"""Handling of Ctrl-C and similar signals, from the start of the program to its end.

The first signal ends a run cleanly, and aborts everything else. The second has no effect, so that it does not
interrupt saving. From the third on, KeyboardInterrupt is raised wherever the program is.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a run cleanly."""

INSISTENT = 3
"""Number of the signal from which on everything is interrupted."""


class GivenUpError(KeyboardInterrupt):
    """The user has asked to stop the current activity.

    This is a subclass because a KeyboardInterrupt itself makes Python exit by SIGINT even after it has been caught,
    if it passed through code that was compiled from a string, as the methods of dataclasses are.
    """


class Interrupts:
    """Whether the user wants to stop the run; becomes readable, in the sense of select, when that is the case."""

    def __init__(self) -> None:
        self._received, self.descriptor = os.pipe()
        os.set_blocking(self._received, False)
        os.set_blocking(self.descriptor, False)
        self._asked = 0
        self.awaited = 0
        """How many nested blocks check `requested` themselves: the first signal raises nothing within them."""
        self.gave_up: str | None = None
        """The signal that raised KeyboardInterrupt."""

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._asked > 0

    def fileno(self) -> int:
        """File descriptor to wait for."""
        return self._received

    def sleep(self, duration_s: float) -> None:
        """Sleep for this long, or until a signal arrives."""
        select.select([self._received], [], [], duration_s)

    def drain(self) -> None:
        """Discard handled wake-ups; other signals (such as SIGWINCH) also wake."""
        try:
            while os.read(self._received, 64):
                pass
        except BlockingIOError:
            return

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; the first raises KeyboardInterrupt unless `requested` is being checked, the third always."""
        self._asked += 1
        if self._asked >= INSISTENT or (self._asked == 1 and not self.awaited):
            self.gave_up = signal.Signals(number).name
            raise GivenUpError

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._received)
        os.close(self.descriptor)


_caught: list[Interrupts] = []
"""The current signal handler; nested blocks share it."""


@contextmanager
def taken_over() -> Iterator[Interrupts]:
    """Handle the stopping signals in this context, and restore the previous handlers afterwards.

    An ignored signal (nohup, a background job) stays ignored. Outside the main thread Python cannot handle signals, and
    this context does nothing.
    """
    if _caught and threading.current_thread() is threading.main_thread():
        yield _caught[0]
        return
    interrupts = Interrupts()
    try:
        if threading.current_thread() is not threading.main_thread():
            yield interrupts
            return
        # The descriptor closes a gap that a handler alone leaves: a signal between the last check of `requested` and
        # the beginning of a wait would be noticed only after the wait.
        former_descriptor = signal.set_wakeup_fd(interrupts.descriptor, warn_on_full_buffer=False)
        former_handlers = {number: signal.getsignal(number) for number in STOPPING}
        _caught.append(interrupts)
        try:
            for number, handler in former_handlers.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(number, interrupts.request)
            yield interrupts
        finally:
            for number, handler in former_handlers.items():
                if signal.getsignal(number) == interrupts.request:  # not if it has been replaced in the meantime
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(former_descriptor)
            _caught.remove(interrupts)
    finally:
        interrupts.close()


@contextmanager
def catch_interrupts() -> Iterator[Interrupts]:
    """Check `requested` in this context; the first signal then does not raise an exception."""
    with taken_over() as interrupts:
        interrupts.awaited += 1
        try:
            yield interrupts
        finally:
            interrupts.awaited -= 1


def request_stop() -> None:
    """Stop the current run, as a signal does: the user has stopped it elsewhere."""
    for interrupts in _caught:
        interrupts.request(signal.SIGINT, None)


def given_up() -> bool:
    """Whether a signal has interrupted the program, which is about to exit."""
    return bool(_caught) and _caught[0].gave_up is not None

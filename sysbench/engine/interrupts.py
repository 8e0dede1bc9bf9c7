"""Handling of Ctrl-C and similar signals, from the start of the program to its end.

The first signal ends a run cleanly, and aborts everything else. The second has no effect, so that it does not interrupt
saving. Every signal from the third on raises KeyboardInterrupt, whatever the program is doing.
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
"""Number of the first signal that always raises KeyboardInterrupt, counted from 1."""


class GivenUpError(KeyboardInterrupt):
    """The KeyboardInterrupt that a stopping signal raises.

    A subclass is necessary because of code that was compiled from a string, such as the methods of dataclasses. If a
    plain KeyboardInterrupt passes through such code, Python exits by SIGINT even if the exception is caught.
    """


class Interrupts:
    """Counts the signals that ask to stop the run; `fileno` becomes readable when a signal arrives."""

    def __init__(self) -> None:
        self._received, self.descriptor = os.pipe()
        os.set_blocking(self._received, False)
        os.set_blocking(self.descriptor, False)
        self._asked = 0
        self.awaited = 0
        """Number of nested `catch_interrupts` contexts, in which the first signal raises nothing."""
        self.gave_up: str | None = None
        """Name of the signal that raised KeyboardInterrupt."""

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._asked > 0

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a signal arrives."""
        return self._received

    def sleep(self, duration_s: float) -> None:
        """Sleep for `duration_s`, or until a signal arrives."""
        select.select([self._received], [], [], duration_s)

    def drain(self) -> None:
        """Discard pending wake-ups, including those by other signals, such as SIGWINCH."""
        try:
            while os.read(self._received, 64):
                pass
        except BlockingIOError:
            return

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; raises KeyboardInterrupt from the third signal on, and on the first unless `awaited`."""
        self._asked += 1
        if self._asked >= INSISTENT or (self._asked == 1 and not self.awaited):
            self.gave_up = signal.Signals(number).name
            raise GivenUpError

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._received)
        os.close(self.descriptor)


_caught: list[Interrupts] = []
"""The current signal handler, if any; nested contexts share it."""


@contextmanager
def taken_over() -> Iterator[Interrupts]:
    """Handle the stopping signals in this context, and restore the previous handlers afterwards.

    An ignored signal (nohup, a background job) stays ignored. Outside the main thread, where Python cannot handle
    signals, this context does nothing.
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
    """Handle signals in this context without an exception on the first one; the caller checks `requested` instead."""
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

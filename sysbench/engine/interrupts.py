"""Handling of Ctrl-C and similar signals, from the start of the program to its end.

The first signal ends a run cleanly, and aborts everything else. The second has no effect, so that it does not interrupt
saving. The third and every later signal raise KeyboardInterrupt, whatever the program is doing.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

FORCED_STOP_COUNT = 3
"""Number of the first signal that always raises KeyboardInterrupt, counted from 1."""


class StopSignalError(KeyboardInterrupt):
    """The KeyboardInterrupt that a stopping signal raises.

    A subclass is necessary because of code that was compiled from a string, such as the methods of dataclasses. If a
    plain KeyboardInterrupt passes through such code, Python exits by SIGINT even if the exception is caught.
    """


class Interrupts:
    """Counts the signals that ask to stop the run; `fileno` becomes readable when a signal arrives."""

    def __init__(self) -> None:
        self._read_descriptor, self._write_descriptor = os.pipe()
        os.set_blocking(self._read_descriptor, False)
        os.set_blocking(self._write_descriptor, False)
        self._signal_count = 0
        self.deferrals = 0
        """Number of nested `catch_interrupts` contexts, in which the first signal raises nothing."""
        self.interrupting_signal: str | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._signal_count > 0

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a signal arrives."""
        return self._read_descriptor

    def sleep(self, duration_s: float) -> None:
        """Sleep for `duration_s`, or until a signal arrives."""
        select.select([self._read_descriptor], [], [], duration_s)

    def drain(self) -> None:
        """Discard pending wake-ups, including those caused by other signals, such as SIGWINCH."""
        try:
            while os.read(self._read_descriptor, 64):
                pass
        except BlockingIOError:
            return

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal.

        Raises KeyboardInterrupt on the third and later signals, and on the first if `deferrals` is 0.
        """
        self._signal_count += 1
        if self._signal_count >= FORCED_STOP_COUNT or (self._signal_count == 1 and not self.deferrals):
            self.interrupting_signal = signal.Signals(number).name
            raise StopSignalError

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._read_descriptor)
        os.close(self._write_descriptor)


_active: list[Interrupts] = []
"""The current signal handler, if any; nested contexts share it."""


@contextmanager
def handle_stop_signals() -> Iterator[Interrupts]:
    """Handle the stopping signals in this context, and restore the previous handlers afterwards."""
    if _active and threading.current_thread() is threading.main_thread():
        yield _active[0]
        return
    interrupts = Interrupts()
    try:
        if threading.current_thread() is not threading.main_thread():
            yield interrupts
            return
        # The descriptor closes a gap that a handler alone leaves: a signal between the last check of `requested` and
        # the beginning of a wait would be noticed only after the wait.
        former_descriptor = signal.set_wakeup_fd(interrupts._write_descriptor, warn_on_full_buffer=False)
        former_handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        _active.append(interrupts)
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
            _active.remove(interrupts)
    finally:
        interrupts.close()


@contextmanager
def catch_interrupts() -> Iterator[Interrupts]:
    """Handle signals in this context without raising on the first one; the caller checks `requested` instead."""
    with handle_stop_signals() as interrupts:
        interrupts.deferrals += 1
        try:
            yield interrupts
        finally:
            interrupts.deferrals -= 1


def request_stop() -> None:
    """Stop the current run as a signal would; used when the user has stopped another rank."""
    for interrupts in _active:
        interrupts.request(signal.SIGINT, None)


def is_interrupted() -> bool:
    """Whether a signal has interrupted the program, which is about to exit."""
    return bool(_active) and _active[0].interrupting_signal is not None


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

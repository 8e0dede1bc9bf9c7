"""Ctrl-C and similar signals, as something an event loop can wait for."""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a run cleanly."""


class Interrupts:
    """Whether the user wants to stop the run; becomes readable, in the sense of select, when that is so."""

    def __init__(self, receiver: socket.socket) -> None:
        self.requested = False
        self._closing = False
        self._receiver = receiver

    def fileno(self) -> int:
        """File descriptor to wait for."""
        return self._receiver.fileno()

    def sleep(self, duration_s: float) -> None:
        """Sleep for this long, or until a signal arrives."""
        select.select([self._receiver], [], [], duration_s)

    def drain(self) -> None:
        """Discard wake-ups that have been handled; signals that are no request to stop (such as SIGWINCH) also wake."""
        try:
            while self._receiver.recv(64):
                pass
        except BlockingIOError:
            return

    def ignore_impatience(self) -> None:
        """Ignore further signals: the run now ends by itself and soon, and a second signal must not interrupt that."""
        self._closing = True

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first requests a stop, the second raises KeyboardInterrupt wherever the program is."""
        if self.requested and not self._closing:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def catch_interrupts() -> Iterator[Interrupts]:
    """Handle the stopping signals in this context, and restore the previous handlers afterwards.

    An ignored signal (nohup, a background job) stays ignored. Outside the main thread Python cannot handle signals, and
    this context does nothing.
    """
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        interrupts = Interrupts(receiver)
        if threading.current_thread() is not threading.main_thread():
            yield interrupts
            return
        # The descriptor closes a gap that a handler alone leaves: a signal between the last check of `requested` and
        # the beginning of a wait would be noticed only after the wait.
        former_descriptor = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        former_handlers = {number: signal.getsignal(number) for number in STOPPING}
        try:
            for number, handler in former_handlers.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(number, interrupts.request)
            yield interrupts
        finally:
            for number, handler in former_handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(former_descriptor)

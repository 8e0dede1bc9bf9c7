"""Ctrl-C and its kin, as something a loop can wait for."""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run in order."""


class Interrupts:
    """Whether the user wants the run to end; readable, in the sense of select, as soon as that is so."""

    def __init__(self, receiver: socket.socket) -> None:
        self.requested = False
        self._closing = False
        self._receiver = receiver

    def fileno(self) -> int:
        """What to wait for."""
        return self._receiver.fileno()

    def sleep(self, duration_s: float) -> None:
        """Do nothing for so long, or until a signal comes."""
        select.select([self._receiver], [], [], duration_s)

    def drain(self) -> None:
        """Forget the wake-ups that have been seen; a signal that is no request (SIGWINCH, say) wakes too."""
        try:
            while self._receiver.recv(64):
                pass
        except BlockingIOError:
            return

    def ignore_impatience(self) -> None:
        """From now on everything ends by itself, and soon; a second signal must not cut that short."""
        self._closing = True

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first is a request, the second raises KeyboardInterrupt wherever the program is."""
        if self.requested and not self._closing:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def catch_interrupts() -> Iterator[Interrupts]:
    """Take the stopping signals over, and give them back in the end.

    One that is ignored (nohup, a job in the background) stays ignored. Outside the main thread Python can catch no
    signal, and none is caught.
    """
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        interrupts = Interrupts(receiver)
        if threading.current_thread() is not threading.main_thread():
            yield interrupts
            return
        # The descriptor closes a gap that a handler alone leaves: a signal between the last look at `requested` and
        # the beginning of a wait would be noticed only after it.
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

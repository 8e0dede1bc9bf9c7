"""Ctrl-C and its kin, from the first line of the program to its last.

The first request to stop is honoured: a run ends in order, and anything else is given up. The second changes nothing,
so that impatience does not cut short what is being saved. From the third on, KeyboardInterrupt is raised wherever the
program is.
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
"""Signals that end a run in order."""

INSISTENT = 3
"""So many requests cut everything short."""


class GivenUpError(KeyboardInterrupt):
    """A class of our own: for KeyboardInterrupt itself Python ends by SIGINT, even where it has been caught.

    That is so once it has passed through code that was made from a string, as dataclasses are.
    """


class Interrupts:
    """Whether the user wants the run to end; readable, in the sense of select, as soon as that is so."""

    def __init__(self) -> None:
        self._received, self.descriptor = os.pipe()
        os.set_blocking(self._received, False)
        os.set_blocking(self.descriptor, False)
        self._asked = 0
        self.awaited = 0
        """How many runs, one within the other, look whether they are to end: nothing is raised in the midst of them."""
        self.gave_up: str | None = None
        """The signal for which KeyboardInterrupt was raised."""

    @property
    def requested(self) -> bool:
        """Whether there was a signal."""
        return self._asked > 0

    def fileno(self) -> int:
        """What to wait for."""
        return self._received

    def sleep(self, duration_s: float) -> None:
        """Do nothing for so long, or until a signal comes."""
        select.select([self._received], [], [], duration_s)

    def drain(self) -> None:
        """Forget the wake-ups that have been seen; a signal that is no request (SIGWINCH, say) wakes too."""
        try:
            while os.read(self._received, 64):
                pass
        except BlockingIOError:
            return

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; raises KeyboardInterrupt for the first that no run awaits, and from the third on."""
        self._asked += 1
        if self._asked >= INSISTENT or (self._asked == 1 and not self.awaited):
            self.gave_up = signal.Signals(number).name
            raise GivenUpError

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._received)
        os.close(self.descriptor)


_caught: list[Interrupts] = []
"""What has the stopping signals; whoever wants them as well shares it."""


@contextmanager
def taken_over() -> Iterator[Interrupts]:
    """Take the stopping signals over, and give them back in the end: the first interrupts what is within.

    One that is ignored (nohup, a job in the background) stays ignored. Outside the main thread Python can catch no
    signal, and none is caught.
    """
    if _caught and threading.current_thread() is threading.main_thread():
        yield _caught[0]
        return
    interrupts = Interrupts()
    try:
        if threading.current_thread() is not threading.main_thread():
            yield interrupts
            return
        # The descriptor closes a gap that a handler alone leaves: a signal between the last look at `requested` and
        # the beginning of a wait would be noticed only after it.
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
                if signal.getsignal(number) == interrupts.request:  # else somebody has decided otherwise meanwhile
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(former_descriptor)
            _caught.remove(interrupts)
    finally:
        interrupts.close()


@contextmanager
def catch_interrupts() -> Iterator[Interrupts]:
    """Look within whether there was a request, instead of being interrupted by the first."""
    with taken_over() as interrupts:
        interrupts.awaited += 1
        try:
            yield interrupts
        finally:
            interrupts.awaited -= 1


def given_up() -> bool:
    """Whether the program is ending because it was told to, with what was going on cut short."""
    return bool(_caught) and _caught[0].gave_up is not None

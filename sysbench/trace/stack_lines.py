"""Short forms of source lines for tables, and matching of untrusted names with a user's regular expression."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from types import FrameType
from typing import TYPE_CHECKING, Final

from sysbench.errors import UsageError

if TYPE_CHECKING:
    from sysbench.commands.memory.record import CodeLine

_PACKAGES = ("sysbench", "torch")
"""Directories below which a path is unambiguous without them."""


def place(stack: Sequence[CodeLine]) -> str | None:
    """`workload/attention.py:88 naive`: the innermost line of source code; None if there is none."""
    line = next((line for line in stack if line.line), None)
    return f"{shortened(line.filename)}:{line.line} {line.name}" if line else None


def shortened(filename: str) -> str:
    """Shorten a path: from the package on, without our own package's name; otherwise the last two parts."""
    parts = PurePosixPath(filename.replace("\\", "/")).parts
    for package in _PACKAGES:
        if package in parts[:-1]:
            position = len(parts) - 1 - parts[::-1].index(package)
            return "/".join(parts[position + (package == "sysbench") :])
    return "/".join(parts[-2:])


LIMIT_S: Final = 2.0
"""Longer than a reasonable pattern needs for all names of a profile."""

LONGEST_NAME: Final = 2000
"""Number of characters of a name that are examined."""


class _TooLongError(Exception):
    """The search has exceeded its time limit."""


def matching(pattern: re.Pattern[str], names: Iterable[str]) -> frozenset[str]:
    """Return the names that the pattern matches; raises UsageError if the pattern takes too long."""
    try:
        with _limited(LIMIT_S):
            return frozenset(name for name in names if pattern.search(name[:LONGEST_NAME]))
    except _TooLongError:
        raise UsageError(
            f"--kernel {pattern.pattern} takes longer than {LIMIT_S:.0f} s on the names of this profile: "
            "repetitions within repetitions, as in (a+)+, do that"
        ) from None


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise _TooLongError inside this context when the time is up: `re` checks for signals while it searches.

    On systems without timer signals, and outside the main thread, there is no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    others_clock = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *others_clock)  # a timer that was set before fires, if slightly late

"""Source lines shortened for tables, and names from outside matched by a user's regular expression."""

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
"""Below these a path says where it is by itself."""


def place(stack: Sequence[CodeLine]) -> str | None:
    """`workload/attention.py:88 naive`: the innermost line that is one; None where there is none."""
    line = next((line for line in stack if line.line), None)
    return f"{shortened(line.filename)}:{line.line} {line.name}" if line else None


def shortened(filename: str) -> str:
    """From the package on, which is left out if it is ours; otherwise the last two parts."""
    parts = PurePosixPath(filename.replace("\\", "/")).parts
    for package in _PACKAGES:
        if package in parts[:-1]:
            position = len(parts) - 1 - parts[::-1].index(package)
            return "/".join(parts[position + (package == "sysbench") :])
    return "/".join(parts[-2:])


LIMIT_S: Final = 2.0
"""Longer than this no sensible pattern takes for all the names of a profile."""

LONGEST_NAME: Final = 2000
"""Characters of a name that are looked at."""


class _TooLongError(Exception):
    """The pattern is still looking."""


def matching(pattern: re.Pattern[str], names: Iterable[str]) -> frozenset[str]:
    """The names in which the pattern is found; raises UsageError for a pattern that takes too long to find out."""
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
    """Raise _TooLongError within when the time is up: `re` looks for signals while it searches.

    Without a clock that signals, or in a thread that gets none, there is no limit.
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
        signal.setitimer(signal.ITIMER_REAL, *others_clock)  # whoever has set one gets its signal, if a little later

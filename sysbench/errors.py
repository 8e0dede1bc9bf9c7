"""The one family of exceptions that sysbench raises on purpose; each carries the exit code it ends with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SysbenchError(Exception):
    """Something went wrong that one clear line explains; the command line prints it and exits with `exit_code`."""

    exit_code = 1


class UsageError(SysbenchError):
    """What was asked for is not allowed: a bad value, a log of another spec, a device that is not there."""

    exit_code = 2


class OptionError(UsageError):
    """An option has a value that it does not take; `field` is the one of the spec, None for options together."""

    def __init__(self, message: str, field: str | None) -> None:
        super().__init__(message)
        self.field = field


class OutputError(SysbenchError):
    """A result could not be written: no such directory, no permission, a full disk."""


class LogError(SysbenchError):
    """A log or record could not be read: truncated, foreign, or of a newer schema."""

    exit_code = 2


class UnavailableError(SysbenchError):
    """This combination does not exist here: a kernel that this device, data type or shape has not got."""


class DoesNotFitError(SysbenchError, MemoryError):
    """Memory does not suffice: known by simulation, or by having run out of it."""


class NotTriedError(SysbenchError):
    """It is known beforehand how it would end, so it was left alone."""


class OverBudgetError(NotTriedError):
    """It would take longer than it may: known from smaller ones, or from the first call."""


class BeyondMemoryError(NotTriedError):
    """It would take more of the host's memory than there is."""


def nearest(value: str, choices: Iterable[str]) -> str | None:
    """The choice a mistyped `value` most likely meant, or None if none is close."""
    by_lower_case = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(value.lower(), by_lower_case, n=1, cutoff=0.5)
    return by_lower_case[matches[0]] if matches else None


def unknown(value: str, noun: str, choices: Iterable[str]) -> str:
    """One line for a value outside a closed set: what it is not, the nearest choice, and all of them."""
    listed = list(choices)
    hint = nearest(value, listed)
    question = f" Did you mean {hint}?" if hint else ""
    return f"{value or '(nothing)'} is not {noun}.{question} ({', '.join(listed)})"

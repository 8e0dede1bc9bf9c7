"""All exceptions that sysbench raises deliberately; each carries the exit code of the program."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SysbenchError(Exception):
    """An error that one clear line explains; the command line prints it and exits with `exit_code`."""

    exit_code = 1


class UsageError(SysbenchError):
    """An invalid request: a bad value, a log with a different spec, a missing device."""

    exit_code = 2


class OptionError(UsageError):
    """An option has an invalid value; `field` is its field in the spec, or None for several options together."""

    def __init__(self, message: str, field: str | None) -> None:
        super().__init__(message)
        self.field = field


class OutputError(SysbenchError):
    """A result could not be written: no such directory, no permission, a full disk."""


class LogError(SysbenchError):
    """A log or record could not be read: truncated, foreign, or of a newer schema."""

    exit_code = 2


class UnavailableError(SysbenchError):
    """This combination is not available: no kernel for this device, data type or shape."""


class DoesNotFitError(SysbenchError, MemoryError):
    """The memory is insufficient, according to a simulation or an allocation that failed."""


class NotTriedError(SysbenchError):
    """The cell was not run because its outcome is already known."""


class OverBudgetError(NotTriedError):
    """The cell would take longer than allowed, judging by smaller cells or by its first call."""


class BeyondMemoryError(NotTriedError):
    """The cell would need more host memory than is available."""


def nearest(value: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a mistyped `value` most likely meant, or None if none is close."""
    by_lower_case = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(value.lower(), by_lower_case, n=1, cutoff=0.5)
    return by_lower_case[matches[0]] if matches else None


def unknown(value: str, noun: str, choices: Iterable[str]) -> str:
    """Return one line for a value outside a closed set: the value, the nearest choice, and all choices."""
    listed = list(choices)
    hint = nearest(value, listed)
    question = f" Did you mean {hint}?" if hint else ""
    return f"{value or '(nothing)'} is not {noun}.{question} ({', '.join(listed) or 'there are none'})"

"""All exceptions that sysbench raises deliberately; each class has its own exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class SysbenchError(Exception):
    """Base class of errors with a one-line message, which the command line prints before it exits with `exit_code`."""

    exit_code = 1


class UsageError(SysbenchError):
    """An invalid request: a bad value, a log with a different spec, a missing device."""

    exit_code = 2


@dataclass(frozen=True)
class Refusal:
    """Why something that was asked for is not possible: the reason, what to do instead, and the option at fault.

    The reason is a phrase about the option, `is a CUDA format`, or a clause if there is no option.
    """

    reason: str
    remedy: str = ""
    option: str = ""

    def __str__(self) -> str:
        said = f"{self.option} {self.reason}" if self.option else self.reason
        return f"{said}. {self.remedy[0].upper()}{self.remedy[1:]}" if self.remedy else said


class OptionError(UsageError):
    """An invalid value of an option; `field` is the option's field in the spec, or None if several options conflict."""

    def __init__(self, reason: str | Refusal, field: str | None, name: str = "") -> None:
        """`name` is how the message names the field: `--ctx`; the reason is a phrase about it."""
        super().__init__(f"{name} {reason}" if name else str(reason))
        self.reason = reason
        self.field = field


class SpecError(OptionError, ValueError):
    """An invalid field of a spec that a program builds."""


class OutputError(SysbenchError):
    """A result could not be written: no such directory, no permission, a full disk."""


class LogError(SysbenchError):
    """A log or record could not be read: truncated, written by another program, or with a newer schema."""

    exit_code = 2


class UnavailableError(SysbenchError):
    """The requested combination is not available: no kernel for this device, data type or shape."""


class DoesNotFitError(SysbenchError, MemoryError):
    """There is not enough memory, according to a simulation or a failed allocation."""


class OverBudgetError(SysbenchError):
    """A cell was skipped: it would take longer than allowed, judging by earlier cells or by its own first call."""

    def __init__(self, message: str, expected_s: float) -> None:
        """`expected_s` is the time that the cell would take."""
        super().__init__(message)
        self.expected_s = expected_s


class BeyondMemoryError(SysbenchError):
    """A cell was skipped: it would need more host memory than is available."""


MAX_MESSAGE_CHARACTERS = 2000
"""Longest part of an exception's message that is kept: programs put whole tensors and files into messages."""


def message_of(error: BaseException) -> str:
    """Return the beginning of an exception's message on one line, without its type; empty if it has none."""
    return " ".join(str(error)[:MAX_MESSAGE_CHARACTERS].split())


def description_of(error: BaseException) -> str:
    """Return the type of an exception and the beginning of its message on one line."""
    return f"{type(error).__name__}: {message_of(error)}".removesuffix(": ")


def nearest(value: str, choices: Iterable[str], least_likeness: float = 0.5) -> str | None:
    """Return the choice closest to a mistyped `value`, or None if none is close."""
    by_lower_case = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(value.lower(), by_lower_case, n=1, cutoff=least_likeness)
    return by_lower_case[matches[0]] if matches else None


def unknown(value: str, noun: str, choices: Iterable[str], also: str = "") -> str:
    """Return a one-line message for an invalid value: the value, the closest choice, and all choices.

    `also` names what is allowed besides the choices: `or a pattern of names`.
    """
    listed = list(choices)
    hint = nearest(value, listed)
    question = f" Did you mean {hint}?" if hint else ""
    named = ", ".join([*listed, also] if also else listed)
    allowed = f".{question} ({named})" if listed else "; there are none"
    return f"{value or '(nothing)'} is not {noun}{allowed}"

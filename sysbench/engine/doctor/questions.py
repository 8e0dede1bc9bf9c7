"""Questions that this process answers itself, each for at most so long; what fails is unknown, and said why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

LIMIT_S = 2.0
"""/proc and /sys answer within a millisecond; what takes longer hangs."""


class Questions:
    """Asks, and keeps the reasons of what got no answer."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self.unknown: dict[str, str] = {}
        """By what was asked for."""

    def ask(self, field: str, question: Callable[[], Answer]) -> Answer | None:
        """The answer, or None and an entry in `unknown`."""
        answers: list[Answer] = []
        failures: list[str] = []

        def attempt() -> None:
            try:
                answers.append(question())
            except Exception as error:  # noqa: BLE001  A machine may be broken in any way, and the rest still counts.
                failures.append(f"{type(error).__name__}: {error}".removesuffix(": "))

        # A thread that hangs is left behind; it does not keep the process from ending.
        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if answers:
            return answers[0]
        self.unknown[field] = failures[0] if failures else f"no answer within {self._limit_s:g} s"
        return None

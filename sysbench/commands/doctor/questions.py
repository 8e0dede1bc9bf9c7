"""Questions that this process answers itself within a time limit, and the check of the allocator's settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from sysbench.commands.doctor.record import AllocatorSection
from sysbench.simulate.allocator.settings import ENVIRONMENT_VARIABLES, AllocatorSettings, NotSimulatedError

Answer = TypeVar("Answer")

TIMEOUT_S = 2.0
"""Time limit: /proc and /sys answer within a millisecond, so a slower answer means a hang."""


class Questions:
    """Calls functions with a time limit, and collects the reasons for failures."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.unknown: dict[str, str] = {}
        """Reasons by field."""

    def ask(self, field: str, question: Callable[[], Answer]) -> Answer | None:
        """Return the result of `question`; on failure or timeout, store the reason in `unknown` and return None."""
        answers: list[Answer] = []
        failures: list[str] = []

        def attempt() -> None:
            try:
                answers.append(question())
            except Exception as error:  # noqa: BLE001  A machine may be broken in any way; other questions still count.
                failures.append(f"{type(error).__name__}: {error}".removesuffix(": "))

        # A thread that hangs is abandoned; as a daemon, it does not keep the process alive.
        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if answers:
            return answers[0]
        self.unknown[field] = failures[0] if failures else f"no answer within {self._timeout_s:g} s"
        return None


def check_allocator_settings(environment: Mapping[str, str] = os.environ) -> AllocatorSection:
    """Return the allocator's settings in the environment, with any problem in them. Never raises."""
    given = {name: environment[name] for name in ENVIRONMENT_VARIABLES if name in environment}
    if not given:
        return AllocatorSection()
    (variable, text), *others = given.items()
    problem = not_simulated = None
    try:
        AllocatorSettings.parse(text)
    except NotSimulatedError as error:
        not_simulated = str(error)
    except ValueError as error:
        problem = str(error)
    overridden = next((f"{name}={other}" for name, other in others if other != text), None)
    return AllocatorSection(
        variable=variable, text=text, problem=problem, not_simulated=not_simulated, overridden=overridden
    )

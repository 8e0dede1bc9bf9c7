"""Pure functions that are asked the same thing many times in a row."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


KEPT = 3
"""Results that are kept: a screen asks for the same block at more than one size."""


def remembered(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Answer with an earlier result while the arguments are the same as in one of the last few calls.

    The same means the same object, or for numbers and strings an equal one: what is folded from events is never
    changed in place, and comparing identities costs nothing, unlike hashing or comparing long tuples. The function
    must be pure.
    """
    last: list[tuple[tuple[Any, ...], Result]] = []

    @wraps(function)
    def answer(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        asked = (*arguments, *keywords.values())
        for before, result in last:
            if _same(before, asked):
                return result
        result = function(*arguments, **keywords)
        last[:] = [(asked, result), *last[: KEPT - 1]]
        return result

    return answer


def _same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    return len(before) == len(now) and all(
        one is other or (isinstance(one, int | float | str) and type(one) is type(other) and one == other)
        for one, other in zip(before, now, strict=True)
    )

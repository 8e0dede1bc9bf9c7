"""The axis grammar: how one option specifies one or several values.

`128`            one value
`128,256`        a list
`128-1024*2`     geometric: 128, 256, 512, 1024
`10-50+10`       arithmetic: 10, 20, 30, 40, 50
Lists and ranges can be mixed: `64,128-512*2`. Order is kept; repeated values are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Annotated, TypeVar

from pydantic import BeforeValidator

from sysbench.errors import unknown
from sysbench.spec.quantities import MAX_SIZE

MAX_VALUES = 1000
"""Upper limit for the number of values of one axis; more are probably a typing error."""

MAX_DIGITS = 1000
"""Longest whole number that is read; Python itself reads 4,300 digits."""

Scalar = int | float | bool | str | None
Value = TypeVar("Value", int, str)

_INTEGER = re.compile(r"[+-]?\d+")
_RANGE = re.compile(r"(?P<first>\d+)-(?P<last>\d+)(?:(?P<operator>[*+])(?P<step>\d+))?")


def integers(minimum: int, maximum: int = MAX_SIZE) -> Callable[[object], tuple[int, ...]]:
    """Return a parser of integer axes whose values must lie in `minimum`..`maximum`, inclusive; raises ValueError."""

    def parse(value: object) -> tuple[int, ...]:
        numbers = parse_integers(value)
        for number in numbers:
            if not minimum <= number <= maximum:
                bounds = f"{minimum} or more" if number < minimum and maximum == MAX_SIZE else f"{minimum} to {maximum}"
                nearest = minimum if number < minimum else maximum
                raise ValueError(f"{number} is out of range: it must be {bounds}. Nearest: {nearest}")
        return numbers

    return parse


def is_range(word: str) -> bool:
    """Return whether a word is written as a range of whole numbers, with or without a stride: `0-9`, `1-8*2`."""
    return _RANGE.fullmatch(word.strip()) is not None


def choices(
    noun: str, allowed: Iterable[str], accepts: Callable[[str], object] = lambda word: False, also: str = ""
) -> Callable[[object], tuple[str, ...]]:
    """Return a parser of axes over the names in `allowed`, and any other words that it `accepts`; raises ValueError.

    Names are recognised whatever their case.
    """
    names = tuple(allowed)
    by_lower_case = {name.lower(): name for name in names}

    def parse(value: object) -> tuple[str, ...]:
        words = _distinct(
            word if word in names else by_lower_case.get(word.lower(), word) for word in split_words(value)
        )
        for word in words:
            if word not in names and not accepts(word):
                raise ValueError(unknown(word, noun, names, also))
        return words

    return parse


def split_words(value: object) -> tuple[str, ...]:
    """Return the words of a comma-separated string, or of a list or tuple, without duplicates."""
    words = value.split(",") if isinstance(value, str) else _as_tuple(value)
    return _distinct(str(word).strip() for word in words)


Sizes = Annotated[tuple[int, ...], BeforeValidator(integers(1))]


Texts = Annotated[tuple[str, ...], BeforeValidator(split_words)]


def parse_share(value: object) -> object:
    """Convert text such as `1%` or `0.01` to a share; return other types unchanged; raises ValueError."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        found = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"{value} is not a share: write 1% or 0.01") from None
    if 1 <= found <= 100 and not text.endswith("%"):
        raise ValueError(f"{text} is {text} times the whole, or {100 * found:g}%: did you mean {text}%?")
    return found


def parse_integers(value: object) -> tuple[int, ...]:
    """Parse an axis of whole numbers; raises ValueError for anything else."""
    if isinstance(value, str):
        return _distinct(number for item in value.split(",") for number in _parse_item(item.strip(), value))
    numbers = _as_tuple(value)
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise ValueError(f"{value!r} is not a list of whole numbers")
    return _distinct(int(str(number)) for number in numbers)


def parse_whole_number(digits: str) -> int:
    """Convert digits to an integer; raises ValueError for more than `MAX_DIGITS`."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"{digits} is too large")
    return int(digits)


def _as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _distinct(values: Iterable[Value]) -> tuple[Value, ...]:
    distinct: dict[Value, None] = {}
    for value in values:
        distinct[value] = None
        if len(distinct) > MAX_VALUES:
            raise ValueError(f"has more than {MAX_VALUES} values: use a larger stride")
    return tuple(distinct)


def _parse_item(item: str, axis: str) -> Iterator[int]:
    if _INTEGER.fullmatch(item):
        yield parse_whole_number(item)
        return
    found = _RANGE.fullmatch(item)
    if found is None:
        raise ValueError(
            f"{axis or '(nothing)'} is not a value, list or range: write 128 or 128,256 or 128-1024*2 or 10-50+10"
        )
    first, last = parse_whole_number(found["first"]), parse_whole_number(found["last"])
    if found["operator"] is None:
        doubling = f"{item}*2 (doubling) or " if first else ""
        raise ValueError(f"{item} has no stride: write {doubling}{item}+{max(last - first, 1)} (adding)")
    if last < first:
        raise ValueError(f"{item} runs backwards: write {last}-{first}{found['operator']}{found['step']}")
    operator = found["operator"]
    step = parse_whole_number(found["step"])
    if step < (2 if operator == "*" else 1) or (operator == "*" and first == 0):
        raise ValueError(f"{item} never reaches {last}: multiply by 2 or more (not from 0), or add 1 or more")
    value = first
    while value <= last:
        yield value
        value = value * step if operator == "*" else value + step


def parse_scalar(word: str) -> Scalar:
    """Convert a word to a Python value: `true`, `false`, `none`, an int or a float; any other word remains a str."""
    constants: Mapping[str, Scalar] = {"true": True, "false": False, "none": None}
    if word.lower() in constants:
        return constants[word.lower()]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<suffix>[kmbt]?)", re.IGNORECASE)
_POWERS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}


def parse_amount(value: object) -> object:
    """Parse an amount of tokens such as `500k` or `1.5B` into a whole number; raises ValueError for other text."""
    if not isinstance(value, str):
        return value
    found = _AMOUNT.fullmatch(value.replace("_", "").replace(",", "").strip())
    if found is None:
        raise ValueError(f"{value or '(nothing)'} is not a number of tokens, such as 500k, 20M or 1.5B")
    amount = float(found["number"]) * 10 ** _POWERS[found["suffix"].lower()]
    if amount == inf:
        raise ValueError(f"{value} is too large")
    return round(amount)

"""Rendered lines that are kept for as long as nothing in them changes, and ways to put them together.

Laying out a table is what drawing costs. A `Block` does it once and is then only copied out.

Pure functions that are asked the same thing many times in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from sysbench.render import theme

Lines = list[list[Segment]]


@dataclass(frozen=True)
class Block:
    """A renderable that keeps its rendered lines; none is wider than the width it is asked for."""

    content: RenderableType
    _kept: dict[tuple[object, ...], Lines] = field(default_factory=dict, repr=False, compare=False)

    def lines(self, console: Console, options: ConsoleOptions, width: int) -> Lines:
        """The lines at this width; laid out at most once for a console's kind and a width."""
        key = (width, options.encoding, console.color_system, console.no_color)
        if key not in self._kept:
            rendered = console.render_lines(self.content, options.update(width=width, height=None), pad=False)
            cut = (Segment.adjust_line_length(line, width, pad=False) for line in rendered)
            # Every segment is handled again whenever the screen is printed: neighbours of one style become one.
            self._kept[key] = [list(Segment.simplify(line)) for line in cut]
        return self._kept[key]


@dataclass(frozen=True)
class Row:
    """Renderables that are one line high, one after the other, each with the width it is given."""

    parts: tuple[tuple[RenderableType, int], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Every part padded or cut to its width."""
        for content, width in self.parts:
            if width > 0:
                yield from Segment.adjust_line_length(_first_line(content, console, options, width), width)
        yield Segment.line()


@dataclass(frozen=True)
class OneLine:
    """A text that is one line, and is cut rather than wrapped."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The text as it is: whether and where it could be wrapped is not even looked at."""
        yield from _segments(self.text, console)
        yield Segment.line()


def _segments(text: Text, console: Console) -> Iterable[Segment]:
    """Of a text with `end=""`; its own style is left to whoever renders it."""
    return Segment.apply_style(text.render(console), console.get_style(text.style))


def _first_line(content: RenderableType, console: Console, options: ConsoleOptions, width: int) -> list[Segment]:
    if isinstance(content, Text):
        return list(_segments(content, console))
    return console.render_lines(content, options.update(width=width, height=1), pad=False)[0]


def beside(left: Lines, right: Lines, left_width: int, gap: int) -> Lines:
    """Two columns of lines beside each other."""
    count = max(len(left), len(right))
    padded = [Segment.adjust_line_length(line, left_width + gap) for line in (*left, *[[]] * (count - len(left)))]
    return [[*line, *other] for line, other in zip(padded, (*right, *[[]] * (count - len(right))), strict=True)]


def pieces_that_fit(pieces: Sequence[tuple[str, str]], width: int, separator: str = " · ") -> Text:
    """As many of the pieces, texts with their styles, as fit on one line; the first is cut if it must be."""
    line = Text(end="")
    for content, style in pieces:
        joint = separator if line.plain else ""
        if line.plain and cell_len(line.plain + joint + content) > width:
            break
        line.append(joint, "dim").append(content, style)
    line.truncate(width, overflow="crop")
    return line


def fitted(line: Text, encoding: str) -> Text:
    """The line in characters that the terminal has; a line that has to be changed loses its colours."""
    shown = theme.fitted(line.plain, encoding)
    return line if shown == line.plain else Text(shown)


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

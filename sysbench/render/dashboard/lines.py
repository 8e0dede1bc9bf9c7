"""Rendered lines that are cached until their content changes, and functions that combine lines.

Layout is the most expensive part of drawing a table. A `Block` lays out its content once; afterwards its lines are
only copied. `memoized` caches the results of pure functions.
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

from sysbench import units
from sysbench.render import theme

Lines = list[list[Segment]]


@dataclass(frozen=True)
class Block:
    """A renderable that caches its rendered lines, cut to the requested width."""

    content: RenderableType
    _cache: dict[tuple[object, ...], Lines] = field(default_factory=dict, repr=False, compare=False)

    def lines(self, console: Console, options: ConsoleOptions, width: int) -> Lines:
        """Return the lines for this width, which are laid out once for each width, encoding and colour support."""
        key = (width, options.encoding, console.color_system, console.no_color)
        if key not in self._cache:
            rendered = console.render_lines(self.content, options.update(width=width, height=None), pad=False)
            cut = (Segment.adjust_line_length(line, width, pad=False) for line in rendered)
            # Rich processes every segment at each print, so adjacent segments of one style are merged.
            self._cache[key] = [list(Segment.simplify(line)) for line in cut]
        return self._cache[key]


@dataclass(frozen=True)
class Row:
    """One-line renderables side by side, each with a given width."""

    parts: tuple[tuple[RenderableType, int], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield every part, padded or cut to its width."""
        for content, width in self.parts:
            if width > 0:
                line = list(_segments(content, console)) if isinstance(content, Text) else None
                if line is None:
                    line = console.render_lines(content, options.update(width=width, height=1), pad=False)[0]
                yield from Segment.adjust_line_length(line, width)
        yield Segment.line()


@dataclass(frozen=True)
class OneLine:
    """A single line of text that is truncated instead of wrapped."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the text without looking for line breaks, which would take time."""
        yield from _segments(self.text, console)
        yield Segment.line()


def _segments(text: Text, console: Console) -> Iterable[Segment]:
    """Return the segments of a text, with the text's own style applied."""
    return Segment.apply_style(text.render(console), console.get_style(text.style))


def side_by_side(left: Lines, right: Lines, left_width: int, gap: int) -> Lines:
    """Put two blocks of lines side by side."""
    count = max(len(left), len(right))
    padded = [Segment.adjust_line_length(line, left_width + gap) for line in (*left, *[[]] * (count - len(left)))]
    return [[*line, *other] for line, other in zip(padded, (*right, *[[]] * (count - len(right))), strict=True)]


def pieces_that_fit(pieces: Sequence[tuple[str, str]], width: int, separator: str = " · ") -> Text:
    """Join as many of the pieces (text, style) as fit on one line; the first piece is cut if necessary."""
    line = Text(end="")
    for content, style in pieces:
        joint = separator if line.plain else ""
        if line.plain and cell_len(line.plain + joint + content) > width:
            break
        line.append(joint, "dim").append(content, style)
    line.truncate(width, overflow="crop")
    return line


def encodable_text(line: Text, encoding: str) -> Text:
    """Replace characters that the encoding lacks; a line that is changed loses its colours."""
    shown = theme.terminal_line(line.plain, encoding)
    return line if shown == line.plain else Text(shown)


def round_remaining(value_s: float) -> float:
    """Round a remaining time, so that the display does not change with every step."""
    return value_s if value_s < 20 else round(value_s / 10) * 10


def remaining_text(value_s: float) -> str:
    """Format a remaining time: `3 min 20 s left`."""
    return f"{units.duration(value_s)} left" if value_s >= 1 else "under 1 s left"


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


CACHE_SIZE = 3
"""Number of cached results; several, because a screen requests the same block at several sizes."""


def memoized(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Cache the results of the last few calls of a pure function.

    Numbers and strings are compared by equality, other arguments by identity: states are never modified in place, and
    comparing identities is cheap, unlike hashing or comparing long tuples.
    """
    recent: list[tuple[tuple[Any, ...], Result]] = []

    @wraps(function)
    def wrapper(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        key = (*arguments, *keywords.values())
        for before, result in recent:
            if _same(before, key):
                return result
        result = function(*arguments, **keywords)
        recent[:] = [(key, result), *recent[: CACHE_SIZE - 1]]
        return result

    return wrapper


def _same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    return len(before) == len(now) and all(
        one is other or (isinstance(one, int | float | str) and type(one) is type(other) and one == other)
        for one, other in zip(before, now, strict=True)
    )

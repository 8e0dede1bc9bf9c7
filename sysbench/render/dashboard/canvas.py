"""Lines of text for a dashboard: labels, bars, tables, and as much of a list as fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sysbench import units
from sysbench.render import terminal, theme
from sysbench.render.table import Table

Piece = tuple[str, str]
"""A text and its style."""

LABEL_WIDTH = 9
"""Width of the label at the start of a line."""

MIN_LABEL_WIDTH = 32
"""Width below which lines have no label, so that values keep their units."""

MIN_BAR_WIDTH = 6


@dataclass(frozen=True)
class Canvas:
    """The space for lines on a terminal."""

    console: Console
    width: int

    @property
    def encoding(self) -> str:
        """Encoding of the terminal."""
        return self.console.encoding

    @property
    def plain(self) -> bool:
        """Whether the terminal shows no colours."""
        return self.console.color_system is None or bool(self.console.no_color)

    def join(self, pieces: Iterable[Piece], width: int | None = None, separator: str = " · ") -> Text:
        """Join as many pieces as fit on one line; the first piece is cut if necessary."""
        width = self.width if width is None else width
        separator = theme.terminal_line(separator, self.encoding)
        line = Text()
        for content, style in pieces:
            text = theme.terminal_line(content, self.encoding)
            joint = separator if line.plain else ""
            if line.plain and cell_len(line.plain + joint + text) > width:
                break
            line.append(joint, "dim").append(text, style)
        line.truncate(width, overflow="crop")
        return line

    def label(self, name: str) -> Text:
        """Return the label of a line; empty on a narrow terminal."""
        text = name.ljust(LABEL_WIDTH) if self.width >= MIN_LABEL_WIDTH else ""
        return Text(theme.terminal_line(text, self.encoding), theme.QUIET)

    def bar(self, completed: float, total: float, width: int, style: str = "cyan") -> Text:
        """Return a progress bar of exactly this width."""
        halves = int(min(max(completed / total, 0.0), 1.0) * width * 2)
        text = theme.terminal_line("━" * (halves // 2) + "╸" * (halves % 2), self.encoding)
        rest = width - len(text)
        return Text(text, style).append((" " if self.plain else "━") * rest, "bar.back")

    def after_bar(
        self, label: Text, completed: float, total: float, longest: int, after: Text, style: str = "cyan"
    ) -> Text:
        """Return a label, a bar of at most `longest` cells, and a text; without the bar if there is no room."""
        width = min(longest, self.width - label.cell_len - after.cell_len - 2)
        if total and width >= MIN_BAR_WIDTH:
            label = Text().append_text(label).append_text(self.bar(completed, total, width, style)).append("  ")
        return Text().append_text(label).append_text(after)

    def wrap(self, text: str, style: str) -> list[Text]:
        """Return a text on as many lines as it needs."""
        content = Text(theme.terminal_line(text, self.encoding), style)
        return list(content.wrap(self.console, self.width))

    def table(self, table: Table) -> list[Text] | None:
        """Return the lines of a table, without columns that do not fit; None if even the indispensable do not."""
        fitted = terminal.fit(table, self.width, self.encoding)
        return None if fitted.stacked else [Text.assemble(*line) for line in fitted.lines()]

    def fitted(self, line: Text) -> Text:
        """Return the line in characters that the terminal can show, cut to the width."""
        line = line.copy()
        line.truncate(self.width, overflow="ellipsis")
        shown = theme.terminal_line(line.plain, self.encoding)
        if shown != line.plain:
            line = Text(shown)  # a line that is changed loses its colours
            line.truncate(self.width, overflow="crop")
        return line


def round_remaining(value_s: float) -> float:
    """Round a remaining time, so that the display does not change with every step."""
    return value_s if value_s < 20 else round(value_s / 10) * 10


def remaining_text(value_s: float) -> str:
    """Format a remaining time: `3 min 20 s left`."""
    return f"{units.duration(value_s)} left" if value_s >= 1 else "under 1 s left"


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def memoized(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Cache the result of the last call of a pure function of all cells of a run, which may be many thousands.

    Arguments are compared by identity: states are never modified in place, and equal strings are one key of a cell.
    """
    last: list[tuple[tuple[object, ...], Result]] = []

    @wraps(function)
    def wrapper(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        key = (*arguments, *keywords.values())
        if not last or len(last[0][0]) != len(key) or any(a is not b for a, b in zip(last[0][0], key, strict=True)):
            last[:] = [(key, function(*arguments, **keywords))]
        return last[0][1]

    return wrapper

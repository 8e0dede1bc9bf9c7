"""A table whose columns are known to fit, as lines of a terminal.

`rich.table` measures every cell again to find out what `fit` has already decided, which takes several times as long as
all the rest of a drawing of the dashboard. That is time on a core that the measured process may be using, so here the
columns are only put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from sysbench.render import theme
from sysbench.render.numbers import ShownColumn, groups, repeated_axes
from sysbench.render.table import Cell, Measure, Table, Word

GAP = 2
"""Spaces between two columns."""

TONES = {"plain": "", "strong": "bold", "quiet": theme.QUIET, "good": theme.GOOD, "bad": theme.BAD}

Line = list[tuple[str, str]]
"""Texts with their styles, one after the other."""


@dataclass(frozen=True)
class Grid:
    """The columns of `table` that are shown, beside each other, each as wide as it needs to be."""

    table: Table
    columns: tuple[ShownColumn, ...]
    indent: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Headings and rows, without padding at the end of a line."""
        for line in self._lines():
            yield from _segments([(" " * self.indent, ""), *line])
            yield Segment.line()

    def _lines(self) -> Iterator[Line]:
        widths = widths_of(self.columns)
        rights = [
            _right(column, [row[position] for row in self.table.rows]) for position, column in enumerate(self.columns)
        ]
        if any(each.column.group for each in self.columns):
            yield _groups(self.columns, widths)
        titles = [each.column.title for each in self.columns]
        yield _beside(titles, ["bold"] * len(titles), widths, rights)
        if any(each.symbol for each in self.columns):
            symbols = [each.symbol for each in self.columns]
            yield _beside(symbols, [theme.QUIET] * len(symbols), widths, rights)
        above: tuple[Cell, ...] = ()
        for number, cells in enumerate(self.table.rows):
            texts = [each.texts[number] for each in self.columns]
            yield _beside(texts, _styles(cells, above[: self.table.axes - 1]), widths, rights)
            above = cells


def widths_of(columns: Sequence[ShownColumn]) -> list[int]:
    """What every column takes; the last one of a group also what its heading takes beyond the group's columns."""
    widths = [max(cell_len(text) for text in (each.column.title, each.symbol, *each.texts)) for each in columns]
    for group, members in groups(columns):
        missing = cell_len(group) - _across([widths[position] for position in members])
        widths[members[-1]] += max(0, missing)
    return widths


def _across(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _groups(columns: Sequence[ShownColumn], widths: Sequence[int]) -> Line:
    """Every group's heading in the middle of its columns."""
    line: Line = []
    for group, members in groups(columns):
        width = _across([widths[position] for position in members])
        line += [(" " * (GAP if line else 0), ""), (group.center(width), theme.ACCENT)]
    return line


def _beside(texts: Sequence[str], styles: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> Line:
    line: Line = []
    for text, style, width, right in zip(texts, styles, widths, rights, strict=True):
        space = " " * (width - cell_len(text))
        gap = " " * (GAP if line else 0)
        line += [(gap + space, ""), (text, style)] if right else [(gap, ""), (text, style), (space, "")]
    return line


def _styles(cells: Sequence[Cell], above: Sequence[Cell]) -> list[str]:
    """How the cells of a row are seen; an axis that repeats what stands above it steps back."""
    repeated = repeated_axes(cells, above)
    return [theme.QUIET] * repeated + [_style(cell) for cell in cells[repeated:]]


def _style(cell: Cell) -> str:
    if isinstance(cell, Measure | Word):
        return TONES[cell.tone]
    return theme.QUIET if cell is None else ""


def _right(column: ShownColumn, cells: Sequence[Cell]) -> bool:
    """Numbers stand to the right, and so do whole numbers in columns without a unit."""
    return column.column.numeric or all(isinstance(cell, int) for cell in cells)


def _segments(line: Line) -> Iterator[Segment]:
    """The line as few segments as possible, since all that is printed is handled segment by segment."""
    while line and not line[-1][0].strip():
        line = line[:-1]
    if line:
        text, style = line[-1]
        line = [*line[:-1], (text.rstrip(), style)]
    for style, parts in groupby(line, lambda each: each[1]):
        text = "".join(text for text, _ in parts)
        if text:
            yield Segment(text, Style.parse(style) if style else None)

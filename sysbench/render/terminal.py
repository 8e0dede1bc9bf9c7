"""Sheets and tables as Rich renderables, in as many columns as the terminal has room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from sysbench.render import theme
from sysbench.render.grid import GAP, Grid, widths_of
from sysbench.render.numbers import ShownColumn, shown
from sysbench.render.table import Cell, Measure, Remark, Sheet, Table, notes

INDENT = 1
"""Spaces before everything."""

STACKED_IMPORTANCE = 3
"""Columns up to this importance are listed where rows become lists."""

ELASTIC_WIDTH = 40
"""Cells that an elastic column keeps before other columns are left out."""

NARROWEST_ELASTIC_WIDTH = 16
"""Cells that it keeps when no other column can be left out any more."""

_MARKS = {
    "caution": ("!", theme.WARNING),
    "outcome": ("!", theme.BAD),
    "finding": ("", "bold"),
    "note": ("", theme.QUIET),
}


@dataclass(frozen=True)
class Fit:
    """The columns of a table that a width has room for, and the table of these columns alone."""

    table: Table
    columns: tuple[ShownColumn, ...]
    hidden: tuple[str, ...]
    stacked: bool
    """Not even the indispensable columns stand beside each other: every row becomes a small list."""


def fit(table: Table, width: int, encoding: str = "utf-8") -> Fit:
    """Leave out columns, the least important first, then deviations, until the table is at most `width` wide.

    Elastic columns give way first, down to ELASTIC_WIDTH, and then take what room is left.
    """
    kept = table
    while True:
        columns = _squeezed(_encoded(shown(kept), encoding), width, ELASTIC_WIDTH, encoding)
        if width_of(columns) <= width:
            return Fit(kept, columns, _hidden(table, kept), stacked=False)
        least = max(column.importance for column in kept.columns)
        if least == 0:
            break
        kept = _keeping(kept, least - 1)
    columns = _squeezed(_encoded(shown(kept, deviations=False), encoding), width, NARROWEST_ELASTIC_WIDTH, encoding)
    if width_of(columns) <= width:
        return Fit(kept, columns, _hidden(table, kept), stacked=False)
    # One under the other there is room for more than beside each other.
    listed = _keeping(table, STACKED_IMPORTANCE)
    return Fit(listed, _encoded(shown(listed, deviations=False), encoding), _hidden(table, listed), stacked=True)


def width_of(columns: Sequence[ShownColumn]) -> int:
    """Cells that a table of these columns takes, its indent included."""
    return INDENT + sum(widths_of(columns)) + GAP * (len(columns) - 1)


def grid(found: Fit, indent: int = 0) -> RenderableType:
    """The fitted columns beside each other, or rows as lists where they do not fit, without title and notes."""
    return _Indented(_stack(found), " " * indent) if found.stacked else Grid(found.table, found.columns, indent)


@dataclass(frozen=True)
class SheetView:
    """A sheet that lays itself out for whatever width it is printed at."""

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Subject, tables and remarks, with an empty line between them."""
        write = _Writer(options.encoding)
        for line in theme.lines_of(self.sheet.subject, options.max_width - INDENT):
            yield _Indented(write.text(line, theme.TITLE))
        for table in self.sheet.tables:
            yield Text("")
            yield from _titled(table, options, write)
        for number, remark in enumerate(self.sheet.remarks):
            if number == 0:
                yield Text("")
            yield from _remark(remark, write)


@dataclass(frozen=True)
class _Writer:
    """Makes texts in characters that the terminal's encoding has."""

    encoding: str

    def text(self, content: str, style: str = "") -> Text:
        return Text(theme.fitted(" ".join(content.split()), self.encoding), style)


def _titled(table: Table, options: ConsoleOptions, write: _Writer) -> Iterator[RenderableType]:
    yield _Indented(write.text(table.title, theme.QUIET))
    found = fit(table, options.max_width, options.encoding)
    yield grid(found, INDENT)
    for note in notes(found.table):
        yield _Indented(write.text(note, theme.QUIET))
    if found.hidden and not found.stacked:
        *others, last = found.hidden
        listed = ("a wider terminal also shows:", *(f"{name}," for name in others), last)
        for line in theme.lines_of(listed, options.max_width - INDENT, " "):
            yield _Indented(write.text(line, theme.QUIET))


def _remark(remark: Remark, write: _Writer) -> Iterator[RenderableType]:
    mark, style = _MARKS[remark.kind]
    if mark:
        yield _Indented(write.text(remark.text), f" {mark} ", style)
    else:
        yield _Indented(write.text(remark.text, style))
    if remark.remedy:
        yield _Indented(write.text(f"→ {remark.remedy}", theme.ACCENT), "   ")


@dataclass(frozen=True)
class _Indented:
    """Indents without padding to the right, which would follow the text into files and clipboards.

    `mark` stands before the first line, and the others begin where it ends.
    """

    content: RenderableType
    mark: str = " " * INDENT
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = cell_len(self.mark)
        inner = options.update(width=max(1, options.max_width - indent))
        for number, line in enumerate(console.render_lines(self.content, inner, pad=False)):
            yield Segment(" " * indent) if number else Segment(self.mark, console.get_style(self.style))
            yield from line
            yield Segment.line()


def _stack(found: Fit) -> RenderableType:
    """Every row as a small list, for terminals in which nothing stands beside anything."""
    blocks: list[RenderableType] = []
    for position, row in enumerate(found.table.rows):
        pairs = [(each, each.texts[position], cell) for each, cell in zip(found.columns, row, strict=True)]
        leading = " ".join(_named(each, cell, text) for each, text, cell in pairs if not each.column.numeric)
        blocks.append(Text(leading, "bold"))
        for each, text, cell in pairs:
            if each.column.numeric and text:
                unit = each.symbol if isinstance(cell, Measure) else ""
                name = f"{each.column.group} {each.column.title}".strip()
                # The number first, so that it does not lose its unit where the line is broken.
                blocks.append(_Indented(Text(" ".join(filter(None, (text, unit, name))))))
    return Group(*blocks)


def _named(column: ShownColumn, cell: Cell, text: str) -> str:
    """A bare number needs its heading beside it; a word speaks for itself."""
    return f"{column.column.title} {text}" if isinstance(cell, int) else text


def _encoded(columns: Sequence[ShownColumn], encoding: str) -> tuple[ShownColumn, ...]:
    """The columns in characters that the encoding has; their widths may change by it."""

    def fitted(text: str) -> str:
        return theme.fitted(text, encoding)

    return tuple(
        ShownColumn(
            replace(each.column, title=fitted(each.column.title), group=fitted(each.column.group)),
            fitted(each.symbol),
            tuple(fitted(text) for text in each.texts),
        )
        for each in columns
    )


def _squeezed(columns: tuple[ShownColumn, ...], width: int, narrowest: int, encoding: str) -> tuple[ShownColumn, ...]:
    """The columns with the texts of elastic ones shortened to the room there is, but not below `narrowest`."""
    for position in (number for number, each in enumerate(columns) if each.column.elastic):
        wide = max((cell_len(text) for text in columns[position].texts), default=0)
        room = max(narrowest, wide - max(0, width_of(columns) - width))
        texts = tuple(theme.fitted(theme.elided(text, room), encoding) for text in columns[position].texts)
        columns = (*columns[:position], replace(columns[position], texts=texts), *columns[position + 1 :])
    return columns


def _keeping(table: Table, importance: int) -> Table:
    """The table with the columns that are at least this important: a lower number is more important."""
    keep = [position for position, column in enumerate(table.columns) if column.importance <= importance]
    return replace(
        table,
        columns=tuple(table.columns[position] for position in keep),
        rows=tuple(tuple(row[position] for position in keep) for row in table.rows),
    )


def _hidden(table: Table, kept: Table) -> tuple[str, ...]:
    """What was left out: a heading that several share where all of it is gone, else the title."""
    left = {column.group for column in kept.columns}
    gone = (column for column in table.columns if column not in kept.columns)
    names = (column.title if column.group in left else column.group or column.title for column in gone)
    return tuple(dict.fromkeys(name for name in names if name))

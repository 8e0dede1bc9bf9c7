"""Sheets and tables as Rich renderables, with as many columns as fit on the terminal.

`rich.table` is not used: it lays out each cell by itself, which takes several times as long for thousands of rows, and
it has no headings over several columns.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from sysbench.render import theme
from sysbench.render.numbers import FormattedColumn, format_columns, groups, repeated_axes
from sysbench.render.table import Cell, Measure, Remark, Sheet, Table, Word, notes

GAP = 2
"""Spaces between two columns."""

TONES = {
    "plain": "",
    "strong": "bold",
    "quiet": theme.QUIET,
    "good": theme.GOOD,
    "doubtful": theme.WARNING,
    "bad": theme.BAD,
}

Line = list[tuple[str, str]]
"""Texts with their styles, in sequence."""


def widths_of(columns: Sequence[FormattedColumn]) -> list[int]:
    """Return the width of every column; the last column of a group is widened if the group's heading needs it."""
    widths = [
        max(cell_len(line) for text in (column.column.title, column.symbol, *column.texts) for line in text.split("\n"))
        for column in columns
    ]
    for group, members in groups(columns):
        missing = cell_len(group) - _total_width([widths[position] for position in members])
        widths[members[-1]] += max(0, missing)
    return widths


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _group_headings(columns: Sequence[FormattedColumn], widths: Sequence[int]) -> Line:
    line: Line = []
    for group, members in groups(columns):
        width = _total_width([widths[position] for position in members])
        line += [(" " * (GAP if line else 0), ""), (group.center(width), theme.ACCENT)]
    return line


def _row_lines(
    texts: Sequence[str], styles: Sequence[str], widths: Sequence[int], rights: Sequence[bool]
) -> Iterator[Line]:
    """Yield the lines of a row; a remedy, which begins with an arrow, is coloured to the end of its text."""
    parts = [text.split("\n") for text in texts]
    now = list(styles)
    for number in range(max(map(len, parts))):
        shown = [part[number] if number < len(part) else "" for part in parts]
        now = [
            theme.ACCENT if text.startswith(("→ ", "-> ")) else style for text, style in zip(shown, now, strict=True)
        ]
        yield _table_line(shown, now, widths, rights)


def _table_line(texts: Sequence[str], styles: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> Line:
    line: Line = []
    for text, style, width, right in zip(texts, styles, widths, rights, strict=True):
        space = " " * (width - cell_len(text))
        gap = " " * (GAP if line else 0)
        line += [(gap + space, ""), (text, style)] if right else [(gap, ""), (text, style), (space, "")]
    return line


def _style(cell: Cell) -> str:
    if isinstance(cell, Measure | Word):
        return TONES[cell.tone]
    return theme.QUIET if cell is None else ""


def _is_right_aligned(column: FormattedColumn, cells: Sequence[Cell]) -> bool:
    return column.column.numeric or all(isinstance(cell, int) for cell in cells)


def _segments(line: Line) -> Iterator[Segment]:
    """Yield a line without trailing spaces, one segment per style: Rich processes each segment separately."""
    while line and not line[-1][0].strip():
        line = line[:-1]
    if line:
        text, style = line[-1]
        line = [*line[:-1], (text.rstrip(), style)]
    for style, parts in groupby(line, lambda each: each[1]):
        text = "".join(text for text, _ in parts)
        if text:
            yield Segment(text, Style.parse(style) if style else None)


INDENT = 1
"""Indent of all lines."""

MAX_STACKED_IMPORTANCE = 3
"""Highest importance value of the columns that are listed when rows become lists."""

ELASTIC_WIDTH = 40
"""Width of an elastic column before other columns are hidden."""

MIN_ELASTIC_WIDTH = 16
"""Width of an elastic column when no other column can be hidden."""

_FIRM_TIMES = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}"
"""Stands for " × " while lines are broken, so that no product is."""

_MARKS = {
    "caution": ("!", theme.WARNING),
    "outcome": ("!", theme.BAD),
    "finding": ("", "bold"),
    "note": ("", theme.QUIET),
}


@dataclass(frozen=True)
class Fit:
    """A table reduced to the columns that fit the available width, in formatted form, without its title and notes."""

    table: Table
    columns: tuple[FormattedColumn, ...]
    hidden: tuple[str, ...]
    stacked: bool
    """Whether every row becomes a list, because even the indispensable columns do not fit side by side."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield headings and rows, indented and without trailing spaces."""
        if self.stacked:
            yield _Indented(_stack_rows(self))
            return
        for line in self.lines():
            yield from _segments([(" " * INDENT, ""), *line])
            yield Segment.line()

    def lines(self) -> Iterator[Line]:
        """Yield headings and rows."""
        widths = widths_of(self.columns)
        rights = [
            _is_right_aligned(column, [row[position] for row in self.table.rows])
            for position, column in enumerate(self.columns)
        ]
        if any(column.column.group for column in self.columns):
            yield _group_headings(self.columns, widths)
        titles = [column.column.title for column in self.columns]
        if any(titles):
            yield _table_line(titles, ["bold"] * len(titles), widths, rights)
        if any(column.symbol for column in self.columns):
            symbols = [column.symbol for column in self.columns]
            yield _table_line(symbols, [theme.QUIET] * len(symbols), widths, rights)
        above: tuple[Cell, ...] = ()
        for number, cells in enumerate(self.table.rows):
            texts = [column.texts[number] for column in self.columns]
            # An axis value that repeats the one above is dimmed.
            repeated = repeated_axes(cells, above[: self.table.axes - 1])
            styles = [theme.QUIET] * repeated + [_style(cell) for cell in cells[repeated:]]
            yield from _row_lines(texts, styles, widths, rights)
            above = cells


def fit(table: Table, width: int, encoding: str = "utf-8") -> Fit:
    """Hide columns, the least important first, then deviations, until the table is at most `width` wide.

    Elastic columns are first shortened to ELASTIC_WIDTH, and finally use the remaining space.
    """
    kept = table
    while True:
        columns = _narrowed(_encoded(format_columns(kept), encoding), width, ELASTIC_WIDTH, encoding)
        if width_of(columns) <= width:
            return Fit(kept, columns, _hidden_titles(table, kept), stacked=False)
        least = max(column.importance for column in kept.columns)
        if least == 0:
            break
        kept = _limit_importance(kept, least - 1)
    columns = _narrowed(_encoded(format_columns(kept, deviations=False), encoding), width, MIN_ELASTIC_WIDTH, encoding)
    if width_of(columns) <= width:
        return Fit(kept, columns, _hidden_titles(table, kept), stacked=False)
    # A list has room for more columns than a table.
    listed = _limit_importance(table, MAX_STACKED_IMPORTANCE)
    return Fit(
        listed,
        _encoded(format_columns(listed, deviations=False), encoding),
        _hidden_titles(table, listed),
        stacked=True,
    )


def width_of(columns: Sequence[FormattedColumn]) -> int:
    """Return the width of a table with these columns, including its indent."""
    return INDENT + sum(widths_of(columns)) + GAP * (len(columns) - 1)


@dataclass(frozen=True)
class SheetView:
    """A sheet that adapts to the width at which it is printed."""

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield subject, tables and remarks, separated by empty lines."""
        for line in theme.wrap_phrases(self.sheet.subject, options.max_width - INDENT):
            yield _Indented(_text(line, theme.TITLE, options.encoding))
        for table in self.sheet.tables:
            yield Text("")
            yield from _titled_table(table, options)
        if self.sheet.remarks:
            yield Text("")
        for remark in self.sheet.remarks:
            yield from _remark(remark, options.encoding)


def _text(content: str, style: str, encoding: str) -> Text:
    return Text(theme.terminal_line(" ".join(content.split()), encoding), style)


def _titled_table(table: Table, options: ConsoleOptions) -> Iterator[RenderableType]:
    found = fit(table, options.max_width, options.encoding)
    yield _Indented(_text(table.title, theme.QUIET, options.encoding))
    yield found
    below = list(notes(found.table))
    if found.hidden and not found.stacked:
        *others, last = found.hidden
        why = ("hidden columns", "(use --columns", "or a wider terminal):")
        below += theme.wrap_phrases((*why, *(f"{name}," for name in others), last), options.max_width - INDENT, " ")
    for line in below:
        yield _Indented(_text(line, theme.QUIET, options.encoding))


def _remark(remark: Remark, encoding: str) -> Iterator[RenderableType]:
    mark, style = _MARKS[remark.kind]
    if mark:
        yield _Indented(_text(remark.text, "", encoding), f" {mark} ", style)
    else:
        yield _Indented(_text(remark.text, style, encoding))
    if remark.remedy:
        yield _Indented(_text(f"→ {remark.remedy}", theme.ACCENT, encoding), "   ")


@dataclass(frozen=True)
class _Indented:
    """Content indented by `mark` on the first line, and by spaces on the others."""

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


def _stack_rows(fitted: Fit) -> RenderableType:
    blocks: list[RenderableType] = []
    for position, row in enumerate(fitted.table.rows):
        pairs = [(column, column.texts[position], cell) for column, cell in zip(fitted.columns, row, strict=True)]
        named, others = pairs[: fitted.table.axes], pairs[fitted.table.axes :]
        words = [pair for pair in others if not pair[0].column.numeric]
        if len(words) == 1:  # a command, for example, which is copied
            named, others = [*named, *words], [pair for pair in others if pair not in words]
        leading = " ".join(_labelled_text(column, cell, text) for column, text, cell in named)
        blocks.append(Text(leading, "bold"))
        for column, text, cell in others:
            if not text:
                continue
            unit = column.symbol if isinstance(cell, Measure) else ""
            name = f"{column.column.group} {column.column.title}".strip()
            # A number comes first, so that it is not separated from its unit by a line break.
            parts = (text, unit, name) if column.column.numeric else (name, text)
            blocks.append(_Indented(Text(" ".join(filter(None, parts)))))
    return Group(*blocks)


def _labelled_text(column: FormattedColumn, cell: Cell, text: str) -> str:
    return f"{column.column.title} {text}" if isinstance(cell, int) else text


def _encoded(columns: Sequence[FormattedColumn], encoding: str) -> tuple[FormattedColumn, ...]:
    """Replace characters that the encoding lacks; this may change the widths of columns."""

    def fitted(text: str, *, lines: bool = False) -> str:
        return "\n".join(theme.terminal_line(line, encoding) for line in (text.split("\n") if lines else [text]))

    return tuple(
        FormattedColumn(
            replace(column.column, title=fitted(column.column.title), group=fitted(column.column.group)),
            fitted(column.symbol),
            tuple(fitted(text, lines=column.column.wraps) for text in column.texts),
        )
        for column in columns
    )


def _narrowed(
    columns: tuple[FormattedColumn, ...], width: int, min_width: int, encoding: str
) -> tuple[FormattedColumn, ...]:
    """Wrap the texts of columns that wrap, then shorten those of elastic columns, as far as the width requires it."""
    found = list(columns)
    for number, column in sorted(enumerate(columns), key=lambda numbered: numbered[1].column.elastic):
        missing = width_of(found) - width
        if column.column.wraps and missing > 0:
            least = MIN_ELASTIC_WIDTH if number == len(found) - 1 else min(min_width, width // 3)
            room = max(least, widths_of([column])[0] - missing)
            found[number] = replace(column, texts=tuple("\n".join(_wrapped(text, room)) for text in column.texts))
        elif column.column.elastic:
            widest = max((cell_len(text) for text in column.texts), default=0)
            room = max(min_width, widest - max(0, missing))
            texts = tuple(theme.terminal_line(theme.elided(text, room), encoding) for text in column.texts)
            found[number] = replace(column, texts=texts)
    return tuple(found)


def _wrapped(text: str, width: int) -> Iterator[str]:
    for line in text.replace(" × ", _FIRM_TIMES).split("\n"):
        for part in textwrap.wrap(line, width, break_on_hyphens=False) or [line]:
            yield part.replace(_FIRM_TIMES, " × ")


def _limit_importance(table: Table, importance: int) -> Table:
    keep = [position for position, column in enumerate(table.columns) if column.importance <= importance]
    return replace(
        table,
        columns=tuple(table.columns[position] for position in keep),
        rows=tuple(tuple(row[position] for position in keep) for row in table.rows),
    )


def _hidden_titles(table: Table, kept: Table) -> tuple[str, ...]:
    visible_groups = {column.group for column in kept.columns}
    hidden = (column for column in table.columns if column not in kept.columns)
    names = (column.title if column.group in visible_groups else column.group or column.title for column in hidden)
    return tuple(dict.fromkeys(name for name in names if name))

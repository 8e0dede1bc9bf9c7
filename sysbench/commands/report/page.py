"""Reports as a self-contained HTML page, which can be sent, printed, and read on a phone.

The page is readable without JavaScript, which only adds sorting, copying and enlarging. Names, messages and paths from
records are escaped. Figures are SVG drawn by matplotlib, with text kept as text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from sysbench.commands.report.document import Document, Picture
from sysbench.commands.report.writing import ORIGIN_MARKS, pictures_of, simulated_notice
from sysbench.package import VERSION
from sysbench.render import pages
from sysbench.render import plots as picture_file
from sysbench.render.csv import csv_text
from sysbench.render.markdown import markdown
from sysbench.render.numbers import FormattedColumn, format_columns, groups, repeated_axes
from sysbench.render.pages import line, printable
from sysbench.render.plots import GRID, INK, QUIET, SIMULATED
from sysbench.render.table import Cell, Measure, Sheet, Table, Word, notes
from sysbench.render.theme import elided

if TYPE_CHECKING:
    from markupsafe import Markup

MAX_SVG_BYTES: Final = 600_000
"""Size above which a figure is inserted as pixels: tens of thousands of points make any browser slow."""

_NOT_FOR_PAGES: Final = re.compile(
    r'<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>| xmlns[:\w]*="[^"]*"', re.DOTALL
)
"""Parts of an SVG file that a page does not need; `style` would apply to the whole page."""
_IDENTIFIER: Final = re.compile(r'(\bid="|url\(#|href="#)')
_STYLE: Final = re.compile(r'style="([^"]*)"')
_PAINT: Final = re.compile(r"\b(fill|stroke): (#[0-9a-f]{6})")
_THEME_COLOURS: Final = {
    "#ffffff": "page",
    "#000000": "ink",
    INK: "ink",
    QUIET: "quiet",
    GRID: "grid",
    "#f6f6f6": "stripe",
    "#f2f2f2": "stripe",
    SIMULATED: "mark",
}
"""Colours of figures that follow the theme of the page, as names of variables in light.css and dark.css."""


def picture_html(content: Picture, number: int) -> Markup:
    """Return a figure as an HTML element, labelled with its caption; `number` must be unique on the page."""
    from markupsafe import Markup, escape

    svg = picture_file.content(content.draw, "svg")
    if len(svg) > MAX_SVG_BYTES:
        encoded = base64.b64encode(picture_file.content(content.draw, "png")).decode("ascii")
        return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(encoded, line(content.caption))
    text = _NOT_FOR_PAGES.sub("", svg.decode("utf-8"))
    text = _IDENTIFIER.sub(rf"\g<1>p{number}-", text[text.index("<svg") :])
    text = _STYLE.sub(lambda style: f'style="{_themed(style[1])}"', text)
    label = escape(line(content.caption))
    return Markup(printable(text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)))


def _themed(style: str) -> str:
    """Return a style whose neutral colours follow the page's theme; white text stands on a surface that does not."""

    def paint(found: re.Match[str]) -> str:
        name = _THEME_COLOURS.get(found[2])
        is_white_text = found[2] == "#ffffff" and "font:" in style
        return f"{found[1]}: var(--picture-{name})" if name and not is_white_text else found[0]

    return _PAINT.sub(paint, style)


MAX_CELL_LENGTH: Final = 240
"""Longest text shown in a cell, in characters; copies contain the whole text."""
MAX_LINE_LENGTH: Final = 42
"""Characters after which a text continues on another line, as in the style sheet."""
_LINE_END: Final = re.compile(r"[\r\n\t]+")


class ShownCell(NamedTuple):
    """Content of a table cell; `tail` is the uncertainty of its number.

    `tail_width` is the length of the longest tail in the column.
    """

    text: str
    tail: str
    tail_width: int
    classes: str
    value: float | None
    """Sort key: the number in full precision."""


def table_content(content: Table) -> dict[str, object]:
    columns = format_columns(content)
    # Numbers are right-aligned, as are whole numbers in columns without a unit.
    right_aligned = [
        column.column.numeric or (bool(content.rows) and all(isinstance(row[number], int) for row in content.rows))
        for number, column in enumerate(columns)
    ]
    return {
        "columns": columns,
        "groups": groups(columns),
        # Approximate width of the table, which is scaled down on paper if necessary.
        "characters": sum(
            2 + min(MAX_LINE_LENGTH, max(map(len, (column.column.title, column.symbol, *column.texts))))
            for column in columns
        ),
        "rights": right_aligned,
        "rows": _rows(content, columns, right_aligned),
        "notes": notes(content),
        "csv": csv_text(content),
        "markdown": markdown(Sheet((), (content,))).strip(),
    }


def _rows(
    content: Table, columns: Sequence[FormattedColumn], right_aligned: Sequence[bool]
) -> Iterator[list[ShownCell]]:
    tails = [max((len(_split_uncertainty(text)[1]) for text in column.texts), default=0) for column in columns]
    previous: Sequence[Cell] = ()
    for number, cells in enumerate(content.rows):
        repeated = repeated_axes(cells, previous[: content.axes - 1])
        texts = [column.texts[number] for column in columns]
        cell_arguments = zip(cells, texts, tails, right_aligned, strict=True)
        yield [_cell(*argument, position < repeated) for position, argument in enumerate(cell_arguments)]
        previous = cells


def _cell(cell: Cell, text: str, tail_width: int, right_aligned: bool, repeated: bool) -> ShownCell:
    tone = cell.tone if isinstance(cell, Measure | Word) else "quiet" if cell is None else "plain"
    styles = {"number": right_aligned, tone: tone != "plain", "again": repeated, "wordy": len(text) > MAX_LINE_LENGTH}
    classes = " ".join(name for name, holds in styles.items() if holds)
    if isinstance(cell, Measure):
        return ShownCell(*_split_uncertainty(text), tail_width, classes, cell.value)
    shortened = elided(_LINE_END.sub(" ", text), MAX_CELL_LENGTH)
    return ShownCell(shortened, "", 0, classes, cell if isinstance(cell, int) else None)


def _split_uncertainty(text: str) -> tuple[str, str]:
    for mark in (" ± ", " ("):
        number, found, rest = text.partition(mark)
        if found and number:
            return number, found + rest
    return text, ""


TEMPLATE_FOLDER: Final = "report_page"
MAX_NAMED_MACHINES: Final = 3


def render(document: Document) -> str:
    return pages.render(
        TEMPLATE_FOLDER,
        document=document,
        version=VERSION,
        machines=_join_names([str(row[0]) for table in document.environment[:1] for row in table.rows]),
        found=document.findings or document.pictures or document.overview or document.headlines,
        notice=simulated_notice(document),
        marks=ORIGIN_MARKS,
        anchors={section.run: section.anchor for section in reversed(document.sections)},
        cautions_by_run={section.run: document.cautions_of(section.run) for section in document.sections},
        numbers={picture.name: number for number, picture in enumerate(pictures_of(document), 1)},
        picture_html=picture_html,
        table_content=table_content,
        max_line_length=MAX_LINE_LENGTH,
    )


def _join_names(names: Sequence[str]) -> str:
    if len(names) > MAX_NAMED_MACHINES:
        names = [*names[: MAX_NAMED_MACHINES - 1], f"{len(names) - MAX_NAMED_MACHINES + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))

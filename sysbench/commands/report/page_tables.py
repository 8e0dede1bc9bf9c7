"""Tables as HTML: what a cell shows is short, what it is sorted by is the number itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sysbench.render.csv import csv_text
from sysbench.render.markdown import markdown
from sysbench.render.numbers import ShownColumn, groups, repeated_axes, shown
from sysbench.render.table import Cell, Measure, Sheet, Table, Word, notes
from sysbench.render.theme import elided

LONGEST_CELL: Final = 240
"""Characters of a text that a cell shows: of a longer one the middle is left out. What is copied has all of it."""
WIDEST_TEXT: Final = 42
"""Characters after which a text breaks into a further line; as in the style sheet."""
_LINE_END: Final = re.compile(r"[\r\n\t]+")


class ShownCell(NamedTuple):
    """What a cell says; `tail` is how far its number is to be trusted, and takes the same room in the whole column."""

    text: str
    tail: str
    tail_width: int
    classes: str
    value: float | None
    """What it is sorted by: the number in full precision."""


def laid_out(content: Table) -> dict[str, object]:
    """Everything about a table that its template asks for, with its CSV and Markdown for whoever wants to copy them."""
    columns = shown(content)
    # Numbers stand to the right, and so do whole numbers in columns without a unit.
    rights = [
        each.column.numeric or (bool(each.texts) and all(text.isdigit() for text in each.texts)) for each in columns
    ]
    return {
        "columns": columns,
        "groups": groups(columns),
        # About how wide the table is: on paper it is made as small as it must be to fit.
        "characters": sum(
            2 + min(WIDEST_TEXT, max(map(len, (each.column.title, each.symbol, *each.texts)))) for each in columns
        ),
        "rights": rights,
        "rows": _rows(content, columns, rights),
        "notes": notes(content),
        "csv": csv_text(content),
        "markdown": markdown(Sheet((), (content,))).strip(),
    }


def _rows(content: Table, columns: Sequence[ShownColumn], rights: Sequence[bool]) -> Iterator[list[ShownCell]]:
    tails = [max((len(_parts(text)[1]) for text in each.texts), default=0) for each in columns]
    above: Sequence[Cell] = ()
    for number, cells in enumerate(content.rows):
        repeated = repeated_axes(cells, above[: content.axes - 1])
        texts = [each.texts[number] for each in columns]
        described = zip(cells, texts, tails, rights, strict=True)
        yield [_cell(*each, position < repeated) for position, each in enumerate(described)]
        above = cells


def _cell(cell: Cell, text: str, tail_width: int, right: bool, again: bool) -> ShownCell:
    tone = cell.tone if isinstance(cell, Measure | Word) else "quiet" if cell is None else "plain"
    styles = {"number": right, tone: tone != "plain", "again": again, "wordy": len(text) > WIDEST_TEXT}
    classes = " ".join(name for name, holds in styles.items() if holds)
    if isinstance(cell, Measure):
        return ShownCell(*_parts(text), tail_width, classes, cell.value)
    whole = elided(_LINE_END.sub(" ", text), LONGEST_CELL)
    return ShownCell(whole, "", 0, classes, cell if isinstance(cell, int) else None)


def _parts(text: str) -> tuple[str, str]:
    """`21.4 ± 0.2` in two: the number, and how far it is to be trusted."""
    for mark in (" ± ", " ("):
        number, found, rest = text.partition(mark)
        if found and number:
            return number, found + rest
    return text, ""

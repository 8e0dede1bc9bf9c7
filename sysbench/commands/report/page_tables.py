"""Tables as HTML: what a cell shows is short, what it is sorted by is the number itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from sysbench.render.csv import csv_text
from sysbench.render.markdown import markdown
from sysbench.render.numbers import ShownColumn, shown
from sysbench.render.pages import LONGEST_TEXT, escaped, line
from sysbench.render.table import Cell, Measure, Sheet, Table, Word, notes
from sysbench.render.theme import elided

LONG_ROWS: Final = 24
"""A table of more rows than this scrolls below its headings."""
WIDE_CHARACTERS: Final = 200
"""A wider table than this gets a sheet of paper that lies across."""
LONGEST_CELL: Final = 240
"""Characters of a text that a cell shows: of a longer one the middle is left out. What is copied has all of it."""
WIDEST_TEXT: Final = 42
"""Characters after which a text breaks into a further line; as in the style sheet."""
_LINE_END: Final = re.compile(r"[\r\n\t]+")
_TAIL: Final = re.compile(r'<small class="w(\d+)">')


def table(content: Table, name: str, mark: str = "") -> str:
    """A table with its notes, and its CSV and Markdown for whoever wants to copy them.

    `name` is unique on the page and becomes the table's anchor; `mark` is markup that stands behind the title.
    """
    columns = shown(content)
    characters = _characters(columns)
    kinds = [
        "table",
        *(["long"] if len(content.rows) > LONG_ROWS else []),
        *(["wide"] if characters > WIDE_CHARACTERS else []),
    ]
    return "\n".join(
        [
            f'<div class="{" ".join(kinds)}" id="{name}" style="--characters:{characters}">',
            f'<p class="table-title" id="{name}-title">{line(content.title)}{mark}</p>',
            f'<div class="box" role="region" aria-labelledby="{name}-title" tabindex="0">',
            f'<table aria-labelledby="{name}-title" data-axes="{content.axes}">',
            f"<thead>{''.join(_head(columns))}</thead>",
            f"<tbody>{''.join(_rows(content, columns))}</tbody>",
            "</table></div>",
            *_notes(content),
            f'<template class="csv">{escaped(csv_text(content))}</template>',
            f'<template class="markdown">{escaped(markdown(Sheet((), (content,))).strip())}</template>',
            "</div>",
        ]
    )


def _characters(columns: Sequence[ShownColumn]) -> int:
    """About how wide the table is: on paper it is made as small as it must be to fit."""
    widths = (
        min(WIDEST_TEXT, max((len(text) for text in (each.column.title, each.symbol, *each.texts)), default=0))
        for each in columns
    )
    return sum(width + 2 for width in widths)


# --- headings


def _head(columns: Sequence[ShownColumn]) -> Iterator[str]:
    grouped = any(each.column.group for each in columns)
    if grouped:
        yield f"<tr>{''.join(_groups(columns))}</tr>"
    here = [each for each in columns if each.column.group or not grouped]
    yield f"<tr>{''.join(_heading(each) for each in here)}</tr>"


def _groups(columns: Sequence[ShownColumn]) -> Iterator[str]:
    """Groups over their columns; a column without a group reaches up through this row."""
    for group, members in groupby(columns, lambda each: each.column.group):
        if group:
            span = sum(1 for _ in members)
            yield f'<th scope="colgroup" colspan="{span}"{_classes("group", *_wordy(group))}>{line(group)}</th>'
        else:
            yield from (_heading(each, ' rowspan="2"') for each in members)


def _heading(each: ShownColumn, span: str = "") -> str:
    unit = f' <span class="unit">{escaped(each.symbol)}</span>' if each.symbol else ""
    explained = f' title="{line(each.column.note)}"' if each.column.note else ""
    title = each.column.title
    classes = _classes(*(["number"] if _right(each) else []), *_wordy(title))
    return f'<th scope="col"{span}{classes}{explained}>{line(title)}{unit}</th>'


def _classes(*names: str) -> str:
    return f' class="{" ".join(names)}"' if names else ""


def _wordy(text: str) -> list[str]:
    """The class of what may take several lines."""
    return ["wordy"] if len(text) > WIDEST_TEXT else []


def _right(each: ShownColumn) -> bool:
    """Numbers stand to the right, and so do whole numbers in columns without a unit."""
    return each.column.numeric or (bool(each.texts) and all(text.isdigit() for text in each.texts))


# --- rows


def _rows(content: Table, columns: Sequence[ShownColumn]) -> Iterator[str]:
    tails = [max((len(_parts(text)[1]) for text in each.texts), default=0) for each in columns]
    rights = [_right(each) for each in columns]
    above: Sequence[Cell | None] = ()
    for number, cells in enumerate(content.rows):
        repeated = _repeated(cells, above[: content.axes - 1])
        texts = [each.texts[number] for each in columns]
        described = zip(cells, texts, tails, rights, strict=True)
        yield "".join(
            ["<tr>", *(_cell(*each, position < repeated) for position, each in enumerate(described)), "</tr>\n"]
        )
        above = cells


def _repeated(cells: Sequence[Cell], above: Sequence[Cell]) -> int:
    """How many of the first cells are the same as those above them."""
    same = [cell == other for cell, other in zip(cells, above, strict=False)]
    return next((position for position, is_same in enumerate(same) if not is_same), len(same))


def _cell(cell: Cell, text: str, tail: int, right: bool, again: bool) -> str:
    classes = _classes(
        *(["number"] if right else []),
        *([cell.tone] if isinstance(cell, Measure | Word) and cell.tone != "plain" else []),
        *(["quiet"] if cell is None else []),
        *(["again"] if again else []),
        *_wordy(text),
    )
    return f"<td{classes}{_sorted_by(cell)}>{_shown(cell, text, tail)}</td>"


def _sorted_by(cell: Cell) -> str:
    """The number in full precision, whatever is shown of it."""
    value = cell.value if isinstance(cell, Measure) else cell if isinstance(cell, int) else None
    return "" if value is None else f' data-value="{value!r}"'


def _shown(cell: Cell, text: str, tail: int) -> str:
    """What is uncertain of a number steps back, and takes the same room in the whole column: digits stay in line."""
    if not isinstance(cell, Measure):
        return escaped(elided(_LINE_END.sub(" ", text), LONGEST_CELL))
    number, uncertain = _parts(text)
    return escaped(number) + (f'<small class="w{tail}">{escaped(uncertain)}</small>' if tail else "")


def _parts(text: str) -> tuple[str, str]:
    """`21.4 ± 0.2` in two: the number, and how far it is to be trusted."""
    for mark in (" ± ", " ("):
        number, found, rest = text.partition(mark)
        if found and number:
            return number, found + rest
    return text, ""


def tail_styles(markup: str) -> str:
    """The widths that the cells of this markup ask for; their spaces are narrower than digits, by one digit or so."""
    widths = sorted({int(found) for found in _TAIL.findall(markup)})
    return "\n".join(f"td .w{width} {{ min-width: {width - 1}ch; }}" for width in widths)


def _notes(content: Table) -> Iterator[str]:
    said = notes(content)
    if said:
        yield f'<ul class="notes">{"".join(f"<li>{line(note, LONGEST_TEXT)}</li>" for note in said)}</ul>'

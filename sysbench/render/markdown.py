"""Tables and remarks as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sysbench.render.numbers import FormattedColumn, format_columns, indent
from sysbench.render.table import Remark, Sheet, Table, notes

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&$])")
_BLOCK_START = re.compile(r"^(\d*)([-+=.)])(?=\s|$)")
"""Characters that start a list or underline a heading at the beginning of a line."""
_MARKS = {"caution": "⚠ ", "outcome": "", "finding": "", "note": ""}


def markdown(sheet: Sheet) -> str:
    """Format a sheet as Markdown: its subject, each table with its notes, and the remarks."""
    blocks = [
        paragraph(" · ".join(sheet.subject)),
        *(block for each in sheet.tables for block in table(each)),
        remarks(sheet.remarks),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def escaped(text: str) -> str:
    """Escape text for Markdown, and put it on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def paragraph(text: str) -> str:
    """Escape text that starts a line, so that it does not begin a list."""
    return _BLOCK_START.sub(r"\1\\\2", escaped(text))


def table(content: Table, mark: str = "") -> Iterator[str]:
    """Yield the blocks of a table: the title followed by `mark`, the rows, and the notes."""
    columns = format_columns(content)
    yield f"**{escaped(content.title)}**{mark}"
    # Leading spaces are kept, as non-breaking ones.
    cells = [["\u00a0" * indent(text) + escaped(text) for text in column.texts] for column in columns]
    texts = [[_heading(column), *own] for column, own in zip(columns, cells, strict=True)]
    widths = [max(3, *(len(text) for text in column)) for column in texts]
    rules = [
        f"{'-' * (width - 1)}:" if column.column.numeric else "-" * width
        for column, width in zip(columns, widths, strict=True)
    ]
    lines = [_line(row, columns, widths) for row in zip(*texts, strict=True)]
    yield "\n".join([lines[0], _line(rules, columns, widths), *lines[1:]])
    if notes(content):
        yield "  \n".join(paragraph(note) for note in notes(content))


def _heading(shown_column: FormattedColumn) -> str:
    column = shown_column.column
    name = f"{column.group} {column.title}".strip()
    return escaped(f"{name} ({shown_column.symbol})" if shown_column.symbol else name)


def _line(texts: Sequence[str], columns: Sequence[FormattedColumn], widths: Sequence[int]) -> str:
    padded = (
        text.rjust(width) if column.column.numeric else text.ljust(width)
        for text, column, width in zip(texts, columns, widths, strict=True)
    )
    return f"| {' | '.join(padded)} |"


def remarks(items: Sequence[Remark]) -> str:
    """Format remarks as a list."""
    return "\n".join(
        f"- {_MARKS[item.kind]}{paragraph(item.text)}{f' → {escaped(item.remedy)}' if item.remedy else ''}"
        for item in items
    )

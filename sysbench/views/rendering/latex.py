"""Sheets as LaTeX with booktabs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from sysbench.views.rendering.columns import ShownColumn, shown
from sysbench.views.table import Remark, Sheet, Table, notes

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "µ": r"\textmu{}",
    "°": r"\textdegree{}",
    "·": r"$\cdot$",
    "—": "---",
    "–": "--",
    "…": r"\dots{}",
}


def latex(sheet: Sheet) -> str:
    """Each table as a `table` with booktabs rules, captioned with what the run has in common; remarks as a list.

    Needs `\\usepackage{booktabs}` and nothing else.
    """
    blocks = [
        "% needs \\usepackage{booktabs}",
        *(_table(table, sheet.subject) for table in sheet.tables),
        _remarks(sheet.remarks),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def escaped(text: str) -> str:
    """Text in which nothing is a command, on one line."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _table(table: Table, subject: Sequence[str]) -> str:
    columns = shown(table)
    caption = "; ".join([table.title, ", ".join(subject), *notes(table)])
    rows = zip(*(column.texts for column in columns), strict=True)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(caption)}}}",
            rf"\begin{{tabular}}{{@{{}}{''.join('r' if each.column.numeric else 'l' for each in columns)}@{{}}}}",
            r"\toprule",
            *_headings(columns),
            r"\midrule",
            *(_row([escaped(text) for text in row]) for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _headings(columns: Sequence[ShownColumn]) -> Iterator[str]:
    """The groups with a rule under each, where there are any; then every column's own name and unit."""
    if any(each.column.group for each in columns):
        spans = [(group, len(list(members))) for group, members in groupby(columns, lambda each: each.column.group)]
        yield _row([rf"\multicolumn{{{count}}}{{c}}{{{escaped(group)}}}" for group, count in spans])
        yield " ".join(_rules(spans))
    yield _row(
        [escaped(f"{each.column.title} ({each.symbol})" if each.symbol else each.column.title) for each in columns]
    )


def _rules(spans: Sequence[tuple[str, int]]) -> Iterator[str]:
    first = 1
    for group, count in spans:
        if group:
            yield rf"\cmidrule(lr){{{first}-{first + count - 1}}}"
        first += count


def _row(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _remarks(remarks: Sequence[Remark]) -> str:
    if not remarks:
        return ""
    items = (
        rf"\item {escaped(remark.text)}" + (rf" $\rightarrow$ {escaped(remark.remedy)}" if remark.remedy else "")
        for remark in remarks
    )
    return "\n".join([r"\begin{itemize}", *items, r"\end{itemize}"])

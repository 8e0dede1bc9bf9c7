"""Tables and remarks as LaTeX with booktabs."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from sysbench.render.numbers import FormattedColumn, format_columns, groups, indent
from sysbench.render.table import Remark, Sheet, Table, notes

_SPECIAL: Final[Mapping[str, str]] = {
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
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "µ": r"\textmu{}",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "≠": r"$\neq$",
    "√": r"$\sqrt{}$",
    "−": r"$-$",
    "‖": r"$\Vert$",
    "°": r"\textdegree{}",
    "·": r"$\cdot$",
    "²": r"\textsuperscript{2}",
    "³": r"\textsuperscript{3}",
    "ᵀ": r"\textsuperscript{T}",
    "—": "---",
    "–": "--",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
    "\u00a0": "~",
    "\u202f": r"\,",
    "\u2009": r"\,",
}
"""Escapes of characters that LaTeX would interpret as commands, in any text font."""

_LETTERS: Final = frozenset(
    "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿŒœŠšŽžŁłĆćČčĘęĄąŃńŚśŹźŻżŘřĚěŮůŐőŰűĞğİıŞş"
)
"""Characters that every LaTeX since 2018 supports directly with T1 fonts."""


def latex(sheet: Sheet) -> str:
    r"""Format a sheet as LaTeX: a `table` environment for each table, and a list of the remarks.

    Requires only `\usepackage{booktabs}`.
    """
    blocks = [
        "% needs \\usepackage{booktabs}",
        *(_table(table, sheet.subject) for table in sheet.tables),
        _remarks(sheet.remarks),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def escaped(text: str) -> str:
    """Escape text for LaTeX, and put it on one line. Unsupported characters become their code points.

    Control characters and direction marks are removed.
    """
    line = " ".join(text.split())
    # Repeated hyphens and commas are separated, so that they do not form a dash or a quotation mark.
    return "".join(
        _letter(letter) + ("{}" if letter == following and letter in "-," else "")
        for letter, following in pairwise(f"{line} ")
    )


def _letter(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if unicodedata.category(character)[0] == "C":
        return ""
    return character if character.isascii() or character in _LETTERS else f"[U+{ord(character):04X}]"


def _table(table: Table, subject: Sequence[str]) -> str:
    caption = "; ".join([table.title, ", ".join(subject), *notes(table)])
    columns = format_columns(table)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(caption)}}}",
            *tabular(columns, range(len(table.rows))),
            r"\end{table}",
        ]
    )


def tabular(columns: Sequence[FormattedColumn], rows: Iterable[int], *, separate_units: bool = False) -> Iterator[str]:
    """Yield the lines of a `tabular` environment; `separate_units` puts units on a line below the column names."""
    yield rf"\begin{{tabular}}{{@{{}}{''.join('r' if column.column.numeric else 'l' for column in columns)}@{{}}}}"
    yield r"\toprule"
    yield from _headings(columns, separate_units)
    yield r"\midrule"
    for number in rows:
        # Leading spaces are kept, as non-breaking ones.
        yield _row(["~" * indent(column.texts[number]) + escaped(column.texts[number]) for column in columns])
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _headings(columns: Sequence[FormattedColumn], separate_units: bool) -> Iterator[str]:
    if any(column.column.group for column in columns):
        spans = groups(columns)
        yield _row([rf"\multicolumn{{{len(members)}}}{{c}}{{{escaped(group)}}}" for group, members in spans])
        yield " ".join(rf"\cmidrule(lr){{{members[0] + 1}-{members[-1] + 1}}}" for group, members in spans if group)
    if separate_units:
        yield _row([escaped(column.column.title) for column in columns])
        if any(column.symbol for column in columns):
            yield _row([escaped(column.symbol) for column in columns])
        return
    yield _row(
        [
            escaped(f"{column.column.title} ({column.symbol})" if column.symbol else column.column.title)
            for column in columns
        ]
    )


def _row(texts: Sequence[str]) -> str:
    # A row that begins with a bracket would be read as an option of the previous row.
    line = " & ".join(texts)
    return ("{}" if line.startswith(("[", "*")) else "") + line + r" \\"


def _remarks(remarks: Sequence[Remark]) -> str:
    if not remarks:
        return ""
    items = (
        rf"\item {escaped(remark.text)}" + (rf" $\rightarrow$ {escaped(remark.remedy)}" if remark.remedy else "")
        for remark in remarks
    )
    return "\n".join([r"\begin{itemize}", *items, r"\end{itemize}"])

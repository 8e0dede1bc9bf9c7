"""A sheet on stdout, in each of the formats; whatever it is of."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console

from sysbench.specs.run import Format
from sysbench.views import theme
from sysbench.views.chosen_columns import Name, with_columns
from sysbench.views.rendering.csv import csv_text
from sysbench.views.rendering.latex import latex
from sysbench.views.rendering.markdown import markdown
from sysbench.views.rendering.terminal import SheetView
from sysbench.views.table import Sheet


def show_sheet(
    content: Sheet, console: Console, form: Format, columns: Sequence[str] = (), possible: Collection[Name] = ()
) -> None:
    """Print a sheet in one of the formats; only the terminal's has colours and is fitted to a width.

    Raises UsageError for one of `columns` that none of its tables has, and that is none of the `possible` ones.
    """
    content = with_columns(content, columns, possible)
    if form == "terminal":
        console.print(SheetView(content))
        return
    if form == "csv":
        text = "\n".join(csv_text(table) for table in content.tables)
    else:
        text = (markdown if form == "markdown" else latex)(content)
    # Rich would wrap at the terminal's width; a file for other programs has none.
    console.file.write(theme.encodable(theme.harmless(text), console.encoding))

"""The table at the end: part, promise, what was seen, kept or missed."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tests.gpu.evidence.book import Book

STYLES = {"kept": "green", "missed": "bold red", "not seen": "dim"}
NO_TROUBLE = ("done",)


def heading(machine: dict[str, Any], *, rehearsal: bool) -> str:
    """Where and with what, in a line."""
    gpu = machine["gpu"]["name"] if machine.get("gpu") else "no GPU"
    versions = [f"driver {machine['driver']}"] if machine.get("driver") else []
    versions += [f"torch {machine['torch']}", f"Python {machine['python']}", machine["date"]]
    text = " · ".join([gpu, *versions])
    return f"REHEARSAL, nothing of this was seen on a GPU · {text}" if rehearsal else text


def summary(book: Book) -> RenderableType:
    """The machine, the promises, and what went wrong."""
    table = Table(title=escape(heading(book.machine, rehearsal=book.rehearsal)), title_justify="left")
    for column in ("part", "promise", "promised", "seen", ""):
        table.add_column(column, overflow="fold")
    for part in book.parts.values():
        ended = "" if part["outcome"] in NO_TROUBLE else f" ({part['outcome']})"
        name = f"{part['name']}{ended}"
        for promise in part["promises"]:
            verdict = promise["verdict"]
            told = (name, promise["name"], promise["promised"], promise["shown"])
            table.add_row(*map(escape, told), Text(verdict, STYLES[verdict]))
            name = ""
        if not part["promises"]:
            table.add_row(escape(name), *[""] * 3, "")
        table.add_section()
    return Group(table, *_troubles(book), _counts(book))


def _troubles(book: Book) -> list[Text]:
    lines = []
    for part in book.parts.values():
        lines += [Text(f" ! {part['name']}: {_last_line(problem)}", "red") for problem in part["problems"]]
        lines += [Text(f" – {part['name']}: {why}", "dim") for why in part["left_out"]]
    return lines


def _last_line(problem: str) -> str:
    lines = [line for line in problem.strip().splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return first if len(lines) < 2 else f"{first[:160]} … {lines[-1][:240]}"


def _counts(book: Book) -> Text:
    verdicts = [promise["verdict"] for promise in book.promises]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in STYLES)
    return Text(f" {counts}; all of it in {book.path}")


def text(book: Book, width: int = 140) -> str:
    """The same without colours."""
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(summary(book))
    return capture.get()

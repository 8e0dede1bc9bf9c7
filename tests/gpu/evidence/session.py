"""Run what is to be seen on a GPU, print a table, and write it all down.

Given again with the same directory it goes on with what is left; parts that are named are run again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.gpu.evidence import machine, schedule
from tests.gpu.evidence.book import AnotherMachineError, Book
from tests.gpu.evidence.keeping import keep
from tests.gpu.evidence.parts import PARTS
from tests.gpu.evidence.screen import summary
from tests.gpu.evidence.work import Part

RESERVED_S = 10.0
"""For the last files and the table."""


def main() -> int:
    """The exit code: 0 when it came to its end, whatever was found; 2 where it cannot begin; 130 interrupted."""
    began_s = time.monotonic()
    arguments = parser().parse_args()
    if arguments.plan:
        _show_plan(PARTS)
        return 0
    console = Console(stderr=True)
    directory: Path = arguments.out.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    facts = machine.facts()
    if facts["gpu"] is None and not arguments.rehearse:
        console.print("torch sees no CUDA device here; --rehearse runs the same with tiny models on the CPU")
        return 2
    typed = " ".join(["python -m tests.gpu.evidence", *sys.argv[1:]])
    command = typed.replace(str(arguments.out), "DIRECTORY")
    book = Book(directory, facts, arguments.rehearse, _now(), command)
    try:
        book.take_up()
    except AnotherMachineError as error:
        console.print(str(error), markup=False)
        return 2
    code = _carry_out(book, _wanted(arguments.only, book), began_s + 60 * arguments.minutes - RESERVED_S, console)
    Console(width=None if sys.stdout.isatty() else 140).print(summary(book))
    return code


def _carry_out(book: Book, parts: Sequence[Part], deadline_s: float, console: Console) -> int:
    book.write(_now())

    def finished(part: dict[str, Any]) -> None:
        book.add(part, _now())
        took = "" if part["took_s"] is None else f" in {part['took_s']:.0f} s"
        console.print(f"{part['name']}: {part['outcome']}{took}", markup=False)
        _keep(book, console)

    try:
        schedule.run(
            parts,
            book.directory,
            deadline_s,
            schedule.Child(book.directory, book.rehearsal),
            finished,
            rehearsal=book.rehearsal,
        )
    except KeyboardInterrupt:
        _keep(book, console)
        return 130
    _keep(book, console)
    return 0


def _keep(book: Book, console: Console) -> None:
    try:
        keep(book)
    except Exception as error:  # noqa: BLE001  what is made of evidence is worth less than the evidence itself
        console.print(f"not everything could be kept: {type(error).__name__}: {error}", markup=False)


def _wanted(only: Sequence[str] | None, book: Book) -> list[Part]:
    """The parts that are named, or all that have not come to their end here yet."""
    if only:
        return [part for part in PARTS if part.name in only]
    return [part for part in PARTS if part.name not in book.finished()]


def _show_plan(parts: Sequence[Part]) -> None:
    total_s = 0.0
    for group in schedule.groups(parts):
        total_s += max(part.estimate_s for part in group)
        for part in group:
            beside = "" if part.alone else "  (beside others)"
            print(f"{part.name:22s} {part.estimate_s:5.0f} s  {total_s / 60:5.1f} min  {part.title}{beside}")


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.evidence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"), help="default: runs/evidence")
    parser.add_argument("--minutes", type=float, default=8.0, help="stop after so many, with everything written")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], metavar="PART")
    parser.add_argument("--rehearse", action="store_true", help="tiny models on the CPU; nothing counts as seen")
    parser.add_argument("--plan", action="store_true", help="list the parts, what they take on an H200, and leave")
    return parser


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

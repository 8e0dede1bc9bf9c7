"""Columns of whole numbers from an export of Nsight Systems, millions of rows, in two processes where that is worth it.

`python -m sysbench.analysis.nsys_rows FILE` reads what it is asked for, a list of `Question`, from standard input and
writes the answers, a list of stretches for each, to standard output.
"""

from __future__ import annotations

import gc
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import numpy as np

from sysbench.analysis.packed import Stretch, Table
from sysbench.analysis.reading import process, processors, said
from sysbench.analysis.trace import NONE, Integers

SHARED_ROWS: Final = 300_000
"""A table of fewer is read by one process."""
_BATCH_ROWS: Final = 8192
_THIS: Final = "sysbench.analysis.nsys_rows"


class NoNumberError(Exception):
    """Something else stands where numbers do."""


class Question(msgspec.Struct, frozen=True):
    """Columns of rows of a table; NONE where there is no such column, and no such value."""

    table: str
    columns: tuple[tuple[str, ...], ...]
    """For each the column, and those that stand for it where it is empty; nothing for one that the table lacks."""
    where: str = ""

    def from_row(self, first: int) -> Question:
        """Only of rows with this number and above."""
        return Question(self.table, self.columns, f"WHERE rowid >= {first}")

    def before_row(self, first: int) -> Question:
        """Only of rows with a lower number."""
        return Question(self.table, self.columns, f"WHERE rowid < {first}")

    def asked(self, *, with_gaps: bool) -> str:
        """In SQL; to look for gaps everywhere takes time, and they are rare."""
        gap = (str(NONE),) if with_gaps else ()
        chosen = ", ".join(_either(*(f'"{name}"' for name in names), *gap) for names in self.columns)
        return f'SELECT {chosen} FROM "{self.table}" {self.where}'


def _either(*terms: str) -> str:
    """The first term that is something, in SQL."""
    return terms[0] if len(terms) == 1 else f"COALESCE({', '.join(terms)})" if terms else str(NONE)


def opened(path: Path) -> sqlite3.Connection:
    """The database, which nothing can be written to."""
    database = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    return database


def answered(database: sqlite3.Connection, question: Question) -> Table:
    """Raises NoNumberError where there is none of 64 bits, and sqlite3.Error."""
    try:
        return _answered(database, question, with_gaps=False)
    except TypeError:
        pass
    except (ValueError, OverflowError) as error:
        raise NoNumberError(str(error)) from error
    try:
        return _answered(database, question, with_gaps=True)
    except (ValueError, OverflowError, TypeError) as error:
        raise NoNumberError(str(error)) from error


def _answered(database: sqlite3.Connection, question: Question, *, with_gaps: bool) -> Table:
    width = len(question.columns)
    table = Table(width)
    cursor = database.execute(question.asked(with_gaps=with_gaps))
    while rows := cursor.fetchmany(_BATCH_ROWS):
        numbers = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * width)
        table.add([*numbers.reshape(len(rows), width).T])
    return table


class Rows:
    """Answers, a part of which another process has been looking for since it was told of the questions."""

    def __init__(
        self, database: sqlite3.Connection, cuts: dict[Question, int], process: subprocess.Popen[bytes] | None
    ) -> None:
        self._database = database
        self._cuts = cuts
        self._process = process
        self._others: dict[Question, list[Stretch]] | None = None

    def columns(self, question: Question) -> list[Integers]:
        """Every column, in the order of the table; raises what `answered` does."""
        cut = self._cuts.get(question)
        if cut is None:
            return answered(self._database, question).take()
        table = answered(self._database, question.before_row(cut))
        if self._others is None:
            self._others = self._from_the_other()
        others = self._others.pop(question, None)
        if others is None:  # it came to grief, and so what it was to do is left
            others = answered(self._database, question.from_row(cut)).packed()
        table.join(others)
        return table.take()

    def _from_the_other(self) -> dict[Question, list[Stretch]]:
        try:
            found = msgspec.msgpack.decode((self._process and said(self._process)) or b"", type=list[list[Stretch]])
        except msgspec.MsgspecError:
            return {}
        return dict(zip(self._cuts, found, strict=False))


@contextmanager
def rows(path: Path, database: sqlite3.Connection, questions: Sequence[Question]) -> Iterator[Rows]:
    """Get ready to answer these questions, the larger ones in two processes."""
    cuts: dict[Question, int] = {}
    if processors() > 1:
        cuts = {each: cut for each in questions if (cut := _cut(database, each)) is not None}
    with ExitStack() as stack:
        started = _started(stack, path, [each.from_row(cut) for each, cut in cuts.items()]) if cuts else None
        yield Rows(database, cuts if started else {}, started)


def _started(stack: ExitStack, path: Path, questions: list[Question]) -> subprocess.Popen[bytes] | None:
    """The other process; None where none can be had."""
    try:
        started = stack.enter_context(process(_THIS, str(path.absolute())))
        if started.stdin is not None:
            with started.stdin as asked:
                asked.write(msgspec.msgpack.encode(questions))
    except OSError:
        return None
    return started


def _cut(database: sqlite3.Connection, question: Question) -> int | None:
    """The row from which on another process reads a large table; None for a small one and one without numbered rows."""
    try:
        first, last = database.execute(f'SELECT min(rowid), max(rowid) FROM "{question.table}"').fetchone()
    except sqlite3.Error:
        return None
    if not (isinstance(first, int) and isinstance(last, int)) or last - first < SHARED_ROWS or question.where:
        return None
    return first + (last - first) * 2 // 5  # who asks reads ranges besides


def _main(path: str) -> None:
    gc.disable()
    questions = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[Question])
    with closing(opened(Path(path))) as database:
        found = [answered(database, question).packed() for question in questions]
    sys.stdout.buffer.write(msgspec.msgpack.encode(found))


if __name__ == "__main__":
    _main(*sys.argv[1:])

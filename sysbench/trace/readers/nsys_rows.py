"""Reads columns of whole numbers from an export of Nsight Systems, millions of rows, in several threads.

SQLite writes a column of some ten thousand rows as one text, and numpy parses it: no Python object is created per
number, and other threads run meanwhile. If that text does not hold a number for every row, the rows are fetched one by
one.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar, cast
from urllib.parse import quote

import numpy as np

from sysbench.trace.readers.reading import processors
from sysbench.trace.recording import NONE, Integers

ROWS: Final = 65_536
"""Number of rows that are read at a time."""
_MOST_PARTS: Final = 4096
"""If row ids have gaps, stretches of ids are longer."""
_MOST_THREADS: Final = 4
_BETWEEN: Final = "\x1e"
"""ASCII's record separator, between texts."""

Answer = TypeVar("Answer")


class NoNumberError(Exception):
    """A value in a column of numbers is not a number."""


@dataclass(frozen=True)
class Question:
    """A query for columns of a table; missing columns and values are NONE."""

    table: str
    columns: tuple[tuple[str, ...], ...]
    """Names of each column and of the columns that replace it if it is empty; empty if the table lacks it."""
    condition: str = ""
    """SQL condition that selects the rows."""

    def as_texts(self, part: str) -> str:
        """SQL: the number of rows, and every column as a text."""
        chosen = ", ".join(f"group_concat({_either((*each, str(NONE)))})" for each in self.columns)
        return f"SELECT count(*), {chosen} FROM {self._of(part)}"

    def as_one_text(self, part: str) -> str:
        """SQL: the number of rows, the number of non-empty values in the single column, and that column as one text."""
        column = _either(*self.columns)
        return f"SELECT count(*), count({column}), group_concat({column}, '{_BETWEEN}') FROM {self._of(part)}"

    def as_values(self, part: str) -> str:
        """SQL: the values of the single column."""
        return f"SELECT {_either(*self.columns)} FROM {self._of(part)}"

    def as_rows(self, part: str) -> str:
        """SQL: all rows."""
        chosen = ", ".join(_either((*each, str(NONE))) for each in self.columns)
        return f"SELECT {chosen} FROM {self._of(part)}"

    def _of(self, part: str) -> str:
        conditions = " AND ".join(filter(None, (part, self.condition)))
        # Without indices, rows come in the order of the table, whatever the condition.
        return f'"{self.table}" NOT INDEXED' + (f" WHERE {conditions}" if conditions else "")


def _either(terms: Sequence[str]) -> str:
    """SQL: the first non-empty value of several columns or a number."""
    quoted = [term if term == str(NONE) else f'"{term}"' for term in terms]
    return quoted[0] if len(quoted) == 1 else f"COALESCE({', '.join(quoted)})"


def opened(path: Path) -> sqlite3.Connection:
    """Open the database read-only."""
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    database = sqlite3.connect(uri, uri=True, check_same_thread=False)
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    return database


class Numbers:
    """Runs queries on a database, over several connections."""

    def __init__(self, connections: Sequence[sqlite3.Connection], threads: ThreadPoolExecutor) -> None:
        self._count = len(connections)
        self._threads = threads
        self._connections: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        for each in connections:
            self._connections.put(each)

    @classmethod
    @contextmanager
    def of(cls, path: Path) -> Iterator[Numbers]:
        """Open the connections, and close them at the end."""
        with ExitStack() as stack:
            count = min(processors(), _MOST_THREADS)
            connections = [stack.enter_context(closing(opened(path))) for _ in range(count)]
            threads = stack.enter_context(ThreadPoolExecutor(count))
            stack.callback(threads.shutdown, wait=True, cancel_futures=True)
            yield cls(connections, threads)

    def columns(self, question: Question) -> Iterator[list[Integers]]:
        """Yield all columns, in batches of rows, in the order of the table; raises NoNumberError and sqlite3.Error."""
        return self._answers(question, _columns)

    def texts(self, question: Question) -> Iterator[list[str | None]]:
        """Yield the texts of the single column, in the same batches as `columns`; raises sqlite3.Error."""
        return self._answers(question, _texts)

    def _answers(
        self, question: Question, answer: Callable[[sqlite3.Connection, Question, str], Answer]
    ) -> Iterator[Answer]:
        waiting: deque[Future[Answer]] = deque()
        for part in self._parts(question.table):
            waiting.append(self._threads.submit(self._answer, answer, question, part))
            if len(waiting) > 2 * self._count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _parts(self, table: str) -> Iterator[str]:
        """Yield SQL conditions that divide a table into parts."""
        first = last = None
        with self._connection() as database, suppress(sqlite3.Error):  # rows need not have ids
            first, last = database.execute(f'SELECT min(rowid), max(rowid) FROM "{table}"').fetchone()
        if not (isinstance(first, int) and isinstance(last, int)):
            yield ""
            return
        step = max(ROWS, (last - first) // _MOST_PARTS + 1)
        for number in range(first, last + 1, step):
            yield f"rowid BETWEEN {number} AND {min(number + step - 1, last)}"

    def _answer(
        self, answer: Callable[[sqlite3.Connection, Question, str], Answer], question: Question, part: str
    ) -> Answer:
        with self._connection() as database:
            return answer(database, question, part)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        database = self._connections.get()
        try:
            yield database
        finally:
            self._connections.put(database)


def _columns(database: sqlite3.Connection, question: Question, part: str) -> list[Integers]:
    count, *texts = database.execute(question.as_texts(part)).fetchone()
    columns = [_numbers(text) for text in texts]
    if all(len(column) == count for column in columns):
        return columns
    rows = database.execute(question.as_rows(part)).fetchall()
    try:
        numbers = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(question.columns))
    except (ValueError, OverflowError, TypeError) as error:
        raise NoNumberError(str(error)) from error
    return [*numbers.reshape(len(rows), len(question.columns)).T]


def _numbers(text: str | None) -> Integers:
    """Parse the numbers at the beginning of a text."""
    if not text:
        return np.zeros(0, np.int64)
    # Parsing ends at the first invalid character, with an error or, before NumPy 2.3, a warning.
    with suppress(ValueError, DeprecationWarning):
        return np.fromstring(text, np.int64, sep=",")
    return np.zeros(0, np.int64)


def _texts(database: sqlite3.Connection, question: Question, part: str) -> list[str | None]:
    count, there, together = database.execute(question.as_one_text(part)).fetchone()
    texts = together.split(_BETWEEN) if there else []
    if count == len(texts):
        return cast(list[str | None], texts)
    # Some rows are empty, or a text contains the separator.
    return [None if text is None else str(text) for (text,) in database.execute(question.as_values(part))]

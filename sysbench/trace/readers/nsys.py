"""Reader for recordings of Nsight Systems: SQLite exports, and reports, which `nsys export` converts to SQLite.

Versions differ in tables and columns, so both are examined before any query. The schema is described in "Exporter
documentation" of NVIDIA's Nsight Systems user guide; times are nanoseconds. Ranges from torch's `emit_nvtx` ("aten::mm,
seq = 12, op_id = 3") become operators, all others remain ranges.

Several threads read columns with millions of numbers. SQLite concatenates tens of thousands of rows of a column into
one text, and numpy parses it: no Python object is created per number, and other threads can run at the same time.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import numpy as np

from sysbench import units
from sysbench.errors import LogError
from sysbench.interpreter import gc_paused
from sysbench.log.storage import ScratchDirectory
from sysbench.trace.columns import distinct_rows, map_distinct
from sysbench.trace.readers.reading import Progress, no_progress, processors
from sysbench.trace.readers.timing import with_consistent_times
from sysbench.trace.recording import COPY, KERNEL, NONE, SET, Integers, Recording, Table

SQLITE: Final = b"SQLite format 3\x00"
REPORT_SUFFIXES: Final = (".nsys-rep", ".qdrep")
INSTALL_HINT: Final = (
    "It needs Nsight Systems, which is not installed here. Get it from https://developer.nvidia.com/nsight-systems, "
    "or run `nsys export --type sqlite` on a machine that has it"
)

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_NVTX: Final = "NVTX_EVENTS"
_STRINGS: Final = "StringIds"
_DEVICES: Final = "TARGET_INFO_GPU"
_EXPORT_TIMEOUT_S: Final = 1800.0

_TIMES: Final = ("start", "end")
_PLACE: Final = ("deviceId", "streamId", "correlationId")
_GRID: Final = ("gridX", "gridY", "gridZ")
_BLOCK: Final = ("blockX", "blockY", "blockZ")
_WANTED: Final = frozenset({_KERNELS, _COPIES, _SETS, _CALLS, _NVTX})

_KERNEL_NAME: Final = "demangledName"
_REPLACEMENTS: Final = {_KERNEL_NAME: ("shortName",)}
"""Columns that replace a missing or empty column."""
_NVTX_TEXT: Final = """CASE typeof("text") WHEN 'text' THEN "text" END"""
"""SQL expression for the text of an NVTX event; NULL for a number or a blob, which SQLite allows in any column."""
_ENDED: Final = '"eventType" IN (59, 60) AND "end" IS NOT NULL'
"""SQL condition that selects ranges (push and pop, start and end) and excludes marks."""

_EMIT_NVTX: Final = re.compile(
    r"(?P<name>.*?), seq = (?P<sequence>\d{1,18})(?:, op_id = \d+)?(?P<shapes>, sizes = .*)?", re.DOTALL
)
"""Ranges from `emit_nvtx` (torch/csrc/autograd/profiler_legacy.cpp and torch/csrc/profiler/util.cpp, `getNvtxStr`)."""
_SEQUENCE: Final = ", seq = "
_COUNT: Final = ", op_id = "
_MAX_DIGITS: Final = 18
_UNNAMED: Final = "(unnamed)"
_COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""Kinds of copies (CUpti_ActivityMemcpyKind)."""

BATCH_ROWS: Final = 65_536
"""Number of rows that are read at a time."""
_MAX_PARTS: Final = 4096
"""Maximum number of parts of a table. If row ids have gaps, each part covers a wider range of ids."""
_MAX_THREADS: Final = 4

Result = TypeVar("Result")


def read(path: Path, progress: Progress = no_progress) -> Recording:
    """Read an export or a report; raises LogError if it contains no trace."""
    is_report = path.suffix.lower() in REPORT_SUFFIXES
    return _read_report(path, progress) if is_report else _read_export(path, path, progress)


def _read_export(export: Path, path: Path, progress: Progress) -> Recording:
    """Read an SQLite export. `path` is the original file, whose name becomes the title of the recording."""
    try:
        with (
            closing(open_database(export)) as database,
            ThreadPoolExecutor(min(processors(), _MAX_THREADS)) as threads,
            gc_paused(),
        ):
            return with_consistent_times(_Reader(path, database, Queries(export, threads), progress).recording())
    except sqlite3.Error as error:
        raise LogError(f"{path} is not a readable export of Nsight Systems: {error}") from error
    except UnicodeDecodeError as error:  # sqlite3 decodes its own messages, which quote the damaged schema
        raise LogError(f"{path} is not a readable export of Nsight Systems: its schema is damaged") from error
    except NonNumericError as error:
        raise LogError(f"{path} has a non-numeric value in a numeric column of Nsight Systems") from error


def _read_report(path: Path, progress: Progress) -> Recording:
    nsys = shutil.which("nsys")
    if nsys is None:
        raise LogError(f"{path} is a report of Nsight Systems. {INSTALL_HINT}")
    with ScratchDirectory() as directory:
        exported = Path(directory) / "report.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--output", str(exported), str(path.absolute())]
        progress("nsys is exporting it")
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=_EXPORT_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise LogError(f"nsys did not export {path} within {_EXPORT_TIMEOUT_S:.0f} s") from error
        if not exported.is_file():
            lines = (result.stderr or result.stdout).strip().splitlines()
            raise LogError(f"nsys cannot export {path}: {lines[-1] if lines else f'exit code {result.returncode}'}")
        return _read_export(exported, path, progress)


class _Reader:
    def __init__(self, path: Path, database: sqlite3.Connection, queries: Queries, progress: Progress) -> None:
        self._path = path
        self._database = database
        self._queries = queries
        self._progress = progress
        tables = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self._columns = {
            name: frozenset(str(row[1]) for row in database.execute(f'PRAGMA table_info("{name}")'))
            for name in (*_WANTED, _STRINGS, _DEVICES)
            if name in tables
        }
        if not self._columns.keys() & _WANTED:
            raise LogError(
                f"{path} is a database, but not an export of Nsight Systems: it has neither kernels nor NVTX ranges"
            )
        self._names: dict[str, int] = {}
        self._threads: dict[int, int] = {}
        self._launch_shapes: dict[tuple[int, ...], int] = {}
        self._strings: dict[int, str] = {}
        if _STRINGS in self._columns:
            self._strings = dict(database.execute(f"SELECT id, value FROM {_STRINGS} WHERE typeof(value) = 'text'"))

    def recording(self) -> Recording:
        operators, ranges = self._ranges()
        work, launches = self._work(), Table(5)
        for rows in self._rows(_CALLS, (*_TIMES, "nameId", "globalTid", "correlationId")):
            start, end, name, thread, correlation = rows.values()
            launches.add([start, end - start, self._name_indices(name), self._thread_indices(thread), correlation])
            self._progress(f"{units.count(len(launches))} launches")
        tables = (work, launches, operators, ranges)
        if not any(len(table) for table in tables):
            raise LogError(f"{self._path} has no kernels, no calls and no ranges")
        remarks = [] if len(work) else ["no GPU activity was recorded"]
        if not len(ranges) and not len(operators):
            remarks.append("no NVTX ranges were recorded, so kernels cannot be attributed to parts of the program")
        devices: tuple[str, ...] = ()
        if {"id", "name"} <= self._columns.get(_DEVICES, frozenset()):
            with suppress(sqlite3.Error):
                named = self._database.execute(f'SELECT name FROM {_DEVICES} ORDER BY "id"')
                devices = tuple(str(name) for (name,) in named)
        return Recording(
            title=self._path.name,
            names=tuple(self._names),
            work=work,
            launches=launches,
            operators=operators,
            ranges=ranges,
            launch_shapes=np.array([*self._launch_shapes], np.int64).reshape(-1, 6),
            origin_ns=0,
            devices=devices,
            remarks=tuple(remarks),
        )

    def _name_index(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _rows(self, table: str, wanted: Sequence[str], condition: str = "") -> Iterator[dict[str, Integers]]:
        """Yield the wanted columns by name, in batches of rows; NONE for missing columns and values."""
        if table not in self._columns:
            return
        present = self._columns[table]
        alternatives = [(name, *_REPLACEMENTS.get(name, ())) for name in wanted]
        columns = [_joined([name for name in names if name in present]) for names in alternatives]
        for found in self._queries.results(table, f"count(*), {', '.join(columns)}", condition, _numeric_columns):
            yield dict(zip(wanted, found, strict=True))

    def _work(self) -> Table:
        work = Table(9)
        for rows in self._rows(_KERNELS, (*_TIMES, _KERNEL_NAME, *_PLACE, *_GRID, *_BLOCK)):
            none = np.full(len(rows["start"]), NONE, np.int64)
            shapes, which = distinct_rows([rows[name] for name in (*_GRID, *_BLOCK)])
            ours = [self._launch_shapes.setdefault(tuple(row), len(self._launch_shapes)) for row in shapes.tolist()]
            shape = np.array([*ours, NONE], np.int64)[which]
            work.add(_work_columns(rows, self._name_indices(rows[_KERNEL_NAME]), KERNEL, shape, none))
            self._progress(f"{units.count(len(work))} kernels")
        for rows in self._rows(_COPIES, (*_TIMES, "copyKind", *_PLACE, "bytes")):
            none = np.full(len(rows["start"]), NONE, np.int64)
            kinds = rows["copyKind"]
            name = map_distinct(lambda kind: self._name_index(f"Memcpy {_COPY_KINDS.get(kind, 'other')}"), kinds)
            work.add(_work_columns(rows, name, COPY, none, rows["bytes"]))
        for rows in self._rows(_SETS, (*_TIMES, *_PLACE, "bytes")):
            none = np.full(len(rows["start"]), NONE, np.int64)
            work.add(_work_columns(rows, np.full_like(none, self._name_index("Memset")), SET, none, rows["bytes"]))
        return work

    def _ranges(self) -> tuple[Table, Table]:
        """Read all NVTX ranges that have ended; return torch's operators and the program's own ranges."""
        operators, ranges = Table(7), Table(4)
        if _NVTX in self._columns and "eventType" not in self._columns[_NVTX]:
            raise LogError(f"{self._path} has NVTX events of an unknown form: they have no eventType")
        # Names of NVTX events that are not registered names, in batches that match the batches of rows.
        name_texts: Iterator[list[str | None]] = repeat([])
        if "text" in self._columns.get(_NVTX, ()):
            name_texts = self._queries.results(_NVTX, _NVTX_TEXT, _ENDED, lambda rows: [text for (text,) in rows])
        for rows, texts in zip(self._rows(_NVTX, (*_TIMES, "textId", "globalTid"), _ENDED), name_texts, strict=False):
            start, end, text, thread = rows.values()
            name, sequence, shapes = self._parse_range_names(text, texts)
            columns = [start, end - start, name, self._thread_indices(thread)]
            torch, program = sequence != NONE, sequence == NONE
            none = np.full(len(start), NONE, np.int64)
            operators.add([column[torch] for column in (*columns, sequence, none, shapes)])
            ranges.add([column[program] for column in columns])
            self._progress(f"{units.count(len(operators) + len(ranges))} ranges")
        return operators, ranges

    def _parse_range_names(self, numbers: Integers, texts: Sequence[str | None]) -> Integers:
        """Return a (3, n) array for n ranges: name index, sequence number, and name index of the input shapes."""
        marks = map_distinct(
            lambda number: self._parse_range_name(self._strings.get(number, _UNNAMED)), numbers
        ).reshape(-1, 3)
        written = [(at, text) for at, text in enumerate(texts) if text is not None]
        marks[[at for at, _ in written]] = np.array(
            [self._parse_range_name(text) for _, text in written], np.int64
        ).reshape(-1, 3)
        return marks.T

    def _parse_range_name(self, text: str) -> tuple[int, int, int]:
        name, found, numbers = text.partition(_SEQUENCE)
        sequence, _, count = numbers.partition(_COUNT)
        if sequence.isdecimal() and count.isdecimal() and len(sequence) <= _MAX_DIGITS:
            return self._name_index(name), int(sequence), NONE
        emitted = _EMIT_NVTX.fullmatch(text) if found else None
        if emitted is None:
            return self._name_index(text), NONE, NONE
        sizes = emitted["shapes"]
        return (
            self._name_index(emitted["name"]),
            int(emitted["sequence"]),
            self._name_index(sizes[10:]) if sizes else NONE,
        )

    def _name_indices(self, numbers: Integers) -> Integers:
        return map_distinct(lambda number: self._name_index(self._strings.get(number, _UNNAMED)), numbers)

    def _thread_indices(self, numbers: Integers) -> Integers:
        return map_distinct(lambda number: self._threads.setdefault(number, len(self._threads)), numbers)


def _work_columns(
    rows: dict[str, Integers], name: Integers, kind: int, shape: Integers, moved: Integers
) -> list[Integers]:
    place = [rows[each] for each in _PLACE]
    return [
        rows["start"],
        rows["end"] - rows["start"],
        name,
        np.full(len(name), kind, np.int64),
        *place,
        shape,
        moved,
    ]


# --- queries


class NonNumericError(Exception):
    """Raised if a value in a numeric column is not a number."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database read-only."""
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    database = sqlite3.connect(uri, uri=True)
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    return database


@dataclass(frozen=True)
class Queries:
    """Runs queries part by part, in several threads. Each part has a connection of its own."""

    path: Path
    threads: ThreadPoolExecutor

    def results(
        self, table: str, select: str, condition: str, convert: Callable[[list[tuple[Any, ...]]], Result]
    ) -> Iterator[Result]:
        """Yield the converted rows of all parts of a table in order; threads read a few parts ahead.

        Raises sqlite3.Error if the query fails.
        """

        def answered(part: str) -> Result:
            conditions = " AND ".join(filter(None, (part, condition)))
            # Without indices, SQLite returns rows in table order for any condition.
            source = f'"{table}" NOT INDEXED{f" WHERE {conditions}" if conditions else ""}'
            with closing(open_database(self.path)) as database:
                return convert(database.execute(f"SELECT {select} FROM {source}").fetchall())

        waiting: deque[Future[Result]] = deque()
        for part in self._parts(table):
            waiting.append(self.threads.submit(answered, part))
            if len(waiting) > 2 * _MAX_THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _parts(self, table: str) -> Iterator[str]:
        first = last = None
        with closing(open_database(self.path)) as database, suppress(sqlite3.Error):  # rows need not have ids
            first, last = database.execute(f'SELECT min(rowid), max(rowid) FROM "{table}"').fetchone()
        if not (isinstance(first, int) and isinstance(last, int)):
            yield ""
            return
        step = max(BATCH_ROWS, (last - first) // _MAX_PARTS + 1)
        for number in range(first, last + 1, step):
            yield f"rowid BETWEEN {number} AND {min(number + step - 1, last)}"


def _joined(names: Sequence[str]) -> str:
    """Return SQL that concatenates the values of a column into one text; later names replace missing values."""
    terms = ", ".join([*(f'"{name}"' for name in names), str(NONE)])
    return f"group_concat(COALESCE({terms}))" if names else f"group_concat({NONE})"


def _numeric_columns(rows: list[tuple[Any, ...]]) -> list[Integers]:
    ((count, *texts),) = rows
    columns = [_numbers(text) for text in texts]
    if not all(len(column) == count for column in columns):
        raise NonNumericError
    return columns


def _numbers(text: str | None) -> Integers:
    """Parse comma-separated integers; the result is too short if the text contains anything else."""
    if not text:
        return np.zeros(0, np.int64)
    # Parsing ends at the first invalid character, with an error or, before NumPy 2.3, a warning.
    with suppress(ValueError, DeprecationWarning):
        return np.fromstring(text, np.int64, sep=",")
    return np.zeros(0, np.int64)

"""Reads what Nsight Systems recorded: an export to SQLite, or a report through `nsys export`.

Versions differ in their tables and columns: both are looked at before anything is asked for. The schema is described in
"Exporter documentation" of NVIDIA's Nsight Systems user guide; times are nanoseconds. Ranges that torch's `emit_nvtx`
made ("aten::mm, seq = 12, op_id = 3") are operators, all others are ranges.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sysbench.analysis.grouping import distinct, grouped, launch_shapes
from sysbench.analysis.trace import COPY, KERNEL, NONE, SET, DeviceWork, Integers, Launches, Operators, Ranges, Trace
from sysbench.errors import LogError

SQLITE: Final = b"SQLite format 3\x00"
REPORT_SUFFIXES: Final = (".nsys-rep", ".qdrep")
INSTALL_HINT: Final = (
    "Nsight Systems reads it, and is not installed here: have it from https://developer.nvidia.com/nsight-systems, or "
    "export it where it is with `nsys export --type sqlite`"
)

_ROWS: Final = 200_000
"""Taken from the database at a time."""
_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_NVTX: Final = "NVTX_EVENTS"
_STRINGS: Final = "StringIds"
_PUSH_POP, _START_END = 59, 60
_EXPORT_TIMEOUT_S: Final = 1800.0

_EMITTED: Final = re.compile(
    r"(?P<name>.*?), seq = (?P<sequence>\d+)(?:, op_id = \d+)?(?P<shapes>, sizes = .*)?", re.DOTALL
)
"""torch/csrc/autograd/profiler_legacy.cpp and torch/csrc/profiler/util.cpp, `getNvtxStr`."""
_COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""CUpti_ActivityMemcpyKind."""


def read(path: Path) -> Trace:
    """The trace in an export or a report; raises LogError for a file that holds none."""
    if path.suffix.lower() in REPORT_SUFFIXES:
        return _of_report(path)
    address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            return _Reader(path, database).trace()
    except sqlite3.Error as error:
        raise LogError(f"{path} is not an export of Nsight Systems that can be read: {error}") from error
    except (ValueError, OverflowError, TypeError) as error:
        raise LogError(f"{path} holds what is no number where Nsight Systems has numbers: {error}") from error


def _of_report(path: Path) -> Trace:
    nsys = shutil.which("nsys")
    if nsys is None:
        raise LogError(f"{path} is a report of Nsight Systems. {INSTALL_HINT}")
    with tempfile.TemporaryDirectory(prefix="sysbench-") as directory:
        exported = Path(directory) / "report.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--output", str(exported), str(path.absolute())]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_EXPORT_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise LogError(f"nsys did not export {path} within {_EXPORT_TIMEOUT_S:.0f} s") from error
        if not exported.is_file():
            said = (ran.stderr or ran.stdout).strip().splitlines()
            raise LogError(f"nsys cannot export {path}: {said[-1] if said else f'exit code {ran.returncode}'}")
        return replace(read(exported), title=path.name)


class _Reader:
    """One pass over a database."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._database = database
        tables = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self._columns = {
            name: self._columns_of(name) for name in (*_WANTED, _STRINGS, "TARGET_INFO_GPU") if name in tables
        }
        if not self._columns.keys() & _WANTED:
            raise LogError(
                f"{path} is a database, but no export of Nsight Systems: it has neither kernels nor NVTX ranges"
            )
        self._names: dict[str, int] = {}
        self._strings = self._read_strings()
        self._threads: dict[int, int] = {}

    def trace(self) -> Trace:
        work, launches = self._work(), self._launches()
        operators, ranges = self._ranges()
        parts = (work.start_ns, launches.start_ns, operators.start_ns, ranges.start_ns)
        if not any(len(part) for part in parts):
            raise LogError(f"{self._path} holds no kernels, no calls and no ranges")
        origin = min(int(part.min()) for part in parts if len(part))
        for part in parts:
            part -= origin
        return Trace(
            title=self._path.name,
            format="nsys",
            names=tuple(self._names),
            work=work,
            launches=launches,
            operators=operators,
            ranges=ranges,
            origin_ns=origin,
            devices=self._devices(),
            remarks=tuple(self._remarks(work, ranges, operators)),
        )

    def _columns_of(self, table: str) -> frozenset[str]:
        return frozenset(str(row[1]) for row in self._database.execute(f'PRAGMA table_info("{table}")'))

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _read_strings(self) -> dict[int, int]:
        """By the file's numbers, ours."""
        if _STRINGS not in self._columns:
            return {}
        return {
            number: self._name(str(value))
            for number, value in self._database.execute("SELECT id, value FROM StringIds")
        }

    def _table(self, table: str, wanted: Sequence[str], where: str = "") -> dict[str, Integers]:
        """Columns of whole numbers by name; NONE where there is no such column, or nothing in it."""
        there = self._columns.get(table)
        if there is None:
            return {name: np.zeros(0, np.int64) for name in wanted}
        asked = ", ".join(f'COALESCE("{name}", {NONE})' if name in there else str(NONE) for name in wanted)
        blocks = [*_blocks(self._database, f'SELECT {asked} FROM "{table}" {where}', len(wanted))]
        whole = np.concatenate(blocks, axis=0) if blocks else np.zeros((0, len(wanted)), np.int64)
        return {name: np.ascontiguousarray(whole[:, at]) for at, name in enumerate(wanted)}

    def _work(self) -> DeviceWork:
        kernels = self._table(_KERNELS, (*_TIMES, "demangledName", "shortName", *_PLACE, *_GRID, *_BLOCK))
        copies = self._table(_COPIES, (*_TIMES, "copyKind", *_PLACE, "bytes"))
        sets = self._table(_SETS, (*_TIMES, *_PLACE, "bytes"))
        named = np.where(kernels["demangledName"] == NONE, kernels["shortName"], kernels["demangledName"])
        kinds = {
            kind: self._name(f"Memcpy {_COPY_KINDS.get(kind, 'other')}")
            for kind in distinct(copies["copyKind"]).tolist()
        }
        names = (
            self._named(named),
            np.array([kinds[kind] for kind in copies["copyKind"].tolist()], np.int64),
            np.full(len(sets["start"]), self._name("Memset") if len(sets["start"]) else 0, np.int64),
        )
        parts = (kernels, copies, sets)
        counts = [len(part["start"]) for part in parts]
        shapes, shape = launch_shapes([kernels[name] for name in (*_GRID, *_BLOCK)])
        start = np.concatenate([part["start"] for part in parts])
        return DeviceWork(
            start_ns=start,
            duration_ns=np.concatenate([part["end"] for part in parts]) - start,
            name=np.concatenate(names),
            kind=np.repeat(np.array([KERNEL, COPY, SET], np.int64), counts),
            device=np.concatenate([part["deviceId"] for part in parts]),
            stream=np.concatenate([part["streamId"] for part in parts]),
            correlation=np.concatenate([part["correlationId"] for part in parts]),
            launch_shape=np.concatenate([shape, np.full(sum(counts[1:]), NONE, np.int64)]),
            bytes=np.concatenate([np.full(counts[0], NONE, np.int64), copies["bytes"], sets["bytes"]]),
            launch_shapes=shapes,
        )

    def _launches(self) -> Launches:
        calls = self._table(_CALLS, (*_TIMES, "nameId", "globalTid", "correlationId"))
        thread = self._thread(calls["globalTid"])
        length = calls["end"] - calls["start"]
        return Launches(calls["start"], length, self._named(calls["nameId"]), thread, calls["correlationId"])

    def _ranges(self) -> tuple[Operators, Ranges]:
        """NVTX: ranges that ended, by whose name they are operators of torch or the program's own."""
        ended = f'WHERE "eventType" IN ({_PUSH_POP}, {_START_END}) AND "end" IS NOT NULL'
        if _NVTX in self._columns and "eventType" not in self._columns[_NVTX]:
            raise LogError(f"{self._path} has NVTX events of an unknown form: they have no eventType")
        rows = self._table(_NVTX, (*_TIMES, "textId", "globalTid"), ended)
        name, thread = self._named(rows["textId"]), self._thread(rows["globalTid"])
        if _NVTX in self._columns and "text" in self._columns[_NVTX]:
            written = self._database.execute(f'SELECT "text" FROM "{_NVTX}" {ended}')
            for at, (text,) in enumerate(written):
                if text is not None:
                    name[at] = self._name(str(text))
        known = [*self._names]
        emitted = {number: found for number in distinct(name).tolist() if (found := _EMITTED.fullmatch(known[number]))}
        is_operator = np.isin(name, np.array([*emitted], np.int64), kind="table")
        operators = self._operators(rows, name, thread, is_operator, emitted)
        own = ~is_operator
        length = rows["end"] - rows["start"]
        return operators, Ranges(rows["start"][own], length[own], name[own], thread[own])

    def _operators(
        self,
        rows: Mapping[str, Integers],
        name: Integers,
        thread: Integers,
        chosen: NDArray[np.bool_],
        emitted: Mapping[int, re.Match[str]],
    ) -> Operators:
        numbers = name[chosen].tolist()
        unknown = np.full(len(numbers), NONE, np.int64)
        short = {number: self._name(found["name"]) for number, found in emitted.items()}
        sizes = {
            number: self._name(found["shapes"][10:]) if found["shapes"] else NONE for number, found in emitted.items()
        }
        return Operators(
            start_ns=rows["start"][chosen],
            duration_ns=(rows["end"] - rows["start"])[chosen],
            name=np.array([short[number] for number in numbers], np.int64),
            thread=thread[chosen],
            sequence=np.array([int(emitted[number]["sequence"]) for number in numbers], np.int64),
            forward_thread=unknown,
            shapes=np.array([sizes[number] for number in numbers], np.int64),
        )

    def _named(self, numbers: Integers) -> Integers:
        """Our numbers of names for the file's."""
        different, which = grouped(numbers)
        strings = self._strings
        ours = [strings[number] if number in strings else self._name("(unnamed)") for number in different.tolist()]
        return np.array(ours, np.int64)[which] if ours else np.zeros(0, np.int64)

    def _thread(self, numbers: Integers) -> Integers:
        different, which = grouped(numbers)
        ours = [self._threads.setdefault(number, len(self._threads)) for number in different.tolist()]
        return np.array(ours, np.int64)[which] if ours else np.zeros(0, np.int64)

    def _devices(self) -> tuple[str, ...]:
        if not {"id", "name"} <= self._columns.get("TARGET_INFO_GPU", frozenset()):
            return ()
        with suppress(sqlite3.Error):
            return tuple(
                str(name) for (name,) in self._database.execute('SELECT name FROM TARGET_INFO_GPU ORDER BY "id"')
            )
        return ()

    def _remarks(self, work: DeviceWork, ranges: Ranges, operators: Operators) -> Iterator[str]:
        if not len(work.start_ns):
            yield "nothing that ran on a GPU was recorded"
        if not len(ranges.start_ns) and not len(operators.start_ns):
            yield "no NVTX ranges were recorded: nothing tells what part of the program launched what"


_TIMES: Final = ("start", "end")
_PLACE: Final = ("deviceId", "streamId", "correlationId")
_GRID: Final = ("gridX", "gridY", "gridZ")
_BLOCK: Final = ("blockX", "blockY", "blockZ")
_WANTED: Final = frozenset({_KERNELS, _COPIES, _SETS, _CALLS, _NVTX})


def _blocks(database: sqlite3.Connection, question: str, width: int) -> Iterator[Integers]:
    """The answer, as many rows at a time as are worth it; (rows, width)."""
    cursor = database.execute(question)
    while rows := cursor.fetchmany(_ROWS):
        yield np.array(rows, np.int64).reshape(len(rows), width)


def is_export(beginning: bytes) -> bool:
    """Whether a file that begins like this is a database."""
    return beginning.startswith(SQLITE)

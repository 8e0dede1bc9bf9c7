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
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import numpy as np

from sysbench.analysis.grouping import distinct, grouped, launch_shapes
from sysbench.analysis.nsys_rows import NoNumberError, Question, opened, rows
from sysbench.analysis.reading import no_garbage_collection
from sysbench.analysis.trace import COPY, KERNEL, NONE, SET, DeviceWork, Integers, Launches, Operators, Ranges, Trace
from sysbench.errors import LogError

SQLITE: Final = b"SQLite format 3\x00"
REPORT_SUFFIXES: Final = (".nsys-rep", ".qdrep")
INSTALL_HINT: Final = (
    "Nsight Systems reads it, and is not installed here: have it from https://developer.nvidia.com/nsight-systems, or "
    "export it where it is with `nsys export --type sqlite`"
)

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_NVTX: Final = "NVTX_EVENTS"
_STRINGS: Final = "StringIds"
_PUSH_POP, _START_END = 59, 60
_EXPORT_TIMEOUT_S: Final = 1800.0

_EMITTED: Final = re.compile(
    r"(?P<name>.*?), seq = (?P<sequence>\d{1,18})(?:, op_id = \d+)?(?P<shapes>, sizes = .*)?", re.DOTALL
)
"""torch/csrc/autograd/profiler_legacy.cpp and torch/csrc/profiler/util.cpp, `getNvtxStr`."""
_SEQUENCE: Final = ", seq = "
_COUNT: Final = ", op_id = "
_DIGITS: Final = 18
_UNNAMED: Final = "(unnamed)"
_COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""CUpti_ActivityMemcpyKind."""


def read(path: Path) -> Trace:
    """The trace in an export or a report; raises LogError for a file that holds none."""
    return _of_report(path) if path.suffix.lower() in REPORT_SUFFIXES else _of_export(path, path)


def _of_export(export: Path, path: Path) -> Trace:
    """What an export holds of the file that it is or that it was made of."""
    try:
        with closing(opened(export)) as database, no_garbage_collection():
            return _Reader(path, export, database).trace()
    except sqlite3.Error as error:
        raise LogError(f"{path} is not an export of Nsight Systems that can be read: {error}") from error
    except NoNumberError as error:
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
        return _of_export(exported, path)


class _Reader:
    """One pass over a database."""

    def __init__(self, path: Path, export: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._export = export
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
        self._threads: dict[int, int] = {}

    def trace(self) -> Trace:
        large = [self._question(*each) for each in _LARGE.items() if each[0] in self._columns]
        with rows(self._export, self._database, large) as self._rows:
            self._strings = self._read_strings()
            operators, ranges = self._ranges()
            work, launches = self._work(), self._launches()
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

    def _read_strings(self) -> dict[int, str]:
        if _STRINGS not in self._columns:
            return {}
        return {number: str(value) for number, value in self._database.execute("SELECT id, value FROM StringIds")}

    def _question(self, table: str, wanted: Sequence[str], where: str = "") -> Question:
        there = self._columns[table]
        either = [(name, *_INSTEAD.get(name, ())) for name in wanted]
        return Question(table, tuple(tuple(name for name in names if name in there) for names in either), where)

    def _table(self, table: str, wanted: Sequence[str], where: str = "") -> dict[str, Integers]:
        """Columns of whole numbers by name; NONE where there is no such column, or nothing in it."""
        if table not in self._columns:
            return {name: np.zeros(0, np.int64) for name in wanted}
        return dict(zip(wanted, self._rows.columns(self._question(table, wanted, where)), strict=True))

    def _work(self) -> DeviceWork:
        kernels = self._table(_KERNELS, _LARGE[_KERNELS])
        copies = self._table(_COPIES, (*_TIMES, "copyKind", *_PLACE, "bytes"))
        sets = self._table(_SETS, (*_TIMES, *_PLACE, "bytes"))
        kinds = {
            kind: self._name(f"Memcpy {_COPY_KINDS.get(kind, 'other')}")
            for kind in distinct(copies["copyKind"]).tolist()
        }
        names = (
            self._named(kernels[_KERNEL_NAME]),
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
        calls = self._table(_CALLS, _LARGE[_CALLS])
        thread = self._thread(calls["globalTid"])
        length = calls["end"] - calls["start"]
        return Launches(calls["start"], length, self._named(calls["nameId"]), thread, calls["correlationId"])

    def _ranges(self) -> tuple[Operators, Ranges]:
        """NVTX: ranges that ended, by whose name they are operators of torch or the program's own."""
        ended = f'WHERE "eventType" IN ({_PUSH_POP}, {_START_END}) AND "end" IS NOT NULL'
        if _NVTX in self._columns and "eventType" not in self._columns[_NVTX]:
            raise LogError(f"{self._path} has NVTX events of an unknown form: they have no eventType")
        found = self._table(_NVTX, (*_TIMES, "textId", "globalTid"), ended)
        name, sequence, shapes = self._marks(found["textId"], ended)
        thread, length = self._thread(found["globalTid"]), found["end"] - found["start"]
        torch, own = sequence != NONE, sequence == NONE
        operators = Operators(
            start_ns=found["start"][torch],
            duration_ns=length[torch],
            name=name[torch],
            thread=thread[torch],
            sequence=sequence[torch],
            forward_thread=np.full(int(torch.sum()), NONE, np.int64),
            shapes=shapes[torch],
        )
        return operators, Ranges(found["start"][own], length[own], name[own], thread[own])

    def _marks(self, numbers: Integers, ended: str) -> Integers:
        """(3, n) of the ranges that ended: names; for what torch emitted sequence numbers, and shapes where it did."""
        different, which = grouped(numbers)
        registered = [self._mark(self._strings.get(number, _UNNAMED)) for number in different.tolist()]
        marks = np.array(registered, np.int64).reshape(-1, 3)[which]
        if _NVTX in self._columns and "text" in self._columns[_NVTX]:
            texts = [text for (text,) in self._database.execute(f'SELECT "text" FROM "{_NVTX}" {ended}')]
            written = [at for at, text in enumerate(texts) if text is not None]
            marks[written] = np.array([self._mark(str(texts[at])) for at in written], np.int64).reshape(-1, 3)
        return marks.T

    def _mark(self, text: str) -> tuple[int, int, int]:
        name, found, numbers = text.partition(_SEQUENCE)
        sequence, _, count = numbers.partition(_COUNT)
        if sequence.isdecimal() and count.isdecimal() and len(sequence) <= _DIGITS:
            return self._name(name), int(sequence), NONE
        emitted = _EMITTED.fullmatch(text) if found else None
        if emitted is None:
            return self._name(text), NONE, NONE
        sizes = emitted["shapes"]
        return self._name(emitted["name"]), int(emitted["sequence"]), self._name(sizes[10:]) if sizes else NONE

    def _named(self, numbers: Integers) -> Integers:
        """Our numbers of names for the file's."""
        different, which = grouped(numbers)
        ours = [self._name(self._strings.get(number, _UNNAMED)) for number in different.tolist()]
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

_KERNEL_NAME: Final = "demangledName"
_INSTEAD: Final = {_KERNEL_NAME: ("shortName",)}
"""What stands for a column where it is not there, or empty."""
_LARGE: Final = {
    _KERNELS: (*_TIMES, _KERNEL_NAME, *_PLACE, *_GRID, *_BLOCK),
    _CALLS: (*_TIMES, "nameId", "globalTid", "correlationId"),
}
"""What is asked for of the tables that hold most of an export."""


def is_export(beginning: bytes) -> bool:
    """Whether a file that begins like this is a database."""
    return beginning.startswith(SQLITE)

"""A profiler's recording as columns, in the same form for torch.profiler (Kineto) and Nsight Systems.

Times are integer nanoseconds since the first event, so totals are exact. Names are stored once, and columns contain
indices. A trace of several gigabytes has tens of millions of numbers, most of them small or close to their neighbours.
Columns are therefore packed in chunks of rows: each chunk stores its smallest number in full, and the other numbers as
differences from it. A recording can be unpacked slice by slice, or completely, as a `Trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

NONE = -1
"""Missing value in a column of integers."""

KERNEL, COPY, SET = 0, 1, 2
"""Kinds of device work: a kernel, a memory copy, a memory set."""


@dataclass(frozen=True)
class DeviceWork:
    """Kernels, copies and memory sets on devices. Empty for a CPU-only trace."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    """Index into `RecordingMetadata.names`."""
    kind: Integers
    """KERNEL, COPY or SET."""
    device: Integers
    stream: Integers
    correlation: Integers
    """Correlation number of the call that launched the work; NONE if not recorded."""
    launch_shape: Integers
    """Index into `RecordingMetadata.launch_shapes`; NONE for copies and sets, and if not recorded."""
    bytes: Integers
    """Bytes copied or set; NONE for kernels."""


@dataclass(frozen=True)
class Launches:
    """Driver and runtime calls that launch work on a device."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    thread: Integers
    """Thread index, shared by `Launches`, `Operators` and `Ranges`."""
    correlation: Integers


@dataclass(frozen=True)
class Operators:
    """PyTorch operators (`aten::mm`, `SoftmaxBackward0`) called on the host, nested by time within a thread."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    thread: Integers
    sequence: Integers
    """Autograd's sequence number, which a forward operator and its backward operator share; NONE if there is none."""
    forward_thread: Integers
    """For a backward operator, index of the thread that ran the forward operator; otherwise NONE or its own thread."""
    shapes: Integers
    """Index into `RecordingMetadata.names` of the input shapes as written (`[[4, 128], [128, 64]]`); NONE if not
    recorded."""


@dataclass(frozen=True)
class Ranges:
    """Ranges named by the program (NVTX, `record_function`, `user_annotation`), nested by time."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    thread: Integers


KERNEL_RAN, CALLED, HOST_RAN = 0, 1, 2
"""Kinds of rows of `Collectives`: a kernel, the call that starts a collective (`c10d::allreduce_`), or a collective
that runs on a thread of the host (`gloo:all_reduce`)."""


@dataclass(frozen=True)
class Collectives:
    """torch.distributed collectives and the calls that start them, with their arguments.

    Every row is also in one of the other tables. NONE marks values that were not recorded.
    """

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    source: Integers
    """KERNEL_RAN, CALLED or HOST_RAN."""
    correlation: Integers
    """Correlation number of a kernel's launch."""
    collective: Integers
    """Index into `RecordingMetadata.names` of the collective's name in its arguments: `_allgather_base`."""
    in_elements: Integers
    """Number of elements of this rank's input."""
    out_elements: Integers
    dtype: Integers
    """Index into `RecordingMetadata.names` of the element type: `BFloat16`."""
    group_size: Integers
    group: Integers
    """Index into `RecordingMetadata.names` of the process group's name."""
    ranks: Integers
    """Index into `RecordingMetadata.names` of the process group's ranks, as written: `[0, 1]`."""
    sequence: Integers
    """Number of the collective within its process group, the same on all ranks."""


@dataclass(frozen=True)
class ProcessGroup:
    """A torch.distributed process group listed in the header of a trace."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RecordingMetadata:
    """Metadata of the recording of one process: everything except the events."""

    title: str
    """Name of the file, without its directory."""
    names: tuple[str, ...]
    """Names as recorded, demangled if the profiler demangles them; untrusted: escape them before display."""
    launch_shapes: Integers
    """(shapes, 6): distinct pairs of a grid, in blocks, and a block, in threads."""
    origin_ns: int
    """Time in the file that corresponds to zero in this recording."""
    devices: tuple[str, ...] = ()
    """Names of the devices by index; empty if the file does not contain them."""
    rank: int | None = None
    """Rank in a distributed run; None if the file does not contain it."""
    world_size: int | None = None
    """Number of ranks of the run; None if the file does not contain it."""
    groups: tuple[ProcessGroup, ...] = ()
    """Process groups that this rank belongs to; empty if the file does not list them."""
    host: str | None = None
    """Name of the process's host; None if the file does not contain it."""
    clock_ns: int = 0
    """Time on the host's clock that corresponds to zero in the file."""
    predicted: bool = False
    """Whether the recording was predicted for a device that was not present, instead of recorded."""
    step_pattern: str | None = None
    """Regular expression for the names of the ranges that mark steps; None recognises usual names."""
    lost_launches_ns: tuple[int, ...] = ()
    """Launch times of device work that was omitted because its recorded times cannot be right."""
    remarks: tuple[str, ...] = field(default=())
    """Defects of the file and how they were handled: `cut off at byte 1,048,576`; one line each."""


@dataclass(frozen=True, kw_only=True)
class Trace(RecordingMetadata):
    """A complete recording with unpacked columns."""

    work: DeviceWork
    launches: Launches
    operators: Operators
    ranges: Ranges


def column_index(part: type, column: str) -> int:
    """Return the position of a column in a part of a recording (`Launches`, …) and in the corresponding table."""
    return [each.name for each in fields(part)].index(column)


_CHUNK_ROWS: Final = 65_536
"""Number of rows that are packed together: a few megabytes unpacked, a few hundred kilobytes packed."""
_TYPES: Final = ("uint8", "uint16", "uint32")


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """A packed chunk of a column."""

    length: int
    least: int
    largest: int
    kind: str
    """numpy type of the differences; empty if all numbers are equal."""
    differences: bytes
    """Differences from the smallest number, of type `kind`; the numbers themselves if that is int64."""

    @classmethod
    def of(cls, column: Integers) -> Packed:
        """Pack a non-empty chunk."""
        least, largest = int(column.min()), int(column.max())
        if least == largest:
            return cls(len(column), least, largest, "", b"")
        kind = next((kind for kind in _TYPES if largest - least <= np.iinfo(kind).max), None)
        if kind is None:
            return cls(len(column), least, largest, "int64", column.tobytes())
        return cls(len(column), least, largest, kind, (column - least).astype(kind).tobytes())

    def numbers(self) -> Integers:
        """Unpack the numbers."""
        if not self.kind:
            return np.full(self.length, self.least, np.int64)
        found = np.frombuffer(self.differences, self.kind).astype(np.int64)
        return found if self.kind == "int64" else found + self.least

    def shifted(self, by: int) -> Packed:
        """Return a copy with `by` added to every number."""
        if self.kind == "int64":
            return Packed.of(self.numbers() + by)
        return msgspec.structs.replace(self, least=self.least + by, largest=self.largest + by)


Chunk = list[Packed]
"""A chunk of rows, packed column by column."""


class Table:
    """Columns of equal length, to which rows can be added."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._unpacked: list[Sequence[NDArray[Any]]] = []
        self._unpacked_rows = 0
        self._packed: list[Chunk] = []

    @classmethod
    def of(cls, columns: Sequence[Integers]) -> Table:
        """Create a table from the given columns."""
        table = cls(len(columns))
        for first in range(0, len(columns[0]), _CHUNK_ROWS):
            table.add([column[first : first + _CHUNK_ROWS] for column in columns])
        return table

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._unpacked_rows + sum(chunk[0].length for chunk in self._packed)

    def add(self, columns: Sequence[NDArray[Any]]) -> None:
        """Add rows, given as columns of equal length."""
        if not len(columns[0]):
            return
        self._unpacked.append(columns)
        self._unpacked_rows += len(columns[0])
        if self._unpacked_rows >= _CHUNK_ROWS:
            self._pack()

    def packed(self) -> list[Chunk]:
        """Return all rows as packed chunks."""
        self._pack()
        return self._packed

    def extend(self, chunks: Iterable[Chunk]) -> None:
        """Add rows that are already packed."""
        self._pack()
        self._packed += chunks

    def clear(self) -> None:
        """Remove all rows."""
        self._unpacked, self._unpacked_rows, self._packed = [], 0, []

    def _pack(self) -> None:
        if self._unpacked:
            whole = [np.concatenate(parts).astype(np.int64, copy=False) for parts in zip(*self._unpacked, strict=True)]
            self._packed.append([Packed.of(column) for column in whole])
        self._unpacked, self._unpacked_rows = [], 0

    def column(self, at: int) -> Integers:
        """Return one column, unpacked."""
        parts = [chunk[at].numbers() for chunk in self.packed()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def columns(self) -> list[Integers]:
        """Return all columns, unpacked."""
        return [self.column(at) for at in range(self.width)]

    def chunks(self, *indices: int) -> Iterator[list[Integers]]:
        """Yield the given columns (default: all) in chunks of tens of thousands of rows."""
        chosen = indices or range(self.width)
        for chunk in self.packed():
            yield [chunk[at].numbers() for at in chosen]

    def rows_between(self, at: int, first: int, beyond: int) -> tuple[Integers, list[Integers]]:
        """Return the rows with `first` ≤ column `at` < `beyond`: their positions, and their columns.

        Chunks without matching rows are not unpacked.
        """
        found: list[list[Integers]] = [[np.zeros(0, np.int64) for _ in range(self.width + 1)]]
        for rows, chunk in self._numbered_chunks():
            numbers = chunk[at]
            if numbers.least >= beyond or numbers.largest < first:
                continue
            columns = [rows, *(packed.numbers() for packed in chunk)]
            if numbers.least < first or numbers.largest >= beyond:
                chosen = (columns[at + 1] >= first) & (columns[at + 1] < beyond)
                columns = [column[chosen] for column in columns]
            found.append(columns)
        rows, *columns = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows, columns

    def filter(self, predicate: Callable[..., NDArray[np.bool_]], *indices: int) -> Table:
        """Return a table of the rows for which `predicate` of the given columns is true; it shares whole chunks."""
        table = Table(self.width)
        for chunk in self.packed():
            chosen = predicate(*(chunk[index].numbers() for index in indices))
            if chosen.all():
                table.extend([[*chunk]])
            elif chosen.any():
                table.add([packed.numbers()[chosen] for packed in chunk])
        return table

    def bounds(self, at: int) -> tuple[int, int] | None:
        """Return the smallest and the largest value in a column; None if the table is empty."""
        chunks = self.packed()
        if not chunks:
            return None
        return min(chunk[at].least for chunk in chunks), max(chunk[at].largest for chunk in chunks)

    def shift(self, at: int, by: int) -> None:
        """Add `by` to every value in a column."""
        for chunk in self.packed():
            chunk[at] = chunk[at].shifted(by)

    def replace(self, at: int, compute: Callable[..., Integers], *indices: int) -> None:
        """Replace a column by values computed from the given columns, chunk by chunk."""
        for chunk in self.packed():
            chunk[at] = Packed.of(compute(*(chunk[index].numbers() for index in indices)))

    def append_columns(self, width: int, compute: Callable[..., Sequence[Integers]], *indices: int) -> None:
        """Append `width` columns, computed chunk by chunk from the row positions and the given columns."""
        for rows, chunk in self._numbered_chunks():
            chunk += [Packed.of(column) for column in compute(rows, *(chunk[index].numbers() for index in indices))]
        self.width += width

    def _numbered_chunks(self) -> Iterator[tuple[Integers, Chunk]]:
        first = 0
        for chunk in self.packed():
            yield np.arange(first, first + chunk[0].length, dtype=np.int64), chunk
            first += chunk[0].length


START, DURATION, NAME = 0, 1, 2
"""Positions of the first three columns, which are the same in every table."""


@dataclass(frozen=True, kw_only=True)
class Recording(RecordingMetadata):
    """A recording with its events in packed tables, each with the columns of the same part of a `Trace`, in order."""

    work: Table
    launches: Table
    operators: Table
    ranges: Table
    collectives: Table = field(default_factory=lambda: Table(len(fields(Collectives))))
    """Rows of the other tables that are collectives, with their arguments."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """Return the four tables that together contain every event exactly once."""
        return (self.work, self.launches, self.operators, self.ranges)

    def whole(self) -> Trace:
        """Return the recording as a `Trace`, with all columns unpacked."""
        return Trace(
            **{each.name: getattr(self, each.name) for each in fields(RecordingMetadata)},
            work=DeviceWork(*self.work.columns()),
            launches=Launches(*self.launches.columns()),
            operators=Operators(*self.operators.columns()),
            ranges=Ranges(*self.ranges.columns()),
        )


def shift_to_zero(tables: Iterable[Table]) -> int:
    """Shift all start times so that the earliest is 0; return the earliest start time before the shift."""
    known = [table for table in tables if len(table)]
    origin = min(bounds[0] for table in known if (bounds := table.bounds(START)))
    for table in known:
        table.shift(START, -origin)
    return origin

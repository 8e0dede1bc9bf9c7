"""The log of a run: an append-only file in which each line is one event as JSON.

A process that is killed while writing leaves a partial last line, which readers ignore and a resumed run removes. Of
any other damaged line, readers say its number, and count its cell as unfinished; the other cells are whole.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain, count, groupby, islice
from pathlib import Path
from types import TracebackType

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from sysbench.errors import LogError, SysbenchError, UsageError
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    Event,
    LineDamaged,
    Reading,
    RunFinished,
    RunResumed,
    RunStarted,
    decode,
    encode,
)
from sysbench.log.kinds import command_of
from sysbench.log.schema import refuse_other_schema
from sysbench.log.storage import cannot_read, cannot_write, make_directory, sync_directory, write_all
from sysbench.spec.validation import first_error

LINE_LIMIT_BYTES = 16 * 1024**2
"""Upper limit of an event's size, so that a file without newlines is not read into memory as a whole."""

_DURABLE = (RunStarted, RunResumed, CellFinished, RunFinished)
"""Events after which the log is synchronised to disk."""


class Log:
    """A log opened for writing, and locked so that no other process writes to it."""

    def __init__(self, path: Path, descriptor: int, created: bool) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        self._created = created
        self._initial_bytes = self._size_bytes = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, directory: Path, kind: str, name: str | None = None) -> Log:
        """Create a new, empty log in `directory`, which is created if necessary; raises OutputError if that fails."""
        make_directory(directory)
        stem = name or f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-{kind}"
        names = (f"{stem}.jsonl" if number == 1 else f"{stem}-{number}.jsonl" for number in count(1))
        log = next(log for name in names if (log := cls._claim(directory / name)) is not None)
        sync_directory(directory)
        return log

    @classmethod
    def _claim(cls, path: Path) -> Log | None:
        """Create the file, or return None if it exists: two runs may start within the same second."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except FileExistsError:
            return None
        except OSError as error:
            raise cannot_write(path, error) from error
        _lock(descriptor, path)
        return cls(path, descriptor, created=True)

    @classmethod
    def reopen(cls, path: Path) -> Log:
        """Open an existing log; raises LogError if there is none, and UsageError if another run is writing to it."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError as error:
            raise cannot_read(path, error) from error
        except OSError as error:
            raise cannot_write(path, error) from error
        _lock(descriptor, path)
        return cls(path, descriptor, created=False)

    def truncate_partial_line(self) -> None:
        """Remove a partial last line, so that events can be appended."""
        if self._descriptor is not None:
            self._initial_bytes = self._size_bytes = _end_of_last_line(self._descriptor)
            self._truncate(self._size_bytes)

    def append(self, event: Event) -> None:
        """Append an event; on failure, remove whatever was written of the event and raise OutputError."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        line = encode(event) + b"\n"
        try:
            write_all(self._descriptor, line)
            if isinstance(event, _DURABLE):
                os.fsync(self._descriptor)
        except OSError as error:
            self._truncate(self._size_bytes)
            raise cannot_write(self.path, error) from error
        except BaseException:
            # A third Ctrl-C during the write: half a line would corrupt what is appended after it.
            self._truncate(self._size_bytes)
            raise
        self._size_bytes += len(line)

    def _is_in_place(self, descriptor: int) -> bool:
        """Whether the file is still at its path: somebody may have moved or deleted it or its directory."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))  # noqa: PTH116
        except OSError:
            return False

    def _copy_elsewhere(self, descriptor: int) -> None:
        """Copy the log to the working directory or, if that fails, to the directory of temporary files."""
        for directory in (Path(), Path(tempfile.gettempdir())):
            with suppress(OSError, SysbenchError):
                copied = Log.create(directory, "", self.path.stem)
                with copied, open(descriptor, "rb", closefd=False) as source:
                    source.seek(0)
                    while block := source.read(1 << 20):
                        write_all(copied._descriptor or -1, block)
                        copied._size_bytes += len(block)
                self.path = copied.path.resolve()
                return

    def roll_back(self) -> None:
        """Remove all events that this object appended, or the file if this object created it; then close the log."""
        self._truncate(self._initial_bytes)
        self._size_bytes = self._initial_bytes
        self.close()

    def close(self) -> None:
        """Close the file, and delete it if this object created it and it is empty."""
        if self._descriptor is None:
            return
        if self._created and self._size_bytes == 0:
            self.path.unlink(missing_ok=True)
        elif not self._is_in_place(self._descriptor):
            self._copy_elsewhere(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _truncate(self, size_bytes: int) -> None:
        # An error is ignored: if a partial last line cannot be removed after a failed write, readers ignore it.
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, size_bytes)


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a log, ignoring a partial last line.

    A damaged line is replaced by LineDamaged and, if it belongs to a cell, by the end of that cell as `unfinished`; the
    cell's later events are left out. Raises LogError if the file cannot be read, is not a log, or has another schema.
    """
    try:
        with path.open("rb") as file:
            lines = iter(partial(file.readline, LINE_LIMIT_BYTES), b"")
            # The first event names the command, whose own events must be registered for the rest.
            yield _decode_first(path, next(lines, b""))
            reader, number = _Reader(), 2
            for are_readings, group in groupby(lines, lambda line: line.startswith(_READING)):
                while batch := list(islice(group, _BATCH_LINES if are_readings else 1)):
                    whole = reader.readings(batch) if are_readings else None
                    yield from whole or chain.from_iterable(map(reader.events, batch, count(number)))
                    number += len(batch)
    except OSError as error:
        raise cannot_read(path, error) from error


def _decode_first(path: Path, line: bytes) -> RunStarted:
    if not line:
        raise LogError(f"{path} is empty")
    try:
        first = from_json(line)
    except ValueError:
        first = None
    if not isinstance(first, dict) or first.get("event") != "run_started":
        raise LogError(f"{path} is not a sysbench log")
    refuse_other_schema(path, first.get("schema_version"), first.get("sysbench_version"))
    try:
        event = RunStarted.model_validate_json(line)
        command_of(event.kind).records()
    except ValidationError as error:
        raise LogError(f"{path} is damaged: line 1 is not an event: {first_error(error)}") from None
    except ValueError as error:
        raise LogError(f"{path} is damaged: line 1 is not an event") from error
    return event


_CELL_KEY = re.compile(rb'"cell":\s*"(\w+)"')

_READING = b'{"event":"reading"'
_READINGS: TypeAdapter[list[Reading]] = TypeAdapter(list[Reading], config=ConfigDict(defer_build=True))
_BATCH_LINES = 256
"""Number of lines with readings that are decoded together."""


@dataclass
class _Reader:
    """Decodes the lines of a log after the first: cells with a damaged line are unfinished, others are whole."""

    cell: str | None = None
    """Key of the cell in progress."""
    start_lost: bool = False
    """Whether the start of a cell may have been on a damaged line whose cell is not known."""
    left_out: set[str] = field(default_factory=set)
    """Cells with a damaged line, until they begin again."""
    at_s: float = 0.0
    """Time of the last event."""

    def readings(self, lines: Sequence[bytes]) -> list[Reading] | None:
        """Return the readings on these lines, or None if a line is damaged or partial: then decode each by itself.

        Readings are most of a log, and decoding them together takes less than half the time.
        """
        try:
            readings = _READINGS.validate_json(b"[" + b",".join(lines) + b"]")
        except (ValueError, RecursionError):
            return None
        # Every line begins with an object: if there are as many readings as lines, each line has exactly one.
        if len(readings) != len(lines) or not lines[-1].endswith(b"\n"):
            return None
        self.at_s = readings[-1].at_s
        return readings

    def events(self, line: bytes, number: int) -> Iterator[Event]:
        if not line.endswith(b"\n") and len(line) < LINE_LIMIT_BYTES:
            return  # the process that wrote it was killed
        try:
            event = decode(line)
        except (ValueError, RecursionError) as error:
            detail = f"line {number} of the log is damaged"
            if isinstance(error, ValidationError):
                detail += f": {first_error(error)}"
            yield LineDamaged(at_s=self.at_s, line=number, detail=detail)
            named = _CELL_KEY.search(line)
            yield from self._leave_out(named[1].decode() if named else self.cell, detail)
            self.start_lost = self.cell is None
            return
        self.at_s, key = event.at_s, getattr(event, "cell", None)
        if type(event) is CellStarted:
            if not event.keeps_steps:  # else the damaged line may have had one of the kept steps
                self.left_out.discard(event.cell)
            self.cell, self.start_lost = event.cell, False
        elif self.start_lost and key is not None and not isinstance(event, CellFinished):
            yield from self._leave_out(key, "the line of the log on which this cell began is damaged")
        if type(event) is CellFinished:
            self.cell = None
        if key not in self.left_out:
            yield event

    def _leave_out(self, cell: str | None, detail: str) -> Iterator[Event]:
        if cell is not None and cell not in self.left_out:
            self.left_out.add(cell)
            yield CellFinished(at_s=self.at_s, cell=cell, outcome="unfinished", detail=detail)


def damaged_lines(path: Path) -> list[int]:
    """Return the numbers of the damaged lines of a log; raises LogError as `read` does."""
    return [event.line for event in read(path) if isinstance(event, LineDamaged)]


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"{path} is being written by another sysbench that is still running") from None
    except OSError:
        return  # Some network file systems have no locks; there the user must avoid concurrent runs.


def _end_of_last_line(descriptor: int) -> int:
    block_bytes = 64 * 1024
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - block_bytes)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0

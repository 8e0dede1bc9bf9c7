"""The log of a run: an append-only file in which each line is one event as JSON.

A line is complete once its newline is written. A process that is killed while writing leaves a partial last line;
readers ignore this line, and a resumed run removes it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from sysbench.command import command_of
from sysbench.errors import LogError, UsageError
from sysbench.log import upgrades
from sysbench.log.events import (
    SCHEMA_VERSION,
    CellFinished,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    decode,
    decode_all,
    encode,
    other_events_pattern,
)
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
        """Create a new, empty log in `directory`, which is created if necessary; raises OutputError if that fails.

        The file name is `name`, or the current time and `kind`. If the file exists, a number is added to the name.
        """
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
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
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


def read(path: Path, only: Collection[type[Event]] = ()) -> Iterator[Event]:
    """Yield the events of a log, ignoring a partial last line; `only` limits the result to events of these classes.

    Lines with other events are only checked to be JSON objects. Raises LogError if the file cannot be read, is not a
    log, has a newer schema, or is damaged.
    """
    try:
        with path.open("rb") as file:
            yield from _events(path, file, {kind.model_fields["event"].default for kind in only})
    except OSError as error:
        raise cannot_read(path, error) from error


_BATCH_LINES = 256
"""Number of lines decoded together."""


def _events(path: Path, file: BinaryIO, only: Collection[str]) -> Iterator[Event]:
    lines = iter(partial(file.readline, LINE_LIMIT_BYTES), b"")
    first = next(lines, b"")
    schema = _schema(path, first)
    skipped = other_events_pattern(only) if only and schema == SCHEMA_VERSION else None
    # The first event is decoded alone, because it names the command, whose own events must be registered for the rest.
    batch, number = [first], 1
    while batch:
        is_partial = not batch[-1].endswith(b"\n") and len(batch[-1]) < LINE_LIMIT_BYTES
        batch = batch[:-1] if is_partial else batch
        wanted = [line for line in batch if not skipped.match(line)] if skipped else batch
        try:
            if skipped:
                _check_objects(batch)
            if schema != SCHEMA_VERSION:
                wanted = [_upgrade(line, schema) for line in wanted]
            events: Iterable[Event] = (
                decode_all(wanted) if number > 1 else _decode_one_by_one(path, batch, number, schema)
            )
        except (ValueError, RecursionError):
            events = _decode_one_by_one(path, batch, number, schema)
        yield from (event for event in events if event.event in only) if only else events
        number += len(batch)
        batch = [] if is_partial else list(islice(lines, _BATCH_LINES))


class _Object(msgspec.Struct):
    """Any JSON object; its content is discarded."""


_OBJECTS = msgspec.json.Decoder(list[_Object | None])


def _check_objects(lines: Sequence[bytes]) -> None:
    """Raise ValueError unless every line is one JSON object.

    This check takes a tenth of the time of decoding the lines.
    """
    found = _OBJECTS.decode(b"[" + b",null,".join(lines) + b"]")  # nulls as in decode_all
    if len(found) != 2 * len(lines) - 1 or not all(found[::2]) or any(found[1::2]):
        raise ValueError("a line is not a single JSON object")


def _decode_one_by_one(path: Path, batch: Sequence[bytes], first: int, schema: int) -> Iterator[Event]:
    """Decode lines one by one, so that an error can name the damaged line; `first` is the first line's number."""
    for number, line in enumerate(batch, first):
        try:
            event = decode(_upgrade(line, schema))
            if isinstance(event, RunStarted):
                command_of(event.kind).part("record")  # registers the command's own events
        except ValidationError as error:
            raise LogError(f"{path} is damaged: line {number} is not an event: {first_error(error)}") from None
        except ValueError as error:
            raise LogError(f"{path} is damaged: line {number} is not an event") from error
        yield event


def _upgrade(line: bytes, schema: int) -> bytes:
    """Convert a line from an earlier schema to the current one; raises ValueError if the line is not an event."""
    if schema == SCHEMA_VERSION:
        return line
    fields = from_json(line)
    if not isinstance(fields, dict):
        raise ValueError("an event must be an object")
    return to_json(upgrades.upgrade(fields, schema, upgrades.EVENT))


def _schema(path: Path, line: bytes) -> int:
    """Return the schema named in the first line of a log; raises LogError unless this version supports the schema."""
    if not line:
        raise LogError(f"{path} is empty")
    try:
        first = from_json(line)
    except ValueError:
        first = None
    if not isinstance(first, dict) or first.get("event") != "run_started":
        raise LogError(f"{path} is not a sysbench log")
    schema: Any = first.get("schema_version")
    upgrades.refuse_unsupported(path, schema, first.get("sysbench_version"), upgrades.EVENT)
    return int(schema)


def _lock(descriptor: int, path: Path) -> None:
    """Prevent a second process from writing to the same log."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"{path} is being written by another sysbench that is still running") from None
    except OSError:
        return  # Some network file systems have no locks; there the user must avoid concurrent runs.


def _end_of_last_line(descriptor: int) -> int:
    """Return the offset after the last newline, or 0 if there is no newline; reads backwards, in blocks."""
    block_bytes = 64 * 1024
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - block_bytes)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0

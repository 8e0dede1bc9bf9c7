"""Reader for traces of torch.profiler: Kineto's JSON, plain or gzipped, of any size.

The format is Chrome's trace events ("Trace Event Format", the Chromium project) as libkineto writes it
(output_json.cpp). The reader decodes the file in pieces that end at event boundaries, and keeps only columns. Real
files may be truncated or damaged: the reader keeps all valid data, and reports defects in remarks.

Several processes read a large file, one part each. Each part begins at an apparent event, and all parts are accepted if
each ends exactly where the next one begins; otherwise, or if a process fails, the file is read sequentially. `python -m
sysbench.trace.readers.kineto FILE BEGIN [END]` writes the content of a part to standard output.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from sysbench import units
from sysbench.errors import LogError
from sysbench.interpreter import gc_paused
from sysbench.log.storage import cannot_read
from sysbench.trace.readers.kineto_columns import Columns, InexactError, Part
from sysbench.trace.readers.kineto_events import DecodedEvents, decode_events, decode_one_by_one
from sysbench.trace.readers.reading import (
    Progress,
    no_progress,
    processors,
    receive_messages,
    send_message,
    start_module,
)
from sysbench.trace.readers.timing import with_consistent_times
from sysbench.trace.recording import Chunk, Recording

_HEADER_BYTES: Final = 16 * 1024**2
"""Maximum size of the header; a file without an event within this size is not a trace."""
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENT_LIST: Final = re.compile(rb"\s*\[(?=\s*(\{|\]|$))")
"""Start of Chrome's alternative format: a plain list of events."""
GZIP: Final = b"\x1f\x8b"
PIECE_BYTES: Final = 512 * 1024
"""Size of a piece: small enough for its events to stay in a processor's cache until they are converted to columns."""

_EVENT_BOUNDARY: Final = re.compile(rb"\}\s*,(?=\s*\{)")
"""Boundary between two events; Kineto has no lists of objects inside events, but other writers may."""

PART_BYTES: Final = 64 * 1024**2
"""Minimum size of a part; smaller ones are not worth a separate process."""
OWN_HEAD_BYTES: Final = 32 * 1024**2
"""Bytes that the first process reads while the others start."""
MAX_PARTS: Final = 4
"""Maximum number of processes: each needs 80 MB of memory in addition to its results."""
_MODULE: Final = "sysbench.trace.readers.kineto"
"""The module that each process runs."""


def is_kineto(beginning: bytes) -> bool:
    """Return whether the first bytes of a file may be JSON, plain or gzipped."""
    return beginning[:2] == GZIP or beginning.lstrip()[:1] in (b"{", b"[")


def read(path: Path, progress: Progress = no_progress) -> Recording:
    """Read a file; raises LogError if it is not a trace or contains no events with a duration."""
    try:
        with path.open("rb") as file, gc_paused():
            blocks = Blocks(file)
            before, buffer = _header(path, blocks)
            position = file.tell()
            in_parts = None if blocks.is_packed else read_in_parts(path, file, len(before), progress)
            if in_parts is not None:
                columns, remarks = in_parts
            else:
                columns = Columns()
                file.seek(position)
                pieces = Pieces(blocks, columns, buffer, len(before), progress)
                pieces.process_all()
                remarks = pieces.remarks
            if columns.is_empty:
                why = f": {'; '.join(remarks)}" if remarks else ""
                raise LogError(f"{path} has no events with a duration{why}")
            header, defects = _decoded_header(before)
            return with_consistent_times(columns.recording(path.name, header, [*defects, *remarks]))
    except OSError as error:
        raise cannot_read(path, error) from error


def _header(path: Path, blocks: Blocks) -> tuple[bytes, bytes]:
    """Return the bytes before the first event, and the bytes after them that were already read."""
    buffer = b""
    while len(buffer) < _HEADER_BYTES and (block := blocks.next()):
        buffer += block
        begin = _EVENT_LIST.match(buffer) or _EVENTS.search(buffer)
        if begin is not None:
            return buffer[: begin.end()], buffer[begin.end() :]
    why = "".join(f" ({remark})" for remark in blocks.remarks)
    if not buffer.strip() and not why:
        raise LogError(f"{path} is empty")
    raise LogError(f"{path} is not a trace of torch.profiler: it has no traceEvents{why}")


def _decoded_header(text: bytes) -> tuple[dict[str, object], list[str]]:
    if _EVENT_LIST.match(text):
        return {}, []
    closed = text.decode("utf-8", "replace") + "]}"
    try:
        header = json.loads(closed, strict=False)
    except json.JSONDecodeError as error:
        is_nested = error.pos >= len(closed)  # valid, but the events are not at the top level
        return {}, [] if is_nested else ["damaged before the events: devices and rank are unknown"]
    except (ValueError, RecursionError):
        return {}, []
    return header if isinstance(header, dict) else {}, []


def read_in_parts(
    path: Path, file: IO[bytes], begin: int, progress: Progress = no_progress
) -> tuple[Columns, list[str]] | None:
    """Read the events from byte `begin` to the end, in parallel processes.

    Returns None if the file is too small, if the parts do not fit together, or if a process fails.
    """
    boundaries = _part_boundaries(file, begin, os.fstat(file.fileno()).st_size)
    if not boundaries:
        return None
    columns = Columns()
    ends = [*([str(end)] for end, _ in boundaries[1:]), []]
    try:
        with ExitStack() as stack:
            running = [
                stack.enter_context(start_module(_MODULE, str(path.absolute()), str(first), *end))
                for (_, first), end in zip(boundaries, ends, strict=True)
            ]
            own = Pieces(Blocks(file, begin, boundaries[0][0]), columns, taken_bytes=begin, progress=progress)
            if not own.process_part():
                return None
            for number, started in enumerate(running, 1):
                messages = receive_messages(started)
                part = msgspec.msgpack.decode(next(messages, b""), type=Part)
                rows = (msgspec.msgpack.decode(message, type=tuple[str, Chunk]) for message in messages)
                if not (part.ends_at_event or number == len(running)):
                    return None
                columns.append_part(part, rows)
                remarks = part.remarks
    except (OSError, EOFError, msgspec.MsgspecError):
        # A process failed, or could not be started. If the file is the cause, sequential reading will report it.
        return None
    return columns, remarks


def _part_boundaries(file: IO[bytes], begin: int, end: int) -> list[tuple[int, int]]:
    """Return, for each boundary, the end of one part and the start of the next; empty if the file is not divided."""
    parts = min(processors(), MAX_PARTS, (end - begin) // PART_BYTES)
    shared = begin + (OWN_HEAD_BYTES if parts > 1 else 0)
    found = [boundary(file, shared + (end - shared) * number // parts) for number in range(1, parts)]
    boundaries = [boundary_ for boundary_ in found if boundary_ is not None]
    return boundaries if all(one[1] < other[0] for one, other in pairwise(boundaries)) else []


def _main(path: str, begin: str, end: str | None = None) -> None:
    gc.disable()
    columns = Columns()
    with Path(path).open("rb") as file:
        pieces = Pieces(Blocks(file, int(begin), int(end) if end else None), columns, taken_bytes=int(begin))
        ends_at_event = pieces.process_part() if end else pieces.process_all()
    send_message(msgspec.msgpack.encode(columns.part(ends_at_event, pieces.remarks)))
    for rows in columns.rows():
        send_message(msgspec.msgpack.encode(rows))


class Blocks:
    """Reads a file, or a part of a file, sequentially in blocks of bytes; decompresses gzip."""

    def __init__(self, file: IO[bytes], begin: int = 0, end: int | None = None) -> None:
        file.seek(0)
        self._decompressor = _new_decompressor() if file.read(2) == GZIP else None
        file.seek(begin)
        self._file = file
        self._begin = begin
        self._end = end if end is not None else os.fstat(file.fileno()).st_size
        self._packed = b""
        self.remarks: list[str] = []

    @property
    def is_packed(self) -> bool:
        """Return whether the file is gzipped, and can therefore be read only from its beginning."""
        return self._decompressor is not None

    @property
    def share_read(self) -> float:
        """Return how much of the file, or of the part, has been read so far, as a fraction."""
        return (self._file.tell() - self._begin) / max(self._end - self._begin, 1)

    def next(self, size_bytes: int = 0) -> bytes:
        """Return the next block, at most `size_bytes` or PIECE_BYTES long; empty at the end, and after damaged gzip."""
        size_bytes = max(size_bytes, PIECE_BYTES)
        if self._decompressor is None:
            return self._file.read(max(min(size_bytes, self._end - self._file.tell()), 0))
        while packed := self._packed or self._file.read(size_bytes):
            try:
                # The output size is limited: highly compressible data would otherwise need twenty times as much memory.
                block: bytes = self._decompressor.decompress(packed, size_bytes)
            except zlib.error as error:
                self.remarks.append(f"the gzip data is damaged: {error}")
                return b""
            self._packed = self._decompressor.unconsumed_tail
            if self._decompressor.eof:  # another gzip member may follow
                self._packed = self._decompressor.unused_data
                self._decompressor = _new_decompressor()
            if block:
                return block
        return b""


def _new_decompressor() -> Any:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


class Pieces:
    """One pass over the events of a file or of a part; `taken_bytes` are before the `buffer` of bytes already read."""

    def __init__(
        self,
        blocks: Blocks,
        columns: Columns,
        buffer: bytes = b"",
        taken_bytes: int = 0,
        progress: Progress = no_progress,
    ) -> None:
        self._blocks = blocks
        self._columns = columns
        self._buffer = buffer
        self._taken_bytes = taken_bytes
        self._progress = progress
        self._exact = False
        self.remarks = blocks.remarks

    def process_all(self) -> bool:
        """Process all events; return whether the file is truncated, so that more events should follow."""
        is_cut = self._process_events()
        if is_cut:
            self.remarks.append(f"cut off: read to {self._describe_position(0)}")
        return is_cut

    def process_part(self) -> bool:
        """Process all events of a part; return whether the part ends exactly at the end of an event."""
        return self._process_events() and not self._buffer.strip(b" \t\r\n,")

    def _process_events(self) -> bool:
        """Process all events; return False if the list of events has ended or damage was found."""
        return (
            self._process_blocks() and self._process_buffer(decode_events) and self._process_buffer(decode_one_by_one)
        )

    def _process_blocks(self) -> bool:
        # If an event does not end within a piece, the next piece is as long as the buffer, so that the total search
        # time remains linear.
        while block := self._blocks.next(len(self._buffer)):
            self._buffer += block
            if not self._process_buffer(decode_events):
                return False
            self._progress(units.share(self._blocks.share_read))
        return True

    def _process_buffer(self, decode: Callable[[bytes, bool], DecodedEvents]) -> bool:
        decoded = decode(self._buffer, self._exact)
        try:
            self._columns.add(decoded.events)
        except InexactError:
            self._exact = True
            decoded = decode(self._buffer, self._exact)
            self._columns.add(decoded.events)
        if decoded.damaged_byte is not None:
            damaged, read = self._describe_position(decoded.damaged_byte), self._describe_position(decoded.size_bytes)
            self.remarks.append(f"damaged at {damaged}: read to {read}")
        self._buffer = self._buffer[decoded.size_bytes :]
        self._taken_bytes += decoded.size_bytes
        return not decoded.at_end and decoded.damaged_byte is None

    def _describe_position(self, byte: int) -> str:
        return f"byte {self._taken_bytes + byte:,}{' after decompression' if self._blocks.is_packed else ''}"


def boundary(file: IO[bytes], near: int) -> tuple[int, int] | None:
    """Find an apparent boundary between two events at or soon after byte `near`.

    Returns the end of one event and the start of the next; None if no boundary is found.
    """
    file.seek(near)
    buffer = file.read(PIECE_BYTES)
    for end, after in pairwise(_EVENT_BOUNDARY.finditer(buffer)):
        events = decode_one_by_one(buffer[end.end() : after.end()], exact=False).events
        if events and all(event.ph for event in events):
            return near + end.start() + 1, near + end.end()
    return None


if __name__ == "__main__":
    _main(*sys.argv[1:])

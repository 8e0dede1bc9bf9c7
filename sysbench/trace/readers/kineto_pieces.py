"""Splits Kineto's JSON into pieces that end at event boundaries, each decoded on its own.

Real files may be truncated, contain invalid UTF-8, or have numbers that are invalid or too large: the reader keeps what
is valid, and reports defects in remarks.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import IO, Any, Final, cast

import msgspec

from sysbench import units
from sysbench.trace.readers.kineto_columns import Columns, Event, ExactEvent, InexactError
from sysbench.trace.readers.reading import Progress, in_silence

GZIP: Final = b"\x1f\x8b"
PIECE_BYTES: Final = 512 * 1024
"""Small enough for the events to stay in a processor's cache until they are columns."""

_BETWEEN: Final = re.compile(rb"\}\s*,(?=\s*\{)")
"""Boundary between two events; Kineto has no lists of objects inside events, but other writers may."""
_LAST: Final = re.compile(rb"\}\s*\]")


class Blocks:
    """The bytes of a file or of a part of it, decompressed if it is gzipped."""

    def __init__(self, file: IO[bytes], begin: int = 0, end: int | None = None) -> None:
        file.seek(0)
        self._unpack = _unpacker() if file.read(2) == GZIP else None
        file.seek(begin)
        self._file = file
        self._begin = begin
        self._end = end if end is not None else os.fstat(file.fileno()).st_size
        self._is_damaged = False
        self._packed = b""
        self.remarks: list[str] = []

    @property
    def is_packed(self) -> bool:
        """Whether the file is gzipped, so that it can only be read from its beginning."""
        return self._unpack is not None

    @property
    def share_read(self) -> float:
        """Share of the part that has been read, from 0 to 1."""
        return (self._file.tell() - self._begin) / max(self._end - self._begin, 1)

    def next(self, size_bytes: int = 0) -> bytes:
        """Return the next bytes, of the given size or one piece; empty at the end, and if gzip data is damaged."""
        size_bytes = max(size_bytes, PIECE_BYTES)
        if self._unpack is None:
            return self._file.read(max(min(size_bytes, self._end - self._file.tell()), 0))
        try:
            return self._unpacked(self._unpack, size_bytes)
        except zlib.error as error:
            self.remarks.append(f"the gzip data is damaged: {error}")
            self._is_damaged = True
            return b""

    def _unpacked(self, unpack: Any, size_bytes: int) -> bytes:
        while not self._is_damaged and (packed := self._packed or self._file.read(size_bytes)):
            # The output size is limited: highly compressible data would otherwise need twenty times as much memory.
            block: bytes = unpack.decompress(packed, size_bytes)
            self._packed = unpack.unconsumed_tail
            if unpack.eof:  # another gzip member may follow
                self._packed = unpack.unused_data
                self._unpack = unpack = _unpacker()
            if block:
                return block
        return b""


def _unpacker() -> Any:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


class Pieces:
    """One pass over events, from the first one on.

    `buffer` holds the events' bytes that have already been read, and `taken_bytes` is the size of the file before it.
    """

    def __init__(
        self,
        blocks: Blocks,
        columns: Columns,
        buffer: bytes = b"",
        taken_bytes: int = 0,
        progress: Progress = in_silence,
    ) -> None:
        self._blocks = blocks
        self._columns = columns
        self._buffer = buffer
        self._taken_bytes = taken_bytes
        self._progress = progress
        self._exact = False
        self.remarks = blocks.remarks

    def to_the_end(self) -> None:
        """Process all events, even if the file is truncated."""
        if self._all_but_the_last():
            # What remains is the end of the file, complete or not.
            buffer = self._buffer
            if buffer.lstrip()[:1] == b"]":
                return
            for end in _last_matches(_LAST, buffer):
                if self._take(buffer[: end.start() + 1]):
                    return
            for end_byte in (len(buffer), *(end.start() + 1 for end in _last_matches(_BETWEEN, buffer))):
                if buffer.strip() and self._take(buffer[:end_byte]):
                    self._cut_off(end_byte)
                    return
            self._cut_off(0)

    def to_the_cut(self) -> bool:
        """Process all events; return False unless the part ends exactly after an event."""
        return self._all_but_the_last() and self._take(self._buffer)

    def _all_but_the_last(self) -> bool:
        """Process all events whose end is known; return False after the last event of the list."""
        # If an event does not end within a piece, the next piece is as long as the buffer, so that the total search
        # time remains linear.
        while block := self._blocks.next(len(self._buffer)):
            self._buffer += block
            rest = self._whole(self._buffer)
            if rest is None:  # the list of events ends here, and something else follows
                return False
            self._taken_bytes += len(self._buffer) - len(rest)
            self._buffer = rest
            self._progress(units.share(self._blocks.share_read))
        return True

    def _whole(self, buffer: bytes) -> bytes | None:
        """Process all events that end in the buffer except the last one; return the bytes from that one on."""
        for end in _last_matches(_BETWEEN, buffer):
            if self._take(buffer[: end.start() + 1]):
                return buffer[end.end() :]
        for end in _LAST.finditer(buffer):
            if self._take(buffer[: end.start() + 1]):
                return None
        return buffer

    def _cut_off(self, read_bytes: int) -> None:
        self.remarks.append(f"cut off: read to byte {self._taken_bytes + read_bytes:,}")

    def _take(self, events: bytes) -> bool:
        """Process these events if they are complete; return whether they are."""
        text = b"[" + events.rstrip().rstrip(b",") + b"]"
        found = decoded(text, self._exact)
        if found is None:
            return False
        try:
            self._columns.add(found)
        except InexactError:
            self._exact = True
            self._columns.add(decoded(text, exact=True) or [])
        return True


def boundary(file: IO[bytes], near: int) -> tuple[int, int] | None:
    """Return the end of an apparent event at or soon after a byte, and the start of the next one; None if not found."""
    file.seek(near)
    buffer = file.read(PIECE_BYTES)
    found = _BETWEEN.finditer(buffer)
    end = next(found, None)
    while end is not None:
        after = next(found, None)
        events = decoded(b"[" + buffer[end.end() : after.start() + 1] + b"]", exact=False) if after else None
        if events and all(event.ph for event in events):
            return near + end.start() + 1, near + end.end()
        end = after
    return None


def _last_matches(pattern: re.Pattern[bytes], buffer: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the last matches first, within a limited distance: usually the first or the second is right."""
    window = 64 * 1024
    begin = max(0, len(buffer) - window)
    found = [*pattern.finditer(buffer, begin)]
    yield from reversed(found[-200:])
    if not found and begin:
        yield from reversed([*pattern.finditer(buffer)][-200:])


_FAST: Final = msgspec.json.Decoder(list[Event])
_EXACT: Final = msgspec.json.Decoder(list[ExactEvent])
_HALF_CHARACTER: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escaped lone surrogate, which is invalid, and which msgspec takes for the end."""


def decoded(text: bytes, exact: bool) -> list[Any] | None:
    """Decode a list of events; None if it ends within an event."""
    try:
        return cast(list[Any], (_EXACT if exact else _FAST).decode(text))
    except (msgspec.ValidationError, UnicodeDecodeError):
        pass  # a value has the wrong type: the code below decodes each event separately
    except RecursionError:
        return None
    except msgspec.DecodeError as error:
        if "truncated" in str(error) and not _HALF_CHARACTER.search(text):
            return None
    return _leniently(text, exact)


def _leniently(text: bytes, exact: bool) -> list[Any] | None:
    """Decode slowly: replace invalid UTF-8, and leave out everything that is not an event."""
    try:
        events = json.loads(
            text.decode("utf-8", "replace"),
            strict=False,
            parse_constant=lambda _: None,  # NaN and infinity, which JSON does not define
            parse_float=Decimal if exact else None,
        )
    except (ValueError, RecursionError):
        return None
    kind = ExactEvent if exact else Event
    found = []
    for event in events:
        with suppress(msgspec.ValidationError, TypeError, ValueError, ArithmeticError):
            found.append(msgspec.convert(_sane(event), kind, strict=False))
    return found


def _sane(event: Any) -> Any:
    """Return the event without invalid arguments."""
    if not isinstance(event, dict):
        return event
    arguments = event.get("args")
    known = arguments if isinstance(arguments, dict) else {}
    texts = {key: value.encode("utf-8", "replace").decode() for key, value in event.items() if isinstance(value, str)}
    sane = {key: _as_decoded(key, value) for key, value in known.items() if _is_sane(key, value)}
    return {**event, **texts, "args": sane}


_TRIPLES: Final = frozenset({"grid", "block"})
_NUMBERS: Final = frozenset({"device", "stream", "correlation", "bytes", "Sequence number", "Fwd thread id"})
_UNDECODED: Final = "Input Dims"


def _is_sane(key: str, value: Any) -> bool:
    if key in _TRIPLES:
        return isinstance(value, list) and len(value) == 3 and all(isinstance(each, int) for each in value)
    if key in _NUMBERS:
        return isinstance(value, int | float | Decimal) and -(2**63) < value < 2**63 and value == int(value)
    return True


def _as_decoded(key: str, value: Any) -> Any:
    if key == _UNDECODED:
        return msgspec.Raw(json.dumps(value, default=str).encode())
    return int(value) if key in _NUMBERS else value

"""Reads traces of torch.profiler: Kineto's JSON, plain or gzipped, of any size.

The file is taken in pieces that end where an event does; each is decoded on its own, and nothing of it is kept but
columns. Files in the wild are cut off, hold bytes that are no UTF-8, and numbers that are none or too large: what can
be read is read, and what was wrong is said in the trace's remarks. The format is Chrome's trace events ("Trace Event
Format", the Chromium project) as libkineto writes it (output_json.cpp).
"""

from __future__ import annotations

import gc
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from sysbench.analysis.kineto_columns import Columns, EpochEvent, Event
from sysbench.analysis.trace import Trace
from sysbench.errors import LogError

GZIP: Final = b"\x1f\x8b"
PIECE_BYTES: Final = 4 * 1024**2
_HEADER_BYTES: Final = 16 * 1024**2
"""What comes before the events is smaller than this; a file without any in so many bytes is no trace."""

_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE: Final = re.compile(rb"\s*\[(?=\s*(\{|\]|$))")
"""Chrome's other form: nothing but the events."""
_BETWEEN: Final = re.compile(rb"\}\s*,(?=\s*\{)")
"""Where one event ends and another begins; inside of events Kineto has no lists of objects, others may."""
_LAST: Final = re.compile(rb"\}\s*\]")
_EXACT_MICROSECONDS: Final = 2**53 / 1000
"""Beyond this many microseconds a float does not hold every nanosecond."""


def is_kineto(beginning: bytes) -> bool:
    """Whether a file that begins like this may be JSON, plain or gzipped."""
    return beginning[:2] == GZIP or beginning.lstrip()[:1] in (b"{", b"[")


def read(path: Path) -> Trace:
    """The trace in a file; raises LogError for a file that holds none, or an empty one."""
    try:
        with path.open("rb") as file, _no_garbage_collection():
            return _Reader(path, file).trace()
    except FileNotFoundError:
        raise LogError(f"cannot read {path}: no such file") from None
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror or error}") from error


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Events are many and hold no cycles: looking for some takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Reader:
    """One pass over a file."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16) if file.read(2) == GZIP else None
        file.seek(0)
        self._taken_bytes = 0
        """Of the file, unpacked, that are behind what is looked at."""
        self._remarks: list[str] = []

    def trace(self) -> Trace:
        header, rest = self._header()
        columns = Columns()
        for events in self._pieces(rest):
            columns.add(events)
        if columns.is_empty:
            raise LogError(f"{self._path} holds no events that last{self._why_empty()}")
        return columns.trace(self._path.name, header, self._remarks)

    def _why_empty(self) -> str:
        return f": {'; '.join(self._remarks)}" if self._remarks else ""

    def _more(self) -> bytes:
        """The next bytes; nothing at the end, and where a packed file is damaged."""
        while block := self._file.read(PIECE_BYTES):
            if self._unpack is None:
                return block
            try:
                if unpacked := self._unpack.decompress(block):
                    return unpacked
            except zlib.error as error:
                self._remarks.append(f"the gzip data is damaged: {error}")
                break
        return b""

    def _header(self) -> tuple[dict[str, Any], bytes]:
        """What the file says before its events, and the bytes from the first event on."""
        buffer = b""
        while len(buffer) < _HEADER_BYTES and (block := self._more()):
            buffer += block
            begin = _BARE.match(buffer) or _EVENTS.search(buffer)
            if begin is not None:
                self._taken_bytes = begin.end()
                return self._decoded_header(buffer[: begin.end()]), buffer[begin.end() :]
        if not buffer.strip():
            raise LogError(f"{self._path} is empty")
        raise LogError(f"{self._path} is not a trace of torch.profiler: it has no traceEvents")

    def _decoded_header(self, text: bytes) -> dict[str, Any]:
        with suppress(ValueError):
            header = json.loads(text.decode("utf-8", "replace") + "]}", strict=False)
            if isinstance(header, dict):
                return header
        return {}

    def _pieces(self, buffer: bytes) -> Iterator[list[Any]]:
        """Decoded events, as many at a time as a piece holds."""
        exact = _has_epoch(buffer)
        while True:
            block = self._more()
            buffer += block
            if not block:
                yield from self._last(buffer, exact)
                return
            events, rest = self._whole(buffer, exact)
            if rest is None:  # it ends here, and something else follows
                yield events
                return
            self._taken_bytes += len(buffer) - len(rest)
            buffer = rest
            if events:
                yield events

    def _whole(self, buffer: bytes, exact: bool) -> tuple[list[Any], bytes | None]:
        """All events that end in the buffer but the last one, and the bytes from that one on."""
        for end in _last_matches(_BETWEEN, buffer):
            events = _decoded(buffer[: end.start() + 1], exact)
            if events is not None:
                return events, buffer[end.end() :]
        for end in _LAST.finditer(buffer):
            events = _decoded(buffer[: end.start() + 1], exact)
            if events is not None:
                return events, None
        return [], buffer

    def _last(self, buffer: bytes, exact: bool) -> Iterator[list[Any]]:
        """What the end of the file holds, whether or not it is whole."""
        if buffer.lstrip()[:1] == b"]":
            return
        for end in _last_matches(_LAST, buffer):
            events = _decoded(buffer[: end.start() + 1], exact)
            if events is not None:
                yield events
                return
        for end_byte in (len(buffer), *(end.start() + 1 for end in _last_matches(_BETWEEN, buffer))):
            events = _decoded(buffer[:end_byte], exact) if buffer.strip() else None
            if events is not None:
                self._cut_off(end_byte)
                yield events
                return
        self._cut_off(0)

    def _cut_off(self, read_bytes: int) -> None:
        self._remarks.append(f"cut off: read to byte {self._taken_bytes + read_bytes:,}")


def _last_matches(pattern: re.Pattern[bytes], buffer: bytes) -> Iterator[re.Match[bytes]]:
    """Matches from the end backwards, as far as it is worth it: the first or the second is right as a rule."""
    window = 64 * 1024
    begin = max(0, len(buffer) - window)
    found = [*pattern.finditer(buffer, begin)]
    yield from reversed(found[-200:])
    if not found and begin:
        yield from reversed([*pattern.finditer(buffer)][-200:])


_FAST = msgspec.json.Decoder(list[Event])
_EXACT = msgspec.json.Decoder(list[EpochEvent])


def _decoded(events: bytes, exact: bool) -> list[Any] | None:
    """The events in these bytes, which end with one; None if they do not."""
    text = b"[" + events.rstrip().rstrip(b",") + b"]"
    try:
        return cast(list[Any], (_EXACT if exact else _FAST).decode(text))
    except (msgspec.ValidationError, UnicodeDecodeError):
        pass  # a value is not of the type that it should be: each event is looked at on its own below
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            return None
    return _leniently(text, exact)


def _leniently(text: bytes, exact: bool) -> list[Any] | None:
    """The same, slowly: with bytes that are no UTF-8 replaced, and without the events that are none."""
    try:
        events = json.loads(text.decode("utf-8", "replace"), strict=False)
    except ValueError:
        return None
    kind = EpochEvent if exact else Event
    found = []
    for event in events:
        with suppress(msgspec.ValidationError, TypeError, ValueError):
            found.append(msgspec.convert(_sane(event), kind, strict=False))
    return found


def _sane(event: Any) -> Any:
    """An event without the arguments that are not what they should be."""
    arguments = event.get("args") if isinstance(event, dict) else None
    if not isinstance(arguments, dict):
        return event
    return {**event, "args": {key: value for key, value in arguments.items() if _is_sane(key, value)}}


_TRIPLES: Final = frozenset({"grid", "block"})
_NUMBERS: Final = frozenset({"device", "stream", "correlation", "bytes", "Sequence number", "Fwd thread id"})


def _is_sane(key: str, value: Any) -> bool:
    if key in _TRIPLES:
        return isinstance(value, list) and len(value) == 3 and all(isinstance(each, int) for each in value)
    if key in _NUMBERS:
        return isinstance(value, int) and abs(value) < 2**63
    return True


def _has_epoch(buffer: bytes) -> bool:
    """Whether times are counted from so long ago that floats would lose nanoseconds."""
    first = re.search(rb'"ph"\s*:\s*"X".{0,2000}?"ts"\s*:\s*"?(\d+)', buffer, re.DOTALL)
    return first is not None and int(first[1]) > _EXACT_MICROSECONDS

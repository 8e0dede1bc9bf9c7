"""Fast reader for untrusted pickles of plain data, in bounded memory and without executing anything from the file.

`pickle.Unpickler` never reads the file itself. It reads a filtered copy, produced one window at a time:

- Only opcodes of plain data pass: dict, list, tuple, str, int, float, bool, None and bytes. A file that imports a name,
  or builds or calls an object, is refused, as are texts and memo slots larger than those in any snapshot.
- After every opcode that fills a list, the copy contains a BINPERSID, which makes the unpickler pass the list to
  `persistent_load`. The caller can then replace the list's content with something smaller while the rest is still
  unread. A file of 1 GB can thus be read although its objects never exist all at once.

The filter is a regular expression. Opcodes are a prefix code, so a pattern of whole opcodes that starts at the first
opcode can split the bytes only at opcode boundaries. Opcodes: Lib/pickletools.py of CPython, protocols 2 to 5.
"""

from __future__ import annotations

import gc
import pickle
import pickletools
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import psutil

CHUNK_BYTES = 1 << 18
MAX_TEXT_BYTES: Final = 16 << 20
DEFAULT_BUDGET_BYTES: Final = 2 << 30
_MAX_REMEMBERED_BYTES: Final = 64 << 20
_POINTER_BYTES: Final = 8


def _by_length(lengths: range) -> bytes:
    """Return a pattern for arguments that begin with their length in one byte, with one alternative per length."""
    return b"(?:" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in lengths) + b")"


_TEXT: Final = rb"\x8c" + _by_length(range(96))
_NUMBER: Final = rb"(?:K.|M..|J.{4}|\x8a" + _by_length(range(9, -1, -1)) + rb")"
_REFERENCES: Final = rb"(?:(?:j....)++|(?:h.)++)++"
_LIST: Final = rb"\](?!\x94\([hj])"
"""Matches a new list that does not begin with a reference."""
_PAIR: Final = rb"h.(?:K.K.\x86\x94|" + _NUMBER + rb"|h.|" + _LIST + rb"\x94|" + _TEXT + rb"\x94|)"
"""Matches a key and its value, the bulk of a snapshot. Other patterns would match them too, but more slowly."""
_MEMO: Final = rb"q.|r...[\x00-\x03]"
"""Matches memo slots. The unpickler allocates all slots up to the highest, so the limit is 2²⁶."""
_ACCEPTED: Final = rb"|".join(
    (rb"(?:" + _PAIR + rb")++", rb"[\x94(}uNsd\x88\x89)]++", _LIST, rb"(?:j....)++", _NUMBER, _TEXT, rb"G.{8}", _MEMO)
)
_RUN: Final = re.compile(
    rb"(?:" + _ACCEPTED + rb")*+(?:\]\x94\((" + _REFERENCES + rb")e|([eal\x85-\x87t]))?", re.DOTALL
)
"""Matches accepted opcodes, up to a whole list of references, or to an opcode that completes a list or a tuple."""

_INT32: Final = struct.Struct("<i")
_OPCODES: Final = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}
_FIXED_BYTES: Final = {"PROTO": 2, "FRAME": 9, "STOP": 1, "EMPTY_LIST": 1}
"""Accepted opcodes that end a run, and their sizes. EMPTY_LIST ends a run if its references are not all in the
window."""
_LENGTHS: Final = {
    "SHORT_BINUNICODE": struct.Struct("<B"),
    "BINUNICODE": struct.Struct("<I"),
    "BINUNICODE8": struct.Struct("<Q"),
    "SHORT_BINBYTES": struct.Struct("<B"),
    "BINBYTES": struct.Struct("<I"),
    "BINBYTES8": struct.Struct("<Q"),
}
_BOUNDED_OPCODES: Final = b"KMJ\x8aGhjqr"
"""Opcodes that are accepted in a run if their argument is complete and within its size limit."""
_HEAD_BYTES: Final = 256
"""Length that exceeds any of these opcodes; also the maximum length of an opcode in `_NAMED`."""
_NAMED: Final = re.compile(rb"[ci][^\n]*\n[^\n]*\n|\x93")
"""Opcodes that name objects: they pass and end the copy, because the unpickler's `find_class` then refuses them."""


class UnreadableError(Exception):
    """Raised if a file cannot be read. The message continues a sentence that begins with the file's name."""


class ByteStream(Protocol):
    """Source of a pickle: a file, which may be decompressed while it is read."""

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes; return an empty result at the end."""


def load(
    stream: ByteStream, finish: Callable[[list[object]], None], budget_bytes: int = DEFAULT_BUDGET_BYTES
) -> object:
    """Return the object in a pickle.

    `finish` is called with every non-empty list after each batch of items, and may replace the items with something
    smaller. If it leaves a single item, later lists that hold the same references are replaced with this item, without
    another call of `finish`.

    Raises UnreadableError if the file is not a complete pickle of plain data, or if the memory of this process grows by
    more than `budget_bytes`.
    """
    filtered = _Filter(stream, budget_bytes)
    gc_was_enabled = gc.isenabled()
    # There is no garbage, but every collection would traverse the growing number of objects.
    gc.disable()
    try:
        return _Unpickler(filtered, finish).load()
    except (
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        LookupError,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:
        raise UnreadableError(f"is damaged before byte {filtered.offset}: {error}") from error
    except MemoryError:
        raise UnreadableError("needs more memory than is available") from None
    finally:
        if gc_was_enabled:
            gc.enable()


class _Unpickler(pickle.Unpickler):
    """Unpickler of the filtered copy. It passes completed lists to `finish` and rejects nested tuples."""

    def __init__(self, filtered: _Filter, finish: Callable[[list[object]], None]) -> None:
        super().__init__(filtered)
        self._finish = finish
        self._remaining_items = filtered.remaining_items
        self._latest: list[object] = []

    def find_class(self, module: str, name: str) -> object:
        refused = f"{module}.{name}"[:80]
        raise UnreadableError(f"is refused: it refers to {refused!r}, but a snapshot contains only plain data")

    def persistent_load(self, value: Any) -> object:
        """Pass a list to `finish`, or refuse a nested tuple. If the value is the number of a reduced list, return its
        only item.
        """
        if type(value) is list:
            self._finish(value)
            self._latest = value
        elif type(value) is tuple:
            # As a dict key the tuple would be hashed, which takes time exponential in its depth.
            if tuple in map(type, value):
                raise UnreadableError("contains a nested tuple, unlike any snapshot")
        elif value in self._remaining_items:
            return self._remaining_items[value]
        elif len(self._latest) == 1:
            self._remaining_items[value] = self._latest[0]
        return value


class _Filter:
    """The filtered copy as a file object. Each window is a pickle frame, which the unpickler reads in one call."""

    def __init__(self, stream: ByteStream, budget_bytes: int) -> None:
        self.offset = 0
        """Number of bytes read from the stream."""
        self.remaining_items: dict[int, object] = {}
        """The remaining item of each list of references that was reduced to one item, by the list's number."""
        self._numbers: dict[bytes, int] = {}
        """Numbers of lists of references, in order of first appearance."""
        self._numbered_bytes = 0
        self._memoized = 0
        """Number of objects that the unpickler numbers, or more: opcodes are counted with arguments alike."""
        self._memo_slots = 0
        """Size of its table of these objects, which doubles when it is full."""
        self._stream = stream
        self._budget_bytes = budget_bytes
        self._process = psutil.Process()
        self._rss_bytes = self._process.memory_info().rss
        self._windows = self._filtered_windows()
        self._frame = b""
        self._position = 0

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes: a part of a frame's header, or the whole content of a frame."""
        if self._position == len(self._frame):
            window = next(self._windows)
            self._refuse_beyond_budget(window)
            self._frame = b"\x95" + struct.pack("<Q", len(window)) + window
            self._position = 0
        self._position += size
        return self._frame[self._position - size : self._position]

    def _refuse_beyond_budget(self, window: bytes) -> None:
        """Raise UnreadableError if memory is beyond the budget, or would be when the table of objects doubles."""
        growth_bytes = 0
        self._memoized += window.count(b"\x94")
        if self._memoized > self._memo_slots:
            self._memo_slots = 2 * self._memoized
            growth_bytes = _POINTER_BYTES * self._memo_slots
        if self._process.memory_info().rss - self._rss_bytes + growth_bytes > self._budget_bytes:
            limit = f"{self._budget_bytes >> 20} MiB of memory"
            raise UnreadableError(f"needs more than {limit} to read, unlike any snapshot")

    def readline(self) -> bytes:
        """Return no bytes. The unpickler finds lines within frames and does not need this method."""
        return b""

    def _filtered_windows(self) -> Iterator[bytes]:
        window = b""
        while chunk := self._stream.read(CHUNK_BYTES):
            if not self.offset and not chunk.startswith(b"\x80"):
                raise UnreadableError("is not a pickle (of protocol 2 or later)")
            self.offset += len(chunk)
            window += chunk
            position, accepted = 0, bytearray()
            while True:
                run = _RUN.match(window, position)
                if run is not None and run.end() > position:
                    accepted += self._filtered_run(run)
                    position = run.end()
                    continue
                size_bytes = self._size_bytes(window[position : position + _HEAD_BYTES])
                if not size_bytes or position + size_bytes > len(window):
                    break
                opcode = window[position]
                if opcode not in b"\x80\x95":
                    accepted += window[position : position + size_bytes]
                if opcode in b".ci\x93":
                    yield bytes(accepted)
                    return
                position += size_bytes
            window = window[position:]
            if accepted:
                yield bytes(accepted)
        raise UnreadableError(f"is truncated: it ends after {self.offset} bytes")

    def _filtered_run(self, run: re.Match[bytes]) -> bytes:
        """Return the opcodes of a run. If they complete a list or tuple, append BINPERSID to pass it to the caller.

        A list of references gets a number, which is also passed and then dropped: `BININT number BINPERSID POP`. If the
        same references occur again and the first list was reduced to one item, the copy has a list of only this item:
        `EMPTY_LIST MEMOIZE BININT number BINPERSID APPEND`.
        """
        references, completing = run.groups()
        if references is None:
            return run[0] + b"Q" if completing else run[0]
        number = self._numbers.get(references)
        if number is None:
            self._numbered_bytes += len(references) + 200
            if self._numbered_bytes > _MAX_REMEMBERED_BYTES:
                return run[0] + b"Q"
            number = self._numbers[references] = len(self._numbers)
        reference = b"J" + _INT32.pack(number) + b"Q"
        if number not in self.remaining_items:
            return run[0] + b"Q" + reference + b"0"
        return run.string[run.start() : run.start(1) - 1] + reference + b"a"

    def _size_bytes(self, head: bytes) -> int:
        """Return the size of the opcode after a run; 0 if the window ends within the opcode."""
        name = _OPCODES.get(head[:1], f"opcode 0x{head[:1].hex()}")
        if name == "PROTO" and head[1:2] > b"\x05":
            raise UnreadableError(f"is a pickle of an unknown protocol, {head[1]}")
        if name in _FIXED_BYTES:
            return _FIXED_BYTES[name]
        length = _LENGTHS.get(name)
        if length is not None and len(head) > length.size:
            (text_bytes,) = length.unpack_from(head, 1)
            if text_bytes > MAX_TEXT_BYTES:
                raise UnreadableError(f"has a text of {text_bytes} bytes before byte {self.offset}, too large for one")
            return 1 + length.size + int(text_bytes)
        if head[:1] in _BOUNDED_OPCODES and len(head) == _HEAD_BYTES:
            raise UnreadableError(f"has a {name} before byte {self.offset}, too large for a snapshot")
        if length is not None or head[:1] in _BOUNDED_OPCODES:
            return 0
        named = _NAMED.match(head)
        if named is None:
            raise UnreadableError(f"is refused: it asks to run {name}, but a snapshot contains only plain data")
        return named.end()

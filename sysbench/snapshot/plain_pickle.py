"""Reader for untrusted pickles of plain data, in bounded memory and without executing anything from the file.

`pickle.Unpickler` never reads the file itself. It reads a checked copy, produced one window at a time:

- Only opcodes of plain data pass: dict, list, tuple, str, int, float, bool, None and bytes. A file that imports a name,
  or builds or calls an object, is refused, as are texts and memo slots larger than those in any snapshot.
- After every opcode that fills a list, the copy contains a BINPERSID, which makes the unpickler pass the list to
  `persistent_load`. The caller can then replace the list's content with something smaller while the rest is still
  unread. A file of 1 GB can thus be read although its objects never exist all at once.

Every opcode begins with a byte that says how its argument ends, so the file can be read in one way only. The check is a
regular expression: any number of the accepted opcodes, each with its argument. The first byte that it does not match
begins an opcode that needs a closer look, or is refused. Opcodes: Lib/pickletools.py of CPython, protocols 2 to 5.
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
_POINTER_BYTES: Final = 8

_OPCODES: Final = {opcode.name: opcode for opcode in pickletools.opcodes}
_NAMES: Final = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}


def _code(name: str) -> bytes:
    return re.escape(_OPCODES[name].code.encode("latin-1"))


def _without_argument(*names: str) -> bytes:
    """Return a pattern for opcodes that have no argument."""
    return b"[" + b"".join(map(_code, names)) + b"]"


def _with_argument(*names: str) -> bytes:
    """Return a pattern for opcodes whose argument has a fixed size."""
    arguments = ((name, _OPCODES[name].arg) for name in names)
    return b"|".join(_code(name) + b"." * argument.n for name, argument in arguments if argument is not None)


def _with_length(name: str, lengths: range) -> bytes:
    """Return a pattern for an opcode whose argument begins with its length in one byte, one of `lengths`."""
    return _code(name) + b"(?:" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in lengths) + b")"


_ACCEPTED: Final = (
    _with_argument("LONG_BINGET", "BINGET"),
    _without_argument("MEMOIZE", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "DICT", "SETITEM", "SETITEMS"),
    _without_argument("NONE", "NEWTRUE", "NEWFALSE"),
    rb"K.K.\x86",  # a tuple of two small numbers, as in every trace entry: needs no look by `persistent_load`
    _with_argument("BININT1", "BININT2", "BININT", "BINFLOAT", "BINPUT"),
    rb"r...[\x00-\x03]",  # LONG_BINPUT: the unpickler allocates all slots up to the highest, so the limit is 2²⁶
    _with_length("LONG1", range(9, -1, -1)),
    _with_length("SHORT_BINUNICODE", range(64)),
)
"""Patterns of opcodes that pass, the most frequent ones first."""
_FILLING: Final = _without_argument("APPEND", "APPENDS", "LIST", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE")
"""Matches opcodes that pass and complete a list or a tuple."""
_RUN: Final = re.compile(b"(?:" + b"|".join(_ACCEPTED) + b")*(" + _FILLING + b")?", re.DOTALL)

_SKIPPED_BYTES: Final = {"PROTO": 2, "FRAME": 9}
"""Opcodes that the copy does not need, and their sizes."""
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
_LAST: Final = ("STOP", "GLOBAL", "INST", "STACK_GLOBAL")
"""Opcodes after which the unpickler reads no further: at the others but STOP, `find_class` refuses what they name."""
_NAMED: Final = re.compile(rb"[ci][^\n]*\n[^\n]*\n|\x93")
"""Matches opcodes that name objects, which pass and end the copy, so that `find_class` can say what they name."""


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
    smaller.

    Raises UnreadableError if the file is not a complete pickle of plain data, or if the memory of this process grows by
    more than `budget_bytes`.
    """
    checked = _CheckedCopy(stream, budget_bytes)
    gc_was_enabled = gc.isenabled()
    # There is no garbage, but every collection would traverse the growing number of objects.
    gc.disable()
    try:
        return _Unpickler(checked, finish).load()
    except (
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        LookupError,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:
        raise UnreadableError(f"is damaged before byte {checked.offset}: {error}") from error
    except MemoryError:
        raise UnreadableError("needs more memory than is available") from None
    finally:
        if gc_was_enabled:
            gc.enable()


class _Unpickler(pickle.Unpickler):
    """Unpickler of the checked copy. It passes completed lists to `finish` and refuses names and nested tuples."""

    def __init__(self, checked: _CheckedCopy, finish: Callable[[list[object]], None]) -> None:
        super().__init__(checked)
        self._finish = finish

    def find_class(self, module: str, name: str) -> object:
        refused = f"{module}.{name}"[:80]
        raise UnreadableError(f"is refused: it refers to {refused!r}, but a snapshot contains only plain data")

    def persistent_load(self, value: Any) -> object:
        """Return a list or a tuple that has been completed, after `finish` has seen a list."""
        if type(value) is list:
            self._finish(value)
        elif tuple in map(type, value):
            # As a dict key it would be hashed, which takes time exponential in its depth.
            raise UnreadableError("contains a nested tuple, unlike any snapshot")
        return value


class _CheckedCopy:
    """The checked copy as a file object. Each window is a pickle frame, which the unpickler reads in one call."""

    def __init__(self, stream: ByteStream, budget_bytes: int) -> None:
        self.offset = 0
        """Number of bytes read from the stream."""
        self._memoized = 0
        """Number of objects that the unpickler numbers, or more: opcodes are counted with arguments alike."""
        self._memo_slots = 0
        """Size of its table of these objects, which doubles when it is full."""
        self._stream = stream
        self._budget_bytes = budget_bytes
        self._process = psutil.Process()
        self._rss_bytes = self._process.memory_info().rss
        self._windows = self._checked_windows()
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

    def _checked_windows(self) -> Iterator[bytes]:
        window = b""
        while chunk := self._stream.read(CHUNK_BYTES):
            if not self.offset and not chunk.startswith(b"\x80"):
                raise UnreadableError("is not a pickle (of protocol 2 or later)")
            self.offset += len(chunk)
            window += chunk
            position, accepted = 0, bytearray()
            while True:
                run = _RUN.match(window, position)
                assert run is not None  # any number of opcodes includes none
                accepted += run[0] + b"Q" if run[1] else run[0]
                position = run.end()
                if run[1]:
                    continue
                size_bytes = self._size_bytes(window[position : position + _HEAD_BYTES])
                if not size_bytes or position + size_bytes > len(window):
                    break
                name = _NAMES[window[position : position + 1]]
                if name not in _SKIPPED_BYTES:
                    accepted += window[position : position + size_bytes]
                if name in _LAST:
                    yield bytes(accepted)
                    return
                position += size_bytes
            window = window[position:]
            if accepted:
                yield bytes(accepted)
        raise UnreadableError(f"is truncated: it ends after {self.offset} bytes")

    def _size_bytes(self, head: bytes) -> int:
        """Return the size of the opcode after a run; 0 if the window ends within the opcode."""
        name = _NAMES.get(head[:1], f"opcode 0x{head[:1].hex()}")
        if name == "PROTO" and head[1:2] > b"\x05":
            raise UnreadableError(f"is a pickle of an unknown protocol, {head[1]}")
        if name == "STOP":
            return 1
        if name in _SKIPPED_BYTES:
            return _SKIPPED_BYTES[name]
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

"""Reads pickles of plain data from anyone: at the speed of C, in bounded memory, without running anything in them.

`pickle.Unpickler` does the reading, but it never sees the file. It sees a screened copy, made a window at a time:

- Only opcodes of plain data pass: dict, list, tuple, str, int, float, bool, None and bytes. A file that names, builds
  or calls something is refused, as are texts and memo slots larger than any snapshot has.
- After every opcode that fills a list, the copy has a BINPERSID, which makes the unpickler hand the list to
  `persistent_load`. The caller can thus replace what is in it by something smaller while the rest is still unread. That
  is how a file of a gigabyte is read without its objects ever existing at the same time.

The screen is a regular expression. Opcodes are a prefix code, so a pattern of whole opcodes that is matched from the
first one on can only cut the bytes where the opcodes do. Opcodes: Lib/pickletools.py of CPython, protocols 2 to 5.
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
LONGEST_TEXT_BYTES: Final = 16 << 20
DEFAULT_BUDGET_BYTES: Final = 2 << 30
_REMEMBERED_BYTES: Final = 64 << 20


def _by_length(lengths: range) -> bytes:
    """Anything that begins with its length in a byte, which a pattern can only spell out."""
    return b"(?:" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in lengths) + b")"


_TEXT: Final = rb"\x8c" + _by_length(range(96))
_NUMBER: Final = rb"(?:K.|M..|J.{4}|\x8a" + _by_length(range(9, -1, -1)) + rb")"
_REFERENCES: Final = rb"(?:(?:j....)++|(?:h.)++)++"
_LIST: Final = rb"\](?!\x94\([hj])"
"""A new list, unless it begins with a reference."""
_PAIR: Final = rb"h.(?:K.K.\x86\x94|" + _NUMBER + rb"|h.|" + _LIST + rb"\x94|" + _TEXT + rb"\x94|)"
"""A key and its value: most of a snapshot. It would pass without this, but not as fast."""
_MEMO: Final = rb"q.|r...[\x00-\x03]"
"""Slots to store something in. The unpickler makes room for all below, so there may be 2²⁶ of them."""
_PASSING: Final = rb"|".join(
    (rb"(?:" + _PAIR + rb")++", rb"[\x94(}uNsd\x88\x89)]++", _LIST, rb"(?:j....)++", _NUMBER, _TEXT, rb"G.{8}", _MEMO)
)
_RUN: Final = re.compile(rb"(?:" + _PASSING + rb")*+(?:\]\x94\((" + _REFERENCES + rb")e|([eal\x85-\x87t]))?", re.DOTALL)
"""Opcodes that pass, up to a whole list of references, or to one that completes a list or a tuple."""

_INT32: Final = struct.Struct("<i")
_OPCODES: Final = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}
_FIXED_BYTES: Final = {"PROTO": 2, "FRAME": 9, "STOP": 1, "EMPTY_LIST": 1}
"""Opcodes that pass, but not in a run. An EMPTY_LIST does where its references are not all in the window."""
_LENGTHS: Final = {
    "SHORT_BINUNICODE": struct.Struct("<B"),
    "BINUNICODE": struct.Struct("<I"),
    "BINUNICODE8": struct.Struct("<Q"),
    "SHORT_BINBYTES": struct.Struct("<B"),
    "BINBYTES": struct.Struct("<I"),
    "BINBYTES8": struct.Struct("<Q"),
}
_LIMITED: Final = b"KMJ\x8aGhjqr"
"""Opcodes that pass in a run if their argument is whole, and no larger than it says."""
_HEAD_BYTES: Final = 256
"""More than any of these takes, and what is shown of names."""
_NAMED: Final = re.compile(rb"[ci][^\n]*\n[^\n]*\n|\x93")
"""GLOBAL, INST and STACK_GLOBAL pass as the last ones: `find_class` is then asked for what they name, and refuses."""


class UnreadableError(Exception):
    """Why the file cannot be read, as the end of a sentence that begins with its name."""


class ByteStream(Protocol):
    """Where a pickle comes from: a file, or one that unpacks itself."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none at the end."""


def load(stream: ByteStream, finish: Callable[[list[Any]], None], budget_bytes: int = DEFAULT_BUDGET_BYTES) -> object:
    """The object that a pickle holds.

    `finish` is shown every list that has items, each time it was given some, and may put something smaller in their
    place. If it leaves one item of a list, later lists of the same objects are not shown, and have that item.

    Raises UnreadableError for anything that is not a whole pickle of plain data, and when this process grows by more
    than `budget_bytes`.
    """
    screen = _Screen(stream, budget_bytes)
    collects = gc.isenabled()
    # There is no garbage, only more and more objects that every collection would visit.
    gc.disable()
    try:
        return _Unpickler(screen, finish).load()
    except (
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        LookupError,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:
        raise UnreadableError(f"is damaged before byte {screen.offset}: {error}") from error
    except MemoryError:
        raise UnreadableError("needs more memory than there is") from None
    finally:
        if collects:
            gc.enable()


class _Unpickler(pickle.Unpickler):
    """Reads the screened copy and shows what is completed."""

    def __init__(self, screen: _Screen, finish: Callable[[list[Any]], None]) -> None:
        super().__init__(screen)
        self._finish = finish
        self._left = screen.left
        self._latest: list[Any] = []

    def find_class(self, module: str, name: str) -> object:
        """Refuse."""
        wish = f"{module}.{name}"[:80]
        raise UnreadableError(f"is refused: it asks to use {wish!r}, and a snapshot holds plain data only")

    def persistent_load(self, shown: Any) -> object:
        """What takes the place of a list or a tuple on the stack, or of the number of a list."""
        if type(shown) is list:
            self._finish(shown)
            self._latest = shown
        elif type(shown) is tuple:
            # As a key it would be hashed, which takes time that is exponential in its depth.
            if tuple in map(type, shown):
                raise UnreadableError("holds a tuple in a tuple: no snapshot does")
        elif shown in self._left:
            return self._left[shown]
        elif len(self._latest) == 1:
            self._left[shown] = self._latest[0]
        return shown


class _Screen:
    """The screened copy, as a file. Every window of it is a frame, which the unpickler reads as a whole."""

    def __init__(self, stream: ByteStream, budget_bytes: int) -> None:
        self.offset = 0
        """How much of the stream was read."""
        self.left: dict[int, object] = {}
        """What is left of lists of references, by their numbers, where that is one item."""
        self._numbers: dict[bytes, int] = {}
        """Numbers of lists of references, in the order in which they first appear."""
        self._numbered_bytes = 0
        self._stream = stream
        self._budget_bytes = budget_bytes
        self._process = psutil.Process()
        self._rss_bytes = self._process.memory_info().rss
        self._windows = self._screened()
        self._frame = b""
        self._position = 0

    def read(self, size: int) -> bytes:
        """The next bytes: some of the head of a frame, or all of its body."""
        if self._position == len(self._frame):
            if self._process.memory_info().rss - self._rss_bytes > self._budget_bytes:
                limit = f"{self._budget_bytes >> 20} MiB of memory"
                raise UnreadableError(f"needs more than {limit} to read: no snapshot does")
            window = next(self._windows)
            self._frame = b"\x95" + struct.pack("<Q", len(window)) + window
            self._position = 0
        self._position += size
        return self._frame[self._position - size : self._position]

    def readline(self) -> bytes:
        """Nothing: lines lie within frames, where the unpickler finds them without asking."""
        return b""

    def _screened(self) -> Iterator[bytes]:
        """Windows of the copy, without the frames of the file itself."""
        window = b""
        while chunk := self._stream.read(CHUNK_BYTES):
            if not self.offset and not chunk.startswith(b"\x80"):
                raise UnreadableError("is not a pickle (of protocol 2 or later)")
            self.offset += len(chunk)
            window += chunk
            position, passed = 0, bytearray()
            while True:
                run = _RUN.match(window, position)
                if run is not None and run.end() > position:
                    passed += self._shown(run)
                    position = run.end()
                    continue
                size_bytes = self._size_bytes(window[position : position + _HEAD_BYTES])
                if not size_bytes or position + size_bytes > len(window):
                    break
                opcode = window[position]
                if opcode not in b"\x80\x95":
                    passed += window[position : position + size_bytes]
                if opcode in b".ci\x93":
                    yield bytes(passed)
                    return
                position += size_bytes
            window = window[position:]
            if passed:
                yield bytes(passed)
        raise UnreadableError(f"is truncated: it ends after {self.offset} bytes")

    def _shown(self, run: re.Match[bytes]) -> bytes:
        """A run, so that what it completes is shown: `BINPERSID` after it.

        A list of references, shown, is followed by its number, shown and dropped: `BININT number BINPERSID POP`. When
        the same references come again, the number alone gives what is left of the list: `EMPTY_LIST MEMOIZE BININT
        number BINPERSID APPEND`.
        """
        references, completing = run.groups()
        if references is None:
            return run[0] + b"Q" if completing else run[0]
        number = self._numbers.get(references)
        if number is None:
            self._numbered_bytes += len(references) + 200
            if self._numbered_bytes > _REMEMBERED_BYTES:
                return run[0] + b"Q"
            number = self._numbers[references] = len(self._numbers)
        numbered = b"J" + _INT32.pack(number) + b"Q"
        if number not in self.left:
            return run[0] + b"Q" + numbered + b"0"
        return run.string[run.start() : run.start(1) - 1] + numbered + b"a"

    def _size_bytes(self, head: bytes) -> int:
        """How long the opcode is that stopped a run; 0 if the window ends within it. Raises UnreadableError."""
        name = _OPCODES.get(head[:1], f"opcode 0x{head[:1].hex()}")
        if name == "PROTO" and head[1:2] > b"\x05":
            raise UnreadableError(f"is a pickle of protocol {head[1]}, which is not known")
        if name in _FIXED_BYTES:
            return _FIXED_BYTES[name]
        length = _LENGTHS.get(name)
        if length is not None and len(head) > length.size:
            (text_bytes,) = length.unpack_from(head, 1)
            if text_bytes > LONGEST_TEXT_BYTES:
                raise UnreadableError(f"holds a text of {text_bytes} bytes before byte {self.offset}: no snapshot does")
            return 1 + length.size + int(text_bytes)
        if head[:1] in _LIMITED and len(head) == _HEAD_BYTES:
            raise UnreadableError(f"has a {name} before byte {self.offset} that is larger than any in a snapshot")
        if length is not None or head[:1] in _LIMITED:
            return 0
        named = _NAMED.match(head)
        if named is None:
            raise UnreadableError(f"is refused: it asks to run {name}, and a snapshot holds plain data only")
        return named.end()

"""A streaming reader of pickles that hold plain data, and nothing else.

Only dict, list, tuple, str, int, float, bool, None and bytes can come out of it. The opcodes that name, build or call
anything do not exist here, so there is nothing for a hostile file to run. What a file may make us keep in memory is
bounded: containers are handed to a collector as soon as they are complete, and it may keep something smaller in
their place, everywhere they are referred to. That is how a file of a gigabyte is read without its objects ever
existing at the same time.

Opcodes: Lib/pickletools.py of CPython. Protocols 2 to 5 are read, as written by pickle, and by the C++ pickler of
torch/csrc/jit/serialization/pickler.cpp.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol

from sysbench.snapshot.pickled_rows import ABSENT, REFERENCES_LISTED, Form, RowShape, shape_of

CHUNK_BYTES = 1 << 20
LONGEST_TEXT_BYTES = 16 << 20
DEEPEST_NESTING = 100
DEFAULT_BUDGET_BYTES = 2 << 30
_MARGIN_BYTES = 272
"""More than any opcode and its argument take, texts aside (LONG1: 2 + 255): short arguments never cross a window."""
_CONTAINER_BYTES = 120
_ITEM_BYTES = 40
"""What a kept container costs, and each thing in it, for the budget: a number and its place."""
_LONGEST_NUMBER_BYTES = 16
_BATCH = 1000
"""pickle appends to lists in batches of this many (`_BATCHSIZE` in Lib/pickle.py): a shorter batch is the last one."""

_NAMING = {
    0x63: "GLOBAL",
    0x69: "INST",
    0x6F: "OBJ",
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
    0x97: "NEXT_BUFFER",
}
"""Opcodes that reach for something outside the file."""

_LIST_OF_REFERENCES = re.compile(rb"(?:(\x94)|q(.)|r(.{4}))(" + REFERENCES_LISTED + b")", re.DOTALL)
"""A list of what was seen before, after its `]`: its memo slot, then one or several gets."""
_ONE_REFERENCE = re.compile(rb"h(.)|j(.{4})", re.DOTALL)
_REMEMBERED_BYTES = 64 << 20
_MOST_ROW_SHAPES = 16
_NUMBER_FORMS: frozenset[Form] = frozenset({"number", "none"})
_OBJECT_FORMS: frozenset[Form] = frozenset({"reference", "list", "text", "none"})

_INT32 = struct.Struct("<i")
_UINT32 = struct.Struct("<I")
_UINT16 = struct.Struct("<H")
NOWHERE = -1
_UINT64 = struct.Struct("<Q")
_FLOAT64 = struct.Struct(">d")


class UnreadableError(Exception):
    """Why the file cannot be read, as the end of a sentence that begins with its name."""


class ByteStream(Protocol):
    """Where a pickle comes from: a file, or one that unpacks itself."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none at the end."""


class Collector(Protocol):
    """Is shown every dict and list that is complete, and says what to keep in its place."""

    row: object
    """What `finish_dict` returns for a dict that has become a row: only for such dicts are rows read as rows."""

    @property
    def row_numbers(self) -> Sequence[str]:
        """Keys of a row whose values are whole numbers; two or more."""

    @property
    def row_objects(self) -> Sequence[str]:
        """Keys of a row whose values are texts or lists; two or more."""

    def add_row(self, numbers: tuple[bytes, ...], objects: list[object]) -> None:
        """One more row: its numbers undecoded, its objects as they are; None for what it lacks."""

    @property
    def kept_bytes(self) -> int:
        """What the collector itself holds on to, for the budget."""

    def finish_dict(self, record: dict[object, object]) -> object:
        """What stands for this dict from now on; the dict itself to keep it. Raises UnreadableError."""

    def finish_list(self, items: list[object]) -> object:
        """What stands for this list from now on; the list itself to keep it."""


class _Missing:
    """A memo slot that was never filled."""


_MISSING = _Missing()


class _RowPlan:
    """How rows of one shape are taken apart."""

    def __init__(self, shape: RowShape, numbers: list[int], objects: list[int]) -> None:
        self.match = shape.match
        self.memoized = shape.memoized
        self.numbers: Callable[[tuple[bytes, ...]], tuple[bytes, ...]] = itemgetter(*numbers)
        self.objects: Callable[[tuple[bytes, ...]], tuple[bytes, ...]] = itemgetter(*objects)
        self.following: _RowPlan | None = None
        """The plan of the row that came after the latest one of this."""


class _Values(dict[bytes, Any]):
    """Values of rows by their opcodes, worked out once; what memo slots hold does not change once it is complete."""

    def __init__(self, work_out: Callable[[bytes], object]) -> None:
        super().__init__()
        self._work_out = work_out
        self._bytes = 0

    def __missing__(self, opcodes: bytes) -> object:
        if self._bytes > _REMEMBERED_BYTES:
            self._bytes = 0
            self.clear()
        self._bytes += len(opcodes) + 100
        value = self[opcodes] = self._work_out(opcodes)
        return value


class PlainUnpickler:
    """Reads one pickle from `stream` and shows its containers to `collector` as they are completed."""

    def __init__(self, stream: ByteStream, collector: Collector, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._stream = stream
        self._collector = collector
        self._budget_bytes = budget_bytes
        self._buffer = b""
        self._position = 0
        self._limit = 0
        self._before_buffer = 0
        self._ended = False
        self._padded = False
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: list[object] = []
        self._slots: dict[int, int] = {}
        self._texts: dict[bytes, str] = {}
        self._tuples: dict[object, object] = {}
        self._values = _Values(self._value)
        self._plans: list[_RowPlan] = []
        self._last_plan: _RowPlan | None = None
        self._dict_start = NOWHERE
        self._texts_bytes = 0
        self._containers = 0
        self._items = 0
        self._stopped = False
        self._table: list[Callable[[], None]] = [self._unknown] * 256
        for opcode, handler in self._handlers().items():
            self._table[opcode] = handler

    def load(self) -> object:
        """The object that the pickle holds, with completed containers as the collector left them.

        Raises UnreadableError for anything that is not a whole pickle of plain data within the budget.
        """
        try:
            self._refill()
            if self._buffer[self._position] != 0x80:
                raise UnreadableError("is not a pickle (of protocol 2 or later)")
            self._run()
        except (IndexError, struct.error):
            raise UnreadableError(f"is damaged near byte {self._offset}: an opcode finds nothing to work on") from None
        if len(self._stack) != 1 or self._marks:
            raise UnreadableError("is damaged: something is left over at its end")
        return self._stack[0]

    @property
    def _offset(self) -> int:
        return self._before_buffer + self._position

    def _run(self) -> None:
        table = self._table
        while not self._stopped:
            if self._position >= self._limit:
                self._refill()
            opcode = self._buffer[self._position]
            self._position += 1
            table[opcode]()

    # --- the window over the stream

    def _refill(self, needed_bytes: int = _MARGIN_BYTES) -> None:
        """Move the window so that `needed_bytes` lie ahead, or the end of the file; raises when it is passed."""
        self._check_budget()
        parts = [self._buffer[self._position :]]
        self._before_buffer += self._position
        self._position = 0
        self._dict_start = NOWHERE
        available = len(parts[0])
        while not self._ended and available < needed_bytes + CHUNK_BYTES:
            chunk = self._stream.read(CHUNK_BYTES)
            self._ended = not chunk
            parts.append(chunk)
            available += len(chunk)
        self._buffer = b"".join(parts)
        self._limit = available - _MARGIN_BYTES
        if self._ended:
            self._pad()

    def _pad(self) -> None:
        """At the end of the file: a margin of zeros, so that the last opcodes need no care of their own."""
        content = len(self._buffer) - (_MARGIN_BYTES if self._padded else 0)
        if content <= 0:
            raise UnreadableError(f"is truncated: it ends after {self._before_buffer + max(content, 0)} bytes")
        if not self._padded:
            self._buffer += bytes(_MARGIN_BYTES)
            self._padded = True
        self._limit = content

    def _take(self, size_bytes: int) -> bytes:
        """The next `size_bytes` bytes, which may lie past the window."""
        if size_bytes > LONGEST_TEXT_BYTES:
            raise UnreadableError(f"holds a text of {size_bytes} bytes near byte {self._offset}: no snapshot does")
        start = self._position
        if start + size_bytes > self._limit:
            self._refill(size_bytes + _MARGIN_BYTES)
            start = self._position
            if start + size_bytes > self._limit:
                raise UnreadableError(f"is truncated: it ends after {self._before_buffer + self._limit} bytes")
        self._position = start + size_bytes
        return self._buffer[start : self._position]

    def _check_budget(self) -> None:
        """Raises when the file makes us keep more than any snapshot needs; asked once a window."""
        kept = (
            8 * len(self._memo)
            + _CONTAINER_BYTES * (self._containers + len(self._tuples))
            + _ITEM_BYTES * (self._items + len(self._stack))
            + self._texts_bytes
            + self._collector.kept_bytes
        )
        if kept > self._budget_bytes:
            raise UnreadableError(f"needs more than {self._budget_bytes >> 20} MiB of memory to read: no snapshot does")

    # --- opcodes

    def _handlers(self) -> dict[int, Callable[[], None]]:
        push = self._stack.append
        plain: dict[int, Callable[[], None]] = {
            0x80: self._protocol,
            0x95: self._frame,
            0x2E: self._stop,
            0x28: self._mark,
            0x4E: lambda: push(None),
            0x88: lambda: push(True),
            0x89: lambda: push(False),
            0x4A: self._binint,
            0x4B: self._binint1,
            0x4D: self._binint2,
            0x8A: self._long1,
            0x47: self._binfloat,
            0x8C: self._short_text,
            0x58: self._text,
            0x8D: self._long_text,
            0x43: self._short_bytes,
            0x42: self._bytes,
            0x8E: self._long_bytes,
            0x5D: self._empty_list,
            0x6C: self._list,
            0x61: self._append,
            0x65: self._appends,
            0x7D: self._empty_dict,
            0x64: self._dict,
            0x73: self._setitem,
            0x75: self._setitems,
            0x29: lambda: push(()),
            0x74: self._tuple,
            0x85: lambda: self._tuple_of(1),
            0x86: lambda: self._tuple_of(2),
            0x87: lambda: self._tuple_of(3),
            0x94: self._memoize,
            0x71: lambda: self._put(self._byte()),
            0x72: lambda: self._put(self._uint32()),
            0x68: self._binget,
            0x6A: self._long_binget,
        }
        return plain | dict.fromkeys(_NAMING, self._naming)

    def _unknown(self) -> None:
        opcode = self._buffer[self._position - 1]
        raise UnreadableError(f"is not a pickle of plain data: opcode 0x{opcode:02x} at byte {self._offset - 1}")

    def _naming(self) -> None:
        """Anything that would import, call or fetch: refused, and said by name where the file gives one."""
        opcode = self._buffer[self._position - 1]
        named = ""
        if opcode == 0x93 and all(isinstance(part, str) for part in self._stack[-2:]):
            named = ".".join(str(part) for part in self._stack[-2:])
        elif opcode in (0x63, 0x69):
            line = self._buffer[self._position : self._position + 200].split(b"\n", 2)
            named = b".".join(line[:2]).decode("ascii", "replace")
        wish = f"use {named[:80]!r}" if named else f"run {_NAMING[opcode]}"
        raise UnreadableError(f"is refused: it asks to {wish}, and a snapshot holds plain data only")

    def _protocol(self) -> None:
        version = self._byte()
        if not 2 <= version <= 5:
            raise UnreadableError(f"is a pickle of protocol {version}, which is not known")

    def _frame(self) -> None:
        self._position += 8

    def _stop(self) -> None:
        self._stopped = True

    def _mark(self) -> None:
        if len(self._marks) >= DEEPEST_NESTING:
            raise UnreadableError(f"is nested more than {DEEPEST_NESTING} deep: no snapshot is")
        self._marks.append(len(self._stack))

    def _byte(self) -> int:
        self._position += 1
        return self._buffer[self._position - 1]

    def _uint32(self) -> int:
        self._position += 4
        number: int = _UINT32.unpack_from(self._buffer, self._position - 4)[0]
        return number

    def _uint64(self) -> int:
        self._position += 8
        number: int = _UINT64.unpack_from(self._buffer, self._position - 8)[0]
        return number

    def _binint(self) -> None:
        self._stack.append(_INT32.unpack_from(self._buffer, self._position)[0])
        self._position += 4

    def _binint1(self) -> None:
        self._stack.append(self._buffer[self._position])
        self._position += 1

    def _binint2(self) -> None:
        self._stack.append(_UINT16.unpack_from(self._buffer, self._position)[0])
        self._position += 2

    def _long1(self) -> None:
        start = self._position + 1
        size_bytes = self._buffer[start - 1]
        if size_bytes > _LONGEST_NUMBER_BYTES:
            raise UnreadableError(f"holds a number of {size_bytes} bytes near byte {self._offset}: no snapshot does")
        self._position = start + size_bytes
        self._stack.append(int.from_bytes(self._buffer[start : self._position], "little", signed=True))

    def _binfloat(self) -> None:
        self._stack.append(_FLOAT64.unpack_from(self._buffer, self._position)[0])
        self._position += 8

    def _short_text(self) -> None:
        self._push_text(self._take(self._byte()))

    def _text(self) -> None:
        self._push_text(self._take(self._uint32()))

    def _long_text(self) -> None:
        self._push_text(self._take(self._uint64()))

    def _push_text(self, encoded: bytes) -> None:
        self._stack.append(self._shared_text(encoded))

    def _shared_text(self, encoded: bytes) -> str:
        """Equal texts are one object, whether or not the file says so."""
        text = self._texts.get(encoded)
        if text is None:
            text = encoded.decode("utf-8", "replace")
            self._texts[encoded] = text
            self._texts_bytes += 2 * len(encoded) + 150
        return text

    def _short_bytes(self) -> None:
        self._push_bytes(self._byte())

    def _bytes(self) -> None:
        self._push_bytes(self._uint32())

    def _long_bytes(self) -> None:
        self._push_bytes(self._uint64())

    def _push_bytes(self, size_bytes: int) -> None:
        self._texts_bytes += size_bytes + 40
        self._stack.append(self._take(size_bytes))

    # --- containers

    def _empty_dict(self) -> None:
        """A new dict; where it has the shape of rows seen before, that row and the ones that follow."""
        start = self._position - 1
        if not self._read_rows(start):
            self._dict_start = start
            self._containers += 1
            self._stack.append({})

    def _read_rows(self, start: int) -> bool:
        """Read rows for as long as they go on, beginning at `start`; whether there was one at all."""
        memo, values, collector = self._memo, self._values, self._collector
        row = collector.row
        position, last = start, self._last_plan
        while True:
            # Shapes come in turns: an allocation of this size, a release of that kind.
            plan = last.following if last is not None else None
            match = plan.match(self._buffer, position) if plan is not None else None
            if plan is None or match is None:
                plan, match = self._fitting_plan(position)
                if plan is None or match is None:
                    break
                if last is not None:
                    last.following = plan
            opcodes = (*match.groups(), ABSENT)
            memo.append(row)
            for index in plan.memoized:
                memo.append(values[opcodes[index]])
            collector.add_row(plan.numbers(opcodes), [values[part] for part in plan.objects(opcodes)])
            self._stack.append(row)
            position, last = match.end(), plan
        if position == start:
            return False
        self._position, self._last_plan = position, last
        return True

    def _fitting_plan(self, position: int) -> tuple[_RowPlan | None, re.Match[bytes] | None]:
        for plan in self._plans:
            match = plan.match(self._buffer, position)
            if match is not None:
                return plan, match
        return None, None

    def _learn_row(self) -> None:
        """Remember the shape of the row that was just read opcode by opcode, if it is a flat one."""
        if self._dict_start == NOWHERE or len(self._plans) >= _MOST_ROW_SHAPES:
            return
        shape = shape_of(self._buffer[self._dict_start : self._position])
        if shape is None:
            return
        place = {self._values[key]: index for index, key in enumerate(shape.keys)}
        absent = len(shape.keys)
        numbers = [place.get(key, absent) for key in self._collector.row_numbers]
        objects = [place.get(key, absent) for key in self._collector.row_objects]
        forms: tuple[Form, ...] = (*shape.forms, "none")
        if {forms[index] for index in numbers} <= _NUMBER_FORMS and {
            forms[index] for index in objects
        } <= _OBJECT_FORMS:
            self._plans.append(_RowPlan(shape, numbers, objects))

    def _empty_list(self) -> None:
        """A new list; where the file spells out a whole list of references, all of it at once."""
        complete = _LIST_OF_REFERENCES.match(self._buffer, self._position)
        if complete is None:
            self._containers += 1
            self._stack.append([])
            return
        memoized, put, long_put, listed = complete.groups()
        kept = self._values[b"]" + listed]
        # A full batch may not be the last: the list stays open, and is nobody else's.
        self._stack.append(list(kept) if type(kept) is list else kept)
        if memoized:
            self._memoize()
        else:
            self._put(put[0] if put else _UINT32.unpack(long_put)[0])
        self._position = complete.end()

    def _value(self, opcodes: bytes) -> object:
        """What some opcodes of a row's value put on the stack."""
        kind = opcodes[:1]
        if kind in (b"h", b"j"):
            return self._recall(int.from_bytes(opcodes[1:], "little"))
        if kind == b"K":
            return self._shared_tuple((opcodes[1], opcodes[3]))
        if kind == b"\x8c":
            return self._shared_text(opcodes[2:-1])
        if kind != b"]":
            return None
        references = _ONE_REFERENCE.findall(opcodes[2:] if opcodes[1:2] == b"\x94" else opcodes[1:])
        items = [self._recall(int.from_bytes(short or long, "little")) for short, long in references]
        kept = self._collector.finish_list(items) if len(items) < _BATCH else items
        if kept is items:
            self._containers += 1
            self._items += len(items)
        return kept

    def _recall(self, index: int) -> object:
        item = self._memo[index]
        if item is _MISSING:
            raise UnreadableError(f"is damaged near byte {self._offset}: it refers to what it never stored")
        return item

    def _since_mark(self) -> list[object]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _list(self) -> None:
        items = self._since_mark()
        self._containers += 1
        self._stack.append([])
        self._extend(items)

    def _append(self) -> None:
        item = self._stack.pop()
        self._extend([item])

    def _appends(self) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[object]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise UnreadableError(f"is damaged near byte {self._offset}: it appends to what is not a list")
        target.extend(items)
        self._items += len(items)
        if len(items) < _BATCH:
            self._replace(target, self._collector.finish_list(target), len(target))

    def _dict(self) -> None:
        items = self._since_mark()
        self._containers += 1
        self._stack.append({})
        self._update(items)

    def _setitem(self) -> None:
        value = self._stack.pop()
        self._update([self._stack.pop(), value])

    def _setitems(self) -> None:
        self._update(self._since_mark())

    def _update(self, items: list[object]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise UnreadableError(f"is damaged near byte {self._offset}: it fills what is not a dict")
        try:
            target.update(zip(items[::2], items[1::2], strict=True))
        except TypeError:
            raise UnreadableError(f"is damaged near byte {self._offset}: a key cannot be one") from None
        self._items += len(items)
        kept = self._collector.finish_dict(target)
        if kept is self._collector.row:
            self._learn_row()
        self._replace(target, kept, 2 * len(target))

    def _replace(self, open_container: object, kept: object, items: int) -> None:
        """Put `kept` where the container with `items` items was: on top of the stack, and in its memo slot."""
        if kept is open_container:
            return
        self._containers -= 1
        self._items -= items
        self._stack[-1] = kept
        slot = self._slots.pop(id(open_container), None)
        if slot is not None:
            self._memo[slot] = kept

    def _tuple(self) -> None:
        self._push_tuple(tuple(self._since_mark()))

    def _tuple_of(self, length: int) -> None:
        items = tuple(self._stack[-length:])
        if len(items) < length or (self._marks and len(self._stack) - length < self._marks[-1]):
            raise UnreadableError(f"is damaged near byte {self._offset}: a tuple lacks its items")
        del self._stack[-length:]
        self._push_tuple(items)

    def _push_tuple(self, items: tuple[object, ...]) -> None:
        """Equal tuples of numbers are one object: every trace entry carries one."""
        if set(map(type, items)) == {int}:
            self._stack.append(self._shared_tuple(items))
        else:
            self._containers += 1
            self._items += len(items)
            self._stack.append(items)

    def _shared_tuple(self, items: tuple[object, ...]) -> object:
        return self._tuples.setdefault(items, items)

    # --- the memo

    def _memoize(self) -> None:
        top = self._stack[-1]
        if type(top) is dict or type(top) is list:
            if id(top) in self._slots:
                raise UnreadableError(f"is damaged near byte {self._offset}: it stores one thing twice")
            self._slots[id(top)] = len(self._memo)
        self._memo.append(top)

    def _put(self, index: int) -> None:
        """Store the top of the stack; picklers count up, one by one (the C pickler of Python 2 from 1)."""
        if not len(self._memo) <= index <= len(self._memo) + 1:
            raise UnreadableError(f"is damaged near byte {self._offset}: memo slot {index} is out of order")
        if index > len(self._memo):
            self._memo.append(_MISSING)
        self._memoize()

    def _binget(self) -> None:
        self._stack.append(self._recall(self._buffer[self._position]))
        self._position += 1

    def _long_binget(self) -> None:
        self._stack.append(self._recall(self._uint32()))

"""Kineto's events as objects, and their decoding from the bytes of a file.

Events are decoded in batches. If a batch fails, its events are decoded one by one, which isolates an event with invalid
arguments or locates the damage in the file.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, NamedTuple, cast

import msgspec

from sysbench.trace.recording import NONE

_ALL_BUT_THE_LAST: Final = re.compile(rb"[\s,]*((?s:.*)\})\s*,(?=\s*\{)")
_TOKEN: Final = re.compile(r"[^ \t\r\n,]")
_LONGEST_TOKEN: Final = len(r"\ud83e\uddee")
"""Maximum length of a token. A decoding error closer than this to the end of a text may mean that the text was cut."""
LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair: invalid as an escape, and the replacement for a byte that is not UTF-8."""

_NONE_RECORDED: Final = msgspec.Raw(b"")


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """Arguments of an event, in the order in which Kineto writes them. Arguments not listed here are not decoded."""

    device: int | None = NONE
    stream: int | None = NONE
    correlation: int | None = NONE
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    bytes: int | None = NONE
    sequence: int | None = msgspec.field(default=NONE, name="Sequence number")
    forward_thread: int | None = msgspec.field(default=NONE, name="Fwd thread id")
    shapes: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="Input type")
    collective: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="Collective name")
    in_elements: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="In msg nelems")
    out_elements: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="Out msg nelems")
    group_size: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="Group size")
    dtype: msgspec.Raw = _NONE_RECORDED
    group: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="Process Group Name")
    ranks: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="Process Group Ranks")
    collective_sequence: msgspec.Raw = msgspec.field(default=_NONE_RECORDED, name="Seq")


_NO_ARGUMENTS: Final = Arguments()


class Event(msgspec.Struct, gc=False):
    """One event, with times as floats."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float | None = None
    args: Arguments = _NO_ARGUMENTS


class ExactEvent(Event, gc=False):
    """One event with times as decimals, for times that floats cannot represent to the nanosecond."""

    ts: Decimal = Decimal(0)  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


class DecodedEvents(NamedTuple):
    """Complete events decoded from the beginning of a buffer, and where decoding stopped."""

    events: list[Any]
    size_bytes: int
    """Size of the events in bytes, including the comma after the last one."""
    at_end: bool = False
    """Whether the list of events ends here."""
    damaged_byte: int | None = None
    """First byte that is not valid JSON; None if no damage was found."""


_FAST: Final = msgspec.json.Decoder(list[Event])
_EXACT: Final = msgspec.json.Decoder(list[ExactEvent])


def decode_events(buffer: bytes, exact: bool) -> DecodedEvents:
    """Decode the complete events of a buffer: as one batch, or one by one if that is invalid."""
    events = _ALL_BUT_THE_LAST.match(buffer)
    if events is not None:
        # An apparent boundary may lie within an event, and values may be invalid UTF-8 or have the wrong type.
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = (_EXACT if exact else _FAST).decode(b"[" + events[1] + b"]")
            return DecodedEvents(cast(list[object], found), events.end(1))
    return decode_one_by_one(buffer, exact)


def decode_one_by_one(buffer: bytes, exact: bool) -> DecodedEvents:
    """Decode events one by one (slow), up to the first incomplete event; invalid arguments are omitted."""
    text = buffer.decode("utf-8", "surrogateescape")  # reversible, so that bytes can be counted

    def size_bytes(characters: int) -> int:
        return len(text[:characters].encode("utf-8", "surrogateescape"))

    # JSON does not define NaN and infinity, but some programs write them.
    scan = json.JSONDecoder(strict=False, parse_constant=lambda _: None, parse_float=Decimal if exact else None)
    kind = ExactEvent if exact else Event
    events: list[object] = []
    end = 0
    while (token := _TOKEN.search(text, end)) is not None:
        at = token.start()
        if token[0] == "]":
            return DecodedEvents(events, size_bytes(at), at_end=True)
        try:
            if token[0] != "{":
                raise json.JSONDecodeError("Expecting an event", text, at)
            event, end = scan.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            damaged = getattr(error, "pos", at)
            is_cut = str(error).startswith("Unterminated string") or len(text) - damaged < _LONGEST_TOKEN
            return DecodedEvents(events, size_bytes(end), damaged_byte=None if is_cut else size_bytes(damaged))
        with suppress(msgspec.ValidationError, TypeError, ValueError, ArithmeticError):
            events.append(msgspec.convert(_without_invalid_values(event), kind, strict=False))
    return DecodedEvents(events, size_bytes(end))


_TRIPLES: Final = frozenset({"grid", "block"})
_NUMBERS: Final = frozenset({"device", "stream", "correlation", "bytes", "Sequence number", "Fwd thread id"})
_UNDECODED: Final = frozenset(
    {field.encode_name for field in msgspec.structs.fields(Arguments) if field.type is msgspec.Raw}
)


def _without_invalid_values(event: dict[str, object]) -> dict[str, object]:
    texts = {key: LONE_SURROGATE.sub("\ufffd", value) for key, value in event.items() if isinstance(value, str)}
    given, arguments = event.get("args"), dict[str, object]()
    for key, value in given.items() if isinstance(given, dict) else ():
        if key in _TRIPLES:
            if isinstance(value, list) and len(value) == 3 and all(isinstance(each, int) for each in value):
                arguments[key] = value
        elif key in _NUMBERS:
            if isinstance(value, int | float | Decimal) and -(2**63) < value < 2**63 and value == int(value):
                arguments[key] = int(value)
        else:
            arguments[key] = msgspec.Raw(json.dumps(value, default=str).encode()) if key in _UNDECODED else value
    return {**event, **texts, "args": arguments}

"""What the first bytes of a log or a record say about its run, so that thousands of runs can be listed at once."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from sysbench.command import Kind, kinds
from sysbench.log.events import Turn

BEGINNING_BYTES: Final = 4096


class Header(NamedTuple):
    """What a log or a record says first."""

    form: Literal["log", "record"]
    kind: Kind | None
    """The command; None if the file does not name one of this version."""
    started_s: float
    """Seconds since 1970; 0 if unreadable."""
    turn: Turn | None
    """The run's place in a comparison of two arms, if it belongs to one."""


def read_header(path: Path) -> Header | None:
    """Return the header of a log or a record; None for any other file. Raises OSError if the file cannot be read."""
    with path.open("rb") as file:
        beginning = file.read(BEGINNING_BYTES)
        fields = first_fields(beginning)
        if "schema_version" in fields and not fields.keys() & {"at_s", "started_at"}:  # a record with a long spec
            fields = first_fields(beginning + file.read())
    if "event" not in fields and "schema_version" not in fields:
        return None
    # Other programs may write files with one of these fields.
    known = next((kind for kind in kinds() if kind == fields.get("kind") and "sysbench_version" in fields), None)
    return Header("log" if "event" in fields else "record", known, _started_s(fields), _turn(fields))


def header_at(path: Path) -> Header | None:
    """Return the header of a log or a record; None for any other file, and for one that cannot be read."""
    with suppress(OSError):
        return read_header(path)
    return None


def first_fields(beginning: bytes) -> dict[str, object]:
    """Return the fields at the beginning of a JSON object, or of the one on the first line; empty for other content."""
    first_line, _, _ = beginning.partition(b"\n")
    try:
        fields = from_json(first_line if first_line.endswith(b"}") else beginning, allow_partial=True)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _started_s(fields: dict[str, Any]) -> float:
    try:
        started_s = fields["at_s"] if "at_s" in fields else datetime.fromisoformat(fields["started_at"]).timestamp()
        return float(started_s) if math.isfinite(started_s) else 0.0
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0.0


def _turn(fields: dict[str, object]) -> Turn | None:
    try:
        return Turn.model_validate(fields["turn"]) if "turn" in fields else None
    except ValidationError:
        return None

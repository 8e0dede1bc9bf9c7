"""Files of earlier schemas become such as this version reads, one schema at a time.

Whoever raises `SCHEMA_VERSION` puts here how a record, and how each event of a log, of the schema before is read from
now on. Schema 1 is the first there is, so there is nothing to upgrade from yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sysbench.errors import LogError
from sysbench.log.events import SCHEMA_VERSION

Fields = dict[str, Any]

RECORD: Mapping[int, Callable[[Fields], Fields]] = {}
"""By the schema that it is of: what makes a record of it one of the next schema."""

EVENT: Mapping[int, Callable[[Fields], Fields]] = {}
"""The same of each event; by their order in the log, so that one may rest on those before."""


def refuse(path: Path, schema: object, writer: object, steps: Mapping[int, Any]) -> None:
    """Raise LogError for a schema that can neither be read nor be upgraded: a newer one, or one that never was."""
    if isinstance(schema, int) and not isinstance(schema, bool):
        if schema > SCHEMA_VERSION:
            raise newer(path, schema, writer)
        if all(step in steps for step in range(schema, SCHEMA_VERSION)):
            return
    raise LogError(f"{path} is of schema {str(schema)[:40]}, which no version of sysbench has written")


def newer(path: Path, schema: int, writer: object) -> LogError:
    """What to say of a file from the future."""
    return LogError(
        f"{path} was written by sysbench {writer or 'unknown'} in schema {schema}; "
        f"this version reads up to {SCHEMA_VERSION}"
    )


def upgraded(fields: Fields, schema: int, steps: Mapping[int, Callable[[Fields], Fields]]) -> Fields:
    """The same content in the schema of this version."""
    for step in range(schema, SCHEMA_VERSION):
        fields = steps[step](fields)
    return {**fields, "schema_version": SCHEMA_VERSION} if "schema_version" in fields else fields

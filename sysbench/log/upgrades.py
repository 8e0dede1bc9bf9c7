"""Upgrades of files from earlier schemas, one schema at a time.

Whenever `SCHEMA_VERSION` is increased, add functions here that convert a record and each event from the previous
schema. Schema 1 is the first one, so there are no upgrades yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sysbench.errors import LogError
from sysbench.log.outcomes import REASONS, Outcome, Reason

SCHEMA_VERSION = 1

Fields = dict[str, Any]

RECORD: Mapping[int, Callable[[Fields], Fields]] = {}
"""Functions that convert a record from a schema to the next one, by schema."""

EVENT: Mapping[int, Callable[[Fields], Fields]] = {}
"""Functions that convert an event, by schema; called in log order, since a conversion may depend on earlier events."""

_SKIPPED: Mapping[Reason, re.Pattern[str]] = {
    "larger-than-failed": re.compile(r", which (ran out of memory|does not fit)\b"),
    "exceeds-memory": re.compile(r"\b([KMGT]i?)?B are free|\bof memory$"),
    "over-budget": re.compile(r"\bof --budget$"),
}
"""Details of skipped cells, as worded by versions that stored no reason."""


def reason_if_not_stored(fields: Fields) -> Reason | None:
    """Return the reason of an outcome that is stored without one; None if it has none, or if it is unknown."""
    outcome: Outcome = fields["outcome"]
    if outcome != "skipped":
        return REASONS.get(outcome)
    detail = fields["detail"] or ""
    return next((reason for reason, wording in _SKIPPED.items() if wording.search(detail)), None)


_EXPECTED = re.compile(r"would take about (?:(\d+) h ?)?(?:(\d+) min)?(?:(\d+) s)?, more than")
"""The expected time in the detail of a cell over its budget, as worded by versions that stored only the detail."""


def expected_s_if_not_stored(fields: Fields) -> float | None:
    """Return the time that a cell over its budget would have taken, if only its detail tells."""
    found = _EXPECTED.search(fields["detail"] or "") if fields.get("reason") == "over-budget" else None
    return (
        sum(int(part or 0) * unit_s for part, unit_s in zip(found.groups(), (3600, 60, 1), strict=True))
        if found
        else None
    )


def refuse_unsupported(path: Path, schema: object, writer: object, steps: Mapping[int, object]) -> None:
    """Raise LogError if a schema is newer than this version supports, or if no version has ever used it."""
    if isinstance(schema, int) and not isinstance(schema, bool):
        if schema > SCHEMA_VERSION:
            raise newer_schema_error(path, schema, writer)
        if all(step in steps for step in range(schema, SCHEMA_VERSION)):
            return
    raise LogError(f"{path} has schema {str(schema)[:40]}, which no version of sysbench has written")


def newer_schema_error(path: Path, schema: int, writer: object) -> LogError:
    """Return the error for a file with a newer schema."""
    return LogError(
        f"{path} was written by sysbench {writer or 'unknown'} with schema {schema}; this version reads up to "
        f"{SCHEMA_VERSION}"
    )


def upgrade(fields: Fields, schema: int, steps: Mapping[int, Callable[[Fields], Fields]]) -> Fields:
    """Return the fields of a record or an event, converted to the current schema."""
    for step in range(schema, SCHEMA_VERSION):
        fields = steps[step](fields)
    return {**fields, "schema_version": SCHEMA_VERSION} if "schema_version" in fields else fields

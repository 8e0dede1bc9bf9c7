"""The schema of logs and records, and the values of fields that earlier versions did not store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sysbench.errors import LogError
from sysbench.log.outcomes import REASONS, Outcome, Reason

SCHEMA_VERSION = 1

Fields = dict[str, Any]

FORMER_EVENTS = re.compile(rb'\s*{\s*"event":\s*"(combination_estimated|memory_drawn)"')
"""Lines of logs of earlier versions with events that nothing shows any more."""

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


_EXPECTED = re.compile(r"would take about (?:(\d{1,9}) h ?)?(?:(\d{1,9}) min)?(?:(\d{1,9}) s)?, more than")
"""The expected time in the detail of a cell over its budget, as worded by versions that stored only the detail."""


def expected_s_if_not_stored(fields: Fields) -> float | None:
    """Return the time that a cell over its budget would have taken, if only its detail tells."""
    found = _EXPECTED.search(fields["detail"] or "") if fields.get("reason") == "over-budget" else None
    return (
        sum(int(part or 0) * unit_s for part, unit_s in zip(found.groups(), (3600, 60, 1), strict=True))
        if found
        else None
    )


def refuse_other_schema(path: Path, schema: object, writer: object) -> None:
    """Raise LogError unless a file has the schema of this version, which is the first."""
    if schema == SCHEMA_VERSION:
        return
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise LogError(
            f"{path} was written by sysbench {writer or 'unknown'} with schema {schema}; this version reads up to "
            f"{SCHEMA_VERSION}"
        )
    raise LogError(f"{path} has schema {str(schema)[:40]}, which no version of sysbench has written")

"""The schema of logs and records, which docs/schema.md describes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sysbench.errors import LogError

SCHEMA_VERSION: Final = 1


def refuse_other_schema(path: Path, schema: object, writer: object) -> None:
    """Raise LogError unless a file has the schema that this version reads."""
    if schema != SCHEMA_VERSION:
        found = "no schema" if schema is None else f"schema {str(schema)[:40]}"
        version = "an unknown version of sysbench" if writer is None else f"sysbench {str(writer)[:40]}"
        raise LogError(f"{path} has {found} and was written by {version}; this version reads schema {SCHEMA_VERSION}")

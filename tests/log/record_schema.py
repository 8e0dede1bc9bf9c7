"""The JSON schema of records, made from their classes; `python -m tests.log.record_schema` writes it to docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from sysbench.command import kinds
from sysbench.log.kinds import command_of

FILE = Path(__file__).parents[2] / "docs" / "record.schema.json"


def record_schema() -> dict[str, Any]:
    """Return the schema of the records of all commands; `kind` says which command's a record is."""
    records = {kind: command_of(kind).records().record for kind in kinds()}
    references, definitions = models_json_schema([(record, "serialization") for record in records.values()])
    by_kind = [
        {"if": {"properties": {"kind": {"const": kind}}}, "then": references[record, "serialization"]}
        for kind, record in records.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Record of a sysbench run",
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(records)}},
        "allOf": by_kind,
        "$defs": _without_titles(definitions["$defs"], of_names=True),
    }


def text() -> str:
    """Return the schema with one definition a line, so that a change of a class is a change of its line."""
    schema = record_schema()
    definitions = schema.pop("$defs")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in sorted(definitions.items()))
    return json.dumps(schema, indent=1)[:-2] + f',\n "$defs": {{\n{lines}\n }}\n}}\n'


def _without_titles(schema: Any, *, of_names: bool = False) -> Any:
    """Return a schema without the titles that pydantic makes of names; `of_names` marks a mapping from names."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value, of_names=key in ("properties", "$defs") and not of_names)
        for key, value in schema.items()
        if of_names or key != "title"
    }


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")

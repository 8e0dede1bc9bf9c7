"""A sheet as JSON: what the tables show, with the numbers as they were measured."""

from __future__ import annotations

import json
from typing import Any

from sysbench.render.csv import tidy
from sysbench.render.table import Sheet, Table, notes


def sheet_json(content: Sheet) -> str:
    """The tables with their rows as CSV has them (units in the keys, base units, nothing rounded), and the remarks."""
    remarks = [{"kind": each.kind, "text": each.text, "remedy": each.remedy} for each in content.remarks]
    whole = {"subject": content.subject, "tables": [_table(each) for each in content.tables], "remarks": remarks}
    return json.dumps(whole, indent=1, ensure_ascii=False)


def _table(table: Table) -> dict[str, Any]:
    headings, rows = tidy(table)
    return {
        "name": table.name,
        "title": table.title,
        "rows": [{heading: row.get(heading) for heading in headings} for row in rows],
        "notes": notes(table),
    }

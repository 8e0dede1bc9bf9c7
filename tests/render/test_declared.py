"""Tables as they are declared: what one lacks is said for every table that a run may leave empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.commands.kinds import command_of
from sysbench.errors import LogError
from sysbench.log import runs
from sysbench.render.declared import DeclaredTable

SAVED = Path(__file__).parents[1] / "fixtures" / "runs"


@pytest.mark.parametrize("kind", ["time", "attention", "memory", "accum"])
def test_a_table_that_a_saved_run_leaves_empty_can_say_why(kind: str) -> None:
    found = 0
    for path in sorted(SAVED.glob(f"{kind}-*.json*")):
        try:
            record = runs.load(path)
        except LogError:
            continue  # saved damaged, or of another schema
        if record.kind != kind:
            continue
        for table in command_of(record.kind).results().tables.values():
            assert isinstance(table, DeclaredTable)
            assert table(record) or table.needs, (path.name, table.name)
            found += 1
    assert found > 10

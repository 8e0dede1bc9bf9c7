"""The long tables have every number of the records that they follow from."""

import json

from sysbench.commands.time.spec import TimeSpec
from sysbench.commands.time.tables import TABLES
from sysbench.render.csv import tidy
from sysbench.units import significant
from tests import fixtures_timing


def _numbers(value: object, name: str = "") -> dict[str, float | None]:
    """The numbers in a part of a record's JSON, by the names of their keys; an interval as its two ends."""
    if isinstance(value, dict):
        return {key: number for part in value for key, number in _numbers(value[part], f"{name}_{part}").items()}
    if isinstance(value, list):
        ends = zip(("low", "high"), value, strict=True) if "ci95" in name else ()
        return {f"{name.removesuffix('_s')}_{end}_s".lstrip("_"): number for end, number in ends}
    return {name.lstrip("_"): value if isinstance(value, int | float) else None}


def test_every_statistic_of_every_phase_has_a_column() -> None:
    record = fixtures_timing.record(TimeSpec(size="small", ctx="128"))
    _, rows = tidy(*TABLES["cells"](record))
    cell = json.loads(record.model_dump_json())["cells"][0]
    assert [row["phase"] for row in rows] == list(cell["phases"])
    for row in rows:
        expected = _numbers(cell["phases"][row["phase"]])
        assert len(expected) == 27
        assert {name: row[name] for name in expected} == {
            name: None if number is None else significant(number) for name, number in expected.items()
        }


def test_peaks_are_in_the_row_of_the_step_alone() -> None:
    record = fixtures_timing.record(TimeSpec(size="small", ctx="128"))
    _, rows = tidy(*TABLES["cells"](record))
    peaks = json.loads(record.cells[0].memory.model_dump_json())
    assert {name: rows[-1][name] for name in peaks} == peaks
    assert all(row[name] is None for row in rows[:-1] for name in peaks)

"""The long tables have every number of the records that they follow from."""

import json
from types import SimpleNamespace

from sysbench.commands.attention import tables as attention
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.memory import tables as memory
from sysbench.commands.time.spec import TimeSpec
from sysbench.commands.time.tables import TABLES
from sysbench.render.csv import tidy
from sysbench.snapshot import CATEGORIES
from sysbench.units import significant
from tests import fixtures_attention, fixtures_timing
from tests.fixtures_memory import GIB, memory_cell


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


def test_every_statistic_of_attention_has_a_column() -> None:
    record = fixtures_attention.record(AttentionSpec(impl="naive", dim="64", seq="1024"))
    _, (row,) = tidy(*attention.TABLES["cells"](record))
    expected = _numbers(json.loads(record.model_dump_json())["cells"][0]["backward"], "backward")
    assert len(expected) == 13
    assert {name: row[name] for name in expected} == {
        name: None if number is None else significant(number) for name, number in expected.items()
    }


def test_every_peak_of_a_phase_and_the_verdict_have_columns() -> None:
    cell = memory_cell(3 * GIB, ctx=512, phases={"forward": 2 * GIB}, fits=False, margin_bytes=-GIB)
    record = SimpleNamespace(cells=[cell])
    _, (row,) = tidy(*memory.TABLES["cells"](record))
    peak = json.loads(cell.model_dump_json())["peaks_by_phase"]["forward"]
    assert {name: row[name] for name in ("allocated_peak_bytes", "reserved_peak_bytes")} == {
        name: peak[name] for name in ("allocated_peak_bytes", "reserved_peak_bytes")
    }
    assert sum(row[f"{name.replace(' ', '_')}_bytes"] for name in CATEGORIES) == sum(peak["by_category"].values())
    assert (row["fits"], row["margin_bytes"]) == ("no", -GIB)

"""Columns are chosen by name, in every table there is, and what is chosen brings what has to be said of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sysbench.command import kinds
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.kinds import command_of
from sysbench.commands.sheets import column_names, nonempty_tables, sheet, show
from sysbench.commands.time.record import TimeRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import UsageError
from sysbench.render.column_selection import is_known, select_columns
from sysbench.render.declared import DeclaredTable
from sysbench.render.table import Column, Measure, OnRequestColumn, Sheet, Table, notes
from sysbench.spec.cell import RunSpec, spec_of
from tests import fixtures_attention, fixtures_runs, fixtures_timing


@pytest.fixture(scope="module")
def record() -> TimeRecord:
    spec = TimeSpec(size="small,medium", ctx=512, precision="fp32,bf16", steps=40)  # type: ignore[arg-type]
    return fixtures_timing.record(spec)


TABLE = Table(
    "numbers",
    "numbers",
    (
        Column("name", "name"),
        Column("one", "first", "s", importance=1),
        Column("two", "second", "s", "both", importance=2),
        Column("three", "third", "s", "both", importance=3),
    ),
    (("a", Measure(1.0), Measure(2.0), Measure(3.0)), ("b", Measure(4.0), Measure(5.0), Measure(6.0))),
    axes=1,
    on_request=(
        OnRequestColumn(Column("four", "fourth", "s", note="four is more"), lambda: (Measure(7.0), Measure(8.0))),
        OnRequestColumn(Column("better", "better", "s"), lambda: (Measure(1.5), Measure(4.5)), replaces="one"),
    ),
)
OTHER = Table("other", "other", (Column("name", "name"), Column("five", "fifth", "s")), (("a", Measure(9.0)),), axes=1)
SHEET = Sheet(("subject",), (TABLE, OTHER))


def keys(content: Sheet, table: str = "numbers") -> list[str] | None:
    found = {each.name: [column.key for column in each.columns] for each in content.tables}
    return found.get(table)


def test_without_names_a_table_is_as_it_was() -> None:
    assert select_columns(SHEET, ()) == SHEET
    assert keys(SHEET) == ["name", "one", "two", "three"]


def test_named_columns_stand_beside_the_axes_in_the_order_of_their_names() -> None:
    chosen = select_columns(SHEET, ["three", "four", "one"])
    assert keys(chosen) == ["name", "three", "four", "one"]
    (table,) = chosen.tables
    assert table.rows[1] == ("b", Measure(6.0), Measure(8.0), Measure(4.0))


def test_tables_without_any_of_the_named_columns_are_left_out() -> None:
    assert keys(select_columns(SHEET, ["one"]), "other") is None
    assert keys(select_columns(SHEET, ["one", "five"]), "other") == ["name", "five"]


def test_a_plus_adds_and_takes_nothing_away() -> None:
    chosen = select_columns(SHEET, ["+four"])
    assert keys(chosen) == ["name", "one", "two", "three", "four"]
    assert keys(chosen, "other") == ["name", "five"]
    assert keys(select_columns(SHEET, ["two", "+four"])) == ["name", "two", "four"]


def test_a_column_that_says_more_comes_instead_of_the_one_that_says_less() -> None:
    assert keys(select_columns(SHEET, ["+better"])) == ["name", "two", "three", "better"]


def test_a_column_is_known_by_its_key_its_title_and_the_heading_it_shares() -> None:
    assert keys(select_columns(SHEET, ["second"])) == ["name", "two"]
    assert keys(select_columns(SHEET, ["BOTH"])) == ["name", "two", "three"]
    assert keys(select_columns(SHEET, ["both_third"])) == ["name", "three"]


def test_a_note_comes_with_the_column_that_it_is_about() -> None:
    assert notes(select_columns(SHEET, ["one"]).tables[0]) == ()
    assert notes(select_columns(SHEET, ["+four"]).tables[0]) == ("four is more",)


def test_added_columns_do_not_go_for_want_of_width_and_of_named_ones_the_last_go_first() -> None:
    added = select_columns(SHEET, ["+four"]).tables[0]
    assert {column.key: column.importance for column in added.columns}["four"] == 0
    named = select_columns(SHEET, ["three", "one"]).tables[0]
    assert {column.key: column.importance for column in named.columns} == {"name": 0, "three": 0, "one": 1}


def test_a_wrong_name_lists_what_there_is_nearest_first() -> None:
    with pytest.raises(UsageError) as refused:
        select_columns(SHEET, ["one", "+foru"])
    message = str(refused.value)
    assert message.startswith("--columns foru is not a column of these tables. Did you mean four? (four, ")
    for name in ("one", "two", "three", "five", "better", "both"):
        assert name in message


@given(st.lists(st.sampled_from(["one", "two", "three", "four", "better", "+one", "+four", "both", "+both"])))
def test_however_they_are_chosen_rows_stay_whole_and_columns_come_once(names: list[str]) -> None:
    chosen = select_columns(SHEET, names)
    (table, *_) = chosen.tables
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert len({column.key for column in table.columns}) == len(table.columns)
    assert [row[0] for row in table.rows] == ["a", "b"]


# --- of real tables


def shown(record: TimeRecord, *names: str, form: str = "terminal", tables: tuple[str, ...] = ()) -> str:
    out = io.StringIO()
    console = Console(file=out, width=110, color_system=None)
    show(record, console, form, tables, columns=names)  # type: ignore[arg-type]
    return out.getvalue()


def test_mfu_comes_with_its_formula_and_the_source_of_its_peak(record: TimeRecord) -> None:
    text = " ".join(shown(record, "+mfu").split())
    assert "MFU: FLOPs of a step divided by (mean step time × peak)" in text
    assert "B·[L(8Td² + 4T²d + 6T·d·d_ff) + 2TdV]" in text
    assert "312.0 TFLOP/s in bf16, NVIDIA A100" in text
    assert "of peak" not in text  # the same number, with less said of it


def test_mfu_is_achieved_over_peak(record: TimeRecord) -> None:
    (table, *_) = select_columns(sheet(record), ["mfu", "achieved"]).tables
    for cell, row in zip(record.cells, table.rows, strict=True):
        assert cell.rates is not None
        assert cell.rates.peak_flops_per_s is not None
        mfu, achieved = row[-2:]
        assert isinstance(mfu, Measure)
        assert isinstance(achieved, Measure)
        assert mfu.value == pytest.approx(achieved.value / cell.rates.peak_flops_per_s)


def test_energy_is_shown_per_step_and_per_token_with_what_is_open_about_it(record: TimeRecord) -> None:
    text = " ".join(shown(record, "step", "energy").split())
    assert "per step per token" in text
    assert "mJ/token" in text
    assert "read from NVML's counter during the measured steps" in text
    assert "so the uncertainty is ±" in text


def test_withheld_joules_say_how_many_steps_would_do() -> None:
    short = fixtures_timing.record(TimeSpec(size="small", ctx=128, steps=10))  # type: ignore[arg-type]
    text = " ".join(shown(short, "+energy").split())
    assert "withheld: measured for" in text
    assert "--steps" in text


def test_without_a_counter_the_note_says_so() -> None:
    machine = fixtures_timing.TWO_CORES
    record = fixtures_timing.record(TimeSpec(size="small", ctx=128), machine)  # type: ignore[arg-type]
    assert "energy: no energy counter was read" in " ".join(shown(record, "+energy").split())


def test_energy_is_in_the_long_table_for_data_frames(record: TimeRecord) -> None:
    rows = list(csv.DictReader(io.StringIO(shown(record, form="csv"))))
    steps = [row for row in rows if row["phase"] == "step"]
    assert float(steps[0]["energy_per_step_j"]) == pytest.approx(float(steps[0]["energy_per_token_j"]) * 4 * 512)
    assert float(steps[0]["power_w"]) == pytest.approx(300.0)


def test_csv_holds_what_was_chosen_and_nothing_else(record: TimeRecord) -> None:
    header = shown(record, "phase", "wall_median", form="csv").splitlines()[0]
    assert header.endswith("phase,wall_median_s")


def test_columns_of_other_commands_are_chosen_in_the_same_way() -> None:
    spec = AttentionSpec(impl="naive,sdpa-flash", seq="256,1024", precision="bf16")  # type: ignore[arg-type]
    sweep = fixtures_attention.record(spec)
    for table in sheet(sweep).tables:
        for column in table.columns[table.axes :]:
            (chosen, *_) = select_columns(sheet(sweep), [column.display_name]).tables
            assert column.title in [each.title for each in chosen.columns]


def filled() -> Iterator[tuple[RunSpec, Table]]:
    """Every table of every kind of run that can be filled without running anything."""
    axes = {"size": "small,medium", "ctx": "128,256", "batch": "2,4", "precision": "fp32,bf16", "warmup": "0,2"}
    wide = TimeSpec(**axes)  # type: ignore[arg-type]
    attention = AttentionSpec(impl="naive,sdpa-flash", dim="16,32", seq="64,128")  # type: ignore[arg-type]
    records = [fixtures_runs.record(kind) for kind in fixtures_runs.KINDS]
    for found in (*records, fixtures_timing.record(wide), fixtures_attention.record(attention)):
        for name in command_of(found.kind).results().tables:
            for table in nonempty_tables(found, [name]):
                yield spec_of(found.spec), replace(table, name=name)


def test_every_column_that_a_table_turns_out_to_have_was_known_before_the_run() -> None:
    for spec, table in filled():
        if (spec.kind, table.name) == ("profile", "ranks"):
            continue  # of files alone: a run has no ranks
        known = column_names(spec.kind, table.name, spec)
        for column in (*table.columns[table.axes :], *(offer.column for offer in table.on_request)):
            for spelling in filter(None, (column.key, column.title, column.group)):
                assert is_known(spelling, known), f"{spec.kind} {table.name}: {spelling}"


def test_every_table_knows_its_columns_before_there_is_a_record() -> None:
    for kind in kinds():
        assert all(isinstance(table, DeclaredTable) for table in command_of(kind).results().tables.values())


def test_every_command_has_the_table_that_csv_shows() -> None:
    for kind in kinds():
        assert command_of(kind).results().long_table in command_of(kind).results().tables

"""The same tables on a terminal, in Markdown, CSV and LaTeX: fitting, readable back, and not to be fooled by names."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from sysbench.command import Kind
from sysbench.commands import plan, sheets
from sysbench.commands.kinds import command_of
from sysbench.commands.time.record import TimeRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.commands.time.tables import TABLES
from sysbench.render import numbers as columns_shown
from sysbench.render import output as summary
from sysbench.render import terminal
from sysbench.render.csv import sheet_json
from sysbench.render.plots import readable_ticks
from sysbench.render.table import Column, Measure, Remark, Sheet, Table, Word
from sysbench.render.terminal import SheetView
from sysbench.spec.hardware import by_name
from sysbench.spec.run import Format
from sysbench.units import seconds_with_interval, significant
from tests import fixtures_runs
from tests import fixtures_timing as runs
from tests.golden.compare import assert_golden, plain_environment

__all__ = ["plain_environment"]

PAIR = TimeSpec(size="medium", ctx="128-1024*2", precision="fp32,bf16")
LARGE = TimeSpec(size="xl,2.7b", ctx="128-1024*2", precision="fp32,bf16")

EVIL = r"a_b & c% $x^2$ #1 ~ {\evil} | `code` *bold* [link](x) <b> [red]markup[/red]"


@pytest.fixture(scope="module")
def pair() -> TimeRecord:
    return runs.record(PAIR)


@pytest.fixture(scope="module")
def large() -> TimeRecord:
    return runs.record(LARGE)


def printed(record: TimeRecord, form: Format, *tables: str, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    sheets.show(record, console, form, tables)
    return written(console)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def sheet_of(*rows: tuple[object, ...]) -> Sheet:
    columns = (Column("name", EVIL), Column("forward", EVIL, "s", group=EVIL))
    return Sheet((EVIL,), (Table("t", EVIL, columns, rows, 1, (EVIL,)),), (Remark("caution", EVIL, EVIL),))  # type: ignore[arg-type]


# Terminal


@pytest.mark.parametrize("width", [80, 120])
def test_a_comparison_looks_like_this(pair: TimeRecord, width: int) -> None:
    assert_golden(f"summary_arms_{width}", printed(pair, "terminal", width=width))


@pytest.mark.parametrize("width", [80, 120])
def test_a_sweep_that_ran_out_of_memory_looks_like_this(large: TimeRecord, width: int) -> None:
    assert_golden(f"summary_oom_{width}", printed(large, "terminal", width=width))


def test_a_single_cell_looks_like_this() -> None:
    assert_golden("summary_single_80", printed(runs.record(TimeSpec(size="small", ctx=128)), "terminal"))


def test_devices_look_like_this() -> None:
    spec = TimeSpec(size="small,medium", ctx=128, mode="forward-backward", device="cuda,cpu")
    assert_golden("devices_120", printed(runs.record(spec), "terminal", "device", width=120))


def test_a_terminal_of_twenty_columns_gets_lists(pair: TimeRecord) -> None:
    assert_golden("summary_arms_20", printed(pair, "terminal", width=20))


def test_a_plan_looks_like_this() -> None:
    console = Console(file=io.StringIO(), width=80, legacy_windows=False)
    cells = list(TimeSpec(size="small,2.7b", ctx="128,1024").cells())
    summary.show_sheet(plan.sheet(cells, by_name("24GiB")), console, "terminal")
    assert_golden("plan_80", written(console))


@settings(max_examples=40, deadline=None)
@given(width=st.integers(20, 240), which=st.sampled_from(sorted(TABLES)))
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width: int, which: str) -> None:
    if not TABLES[which](RECORD):
        return
    text = printed(RECORD, "terminal", which, width=width)
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text


RECORD = runs.record(TimeSpec(size="small,2.7b", ctx="128,1024", precision="fp32,bf16"))


def test_wider_terminals_get_more_columns_and_the_narrow_ones_hear_of_them(pair: TimeRecord) -> None:
    narrow, wide = printed(pair, "terminal", "summary", width=80), printed(pair, "terminal", "summary", width=200)
    assert "tokens/s" not in narrow
    assert "hidden columns (use --columns or a wider terminal)" in narrow
    assert "throughput" in narrow
    assert "tokens/s" in wide
    assert "a wider terminal" not in wide


def test_columns_that_are_left_out_are_named_whichever_headings_the_others_share() -> None:
    columns = (
        Column("name", "name", group="run"),
        Column("about", "about", importance=1),
        Column("", "", importance=2),
    )
    rows = (("one", "w" * 60, "w" * 60),)
    console = Console(file=io.StringIO(), width=40)
    console.print(SheetView(Sheet((), (Table("t", "t", columns, rows),))))
    shown = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "hidden columns (use --columns or a wider terminal): about" in shown
    nameless = Table("t", "t", (columns[0], columns[2]), (("one", "w" * 60),))
    console = Console(file=io.StringIO(), width=40)
    console.print(SheetView(Sheet((), (nameless,))))
    assert "a wider terminal" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_table_that_is_printed_to_a_file_has_no_escapes_and_no_trailing_spaces(pair: TimeRecord) -> None:
    text = printed(pair, "terminal", "summary")
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.endswith("  ")]


def test_a_heading_over_several_columns_has_no_spaces_after_it() -> None:
    columns = (Column("name", "name"), *(Column(name, "some seconds", "s", "time") for name in ("a", "b")))
    made = Table("t", "", columns, (("x", Measure(1.0), Measure(2.0)),), 1)
    console = Console(file=io.StringIO(), width=80)
    summary.show_sheet(Sheet((), (made,)), console, "terminal")
    (heading,) = (line for line in written(console).splitlines() if line.strip() == "time")
    assert heading == heading.rstrip()


@pytest.mark.parametrize("form", ["terminal", "markdown", "latex", "csv"])
def test_a_stream_without_utf_8_gets_plain_characters(pair: TimeRecord, form: Format) -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=80, legacy_windows=False)
    sheets.show(pair, console, form)
    console.file.flush()
    text = console.file.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "?" not in text
    assert "medium" in text


def test_names_are_shown_on_the_terminal_as_they_are() -> None:
    console = Console(file=io.StringIO(), width=2000, legacy_windows=False, force_terminal=True)
    summary.show_sheet(sheet_of((EVIL + "\x1b[2J", Measure(1.0))), console, "terminal")
    assert written(console).count(EVIL) == 9
    assert "\x1b[2J" not in written(console)


# CSV


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_nine_digits_of_every_number(pair: TimeRecord) -> None:
    rows = rows_of(printed(pair, "csv"))
    assert len(rows) == 8 * 6
    for cell in pair.cells:
        mine = [
            row for row in rows if (int(row["ctx"]), row["precision"]) == (cell.axes["ctx"], cell.axes["precision"])
        ]
        assert [row["phase"] for row in mine] == list(cell.phases)
        for row in mine:
            for clock in ("wall", "device"):
                samples = getattr(cell.phases[row["phase"]], clock)
                for name in ("mean", "std", "median", "min", "max", "p95"):
                    assert float(row[f"{clock}_{name}_s"]) == significant(getattr(samples, f"{name}_s"))
        assert cell.rates is not None
        assert float(mine[-1]["flops_per_s"]) == significant(cell.rates.flops_per_s)
        assert float(mine[-1]["tokens_per_s"]) == significant(cell.rates.tokens_per_s)
        assert int(mine[-1]["allocated_peak_bytes"]) == cell.memory.allocated_peak_bytes


def test_csv_columns_stay_numeric_when_cells_failed(large: TimeRecord) -> None:
    rows = rows_of(printed(large, "csv"))
    assert {row["outcome"] for row in rows} == {"ok", "oom", "skipped"}
    for row in rows:
        assert row["wall_mean_s"] == "" if row["outcome"] != "ok" else float(row["wall_mean_s"]) > 0
    compared = rows_of(printed(large, "csv", "precision"))
    assert [row["outcome"] for row in compared if row["size"] == "2.7b" and row["ctx"] == "512"] == ["oom"]
    assert all(row["step_fp32_s"] == "" or float(row["step_fp32_s"]) > 0 for row in compared)


def test_csv_headings_carry_units_and_uncertainties(pair: TimeRecord) -> None:
    heading = printed(pair, "csv", "summary").splitlines()[0].split(",")
    assert {"forward_mean_s", "forward_std_s", "step_mean_s", "flops_per_s", "tokens_per_s", "peak_share"} <= set(
        heading
    )
    heading = printed(pair, "csv", "precision").splitlines()[0].split(",")
    assert {"step_bf16_s", "step_bf16_speedup_ratio"} <= set(heading)
    assert {"step_bf16_speedup_low_ratio", "step_bf16_speedup_high_ratio"} <= set(heading)


def test_several_csv_tables_have_one_header_and_a_column_that_names_them(pair: TimeRecord) -> None:
    rows = rows_of(printed(pair, "csv", "summary", "precision"))
    assert [row["table"] for row in rows] == ["summary"] * 8 + ["precision"] * 4
    assert {row["optimizer"] for row in rows} == {"foreach"}  # an axis that is the same everywhere is there as well
    assert all((row["table"] == "summary") == bool(row["forward_mean_s"]) for row in rows)


@pytest.mark.parametrize("kind", fixtures_runs.KINDS)
def test_no_table_has_two_columns_of_one_heading_in_csv(kind: Kind) -> None:
    record = fixtures_runs.record(kind)
    for name in command_of(kind).results().tables:
        for table in sheets.nonempty_tables(record, [name]):
            columns = (*table.columns, *(column for column, _ in table.constants))
            assert len({(column.key, column.unit) for column in columns}) == len(columns), table.name


def test_csv_quotes_whatever_a_name_holds() -> None:
    console = Console(file=io.StringIO())
    summary.show_sheet(sheet_of(('a,"b"\nc', Measure(0.1, 0.2)), (EVIL, Word("oom"))), console, "csv")
    heading, first, second = csv.reader(io.StringIO(written(console)))
    assert heading == ["name", "forward_mean_s", "forward_std_s", "outcome"]
    assert first == ['a,"b"\nc', "0.1", "0.2", ""]
    assert second == [EVIL, "", "", "oom"]


# Markdown


def markdown_table(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown_reads_back_to_the_same_numbers(pair: TimeRecord) -> None:
    heading, rule, *rows = markdown_table(printed(pair, "markdown", "summary"))
    assert {len(row) for row in (rule, *rows)} == {len(heading)}
    assert all(re.fullmatch(r"-+:?", cell) for cell in rule)
    position = heading.index("step (ms)")
    for row, cell in zip(rows, pair.cells, strict=True):
        mean, deviation = (float(part.replace(" ", "")) for part in row[position].split("±"))
        samples = [1000 * sample for sample in cell.phases["step"].wall.samples_s]  # type: ignore[union-attr]
        assert mean == pytest.approx(np.mean(samples), abs=0.05)
        assert deviation == pytest.approx(np.std(samples, ddof=1), abs=0.05)


def test_nothing_in_a_name_is_markdown() -> None:
    console = Console(file=io.StringIO())
    summary.show_sheet(sheet_of((EVIL + "\n| x |", Measure(1.0)), ("b", Measure(2.0))), console, "markdown")
    text = written(console)
    assert {len(row) for row in markdown_table(text)} == {2}
    assert not re.search(r"(?<!\\)[`<\[_]", text.replace(r"\\", ""))


def test_what_stands_below_what_in_a_tree_is_kept_in_documents() -> None:
    sheet = sheet_of(("layers", Measure(1.0)), ("  attention", Measure(1.0)), ("    output", Measure(1.0)))
    for form, space in (("markdown", "\u00a0"), ("latex", "~")):
        console = Console(file=io.StringIO())
        summary.show_sheet(sheet, console, form)  # type: ignore[arg-type]
        lines = [line.removeprefix("| ") for line in written(console).splitlines()]
        assert any(line.startswith(f"{2 * space}attention ") for line in lines), form
        assert any(line.startswith(f"{4 * space}output ") for line in lines), form


# LaTeX


def test_latex_reads_back_to_the_same_numbers(pair: TimeRecord) -> None:
    text = printed(pair, "latex", "summary")
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    heading = text.split(r"\toprule")[1].split(r"\midrule")[0].strip().removesuffix(r" \\").split(" & ")
    position = heading.index("step (ms)")
    assert len(body) == 8
    for line, cell in zip(body, pair.cells, strict=True):
        fields = line.removesuffix(r" \\").split(" & ")
        assert len(fields) == len(heading)
        mean, deviation = (float(part) for part in fields[position].split(r" $\pm$ "))
        samples = [1000 * sample for sample in cell.phases["step"].wall.samples_s]  # type: ignore[union-attr]
        assert mean == pytest.approx(np.mean(samples), abs=0.05)
        assert deviation == pytest.approx(np.std(samples, ddof=1), abs=0.05)


def test_latex_has_as_many_cells_in_every_row_as_columns_and_closes_what_it_opens(pair: TimeRecord) -> None:
    text = printed(pair, "latex", "precision")
    (specification,) = re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}", text)
    spans = sum(int(count) for count in re.findall(r"\\multicolumn\{(\d+)\}", text))
    assert spans == len(specification)
    for line in text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines():
        assert line.count("&") + 1 == len(specification)
    assert re.findall(r"\\begin\{(\w+)\}", text) == ["table", "tabular", "itemize"]
    assert sorted(re.findall(r"\\begin\{(\w+)\}", text)) == sorted(re.findall(r"\\end\{(\w+)\}", text))


def test_nothing_in_a_name_is_latex() -> None:
    console = Console(file=io.StringIO())
    summary.show_sheet(sheet_of((EVIL, Measure(1.0))), console, "latex")
    text = written(console)
    assert r"\evil" not in text
    assert r"a\_b \& c\% \$x\textasciicircum{}2\$ \#1" in text
    bare = re.sub(r"\\[{}$&#%_\\]", "", text)
    assert bare.count("{") == bare.count("}")


# Numbers that span orders of magnitude


def test_numbers_of_a_wide_range_keep_their_digits_and_their_units() -> None:
    columns = (Column("n", "N"), Column("forward", "forward", "s", wide_range=True), Column("m", "memory", "bytes"))
    rows = (
        (256, Measure(8.4e-5, 1.2e-6), Measure(2**22)),
        (16384, Measure(12.44, 0.03), Measure(2**34)),
        (32768, Word("oom", "bad"), None),
    )
    sheet = Sheet((), (Table("t", "t", columns, rows, 1),))
    console = Console(file=io.StringIO(), width=80, legacy_windows=False)
    summary.show_sheet(sheet, console, "terminal")
    assert "84.0 ± 1.2 µs" in written(console)
    assert "12.44 ± 0.03 s" in written(console)
    console = Console(file=io.StringIO(), width=80, legacy_windows=False)
    summary.show_sheet(sheet, console, "csv")
    first = next(csv.DictReader(io.StringIO(written(console))))
    assert float(first["forward_mean_s"]) == 8.4e-5
    assert float(first["forward_std_s"]) == 1.2e-6


@pytest.mark.parametrize(
    ("form", "shown"),
    [("terminal", "1,016 ± 650"), ("markdown", "1,016 ± 650"), ("latex", r"1,016 $\pm$ 650")],
)
def test_thousands_are_separated_by_commas_for_people_and_not_at_all_for_programs(form: Format, shown: str) -> None:
    columns = (Column("size", "size"), Column("step", "step", "s"))
    sheet = Sheet((), (Table("t", "t", columns, (("xl", Measure(1.0162, deviation=0.6498)),), 1),))
    console = Console(file=io.StringIO(), width=80, legacy_windows=False)
    summary.show_sheet(sheet, console, form)
    assert shown in written(console)
    console = Console(file=io.StringIO(), width=80, legacy_windows=False)
    summary.show_sheet(sheet, console, "csv")
    assert "xl,1.0162,0.6498" in written(console)
    assert '"step_mean_s": 1.0162' in sheet_json(sheet)


def test_rows_that_become_lists_name_their_values_but_not_a_command_that_is_copied() -> None:
    def shown(*columns: Column) -> str:
        table = Table("t", "t", (Column("number", "#"), *columns), ((1, *("x" * 20 for _ in columns)),), 1)
        console = Console(file=io.StringIO(), width=30, record=True)
        console.print(terminal.fit(table, 20, "utf-8"))
        return console.export_text()

    assert shown(Column("command", "command")).split() == ["#", "1", "x" * 20]
    assert shown(Column("cpu", "CPU"), Column("os", "OS")).split() == ["#", "1", "CPU", "x" * 20, "OS", "x" * 20]


def test_the_lower_end_of_a_wide_interval_shows_a_digit() -> None:
    rows = (("step", Measure(0.757, low=0.0719, high=8.647)), ("loss", Measure(1.6, low=1.21, high=2.04)))
    table = Table("t", "t", (Column("what", ""), Column("ratio", "B / A", "ratio")), rows, 1)
    assert columns_shown.format_columns(table)[1].texts == ("0.76 (0.07–8.65)", "1.60 (1.21–2.04)")


def test_numbers_that_the_unit_of_the_others_does_not_suit_have_one_of_their_own() -> None:
    columns = (
        Column("total", "total", "s", group="per step"),
        Column("average", "average", "s", group="of one call"),
        Column("longest", "longest", "s", group="of one call"),
    )
    rows = tuple((Measure(1.6), Measure(48e-6), Measure(96e-6)) for _ in range(3))
    shown = columns_shown.format_columns(Table("kernels", "kernels", columns, rows, 0))
    assert [(each.symbol, each.texts[0]) for each in shown] == [("ms", "1,600"), ("µs", "48.0"), ("µs", "96.0")]


def test_numbers_that_are_there_to_be_compared_share_their_unit() -> None:
    names = ("forward", "backward", "loss")
    rows = ((Measure(0.2, 0.01), Measure(0.5), Measure(0.4e-3)), (Measure(0.4, 0.01), Measure(0.9), Measure(0.8e-3)))
    shown = columns_shown.format_columns(
        Table("phases", "phases", tuple(Column(name, name, "s") for name in names), rows, 0)
    )
    assert [each.symbol for each in shown] == ["ms", "ms", "ms"]


def test_a_column_that_wraps_continues_on_further_lines_and_loses_nothing() -> None:
    words = "every word of a long reason is shown, also on a narrow terminal"
    columns = (Column("what", ""), Column("why", "", wraps=True))
    fitted = terminal.fit(Table("t", "", columns, (("a", f"{words}\n→ the remedy"), ("b", "short"))), 40)
    lines = ["".join(text for text, _ in line) for line in fitted.lines()]
    assert max(map(len, lines)) <= 40
    assert lines[0].startswith("a  every word")
    assert " ".join(" ".join(lines[:-2])[1:].split()) == words
    assert lines[-2].split() == ["→", "the", "remedy"]
    assert lines[-1].split() == ["b", "short"]


def test_a_column_that_wraps_before_others_leaves_them_their_width_and_breaks_no_product() -> None:
    columns = (Column("changes", "", wraps=True), Column("step", "step"), Column("cost", "cost", importance=1))
    row = ("fused AdamW, LoRA 16, batch 4 × 2", "1,178 (1,045–1,361)", "47 (42–54)")
    fitted = terminal.fit(Table("t", "", columns, (row,)), 60)
    assert not fitted.hidden
    lines = ["".join(text for text, _ in line) for line in fitted.lines()][1:]
    assert max(map(len, lines)) <= 60
    assert lines[0].split("  ") == ["fused AdamW, LoRA 16,", "1,178 (1,045–1,361)", "47 (42–54)"]
    assert lines[1].strip() == "batch 4 × 2"


# Digits that an interval, or a prediction, deserves


def shown_in(table: Table) -> list[tuple[str, ...]]:
    """The numbers of a table's columns as people see them, with the unit of each column first."""
    return [(each.symbol, *each.texts) for each in columns_shown.format_columns(table)]


def test_a_number_has_two_digits_of_half_its_interval() -> None:
    measures = (
        Measure(1.0775, low=0.8936, high=1.279),
        Measure(0.0630, low=0.0381, high=0.1122),
        Measure(0.1056, low=0.1054, high=0.1058),
    )
    many = Table("t", "t", (Column("step", "step", "s"),), tuple((each,) for each in measures), 0)
    assert shown_in(many) == [("ms", "1,080 (890–1,280)", "63 (38–112)", "105.6 (105.4–105.8)")]
    one = Table("t", "t", (Column("step", "step", "s"),), (measures[:1],), 0)
    assert shown_in(one) == [("s", "1.08 (0.89–1.28)")]
    assert seconds_with_interval(1.0775, 0.8936, 1.279) == "1.08 s (0.89–1.28)"


def test_predicted_times_without_an_interval_have_three_digits_and_others_keep_theirs() -> None:
    columns = (Column("total", "total", "s"), Column("bytes", "bytes", "bytes"))
    rows = tuple((Measure(time_s), Measure(2**40 + 2**30)) for time_s in (0.0261609, 0.000335584, 0.0))
    table = Table("t", "t", columns, rows, 0, digits=3)
    assert shown_in(table)[0] == ("µs", "26,200", "336", "0")
    assert shown_in(replace(table, digits=None))[0] == ("µs", "26,160.9", "335.6", "0.0")
    assert shown_in(table)[1] == shown_in(replace(table, digits=None))[1]


def test_the_same_bytes_have_the_same_digits_in_all_columns_of_a_table() -> None:
    columns = (Column("each", "each", "bytes"), Column("together", "together", "bytes"))
    rows = tuple(
        (Measure(each * 2**20), Measure(each * count * 2**20)) for each, count in ((324, 1), (2, 200), (1, 90))
    )
    assert [texts[1] for texts in shown_in(Table("t", "t", columns, rows, 0))] == ["324.0", "324.0"]


@pytest.mark.parametrize("unit", ["s", "bytes"])
@given(low=st.floats(1e-6, 1e3), span=st.floats(1.001, 1e7))
def test_a_logarithmic_axis_has_at_least_three_ticks_however_short_its_range(
    unit: Literal["s", "bytes"], low: float, span: float
) -> None:
    low = low * 2**30 if unit == "bytes" else low
    ticks = readable_ticks(low, low * span, unit)
    assert 3 <= len(ticks) <= 12
    assert all(low * 0.999999 <= tick <= low * span * 1.000001 for tick in ticks)
    assert ticks == sorted(set(ticks))

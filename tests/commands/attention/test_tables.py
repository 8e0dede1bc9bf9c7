"""What is seen of an attention sweep: tables, a picture, and the grid that fills while it runs."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from sysbench.commands.attention import figures
from sysbench.commands.attention.command import refuse_unwritable
from sysbench.commands.attention.live import (
    AttentionScreen,
    AttentionState,
    advance,
    remaining_s,
)
from sysbench.commands.attention.record import AttentionRecord, AttentionTimed
from sysbench.commands.attention.spec import AttentionOptions, AttentionSpec
from sysbench.commands.attention.tables import TABLES, tables_for
from sysbench.commands.sheets import sheet, show
from sysbench.errors import OutputError, UsageError
from sysbench.log.events import CellFinished, CellStarted, Event, RunResumed
from sysbench.log.kinds import command_of
from sysbench.render.dashboard.cell_lines import CellLines
from sysbench.render.plots import DOTS_PER_INCH, WIDTH_IN
from sysbench.render.table import Measure, Word
from sysbench.spec.run import Format
from tests import fixtures_attention as runs
from tests.golden.compare import assert_golden, plain_environment

__all__ = ["plain_environment"]

SPEC = AttentionSpec(sweep=True, impl="naive,sdpa-flash,flash-attn", repeats=10, warmup=2)
SINGLE = AttentionSpec(sweep=True, impl="naive", dim="16,64", repeats=10, warmup=2)
SIMULATED = AttentionSpec(impl="naive,sdpa-flash", simulate="a100-40gb", dim="16,64", seq="1024-65536*4")
MANY = AttentionSpec(
    sweep=True,
    impl="naive,compiled,sdpa-math,sdpa-efficient,sdpa-flash,flash-attn",
    seq="64-32768*2",
    repeats=3,
    warmup=1,
)
SMALL = 12 * runs.GIB


@pytest.fixture(scope="module")
def stream() -> list[Event]:
    return runs.events(SPEC, memory_bytes=SMALL)


@pytest.fixture(scope="module")
def record(stream: list[Event]) -> AttentionRecord:
    found = command_of("attention").records().fold(stream)
    assert isinstance(found, AttentionRecord)
    return found


def until(stream: list[Event], cell: int, call: int) -> list[Event]:
    """The stream up to a measured forward of a cell, both counted from 0."""
    started = [number for number, event in enumerate(stream) if isinstance(event, CellStarted)][cell]
    for number, event in enumerate(stream[started:], started):
        if isinstance(event, AttentionTimed) and not event.warmup and event.index == call:
            return stream[: number + 1]
    raise ValueError(f"cell {cell} has no call {call}")


def printed(record: AttentionRecord, form: Format, *tables: str, width: int = 100, columns: Sequence[str] = ()) -> str:
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    show(record, console, form, tables, columns=columns)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# Tables


def test_a_comparison_looks_like_this(record: AttentionRecord) -> None:
    assert_golden("attention_comparison_120", printed(record, "terminal", width=120))


def test_a_sweep_of_one_implementation_looks_like_this() -> None:
    assert_golden("attention_sweep_100", printed(runs.record(SINGLE, memory_bytes=SMALL), "terminal"))


def test_a_simulated_sweep_looks_like_this() -> None:
    assert_golden("attention_simulated_100", printed(runs.record(SIMULATED), "terminal"))


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex"])
@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_shown_in_every_form(record: AttentionRecord, name: str, form: Format) -> None:
    text = printed(record, form, name)
    assert len(text.splitlines()) > 3


def test_the_comparison_has_the_columns_that_reports_have() -> None:
    keys = [column.key for column in tables_for(runs.record(SINGLE))[0].columns]
    assert {"dim", "seq", "forward", "backward", "saved", "memory_before_backward", "peak"} <= set(keys)
    assert "forward_to_best" not in keys, "there is nothing to compare a single implementation with"


def test_tables_hold_the_numbers_of_the_record(record: AttentionRecord) -> None:
    (table,) = tables_for(record, ["cells"])
    keys = [column.key for column in table.columns]
    for cell, row in zip(record.cells, table.rows, strict=True):
        shown = row[keys.index("forward_median")]
        assert (cell.forward.median_s if cell.forward else None) == (
            shown.value if isinstance(shown, Measure) else None
        )


@pytest.mark.parametrize(("name", "time"), [("cells", "mean_s"), ("comparison", "median_s")])
def test_times_and_rates_of_a_row_are_of_the_same_basis(record: AttentionRecord, name: str, time: str) -> None:
    (table,) = tables_for(record, [name])
    keys = [column.key for column in table.columns]
    flops = {getattr(cell.forward, time): cell.rates["forward"].flops for cell in record.cells if cell.forward}
    held = [(row[keys.index("forward")], row[keys.index("forward_rate")]) for row in table.rows]
    measured = [(mean, found) for mean, found in held if isinstance(mean, Measure)]
    assert len(measured) > 3
    for mean, found in measured:
        assert (mean.deviation is not None) is (name == "cells")
        assert getattr(found, "value", found) == pytest.approx(flops[mean.value] / mean.value)


def test_the_best_on_each_input_is_one_and_the_others_are_multiples_of_it(record: AttentionRecord) -> None:
    (table,) = tables_for(record, ["comparison"])
    keys = [column.key for column in table.columns]
    by_input: dict[object, list[float]] = {}
    for row in table.rows:
        share = row[keys.index("forward_to_best")]
        if isinstance(share, Measure):
            by_input.setdefault(row[: keys.index("implementation")], []).append(share.value)
    assert by_input
    for shares in by_input.values():
        assert min(shares) == 1
        assert all(share >= 1 for share in shares)


def test_memory_that_ran_out_stands_where_its_number_would(record: AttentionRecord) -> None:
    (table,) = tables_for(record, ["comparison"])
    column = [each.key for each in table.columns].index("forward")
    assert {"oom", "skipped", "invalid"} == {cell.text for row in table.rows if isinstance(cell := row[column], Word)}


def test_an_implementation_that_is_not_here_says_why_once(record: AttentionRecord) -> None:
    said = [remark.text for remark in sheet(record).remarks if remark.kind == "outcome"]
    assert said == ["flash-attn: invalid: flash-attn is not installed"]


def test_simulated_and_measured_are_never_shown_without_saying_so() -> None:
    simulated = runs.record(SIMULATED)
    for name in ("comparison", "frontier", "cells", "accounting"):
        for table in tables_for(simulated, [name]):
            assert "simulated" in table.title
    assert "simulated for NVIDIA A100-SXM4-40GB" in sheet(simulated).subject


def test_rows_and_tables_of_several_gpus_name_the_gpu() -> None:
    record = runs.record(AttentionSpec(impl="naive", dim="64", seq="1024-8192*2", simulate="a100-40gb,h100"))
    (table,) = tables_for(record, ["frontier"])
    column = [each.key for each in table.columns].index("simulate")
    assert {str(row[column]) for row in table.rows} == {"a100-40gb", "h100"}


def test_a_file_of_data_has_no_length_where_a_row_is_of_several() -> None:
    one = runs.record(AttentionSpec(impl="naive", dim="64", seq="1024-8192*2", repeats=20))
    (table,) = tables_for(one, ["frontier"])
    keys = [column.key for column, _ in table.constants]
    assert "seq" not in keys
    assert "batch" in keys


def test_a_table_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="frontier"):
        tables_for(runs.record(SINGLE), ["frontiers"])
    with pytest.raises(UsageError, match="no data for the table crossovers"):
        tables_for(runs.record(SINGLE), ["crossovers"])


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(record: AttentionRecord, width: int) -> None:
    text = printed(record, "terminal", "comparison", "frontier", "accounting", width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_a_run_of_which_nothing_is_known_is_shown_all_the_same() -> None:
    record = command_of("attention").records().fold(runs.events(SPEC)[:2])
    assert "not run" in printed(record, "terminal")  # type: ignore[arg-type]


# Pictures


def texts_of(path: Path) -> str:
    return "\n".join("".join(e.itertext()) for e in ElementTree.parse(path).iter() if e.tag.endswith("}text"))


def test_curves_say_what_they_show_and_where_memory_ends(record: AttentionRecord, tmp_path: Path) -> None:
    (path,) = figures.write(tmp_path / "curves.svg", record)
    said = texts_of(path)
    for expected in ("d 64", "forward", "backward", "kept for backward", "naive", "does not fit", "16384"):
        assert expected in said
    assert "SIMULATED" not in said


def test_a_simulated_picture_says_so(tmp_path: Path) -> None:
    (path,) = figures.write(tmp_path / "c.svg", runs.record(SIMULATED))
    assert "SIMULATED for NVIDIA A100-SXM4-40GB" in texts_of(path)


def test_a_png_is_a_png_as_wide_as_a_page(record: AttentionRecord, tmp_path: Path) -> None:
    (path,) = figures.write(tmp_path / "curves.png", record)
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    assert width == round(WIDTH_IN * DOTS_PER_INCH)
    assert height >= 600


def test_each_setting_has_a_picture_of_its_own(tmp_path: Path) -> None:
    record = runs.record(SINGLE.model_copy(update={"batch": (2, 8)}))
    paths = list(figures.write(tmp_path / "c.svg", record))
    assert [path.name for path in paths] == ["c-1.svg", "c-2.svg"]
    assert "batch 2" in texts_of(paths[0])
    assert "batch 8" in texts_of(paths[1])


def test_nothing_measured_leaves_no_picture(tmp_path: Path) -> None:
    record = command_of("attention").records().fold(runs.events(SPEC)[:2])
    assert list(figures.write(tmp_path / "c.png", record)) == []  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_none_of_a_picture_is_refused(record: AttentionRecord, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="png, svg, pdf"):
        list(figures.write(tmp_path / "c.gif", record))
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        refuse_unwritable(AttentionOptions(figure=Path("x.jpeg")))
    with pytest.raises(OutputError, match="cannot write"):
        list(figures.write(tmp_path / "missing" / "c.png", record))


# While it runs


def folded(events: Iterable[Event]) -> AttentionState:
    return reduce(advance, events, AttentionState())


def screen(events: list[Event], width: int, height: int, encoding: str = "utf-8") -> list[str]:
    """The lines that a terminal of this size shows after these events."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, color_system=None, legacy_windows=False)
    console.print(AttentionScreen(folded(events), events[-1].at_s), end="")
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_a_sweep_half_way_looks_like_this(stream: list[Event], width: int, height: int) -> None:
    part = until(stream, 18, 4)
    assert_golden(f"attention_live_{width}x{height}", "\n".join(screen(part, width, height)))


def test_a_simulation_looks_like_this() -> None:
    events = runs.events(SIMULATED)
    assert_golden("attention_live_simulated_80x24", "\n".join(screen(events[: len(events) * 3 // 4], 80, 24)))


@settings(max_examples=30, deadline=None)
@given(st.integers(12, 250), st.integers(2, 70), st.floats(0.01, 1))
def test_the_screen_is_never_wider_or_higher_than_the_terminal(width: int, height: int, part: float) -> None:
    events = _MANY_EVENTS[: max(1, int(len(_MANY_EVENTS) * part))]
    lines = screen(events, width, height)
    assert len(lines) <= height
    assert max(map(cell_len, lines), default=0) <= width


_MANY_EVENTS = runs.events(MANY, memory_bytes=SMALL)


@pytest.mark.parametrize("cell", range(0, 80, 7))
def test_the_running_cell_is_in_sight_even_on_a_small_terminal(cell: int) -> None:
    part = until(_MANY_EVENTS, cell, 1)
    now = folded(part).current_cell
    assert now is not None
    assert f"{now.cell.implementation} · d {now.cell.dim} · N {now.cell.seq}" in screen(part, 80, 10)[0]


def test_where_there_is_no_terminal_every_cell_has_a_line(stream: list[Event]) -> None:
    console = Console(file=io.StringIO(), width=80)
    with CellLines(console, view=AttentionScreen) as lines:
        for event in stream:
            lines.show(event)
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue().splitlines()
    assert len(written) == 1 + len(list(SPEC.cells()))
    assert re.fullmatch(
        r"1/60 naive d 16 N 256  forward \S+ µs, backward \S+ µs, keeps 4.00 MiB for backward", written[1]
    )
    assert "\x1b" not in console.file.getvalue()


def test_a_cell_that_is_started_again_begins_anew(stream: list[Event]) -> None:
    part = until(stream, 3, 4)
    again = [event for event in part if isinstance(event, CellStarted)][-1]
    now = folded([*part, again]).current_cell
    assert now is not None
    assert now.forward_s == ()
    assert now.calls == 0


def test_a_resumed_run_keeps_what_lasts_and_waits_for_the_rest(stream: list[Event]) -> None:
    state = advance(folded(stream), RunResumed(at_s=stream[-1].at_s, keep=3))
    outcomes = {cell.outcome for _, cell in state.cells}
    assert outcomes == {"ok", "oom", "invalid", None}


def test_what_is_said_of_another_run_changes_nothing(stream: list[Event]) -> None:
    state = folded(stream)
    assert advance(state, CellFinished(at_s=0, cell="another", outcome="ok")) == state
    assert folded([]) == AttentionState()


def test_the_time_that_is_left_shrinks_to_nothing(stream: list[Event]) -> None:
    assert remaining_s(folded(stream[:5]), stream[4].at_s) is None
    forecasts = []
    for cell in (6, 15, 24, 33):
        part = until(stream, cell, 9)
        left = remaining_s(folded(part), part[-1].at_s)
        assert left is not None
        forecasts.append(left)
    assert forecasts == sorted(forecasts, reverse=True)
    assert remaining_s(folded(stream), stream[-1].at_s) == 0


def test_no_time_is_said_to_be_left_where_a_cell_takes_longer_than_expected(stream: list[Event]) -> None:
    part = until(stream, 6, 9)
    at_s = part[-1].at_s
    assert remaining_s(folded(part), at_s + 3600) is None

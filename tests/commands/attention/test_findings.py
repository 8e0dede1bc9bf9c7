"""What an attention sweep is said to have shown follows from its numbers, and only from those."""

from __future__ import annotations

import math
import re

import pytest

from sysbench import formulas as attention_costs
from sysbench import statistics, units
from sysbench.cells import group_ignoring
from sysbench.commands.attention.findings import (
    SWEPT,
    compared,
    frontier,
    growth,
    leads,
    passages,
    usual_dim,
    value,
)
from sysbench.commands.attention.fold import fold
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord, AttentionTimed
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.attention.tables import ACCOUNTING, FRONTIER, sheet
from sysbench.log.events import CellFinished, CellStarted, Event, Reading, RunFinished
from sysbench.render.sentences.finding_kinds import Limit
from sysbench.render.table import Measure, Word
from sysbench.spec.attention import AttentionCell
from sysbench.statistics import PowerLaw
from tests import fixtures_attention as runs

SPEC = AttentionSpec(sweep=True, impl="naive,compiled,sdpa-flash", seq="256-16384*2", repeats=20)
ONE = AttentionSpec(impl="naive", dim="64", seq="1024-16384*2", repeats=20)


@pytest.fixture(scope="module")
def record() -> AttentionRecord:
    return runs.record(SPEC, memory_bytes=12 * runs.GIB)


def of(record: AttentionRecord, implementation: str, dim: int = 64) -> list[AttentionCellRecord]:
    return [cell for cell in record.cells if cell.cell.implementation == implementation and cell.cell.dim == dim]


def said(record: AttentionRecord) -> list[str]:
    return [remark.text for remark in sheet(record).remarks if remark.kind == "finding"]


# The fold


def test_the_record_holds_every_sample_in_order_and_nothing_of_the_warm_up(record: AttentionRecord) -> None:
    cell = record.cells[0]
    events = runs.events(SPEC, memory_bytes=12 * runs.GIB)
    walls = [
        event.sample.device_s
        for event in events
        if isinstance(event, AttentionTimed)
        and event.cell == cell.key
        and event.phase == "forward"
        and not event.warmup
    ]
    assert cell.forward is not None
    assert cell.forward.samples_s == walls
    assert len(cell.warmup_samples_s["forward"]) == SPEC.warmup
    assert cell.device_events


def test_the_record_survives_being_written_and_read(record: AttentionRecord) -> None:
    assert AttentionRecord.model_validate_json(record.model_dump_json()) == record


def test_a_cell_that_was_stopped_half_way_has_no_finding() -> None:
    events = runs.events(ONE)
    last = [number for number, event in enumerate(events) if isinstance(event, CellStarted)][-1]
    half = fold(events[: last + 30])
    assert half.cells[-1].outcome == "unfinished"
    assert value(half.cells[-1], "forward") is None
    assert "16384" not in " ".join(said(half))


def test_an_unfinished_run_is_folded_with_what_there_is() -> None:
    events = runs.events(ONE)[:2]
    assert [cell.outcome for cell in fold(events).cells] == ["not run"] * 5
    assert said(fold(events)) == []


def test_flops_and_bytes_are_those_of_the_textbook() -> None:
    cell = next(iter(AttentionSpec(dim="64", seq="4096", batch="8").cells()))
    assert attention_costs.flops(cell, "forward") == 4 * 8 * 4096**2 * 64
    assert attention_costs.flops(cell, "backward") == 8 * 8 * 4096**2 * 64
    assert attention_costs.naive_saved_bytes(cell) == 8 * 8 * 4096**2 == 1024 * 2**20
    causal = cell.model_copy(update={"causal": True})
    assert attention_costs.flops(causal, "forward") == 2 * 8 * 4096 * 4097 * 64
    half = cell.model_copy(update={"precision": "bf16", "heads": 16})
    assert attention_costs.naive_saved_bytes(half) == 4 * 8 * 16 * 4096**2
    assert attention_costs.fused_saved_bytes(half) == 4 * 8 * 16 * 4096


def test_rates_are_over_the_mean_and_shares_of_what_the_data_sheet_allows(record: AttentionRecord) -> None:
    cell = of(record, "naive")[4]
    rates = cell.rates["forward"]
    assert cell.forward is not None
    assert rates.flops_per_s == pytest.approx(rates.flops / cell.forward.mean_s)
    # An A100: 19.5 TFLOP/s in fp32 and 2,039 GB/s.
    expected = max(rates.flops / 19.5e12, rates.bytes_moved / 2.039e12) / cell.forward.mean_s
    assert rates.limit_share == pytest.approx(expected, rel=1e-3)
    assert rates.limited_by == "compute"


def test_a_device_without_a_data_sheet_has_no_limit() -> None:
    found = runs.record(ONE, machine=runs.TWO_CORES).cells[0].rates["forward"]
    assert found.limit_share is None
    assert found.flops_per_s > 0


def test_a_time_under_what_the_hardware_allows_is_doubted() -> None:
    events = [
        event.model_copy(update={"sample": event.sample.model_copy(update={"device_s": 1e-9, "wall_s": 1e-9})})
        if isinstance(event, AttentionTimed)
        else event
        for event in runs.events(ONE)
    ]
    assert {caution.code for cell in fold(events).cells for caution in cell.cautions} >= {"below-lower-bound"}
    assert not any(c.code == "below-lower-bound" for cell in runs.record(ONE).cells for c in cell.cautions)


@pytest.mark.parametrize("others", [0.01, 0.76])
def test_times_on_a_busy_cpu_support_no_finding_but_memory_does(others: float) -> None:
    stream: list[Event] = []
    for event in runs.events(ONE, machine=runs.TWO_CORES):
        stream.append(event)
        if isinstance(event, AttentionTimed):
            stream.append(Reading(at_s=event.at_s, host_cpu_share=others))
    record, busy = fold(stream), others > 0.15
    assert all(("host-busy" in {caution.code for caution in cell.cautions}) is busy for cell in record.cells)
    text = " ".join(said(record))
    assert ("forward grows" in text) is not busy
    assert "memory kept for backward grows as N^2.00" in text


# Growth


def test_the_exponent_of_memory_is_exact_and_that_of_time_lies_in_its_interval(record: AttentionRecord) -> None:
    laws = {each.quantity: each.law for each in growth(of(record, "naive"))}
    saved = laws["memory kept for backward"]
    assert isinstance(saved, PowerLaw)
    assert saved.exponent == pytest.approx(2, abs=1e-9)
    forward = laws["forward"]
    assert isinstance(forward, PowerLaw)
    assert forward.low <= 1.97 <= forward.high
    assert forward.excluded_sizes, "the fixed cost of a launch shows at the shortest sequences"


def test_a_sentence_says_exponent_interval_and_the_cells_it_rests_on(record: AttentionRecord) -> None:
    sentence = next(text for text in said(record) if text.startswith("For naive at d 64, forward grows"))
    found = re.search(r"N\^([\d.]+) ± ([\d.]+).* over (\d+) sizes from N (\d+) to (\d+)\.", sentence)
    assert found, sentence
    law = next(each.law for each in growth(of(record, "naive")) if each.quantity == "forward")
    assert isinstance(law, PowerLaw)
    assert float(found[1]) == round(law.exponent, 2)
    assert int(found[3]) >= 3


def test_two_sizes_make_no_sentence_about_growth() -> None:
    record = runs.record(ONE.model_copy(update={"seq": (1024, 2048)}))
    assert not any("grows" in text for text in said(record))


# Who is fastest


def test_the_lead_changes_hands_where_the_medians_say_so(record: AttentionRecord) -> None:
    here = [cell for cell in record.cells if cell.cell.dim == 64]
    for lead in leads(here, "forward"):
        for n in (lead.first, lead.last):
            medians = {
                cell.cell.implementation: cell.forward.median_s for cell in here if cell.cell.seq == n and cell.forward
            }
            assert min(medians, key=medians.__getitem__) == lead.implementation


def test_a_crossover_lies_between_the_cells_that_were_measured(record: AttentionRecord) -> None:
    found = [each for each in passages([c for c in record.cells if c.cell.dim == 64]) if each.quantity == "forward"]
    assert found
    for each in found:
        assert each.crossover.below < each.crossover.at < each.crossover.above
        assert each.crossover.below in SPEC.seq
        assert each.crossover.above in SPEC.seq
    # 40 µs + 80 units against 90 µs + 20 units, in units of 1e-14·8·N²·80: they are equal at this N.
    naive, flash = runs.KINDS["naive"], runs.KINDS["sdpa-flash"]
    expected = math.sqrt((flash.floor_s - naive.floor_s) / (naive.slope_s - flash.slope_s) / (8 * 80))
    flash_over_naive = next(each for each in found if (each.slower_first, each.other) == ("sdpa-flash", "naive"))
    assert flash_over_naive.crossover.at == pytest.approx(expected, rel=0.35)


def test_implementations_that_cannot_be_told_apart_have_no_crossover_and_share_the_lead() -> None:
    spec = AttentionSpec(impl="mine:one,mine:two", dim="64", seq="512-4096*2", repeats=20)
    record = runs.record(spec, noise=0.0)
    assert passages(record.cells) == []
    assert any("share the lead" in text for text in said(record)) or len(leads(record.cells, "forward")) > 1


def test_the_leader_is_held_against_the_slowest_with_the_ratio_of_the_samples(record: AttentionRecord) -> None:
    here = [cell for cell in record.cells if cell.cell.dim == 64]
    slow, found = compared(here, "naive", "sdpa-flash", "forward")[-1]
    (fast,) = [cell for cell in of(record, "sdpa-flash") if cell.cell.seq == slow.cell.seq]
    assert slow.forward is not None
    assert fast.forward is not None
    assert found == statistics.ratio(slow.forward.samples_s, fast.forward.samples_s)
    sentence = next(text for text in said(record) if text.startswith("Forward at d 64: "))
    assert f"sdpa-flash is {found.value:.2f}× (95% CI " in sentence
    assert f"as fast as naive at N {slow.cell.seq}" in sentence


# Memory


def test_the_frontier_lies_between_the_last_that_fits_and_the_first_that_does_not(record: AttentionRecord) -> None:
    (found,) = frontier(of(record, "naive", 16))
    assert found.fits is not None
    assert found.beyond is not None
    assert (found.fits.cell.seq, found.beyond.cell.seq) == (8192, 16384)
    (fused,) = frontier(of(record, "sdpa-flash", 16))
    assert fused.beyond is None


def over_budget(lengths: set[int]) -> AttentionRecord:
    """The run of ONE, in which these were skipped for the time that they would take."""
    keys = {cell.key for cell in ONE.cells() if cell.seq in lengths}
    detail = "one call takes about 4 min, longer than --max-time 60s"
    events: list[Event] = []
    for event in runs.events(ONE, memory_bytes=12 * runs.GIB):
        if getattr(event, "cell", None) not in keys:
            events.append(event)
        elif isinstance(event, CellFinished):
            ended = {"outcome": "skipped", "detail": detail, "reason": "over-budget"}
            events.append(event.model_copy(update=ended))
    return fold(events)


def test_what_was_skipped_for_its_time_is_not_said_to_fit_nor_not_to_fit() -> None:
    skipped = over_budget({4096, 8192})
    (found,) = frontier(skipped.cells)
    assert found.untried == (4096, 8192)
    sentences = said(skipped)
    (sentence,) = [each for each in sentences if "aive: N 2048 fits, N 16384 does not (needs" in each]
    assert sentence.endswith(" Whether N 4096 and 8192 fit is unknown.")
    (at_the_end,) = frontier(over_budget({8192, 16384}).cells)
    assert (at_the_end.beyond, at_the_end.untried) == (None, (8192, 16384))
    (row,) = FRONTIER(over_budget({8192, 16384}))[0].rows
    assert "not tried" in [cell.text for cell in row if isinstance(cell, Word)]


def test_cells_that_would_take_too_long_share_a_line() -> None:
    (line,) = [remark.text for remark in sheet(over_budget({4096, 8192})).remarks if "--max-time" in remark.text]
    assert line == "N 4096 and N 8192: skipped: one call takes about 4 min, longer than --max-time 60s"


def test_the_accounting_adds_up_to_what_is_said_to_be_needed(record: AttentionRecord) -> None:
    (table,) = ACCOUNTING(record)
    assert table.title == "the smallest cell that does not fit: naive d 16 N 16384"
    sizes = {row[0]: row[-1].value for row in table.rows if isinstance(row[-1], Measure)}
    assert sizes["total"] == sum(size for name, size in sizes.items() if name not in ("total", "available"))
    assert f"needs {units.size(int(sizes['total']))}" in " ".join(said(record))


def test_what_several_dimensions_need_is_a_range(record: AttentionRecord) -> None:
    needs = {16: 56.0, 32: 64.1, 64: 56.1, 128: 56.0}
    cells = [
        cell.model_copy(update={"needed_bytes": int(needs[cell.cell.dim] * runs.GIB), "available_bytes": 40 * runs.GIB})
        if cell.cell.implementation == "naive" and cell.cell.seq == 16384
        else cell
        for cell in record.cells
    ]
    (sentence,) = [
        text
        for text in said(record.model_copy(update={"cells": cells}))
        if "aive at d 16, 32, 64 and 128: N 8192" in text
    ]
    assert " (needs 56.0 GiB to 64.1 GiB, 40.0 GiB available)." in sentence
    # In a measured run, the cells after the first that ran out were skipped, and what they need is unknown.
    (measured,) = [text for text in said(record) if "aive at d 16, 32, 64 and 128: N 8192 fits" in text]
    assert " (needs 24.0 GiB at d 16, 12.0 GiB available)." in measured


def test_a_cell_skipped_for_lack_of_time_is_not_beyond_memory() -> None:
    events = runs.events(ONE)
    last = [number for number, event in enumerate(events) if isinstance(event, CellStarted)][-1]
    key = list(ONE.cells())[-1].key
    detail = "one call takes about 90 s, longer than --max-time 60s"
    skipped = CellFinished(at_s=0, cell=key, outcome="skipped", detail=detail, reason="over-budget")
    record = fold([*events[:last], skipped, RunFinished(at_s=1, status="complete")])
    (found,) = frontier(record.cells)
    assert found.beyond is None


def test_what_is_simulated_is_marked_and_has_no_times() -> None:
    spec = AttentionSpec(impl="naive,sdpa-flash", simulate="a100-40gb", dim="64", seq="1024-65536*4")
    record = runs.record(spec)
    texts = said(record)
    assert texts
    assert all("simulated" in text.lower() for text in texts)
    assert not any("fastest" in text for text in texts)


def test_several_settings_are_told_apart_and_never_compared() -> None:
    spec = AttentionSpec(impl="naive,compiled", dim="64", seq="1024-8192*2", batch="2,8", repeats=10)
    record = runs.record(spec)
    assert len(group_ignoring(record.cells, *SWEPT)) == 2
    assert all(text.startswith(("Batch 2: ", "Batch 8: ")) for text in said(record))


def test_rows_ascend_whatever_the_order_of_the_axis() -> None:
    record = runs.record(AttentionSpec(impl="naive", dim="64,16", seq="4096,256,1024", repeats=6))
    for row in (*growth(record.cells), *frontier(record.cells)):
        cells = row.row if isinstance(row, Limit) else row.cells
        assert [cell.cell.seq for cell in cells] == [256, 1024, 4096]
    assert usual_dim(record.cells) == 64
    assert usual_dim([cell for cell in record.cells if cell.cell.dim == 16]) == 16


def test_cells_have_one_key_for_one_input() -> None:
    keys = [cell.key for cell in SPEC.cells()]
    assert len(set(keys)) == len(keys)
    assert AttentionCell.model_validate(next(SPEC.cells()).model_dump(mode="json")).key == keys[0]

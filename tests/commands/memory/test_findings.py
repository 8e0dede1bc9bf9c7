"""Sentences of memory runs: what published tables say, growth against formulas, and what is withheld."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sysbench.commands.memory.findings import findings, headlines
from sysbench.commands.memory.record import LargestRecord, MemoryCellRecord
from sysbench.commands.memory.verdicts import verdict_text
from tests.fixtures_memory import GIB, MIB, group, memory_cell, third_report


def sentences(cells: Sequence[MemoryCellRecord]) -> list[str]:
    return [each.text for each in findings(cells)]


def about(cells: Sequence[MemoryCellRecord], *words: str) -> str:
    found = [text for text in sentences(cells) if all(word in text for word in words)]
    assert len(found) == 1, sentences(cells)
    return found[0]


def withheld(cells: Sequence[MemoryCellRecord], *words: str) -> bool:
    return not any(all(word in text for word in words) for text in sentences(cells))


# --- tables in, their sentences out


def test_of_the_third_report_a_training_step_is_held_against_forward() -> None:
    assert about(third_report(), "as forward") == (
        "a full training step needs 2.44× (ctx 256 bf16) to 3.11× (ctx 128 fp32) as much memory as forward, which "
        "keeps its graph."
    )


def test_of_the_third_report_mixed_precision_costs_memory_at_short_contexts() -> None:
    assert about(third_report(), "in forward, bf16") == (
        "in forward, bf16 needs 0.93× (ctx 512) to 1.24× (ctx 128) as much memory as fp32."
    )


def test_of_the_third_report_memory_ends_between_256_and_512() -> None:
    assert about(third_report(), "does not") == "train fp32 and train bf16: ctx 256 fits, ctx 512 does not."


def test_of_the_third_report_a_residual_stream_is_5_10_and_20_mebibytes() -> None:
    assert about(third_report(), "residual stream") == (
        "fp32: the residual stream of 2.7b takes 5.00 MiB at ctx 128, 10.0 MiB at ctx 256 and 20.0 MiB at ctx 512: "
        "batch 4 × ctx × d_model × 4 bytes."
    )


# --- precision


def test_less_than_one_percent_is_no_difference() -> None:
    cells = [
        memory_cell(size * GIB, ctx=128, mode="train", precision=precision, peak_phase="optimizer")
        for precision, size in (("fp32", 64.0), ("bf16", 63.9))
    ]
    assert about(cells, "as fp32") == "bf16 needs as much memory as fp32."


# --- what is largest


def test_the_largest_allocations_are_told_with_their_line() -> None:
    scores = group(32, 4 * 32 * 512 * 512 * 4, "activations", "layers.0.attention.attend")
    said = about([memory_cell(GIB, ctx=512, largest=[scores])], "largest")
    assert "32 × 128.0 MiB of activations from attention.py:56." in said


def test_workspaces_are_not_the_models_largest_allocation() -> None:
    groups = [group(1, 32 * MIB, "workspace", ""), group(8, MIB, "activations", "layers.0")]
    assert "8 × 1.00 MiB" in about([memory_cell(GIB, largest=groups, ctx=128)], "largest")


# --- what fits


def test_the_safe_value_is_said_where_the_largest_fits_only_within_the_uncertainty() -> None:
    found = LargestRecord(axis="batch", value=63, beyond=64, safe=62, tried=[63, 64, 62])
    cell = memory_cell(70 * GIB, simulate="h100", find="batch", ctx=512, fits=True, margin_bytes=6 * MIB, found=found)
    text = "fits, with 6.00 MiB to spare."
    assert verdict_text(cell).startswith(text)
    assert verdict_text(cell).endswith(" The largest batch that fits is 63; 62 is safe.")
    certain = cell.model_copy(update={"found": found.model_copy(update={"value": 62})})
    assert "safe" not in verdict_text(certain)


@pytest.mark.parametrize(("missing_mib", "is_undecided"), [(20, True), (39, True), (40, False), (400, False)])
def test_a_step_that_lacks_less_than_the_context_may_take_is_undecided(missing_mib: int, is_undecided: bool) -> None:
    gpu = memory_cell(14 * GIB, simulate="t4", ctx=512, fits=False).gpu
    assert gpu is not None
    t4 = gpu.model_copy(update={"context_bytes": 180 * MIB, "least_context_bytes": 141 * MIB})
    lacking = memory_cell(14 * GIB, simulate="t4", ctx=512, fits=False, margin_bytes=-missing_mib * MIB)
    cell = lacking.model_copy(update={"gpu": t4})
    said = f"Cannot tell: it fits if the CUDA context takes no more than {180 - missing_mib}.0 MiB."
    assert (said in verdict_text(cell)) == is_undecided
    fixed = cell.model_copy(update={"gpu": t4.model_copy(update={"least_context_bytes": None})})
    assert "Cannot tell" not in verdict_text(fixed)


def test_where_memory_ends_is_said_where_it_is_known() -> None:
    cells = [
        memory_cell(37 * GIB, simulate="h100", ctx=512, fits=True, margin_bytes=40 * GIB),
        memory_cell(None, simulate="h100", ctx=1024, fits=False, margin_bytes=-0.6 * GIB),
    ]
    assert about(cells, "does not") == "2.7b: ctx 512 fits, ctx 1024 does not."
    # Nothing shorter was tried, so nothing is said of it.
    assert about(cells[1:], "does not") == "2.7b: ctx 1024 does not fit."


def test_measured_and_simulated_cells_are_never_in_one_sentence() -> None:
    measured = [memory_cell(size * GIB, ctx=128, mode=mode) for mode, size in (("forward", 18), ("train", 60))]
    simulated = [
        memory_cell(size * GIB, ctx=128, mode=mode, simulate="h100", fits=True)
        for mode, size in (("forward", 17.5), ("train", 64))
    ]
    for each in findings([*measured, *simulated]):
        assert len({cell.source for cell in each.cells}) == 1
        (source,) = {cell.source for cell in each.cells}
        assert each.text.startswith("simulated for h100: " if source == "simulated" else "measured: ")


def test_cells_that_failed_say_nothing_but_what_can_be_computed() -> None:
    (only,) = sentences([memory_cell(None, outcome="crashed", ctx=128)])
    assert "residual stream" in only


def test_headlines_are_among_the_sentences() -> None:
    cells = third_report()
    assert {each.text for each in headlines(cells)} < set(sentences(cells))

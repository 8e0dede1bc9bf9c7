"""Sentences of memory runs: what published tables say, growth against formulas, and what is withheld."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sysbench import formulas
from sysbench.commands.memory.findings import autocast_copies_bytes, findings, fit_parabola, headlines
from sysbench.commands.memory.record import LargestRecord, MemoryCellRecord, MemoryRecord
from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.memory.tables import verdict_text
from tests.cli.running import answered
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
    assert about(third_report(), "fp32: a full training step") == (
        "fp32: a full training step needs 60.0 GiB at ctx 128, 3.11× as much as forward (19.3 GiB), and 67.0 GiB at "
        "ctx 256, 2.58× as much as forward (26.0 GiB)."
    )


def test_of_the_third_report_mixed_precision_costs_memory_for_copies_of_the_weights() -> None:
    assert about(third_report(), "in forward, bf16") == (
        "in forward, bf16 saves up to 3.20 GiB (7.5 %) for ctx 512 and costs up to 4.70 GiB (24 %) for ctx 128, "
        "compared with fp32. The increase comes from autocast's 16-bit copies of the weights (6.30 GiB, computed), "
        "partly offset by smaller activations."
    )


def test_of_the_third_report_memory_ends_between_256_and_512() -> None:
    assert about(third_report(), "does not") == "train fp32 and train bf16: ctx 256 fits, ctx 512 does not."


def test_of_the_third_report_a_residual_stream_is_5_10_and_20_mebibytes() -> None:
    assert about(third_report(), "residual stream") == (
        "fp32: the residual stream of 2.7b takes 5.00 MiB at ctx 128, 10.0 MiB at ctx 256 and 20.0 MiB at ctx 512: "
        "batch 4 × ctx × d_model 2560 × 4 bytes."
    )


def test_copies_of_the_weights_are_two_bytes_for_every_number_but_embedding_and_gains() -> None:
    (cell,) = [cell for cell in third_report() if cell.axes["precision"] == "bf16"][:1]
    shape = MemorySpec.model_validate({"size": "2.7b", "ctx": 128, "mode": "forward"})
    (spec,) = shape.cells()
    linears = spec.model.layers * (4 * 2560 * 2560 + 3 * 2560 * 10240) + 2560 * 10000
    assert formulas.parameters(spec.model) - linears == 2560 * 10000 + (2 * spec.model.layers + 1) * 2560
    assert autocast_copies_bytes(cell) == 2 * linears


# --- ranks


def test_the_fewest_ranks_that_fit_stand_beside_the_most_that_do_not(tmp_path: Path) -> None:
    words = ("--size=small", "--ctx=256", "--simulate=3GiB", "--ranks=1,2,8", "--strategy=fsdp2", "--mode=train")
    ran = answered("memory", *words, "--quiet", "--json=-", f"--out={tmp_path}")
    record = MemoryRecord.model_validate_json(ran.out)
    fits = {cell.cell.ranks: cell.verdict is not None and cell.verdict.fits for cell in record.cells}
    assert fits == {1: False, 2: False, 8: True}
    assert about(record.cells, "with 8 ranks").endswith("fits with 8 ranks (fsdp2), not with 2.")


# --- growth


def test_growth_is_the_parabola_that_it_was_made_from() -> None:
    fixed, linear, square = 13 * GIB, 21 * MIB, 24 * 1024
    cells = [memory_cell(fixed + linear * n + square * n * n, ctx=n) for n in (128, 256, 512, 1024)]
    formula = fit_parabola(cells)
    assert formula is not None
    assert (formula.constant, formula.linear, formula.quadratic) == pytest.approx((fixed, linear, square), rel=1e-6)
    assert about(cells, "× ctx²") == (
        "2.7b: the peak is 13.0 GiB + 21.0 MiB × ctx + 24.0 KiB × ctx² from ctx 128 to 1024, to within 0.1 %. The "
        "quadratic term exceeds the linear one from ctx 896 on."
    )


def test_through_three_points_no_parabola_is_claimed() -> None:
    cells = [memory_cell(10 * GIB + 20 * MIB * n + 24 * 1024 * n * n, ctx=n) for n in (128, 256, 512)]
    assert withheld(cells, "× ctx²")


def test_a_peak_that_jumps_is_no_parabola() -> None:
    sizes = {128: 10.0, 256: 30.0, 512: 31.0, 1024: 60.0}
    assert withheld([memory_cell(size * GIB, ctx=n) for n, size in sizes.items()], "× ctx²")


def test_a_peak_that_does_not_grow_is_said_with_its_phase() -> None:
    cells = [memory_cell(64 * GIB, ctx=n, mode="train", peak_phase="optimizer") for n in (128, 256, 512)]
    assert about(cells, "does not depend") == (
        "the peak does not depend on the context: 2.7b needs 64.0 GiB from ctx 128 to 512, in optimizer."
    )
    nearly = [memory_cell(64 * GIB + n * MIB, ctx=n, mode="train", peak_phase="optimizer") for n in (128, 256, 512)]
    assert about(nearly, "depends") == (
        "the peak hardly depends on the context: 2.7b needs 64.1 GiB to 64.5 GiB from ctx 128 to 512, in optimizer."
    )


# --- precision


def test_less_than_one_percent_is_no_difference() -> None:
    cells = [
        memory_cell(size * GIB, ctx=128, mode="train", precision=precision, peak_phase="optimizer")
        for precision, size in (("fp32", 64.0), ("bf16", 63.9))
    ]
    assert about(cells, "instead of") == (
        "bf16 instead of fp32 changes the peak by less than 1.0 %. The peak is in the optimizer, when activations are "
        "already freed and everything is in fp32."
    )


def test_other_savings_are_explained_by_category() -> None:
    cells = [
        memory_cell(size * GIB, ctx=1024, attention=attention, by_category={"activations": size * GIB})
        for attention, size in (("naive", 60.0), ("sdpa", 20.0))
    ]
    assert about(cells, "saves") == (
        "sdpa attention saves 40.0 GiB (67 %) compared with naive attention. Activations shrink by 40.0 GiB."
    )


# --- what is largest


def test_the_largest_allocations_are_told_with_their_line() -> None:
    scores = group(32, 4 * 32 * 512 * 512 * 4, "activations", "layers.0.attention.attend")
    said = about([memory_cell(GIB, ctx=512, largest=[scores])], "largest")
    assert "32 × 128.0 MiB of activations from attention.py:56." in said


def test_workspaces_are_not_the_models_largest_allocation() -> None:
    groups = [group(1, 32 * MIB, "workspace", ""), group(8, MIB, "activations", "layers.0")]
    assert "8 × 1.00 MiB" in about([memory_cell(GIB, largest=groups, ctx=128)], "largest")


# --- what fits


def test_what_a_search_found_is_said_and_stands_beside_nothing_else() -> None:
    found = LargestRecord(axis="batch", value=5, beyond=6, tried=[1, 8, 5, 6])
    cell = memory_cell(70 * GIB, simulate="h100", find="batch", ctx=512, fits=True, found=found)
    assert about([cell], "fits") == "the largest batch that fits is 5."
    assert withheld([cell], "reserves")


def test_the_safe_value_is_said_where_the_largest_fits_only_within_the_uncertainty() -> None:
    found = LargestRecord(axis="batch", value=63, beyond=64, safe=62, tried=[63, 64, 62])
    cell = memory_cell(70 * GIB, simulate="h100", find="batch", ctx=512, fits=True, margin_bytes=6 * MIB, found=found)
    assert about([cell], "fits") == "the largest batch that fits is 63 (62 is safe)."
    text = "fits, with 6.00 MiB to spare."
    assert verdict_text(cell).startswith(text)
    assert verdict_text(cell).endswith(" The largest batch that fits is 63; 62 is safe.")
    certain = cell.model_copy(update={"found": found.model_copy(update={"value": 62})})
    assert "safe" not in verdict_text(certain)


def test_cells_with_the_same_result_of_a_search_share_it() -> None:
    cells = [
        memory_cell(
            70 * GIB,
            simulate="h100",
            find="batch",
            ctx=ctx,
            fits=True,
            found=LargestRecord(axis="batch", value=value, beyond=value + 1, tried=[value]),
        )
        for ctx, value in ((128, 7), (256, 5), (512, 5))
    ]
    assert about(cells, "largest batch") == "the largest batch that fits is 7 (ctx 128) and 5 (ctx 256, ctx 512)."
    assert about(cells[1:], "largest batch") == "the largest batch that fits is 5 in both cells."


def test_by_how_much_it_does_not_fit_is_said_where_it_is_known() -> None:
    cells = [
        memory_cell(37 * GIB, simulate="h100", ctx=512, fits=True, margin_bytes=40 * GIB),
        memory_cell(None, simulate="h100", ctx=1024, fits=False, margin_bytes=-0.6 * GIB),
    ]
    assert about(cells, "does not") == "2.7b: ctx 512 fits, ctx 1024 does not (short by 614.4 MiB)."
    # Nothing shorter was tried, so nothing is said of it.
    assert about(cells[1:], "does not") == "2.7b: ctx 1024 does not fit (short by 614.4 MiB)."


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

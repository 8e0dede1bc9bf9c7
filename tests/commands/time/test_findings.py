"""Sentences of a timing run: what published tables say, what is withheld, and that chance says nothing."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

import pytest

from sysbench.commands.time.findings import said
from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.outcomes import CautionCode
from sysbench.render.findings import Said
from tests.fixtures_findings import (
    FOURTH_COLD,
    FOURTH_WARM,
    H100,
    MS,
    first_report,
    noisy,
    second_report,
    spread_about,
    third_report,
    time_cell,
)
from tests.fixtures_timing import TWO_CORES


def sentences(cells: Sequence[TimeCellRecord]) -> list[str]:
    return [each.text for each in said(cells)]


def about(cells: Sequence[TimeCellRecord], *words: str) -> Said:
    """The one sentence in which all of these words stand."""
    found = [each for each in said(cells) if all(word in each.text for word in words)]
    assert len(found) == 1, [each.text for each in said(cells)]
    return found[0]


def withheld(cells: Sequence[TimeCellRecord], *words: str) -> bool:
    return not any(all(word in text for word in words) for text in sentences(cells))


# --- tables in, their sentences out


def test_of_the_first_report_backward_is_twice_forward_once_launching_no_longer_counts() -> None:
    assert about(first_report(), "backward takes").text == (
        "backward takes 1.36× (medium ctx 128) to 2.07× (large ctx 512) as long as forward; in cells that "
        "are not launch-bound it takes 2.00 to 2.07× forward (small and medium at ctx 1024, large at ctx 512 and 1024)."
    )


def test_of_the_first_report_small_models_wait_for_launches() -> None:
    assert about(first_report(), "barely grows").text == (
        "forward time barely grows with the amount of work: "
        "small at ctx 128 and 512 (33.3 and 34.0 ms, 4.23× the FLOPs), "
        "medium at ctx 128 and 512 (66.6 and 67.2 ms, 4.18× the FLOPs) and large at ctx 128 and 256 (100.2 and "
        "101.2 ms, 2.02× the FLOPs); arithmetic does not limit the speed there, kernel launches most likely do."
    )


def test_of_the_first_report_mixed_precision_gains_least_where_launching_sets_the_pace() -> None:
    assert about(first_report(("fp32", "bf16")), "as fast as fp32").text == (
        "bf16 is 2.56× as fast as fp32 at large ctx 1024 and 1.64× at medium ctx 256, 1.87× in the geometric mean of "
        "12 cells (forward 1.46 to 2.51×, backward 1.80 to 2.82×): kernel launches, not arithmetic, limit "
        "medium, small and large at ctx 128, 256 and 512."
    )


def test_of_the_second_report_mixed_precision_gains_the_more_the_larger_the_model() -> None:
    # The report: small 1.73×, medium 2.38×, large 2.39×, xl 2.75×.
    assert about(second_report(), "as fast as fp32").text == (
        "bf16 is 2.75× as fast as fp32 at xl and 1.73× at small, 2.28× in the geometric mean of 4 cells; the larger "
        "the model, the more."
    )


def test_of_the_third_report_mixed_precision_slows_small_models_down() -> None:
    # "Only when model is big enough do the mixed-precision show benefits."
    text = about(third_report(), "as fast as fp32").text
    assert text.startswith("bf16 is 3.05× as fast as fp32 at 2.7b and 0.75× at small")
    assert text.endswith("; the larger the model, the more; it is slower at small and medium.")


def test_of_the_fourth_report_the_first_step_takes_twelve_times_as_long_and_spoils_the_mean() -> None:
    warm = [value * MS for value in FOURTH_WARM]
    cold = [value * MS for value in FOURTH_COLD]
    cell = time_cell({"forward": warm}, size="large", warmup=5, warmup_s=cold[:5])
    assert about([cell], "the first step").text == (
        "the first step takes 12.6× as long as later ones; step times are stable from step 2 on; without warm-up the "
        "mean of 10 steps would be 116 % higher."
    )
    cells = [cell, time_cell({"forward": cold}, size="large", warmup=0, cautions=["warmup-unfinished"])]
    assert about(cells, "without warm-up the mean of 10 steps is").text == (
        "without warm-up the mean of 10 steps is 116 % above their median (301.9 ± 513.5 ms) and after 5 warm-ups "
        "it is within 0.05 % of it (139.59 ± 0.07 ms)."
    )


def test_of_the_first_report_deviations_are_mostly_small_and_the_worst_is_named() -> None:
    text = about(first_report(), "standard deviation").text
    assert "backward typically 0.5 %, at most 3.4 % (large ctx 128)" in text
    assert text.startswith("relative standard deviation is mostly small: ")


def test_what_all_sizes_agree_on_is_one_value_that_reaches_all_of_them() -> None:
    dice = random.Random(5)
    cells = [
        time_cell({"forward": noisy(0.1, 0.004, dice), "backward": noisy(0.203, 0.004, dice)}, size=size, ctx=ctx)
        for size in ("small", "medium", "large")
        for ctx in (512, 1024)
    ]
    found = about(cells, "backward takes")
    match = re.match(r"backward takes (\d\.\d+) ± (\d\.\d+) × forward in all 6 cells; ", found.text)
    assert match is not None, found.text
    value, reach = map(float, match.groups())
    assert abs(value - 2.03) <= reach < 0.03
    medians = [cell.phases["backward"].wall.median_s / cell.phases["forward"].wall.median_s for cell in cells]  # type: ignore[union-attr]
    assert all(abs(median - value) <= reach + 0.001 for median in medians)
    assert len(found.cells) == 6


# --- what is asked of the other choices


def test_the_optimizer_is_held_against_the_optimizer() -> None:
    cells = [
        time_cell(
            {
                "forward": spread_about(0.02, 1e-4),
                "backward": spread_about(0.04, 2e-4),
                "optimizer": spread_about(optimizer, 1e-5),
            },
            optimizer=kind,
        )
        for kind, optimizer in (("for-loop", 0.03), ("fused", 0.006))
    ]
    assert about(cells, "AdamW is").text.startswith("optimizer: fused AdamW is 5.00× (")


def test_compiling_is_paid_back_by_faster_steps_and_never_by_slower_ones() -> None:
    def run(compiled_s: float) -> list[TimeCellRecord]:
        return [
            time_cell({"forward": spread_about(seconds, 1e-4)}, execution=execution, compile_s=compile_s)
            for execution, seconds, compile_s in (("eager", 0.1, None), ("compiled", compiled_s, 20.0))
        ]

    assert about(run(0.08), "compiling").text == ("compiling takes 20.0 s, which pays off after 1000 steps.")
    assert withheld(run(0.12), "compiling takes")
    assert withheld(run(0.1), "compiling takes")


def test_growth_is_a_power_of_the_context_where_it_is_one() -> None:
    cells = [
        time_cell({"forward": spread_about(2e-5 * ctx**1.2, 1e-6 * ctx)}, ctx=ctx) for ctx in (256, 512, 1024, 2048)
    ]
    text = about(cells, "grows with the context").text
    assert text.startswith("forward grows with the context as ctx^1.20 ± 0.0")
    assert text.endswith("(256 to 2048, 4 sizes).")


def test_growth_is_withheld_of_two_sizes_and_of_no_one_power() -> None:
    two = [time_cell({"forward": spread_about(1e-4 * ctx, 1e-6)}, ctx=ctx) for ctx in (256, 512)]
    bent = [
        time_cell({"forward": spread_about(seconds, 1e-5)}, ctx=ctx)
        for ctx, seconds in ((128, 0.01), (256, 0.012), (512, 0.03), (1024, 0.2))
    ]
    assert withheld(two, "grows with")
    assert withheld(bent, "grows with")


def test_the_share_of_the_peak_names_the_peak_and_where_it_is_from() -> None:
    text = about(first_report(), "hardware's peak").text
    assert text.startswith(
        "over the whole step, matrix products run at 7.1 % (small ctx 128) to 47 % (large ctx 512) of"
    )
    assert "66.9 TFLOP/s (NVIDIA H100" in text


def test_where_memory_ends_is_said_with_what_fits() -> None:
    fits = time_cell({"forward": spread_about(0.1, 1e-3)}, size="xl", ctx=512, mode="forward")
    ends = time_cell({}, size="xl", ctx=1024, mode="forward", outcome="oom")
    assert about([fits, ends], "memory at").text == "xl runs out of memory at ctx 1024; ctx 512 fits."


# --- what is withheld


@pytest.mark.parametrize("code", ["warmup-unfinished", "two-modes", "too-few-steps", "drift", "below-lower-bound"])
def test_cells_with_such_a_caution_are_in_no_comparison_and_are_named(code: CautionCode) -> None:
    cells = [
        time_cell({"forward": spread_about(seconds, 1e-4)}, precision=precision, cautions=[code] if doubtful else [])
        for precision, seconds, doubtful in (("fp32", 0.1, False), ("bf16", 0.05, True))
    ]
    assert withheld(cells, "as fast as")
    assert f"bf16 ({code})" in about(cells, "Excluded from").text


def test_other_clocks_spoil_comparisons_but_not_what_is_within_a_cell() -> None:
    phases = {"forward": spread_about(0.1, 1e-4), "backward": spread_about(0.2, 2e-4)}
    cells = [
        time_cell(phases, precision="fp32", cautions=["throttled"]),
        time_cell({phase: [each / 2 for each in values] for phase, values in phases.items()}, precision="bf16"),
    ]
    assert withheld(cells, "as fast as")
    assert len(about(cells, "backward takes").cells) == 2


def test_three_steps_carry_no_ratio() -> None:
    cell = time_cell({"forward": [0.1, 0.1, 0.1], "backward": [0.2, 0.2, 0.2]}, cautions=[])
    assert withheld([cell], "backward takes")


def test_a_crashed_or_failed_cell_says_nothing() -> None:
    assert sentences([time_cell({}, outcome="crashed")]) == []
    assert sentences([]) == []


def test_launching_is_not_blamed_on_a_cpu_for_what_only_looks_like_it() -> None:
    cells = [
        time_cell({"forward": spread_about(0.01, 1e-4)}, ctx=ctx, hardware_=TWO_CORES.device, device="cpu")
        for ctx in (128, 512)
    ]
    assert "kernel launches" not in about(cells, "barely grows").text


def test_arms_of_unequal_batch_are_not_compared() -> None:
    cells = [
        time_cell({"forward": spread_about(0.1, 1e-3)}, precision="fp32", batch=4),
        time_cell({"forward": spread_about(0.2, 1e-3)}, precision="bf16", batch=8),
    ]
    assert withheld(cells, "as fast as")


def test_a_knob_of_one_strategy_is_compared_though_the_first_cell_has_another() -> None:
    cells = [
        time_cell({"forward": spread_about(seconds, 1e-3)}, ranks=2, **knobs)
        for seconds, knobs in (
            (0.1, {"strategy": "ddp"}),
            (0.3, {"strategy": "fsdp2", "reshard": "on"}),
            (0.2, {"strategy": "fsdp2", "reshard": "off"}),
        )
    ]
    assert "as fast as reshard on" in about(cells, "reshard off", "as fast as").text


def test_equal_arms_cannot_be_told_apart_and_that_is_said() -> None:
    samples = spread_about(0.1, 1e-3)
    cells = [time_cell({"forward": samples}, precision=precision) for precision in ("fp32", "bf16")]
    assert about(cells, "differ").text.startswith("bf16 and fp32 do not differ significantly: 1.00")


# --- chance


CLAIMS = re.compile(r"as fast as|slower|the larger the model|the longer the context")


def null_run(dice: random.Random, noise: float, bf16: float = 1.0) -> list[TimeCellRecord]:
    """A run in which precision makes no difference; times follow the work otherwise."""
    return [
        time_cell(
            {"forward": noisy(base / (bf16 if precision == "bf16" else 1.0), noise, dice)},
            size=size,
            ctx=ctx,
            precision=precision,
        )
        for size, base in (("small", 0.05), ("medium", 0.15))
        for ctx in (512, 1024)
        for precision in ("fp32", "bf16")
    ]


@pytest.mark.slow
def test_without_an_effect_a_run_claims_one_in_a_hundred_times_at_most() -> None:
    dice = random.Random(20261121)
    runs = 150
    false = sum(any(CLAIMS.search(text) for text in sentences(null_run(dice, 0.01))) for _ in range(runs))
    assert false / runs <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / runs)


@pytest.mark.slow
def test_three_percent_under_one_percent_of_noise_are_said() -> None:
    dice = random.Random(20261121)
    runs = 60
    said_so = sum(any("as fast as fp32" in text for text in sentences(null_run(dice, 0.01, 1.03))) for _ in range(runs))
    assert said_so >= 0.95 * runs


@pytest.mark.slow
def test_growth_with_the_model_is_not_made_up() -> None:
    dice = random.Random(7)

    def run() -> list[TimeCellRecord]:
        return [
            time_cell(
                {"forward": noisy(0.1 if precision == "fp32" else 0.05, 0.01, dice)}, size=size, precision=precision
            )
            for size in ("small", "medium", "large", "xl")
            for precision in ("fp32", "bf16")
        ]

    runs = 150
    false = sum(any("the larger the model" in text for text in sentences(run())) for _ in range(runs))
    assert false / runs <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / runs)


def test_every_sentence_names_the_cells_it_rests_on_and_ends() -> None:
    for cells in (first_report(("fp32", "bf16")), second_report(), third_report()):
        for each in said(cells):
            assert each.cells
            assert {cell.key for cell in each.cells} <= {cell.key for cell in cells}
            assert each.text.endswith(".")
            assert "nan" not in each.text


def test_an_unknown_gpu_has_no_share_of_a_peak() -> None:
    unknown = H100.model_copy(update={"name": "Some GPU", "compute_capability": None})
    cells = [time_cell({"forward": spread_about(0.1, 1e-3)}, ctx=ctx, hardware_=unknown) for ctx in (256, 512)]
    assert withheld(cells, "peak for")

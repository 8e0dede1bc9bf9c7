"""Sentences of a timing run: what published tables say, what is withheld, and that chance says nothing."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

import pytest

from sysbench.commands.time.findings import headlines
from sysbench.commands.time.fold import fold
from sysbench.commands.time.record import TimeCellRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.events import Reading, StepMeasured
from sysbench.log.outcomes import CautionCode
from sysbench.render.sentences.findings import Finding, exclusions
from sysbench.render.sentences.phrases import contains_one, interval
from sysbench.statistics import ratio
from tests import fixtures_timing
from tests.fixtures_findings import (
    FOURTH_COLD,
    FOURTH_WARM,
    MS,
    first_report,
    noisy,
    second_report,
    spread_about,
    third_report,
    time_cell,
)


def all_findings(cells: Sequence[TimeCellRecord]) -> list[Finding]:
    return [*headlines(cells), *exclusions(cells)]


def sentences(cells: Sequence[TimeCellRecord]) -> list[str]:
    return [each.text for each in all_findings(cells)]


def about(cells: Sequence[TimeCellRecord], *words: str) -> Finding:
    """The one sentence in which all of these words stand."""
    found = [each for each in all_findings(cells) if all(word in each.text for word in words)]
    assert len(found) == 1, [each.text for each in all_findings(cells)]
    return found[0]


def withheld(cells: Sequence[TimeCellRecord], *words: str) -> bool:
    return not any(all(word in text for word in words) for text in sentences(cells))


# --- tables in, their sentences out


def test_of_the_first_report_backward_takes_up_to_twice_as_long_as_forward() -> None:
    assert about(first_report(), "backward takes").text == (
        "backward takes 1.36× (medium ctx 128) to 2.07× (large ctx 512) as long as forward, with a geometric mean of "
        "1.60× over all 12 cells."
    )


def test_of_the_first_report_mixed_precision_has_the_range_and_the_mean_of_its_gains() -> None:
    assert about(first_report(("fp32", "bf16")), "as fast as fp32").text == (
        "bf16 is 1.64× (medium ctx 256) to 2.56× (large ctx 1024) as fast as fp32, with a geometric mean of 1.87× "
        "over all 12 cells."
    )


def test_of_the_second_report_mixed_precision_gains_the_more_the_larger_the_model() -> None:
    # The report: small 1.73×, medium 2.38×, large 2.39×, xl 2.75×.
    assert about(second_report(), "as fast as fp32").text == (
        "bf16 is 1.73× (small) to 2.75× (xl) as fast as fp32, with a geometric mean of 2.28× over all 4 cells."
    )


def test_of_the_third_report_mixed_precision_slows_small_models_down() -> None:
    # "Only when model is big enough do the mixed-precision show benefits."
    text = about(third_report(), "as fast as fp32").text
    assert text.startswith("bf16 is 0.75× (small) to 3.05× (2.7b) as fast as fp32")
    assert text.endswith(" It is slower for small and medium.")


def test_of_the_fourth_report_the_first_step_spoils_the_mean() -> None:
    warm = [value * MS for value in FOURTH_WARM]
    cold = [value * MS for value in FOURTH_COLD]
    cells = [
        time_cell({"forward": cold}, size="large", warmup=0, cautions=["warmup-unfinished"]),
        time_cell({"forward": warm}, size="large", warmup=5, warmup_s=cold[:5]),
    ]
    assert about(cells, "without warm-up").text == (
        "the mean step is 116% above the median without warm-up (301.9 ± 513.5 ms), 0.0% above the median after 5 "
        "warm-ups (139.59 ± 0.07 ms)."
    )


def test_what_all_sizes_agree_on_is_one_value_that_reaches_all_of_them() -> None:
    dice = random.Random(5)
    cells = [
        time_cell({"forward": noisy(0.1, 0.004, dice), "backward": noisy(0.203, 0.004, dice)}, size=size, ctx=ctx)
        for size in ("small", "medium", "large")
        for ctx in (512, 1024)
    ]
    found = about(cells, "backward takes")
    match = re.match(r"backward takes (\d\.\d+) ± (\d\.\d+)× as long as forward in all 6 cells\.", found.text)
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
    assert about(cells, "AdamW is").text.startswith("optimizer: fused AdamW is 5.00×")


def test_compiling_is_paid_back_by_faster_steps_and_never_by_slower_ones() -> None:
    def run(compiled_s: float) -> list[TimeCellRecord]:
        return [
            time_cell({"forward": spread_about(seconds, 1e-4)}, execution=execution, compile_s=compile_s)
            for execution, seconds, compile_s in (("eager", 0.1, None), ("compiled", compiled_s, 20.0))
        ]

    assert about(run(0.08), "compiling").text == ("compiling takes 20.0 s and pays off after 1000 steps.")
    assert withheld(run(0.12), "compiling takes")
    assert withheld(run(0.1), "compiling takes")
    graphs = [*run(0.08), time_cell({"forward": spread_about(0.05, 1e-4)}, execution="compiled-graphs", compile_s=30.0)]
    assert about(graphs, "graphs takes").text == (
        "compiling and recording CUDA graphs takes 30.0 s and pays off after 600 steps."
    )
    compiled = {"execution": "compiled", "compile_s": 20.0}
    attentions = [
        time_cell({"forward": spread_about(seconds, 1e-4)}, attention=attention, **compiled)
        for attention, seconds in (("naive", 0.1), ("flash", 0.08))
    ]
    assert withheld(attentions, "compiling takes")  # what flash attention saves does not pay for compiling
    assert not withheld(attentions, "as fast as")


# --- what is withheld


@pytest.mark.parametrize("code", ["throttled", "too-few-steps", "cores-shared", "below-lower-bound"])
def test_cells_with_such_a_caution_are_in_no_comparison_and_are_named(code: CautionCode) -> None:
    cells = [
        time_cell({"forward": spread_about(seconds, 1e-4)}, precision=precision, cautions=[code] if doubtful else [])
        for precision, seconds, doubtful in (("fp32", 0.1, False), ("bf16", 0.05, True))
    ]
    assert withheld(cells, "as fast as")
    assert f"bf16 ({code})" in about(cells, "Excluded from").text


def test_a_cell_that_is_excluded_is_in_no_finding_and_the_comparison_is_answered_all_the_same() -> None:
    phases = {"forward": spread_about(0.1, 1e-4), "backward": spread_about(0.2, 2e-4)}
    cells = [
        time_cell(phases, precision="fp32", cautions=["throttled"]),
        time_cell({phase: [each / 2 for each in values] for phase, values in phases.items()}, precision="bf16"),
    ]
    assert withheld(cells, "as fast as")
    assert sentences(cells)[0] == (
        "whether bf16 or fp32 is faster cannot be decided: cautions exclude 1 of 2 cells (throttled)."
    )
    (backward,) = about(cells, "backward takes").cells
    assert backward.key == cells[1].key


def test_a_study_of_the_warmup_that_shared_cores_spoilt_is_not_drawn_as_an_effect_of_the_warmup() -> None:
    cold, warm = spread_about(1.09, 0.01), spread_about(0.117, 0.001)
    cells = [
        time_cell({"forward": [3.0, *cold]}, warmup=0, cautions=["cores-shared"]),
        time_cell({"forward": warm}, warmup=5, warmup_s=warm[:5]),
    ]
    assert sentences(cells)[0].startswith("what a missing warm-up costs cannot be decided: cautions exclude 1 of 2")
    assert withheld(cells, "without warm-up")


def test_a_slow_first_step_is_what_a_study_of_the_warmup_is_about() -> None:
    cells = [
        time_cell({"forward": [3.0, *spread_about(0.1, 1e-4)]}, warmup=0, cautions=["warmup-unfinished"]),
        time_cell({"forward": spread_about(0.1, 1e-4)}, warmup=5, warmup_s=spread_about(0.1, 1e-4, 5)),
    ]
    assert "264% above the median without warm-up" in sentences(cells)[0]
    assert withheld(cells, "Excluded from")


def test_a_sentence_about_the_only_cell_without_such_a_caution_names_it() -> None:
    phases = {"forward": spread_about(0.1, 1e-4), "backward": spread_about(0.2, 2e-4)}
    cells = [
        time_cell(phases, precision="fp32", cautions=["throttled"]),
        time_cell(phases, precision="bf16"),
    ]
    assert about(cells, "backward takes").text.startswith("bf16: backward takes 2.00")
    assert about(cells[1:], "backward takes").text.startswith("backward takes 2.00")


def test_two_steps_carry_no_ratio() -> None:
    cell = time_cell({"forward": [0.1, 0.1], "backward": [0.2, 0.2]}, cautions=[])
    assert withheld([cell], "backward takes")


def test_a_crashed_or_failed_cell_says_nothing() -> None:
    assert sentences([time_cell({}, outcome="crashed")]) == []
    assert sentences([]) == []


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


def test_what_a_knob_saves_is_said_beside_what_it_costs() -> None:
    def peak_of(cell: TimeCellRecord, gib: float) -> TimeCellRecord:
        return cell.model_copy(
            update={"memory": cell.memory.model_copy(update={"allocated_peak_bytes": int(gib * 2**30)})}
        )

    plain, full = (
        time_cell({"forward": spread_about(seconds, 1e-3)}, checkpoint=choice)
        for seconds, choice in ((0.10, "none"), (0.13, "full"))
    )
    text = about([peak_of(plain, 40.0), peak_of(full, 22.0)], "as fast as full checkpointing").text
    assert text.endswith(" No checkpointing needs 18.0 GiB more memory.")
    same = about([peak_of(plain, 40.0), peak_of(full, 40.1)], "as fast as full checkpointing").text
    assert "memory" not in same


def test_equal_arms_cannot_be_told_apart_and_that_is_said() -> None:
    samples = spread_about(0.1, 1e-3)
    cells = [time_cell({"forward": samples}, precision=precision) for precision in ("fp32", "bf16")]
    assert about(cells, "differ").text == (
        "bf16 and fp32 do not differ measurably: the 95% interval of the ratio is 0.989–1.011."
    )


def test_a_ratio_whose_interval_contains_one_is_not_stated() -> None:
    dice = random.Random(3)
    phases = {"forward": noisy(0.1, 0.4, dice)[:6], "backward": noisy(0.11, 0.4, dice)[:6]}
    cell = time_cell(phases)
    much = ratio(phases["backward"], phases["forward"])
    assert contains_one(much)
    text = about([cell], "backward and forward").text
    assert text == (
        f"backward and forward do not differ measurably: the 95% interval of the ratio is {interval(much)}."
    )
    assert withheld([cell], "backward takes")


def test_a_cell_whose_phases_cannot_be_told_apart_is_in_no_range() -> None:
    dice = random.Random(3)
    unclear = time_cell({"forward": noisy(0.1, 0.3, dice), "backward": noisy(0.1, 0.3, dice)}, ctx=128)
    clear = time_cell({"forward": noisy(0.1, 0.01, dice), "backward": noisy(0.4, 0.01, dice)}, ctx=256)
    text = about([unclear, clear], "backward takes").text
    assert re.fullmatch(
        r"backward takes [34]\.\d\d× \(95% CI [\d.–]+\) as long as forward in 1 of 2 cells \(ctx 256\); the rest "
        r"does not differ significantly\.",
        text,
    ), text


# --- chance


CLAIMS = re.compile(r"as fast as|slower")


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


def test_every_sentence_names_the_cells_it_rests_on_and_ends() -> None:
    for cells in (first_report(("fp32", "bf16")), second_report(), third_report()):
        for each in all_findings(cells):
            assert each.cells
            assert {cell.key for cell in each.cells} <= {cell.key for cell in cells}
            assert each.text.endswith(".")
            assert "nan" not in each.text


def test_beside_other_processes_the_time_of_a_step_comes_with_its_processor_time() -> None:
    def said(busy_share: float) -> str:
        events = [
            event.model_copy(update={"host_cpu_share": busy_share})
            if isinstance(event, Reading)
            else event.model_copy(update={"step": event.step.model_copy(update={"processor_s": 0.25})})
            if isinstance(event, StepMeasured)
            else event
            for event in fixtures_timing.events(TimeSpec(size="small", ctx=128), fixtures_timing.TWO_CORES)
        ]
        return about(fold(events).cells, "a step takes").text

    assert said(0.9).endswith(": other processes used the CPU. Its CPU time is 250.0 ms.")

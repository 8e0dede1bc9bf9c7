"""Sentences of profiles: what published kernel tables say, and what is withheld."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sysbench.commands.profile.findings import findings, headlines
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.log.outcomes import Caution, CautionCode
from tests.fixtures_profiles import Kernel, attention_rates, profile_cell

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
MUL = (
    "void at::native::elementwise_kernel<128, 2, at::native::BinaryFunctor<float, float, float, MulFunctor<float>>>(x)"
)
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)"

LARGE = [
    Kernel("ampere_sgemm_128x64_tn", "forward", 83.241, 217),
    Kernel("ampere_sgemm_32x128_tn", "forward", 29.867, 36),
    Kernel("ampere_sgemm_128x128_nn", "forward", 3.734, 36),
    Kernel("ampere_sgemm_128x128_tn", "forward", 1.702, 36),
    Kernel(MUL, "forward", 17.1, 722),
    Kernel(SOFTMAX, "forward", 2.2, 36),
    Kernel("ampere_sgemm_32x32_sliced1x4_nt", "backward", 90.5, 72),
    Kernel("ampere_sgemm_128x32_sliced1x4_nn", "backward", 54.4, 72),
    Kernel(MUL, "backward", 60.0, 1500),
    Kernel(ADD, "optimizer", 116.6, 4000),
]
"""The kernels of `large` at context 256, in milliseconds a step, with totals as they were published for forward."""


def sentences(cells: Sequence[ProfileCellRecord]) -> list[str]:
    return [each.text for each in findings(cells)]


def about(cells: Sequence[ProfileCellRecord], *words: str) -> str:
    found = [text for text in sentences(cells) if all(word in text for word in words)]
    assert len(found) == 1, sentences(cells)
    return found[0]


def test_the_kernel_that_takes_most_is_named_with_its_share_and_its_calls_of_one_pass() -> None:
    # The report: 60.4%, 217 calls; in backward another one takes most.
    assert about([profile_cell(LARGE)], "takes the largest share") == (
        "in the forward phase, ampere_sgemm_128x64_tn takes the largest share of kernel time: 60% in 217 calls per "
        "step. In backward, ampere_sgemm_32x32_sliced1x4_nt leads, with 44% in 72 calls per step. In the whole step, "
        "vectorized_elementwise_kernel<CUDAFunctor_add<float>> leads, with 25% in 4000 calls per step."
    )


def test_calls_are_those_of_one_step_however_many_were_profiled() -> None:
    text = about([profile_cell(LARGE, steps=3)], "takes the largest share")
    assert "60% in 217 calls per step" in text


def test_the_share_of_matrix_products_falls_with_backward_and_with_the_optimizer() -> None:
    assert about([profile_cell(LARGE)], "matrix products take") == (
        "matrix products take 86% of the time in forward, 77% in forward and backward together and 57% in the step. "
        "The share of the optimizer's kernels grows most, from 0.0% in forward to 25% in the step."
    )


def test_the_share_of_a_range_is_that_of_the_cell_whose_mode_is_that_range() -> None:
    forward = [kernel for kernel in LARGE if kernel.phase == "forward"]
    both = [kernel for kernel in LARGE if kernel.phase != "optimizer"]
    slow = ("ampere_sgemm_128x64_tn", 3.0)
    cells = [
        profile_cell(forward, mode="forward"),
        profile_cell(both, mode="forward-backward", scale=slow),
        profile_cell(LARGE, mode="train", scale=slow),
    ]
    # Of `forward`, as in the table; in the two others, its largest product took three times as long.
    text = about(cells, "matrix products take")
    alone = [about([cell], "matrix products take") for cell in cells]
    assert text.startswith("matrix products take 86% of the time in forward, ")
    assert alone[0] == "matrix products take 86% of the time in forward."
    assert alone[1].startswith("matrix products take 94% of the time in forward and 84% in forward and backward ")
    assert "84% in forward and backward together and" in text
    assert text[text.index("and backward together and ") :].split(".")[0] in alone[2]
    assert about(cells[1:], "matrix products take").startswith("matrix products take 94% of the time in forward, ")


def test_inference_stands_beside_forward_but_not_beside_training() -> None:
    forward = [kernel for kernel in LARGE if kernel.phase == "forward"]
    inference = profile_cell(forward, mode="inference", scale=("ampere_sgemm_128x64_tn", 3.0))
    text = about([inference, profile_cell(forward, mode="forward")], "matrix products take")
    assert text == "matrix products take 86% (forward) to 94% (inference) of the time in forward."
    train = profile_cell(LARGE, mode="train")
    assert about([inference, train], "matrix products take") == about([train], "matrix products take")


def test_a_setting_without_backward_does_not_hide_the_ranges_of_others() -> None:
    forward = [kernel for kernel in LARGE if kernel.phase == "forward"]
    cells = [profile_cell(forward, mode="forward", size="xl"), profile_cell(LARGE, mode="train")]
    assert about(cells, "matrix products take") == about(cells[1:], "matrix products take")


def test_what_else_takes_time_in_forward_is_named() -> None:
    # The report: "except for matrix multiplication, there's also 7% element wise kernels".
    assert about([profile_cell(LARGE)], "besides") == (
        "besides matrix products, forward spends 12% of its time in elementwise kernels."
    )


def test_softmax_is_held_against_its_flops() -> None:
    # The report: scores 73 µs, mask 35 µs, softmax 129 µs, output 117 µs.
    rates = attention_rates({"scores": 73.152, "mask": 35.296, "softmax": 129.153, "output": 117.056})
    cell = profile_cell(LARGE, rates=rates)
    text = about([cell], "of attention's forward FLOPs")
    assert text.startswith(
        "softmax has 1.9% of attention's forward FLOPs and takes 36% of its time (129.2 µs per step); the two matrix "
        "products take 54%"
    )


def test_softmax_without_its_flops_has_no_sentence() -> None:
    rates = [
        rate.model_copy(update={"flops": None}) for rate in attention_rates({"scores": 1, "softmax": 1, "output": 1})
    ]
    assert not any("FLOPs" in text for text in sentences([profile_cell(LARGE, rates=rates)]))


def test_a_device_that_waits_for_the_host_is_launch_bound() -> None:
    text = about([profile_cell(LARGE, busy=0.59, waiting=0.35)], "idle")
    assert text == (
        "the device is idle for 41% of the profiled step; for 35%, it waits for the host to launch work. "
        "The step is launch-bound."
    )


def test_another_precision_than_was_asked_for_is_said() -> None:
    text = about([profile_cell(LARGE, precisions={"tf32": 98, "unknown": 2})], "kernel names")
    assert text == (
        "judging by kernel names, 100% of matrix product time is in tf32 kernels, although fp32 was requested. "
        "Kernel names state the format for 98% of that time."
    )


def test_cells_that_agree_share_one_sentence_and_ranges_name_their_ends() -> None:
    cells = [profile_cell(LARGE, size="large"), profile_cell(LARGE, size="xl", scale=("ampere_sgemm_128x64_tn", 2.0))]
    text = about(cells, "takes the largest share")
    assert "60% (large) to 75% (xl) in 217 calls per step" in text


CODES: list[CautionCode] = ["kernels-missing", "kernels-unlinked", "trace-damaged", "check-failed", "host-busy"]


@pytest.mark.parametrize("code", CODES)
def test_a_profile_that_lacks_something_says_nothing_but_that(code: CautionCode) -> None:
    caution = Caution(code=code, message=code, remedy="")
    answer, text = sentences([profile_cell(LARGE, cautions=[caution], source="cpu")])
    assert answer == f"where the time goes cannot be decided: cautions exclude the only cell ({code})."
    assert f"({code})" in text


def test_a_cell_without_a_profile_says_nothing() -> None:
    assert sentences([profile_cell(LARGE).model_copy(update={"summary": None, "outcome": "crashed"})]) == []


def test_headlines_say_which_cells_they_are_not_of() -> None:
    busy, shared = (Caution(code=code, message="", remedy="") for code in ("host-busy", "check-failed"))
    quiet, doubted = (
        profile_cell(LARGE, source="cpu"),
        profile_cell(LARGE, source="cpu", cautions=[busy, shared], size="xl"),
    )
    *_, last = [each.text for each in headlines([quiet, doubted])]
    assert last == "Excluded from all findings about times because of cautions: xl (check-failed, host-busy)."
    assert not any("Excluded from" in each.text for each in headlines([quiet]))
    (only,) = headlines([doubted])  # the caution itself is above it
    assert "cannot be decided" in only.text
    assert not only.cells


def test_headlines_are_among_the_sentences() -> None:
    cells = [profile_cell(LARGE)]
    assert {each.text for each in headlines(cells)} < set(sentences(cells))

"""Sentences of profiles: what published kernel tables say, and what is withheld."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sysbench.commands.profile.findings import findings
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
    # The report: 60.4%, 217 calls.
    leading = [text for text in sentences([profile_cell(LARGE)]) if "takes the most time" in text]
    assert leading == [
        "in forward, ampere_sgemm_128x64_tn takes the most time: 60% in 217 calls per step.",
        "in forward and backward, ampere_sgemm_32x32_sliced1x4_nt takes the most time: 26% in 72 calls per step.",
        "in the step, vectorized_elementwise_kernel<CUDAFunctor_add<float>> takes the most time: 25% in 4000 calls "
        "per step.",
    ]


def test_calls_are_those_of_one_step_however_many_were_profiled() -> None:
    assert "60% in 217 calls per step" in about([profile_cell(LARGE, steps=3)], "in forward, ampere")


def test_the_share_of_matrix_products_falls_with_backward_and_with_the_optimizer() -> None:
    assert about([profile_cell(LARGE)], "matrix products take") == (
        "matrix products take 86% of the time in forward, 77% in forward and backward and 57% in the step."
    )


def test_modes_have_sentences_of_their_own() -> None:
    forward = [kernel for kernel in LARGE if kernel.phase == "forward"]
    cells = [profile_cell(forward, mode="inference"), profile_cell(LARGE, mode="train")]
    found = [text for text in sentences(cells) if "matrix products take" in text]
    assert found[0] == "inference: matrix products take 86% of the time in forward."
    assert found[1].startswith("train: matrix products take 86% of the time in forward, ")


def test_softmax_is_held_against_its_flops() -> None:
    # The report: scores 73 µs, mask 35 µs, softmax 129 µs, output 117 µs.
    rates = attention_rates({"scores": 73.152, "mask": 35.296, "softmax": 129.153, "output": 117.056})
    cell = profile_cell(LARGE, rates=rates)
    assert about([cell], "softmax") == (
        "in attention's forward, softmax with 1.9% of the FLOPs takes 36% of the time, and the two matrix products 54%."
    )


def test_softmax_without_its_flops_has_no_sentence() -> None:
    rates = [
        rate.model_copy(update={"flops": None}) for rate in attention_rates({"scores": 1, "softmax": 1, "output": 1})
    ]
    assert not any("FLOPs" in text for text in sentences([profile_cell(LARGE, rates=rates)]))


def test_cells_that_agree_share_one_sentence_and_ranges_name_their_ends() -> None:
    cells = [profile_cell(LARGE, size="large"), profile_cell(LARGE, size="xl", scale=("ampere_sgemm_128x64_tn", 2.0))]
    text = about(cells, "in forward, ampere")
    assert "60% (large) to 75% (xl) in 217 calls per step" in text


CODES: list[CautionCode] = ["kernels-missing", "kernels-unlinked", "trace-damaged", "check-failed", "host-busy"]


@pytest.mark.parametrize("code", CODES)
def test_a_profile_that_lacks_something_says_nothing_but_that(code: CautionCode) -> None:
    caution = Caution(code=code, remedy="")
    (answer,) = sentences([profile_cell(LARGE, cautions=[caution], source="cpu")])
    assert answer == f"where the time goes cannot be decided: cautions exclude the only cell ({code})."


def test_a_cell_without_a_profile_says_nothing() -> None:
    assert sentences([profile_cell(LARGE).model_copy(update={"summary": None, "outcome": "crashed"})]) == []


def test_sentences_say_which_cells_they_are_not_of() -> None:
    busy, shared = (Caution(code=code, remedy="") for code in ("host-busy", "check-failed"))
    quiet, doubted = (
        profile_cell(LARGE, source="cpu"),
        profile_cell(LARGE, source="cpu", cautions=[busy, shared], size="xl"),
    )
    assert sentences([quiet, doubted])[-1] == (
        "Excluded from all findings about times because of cautions: xl (check-failed, host-busy)."
    )
    assert not any("Excluded from" in text for text in sentences([quiet]))

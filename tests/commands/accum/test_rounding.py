"""Sums, types, layer norm, gradients and products: against numbers that are known otherwise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from sysbench.commands.accum import norm, sums
from sysbench.commands.accum.record import AccumRecord, DtypeRecord, SumRecord
from sysbench.commands.accum.spec import AccumSpec
from sysbench.errors import UnavailableError
from sysbench.lab.precision import Arithmetic
from sysbench.rounding import FORMATS, FormatName
from tests.commands.accum.cells import CPU, cell, record
from tests.commands.accum.exact_sums import running_sum

HERE = torch.device("cpu")


def found_sums(**options: object) -> dict[tuple[str, str, bool, str], SumRecord]:
    sums = cell("sums", **options).sums
    return {(each.accumulator, each.addend, each.upcast, each.order): each for each in sums}


# --- sums


def test_the_four_sums_of_the_course_to_the_last_digit() -> None:
    found = found_sums()
    ways = [
        ("fp32", "fp32", False),
        ("fp16", "fp16", False),
        ("fp32", "fp16", False),
        ("fp32", "fp16", True),
    ]
    shown = [f"{found[*way, 'sequential'].result:.8f}" for way in ways]
    assert shown == ["10.00013351", "9.95312500", "10.00213623", "10.00213623"]


def test_fp16_of_the_course_stalls_at_32() -> None:
    fp16 = found_sums()["fp16", "fp16", False, "sequential"]
    assert (fp16.stall_step, fp16.stall_at) == (2798, 32.0)
    assert fp16.rounded_addend == float(np.float16(0.01))


def test_error_is_split_into_what_was_there_before_and_what_adding_did() -> None:
    for each in found_sums().values():
        exact = Fraction(each.result) - 10
        assert each.error == float(exact)
        assert each.representation_error == pytest.approx(1000 * (each.rounded_addend - 0.01), rel=1e-6)
        assert Fraction(each.result) - 1000 * Fraction(each.rounded_addend) == Fraction(each.accumulation_error)
    wide = found_sums()["fp32", "fp16", False, "sequential"]
    assert wide.accumulation_error == 0


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_adds_up_to_what_exact_arithmetic_says(name: FormatName) -> None:
    for each in found_sums(value=0.3, count=777, dtype=name, order="sequential").values():
        expected = running_sum(Fraction(each.rounded_addend), 777, FORMATS[each.accumulator])
        assert expected is not None
        assert each.result == float(expected)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 999, 1000, 1023])
def test_pairwise_sums_are_those_of_numpy_in_halves(count: int) -> None:
    numbers = np.full(count, 0.01, dtype=np.float16)
    while numbers.size > 1:
        numbers = np.append(numbers, np.float16(0)) if numbers.size % 2 else numbers
        numbers = numbers[0::2] + numbers[1::2]
    found = found_sums(count=count, dtype="fp16", order="pairwise")
    assert found["fp16", "fp16", False, "pairwise"].result == float(numbers[0])


def test_kahans_sum_is_that_of_numpy() -> None:
    addend, total, lost = np.float16(0.01), np.float16(0), np.float16(0)
    for _ in range(1000):
        corrected = addend - lost
        reached = total + corrected
        lost = (reached - total) - corrected
        total = reached
    assert found_sums()["fp16", "fp16", False, "kahan"].result == float(total)


def test_blocked_sums_are_those_of_numpy_blocks() -> None:
    of_blocks = [np.add.accumulate(np.full(size, np.float16(0.01)))[-1] for size in [64] * 15 + [40]]
    expected = float(np.add.accumulate(np.array(of_blocks, dtype=np.float16))[-1])
    assert found_sums(block=64)["fp16", "fp16", False, "blocked"].result == expected


def test_a_sum_that_overflows_is_kept_as_what_it_is() -> None:
    found = record("sums", value=1000, dtype="fp16")
    (alone,) = [each for each in found.cells[0].sums if each.order == "sequential" and each.accumulator == "fp16"]
    assert math.isinf(alone.result)
    assert alone.stall_step is None
    read_back = AccumRecord.model_validate_json(found.model_dump_json())
    assert read_back.model_dump_json() == found.model_dump_json()
    assert math.isinf(read_back.cells[0].sums[0].result)


def test_what_would_take_too_long_is_refused_before_it_does() -> None:
    (asked,) = AccumSpec(count=100_000_000, budget_s=1).cells()
    with pytest.raises(UnavailableError, match=r"would take about .* longer than --budget 1: use a smaller --count"):
        list(sums.run(asked, CPU))


def test_a_cell_does_not_change_with_what_it_does_not_depend_on() -> None:
    def key(**options: object) -> str:
        (found,) = AccumSpec(experiment="norm", **options).cells()  # type: ignore[arg-type]
        return found.key

    assert key() == key(count=5, value=3.0)
    assert key() != key(width=7)


# --- types


def types(found: list[DtypeRecord], precision: str, column: str) -> dict[str, str]:
    return {
        " ".join(filter(None, (each.part, each.name))): getattr(each, column)
        for each in found
        if each.precision == precision
    }


@pytest.fixture(scope="module")
def toy() -> list[DtypeRecord]:
    return cell("autocast").dtypes


@pytest.mark.parametrize(("precision", "narrow"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_the_toy_has_the_types_that_the_course_expects_of_cuda(
    toy: list[DtypeRecord], precision: str, narrow: str
) -> None:
    assert types(toy, precision, "on_cuda") == {
        "parameter": "float32",
        "input": "float32",
        "output fc1": narrow,
        "output relu": narrow,
        "output ln": "float32",
        "output fc2": narrow,
        "logits": narrow,
        "loss": "float32",
        "gradient": "float32",
    }


def test_what_is_measured_here_is_what_this_device_does(toy: list[DtypeRecord]) -> None:
    linear, norm = nn.Linear(20, 10), nn.LayerNorm(10)
    with torch.autocast("cpu", torch.float16):
        hidden = linear(torch.randn(2, 20))
        normed = norm(hidden)
    here = types(toy, "fp16", "here")
    assert here["output fc1"] == str(hidden.dtype).removeprefix("torch.")
    assert here["output ln"] == str(normed.dtype).removeprefix("torch.")


def test_layers_that_are_alike_are_said_once() -> None:
    found = types(cell("autocast", size="tiny", ctx=4, batch=1, dtype="bf16").dtypes, "bf16", "on_cuda")
    assert found["output layers.*.attention.q"] == "bfloat16"
    assert found["output layers.*.attention_norm"] == "float32"
    assert found["output layers.*"] == "float32"
    assert found["parameter"] == found["gradient"] == "float32"
    assert not any(".0" in name for name in found)


# --- layer norm


def test_layer_norm_in_fp32_is_torchs() -> None:
    inputs = torch.randn(5, 48, generator=torch.Generator().manual_seed(1)) * 3 + 2
    found, _ = norm.normalised(inputs, torch.float32, 1e-5)
    torch.testing.assert_close(found, nn.functional.layer_norm(inputs, (48,), eps=1e-5))


def test_sums_of_layer_norm_are_rounded_to_the_format() -> None:
    """`Tensor.sum` adds halves in fp32 and gets 65536, which does not exist in fp16, by way of 32768 + 32768."""
    rows = torch.full((1, 4), 16384.0, dtype=torch.float16)
    assert norm.pairwise_sum(rows).item() == math.inf
    ones = torch.ones(1, 4096, dtype=torch.bfloat16)
    assert norm.pairwise_sum(ones).item() == 4096
    assert norm.pairwise_sum(torch.ones(2, 7)).tolist() == [7.0, 7.0]


def test_variance_of_layer_norm_is_that_of_numpy_in_halves() -> None:
    def pairwise_sum(numbers: np.ndarray) -> np.float16:
        while numbers.size > 1:
            numbers = numbers[: numbers.size // 2] + numbers[numbers.size // 2 :]
        return np.float16(numbers[0])

    inputs = torch.randn(20, 512, generator=torch.Generator().manual_seed(3)).half()
    expected, in_fp32 = [], []
    for x in inputs.numpy():
        centred = x - pairwise_sum(x) / np.float16(512)
        expected.append(float(pairwise_sum(centred * centred) / np.float16(512)))
        in_fp32.append(float(((centred * centred).astype(np.float32).sum() / 512).astype(np.float16)))
    _, found = norm.normalised(inputs, torch.float16, 1e-5)
    assert found.variance.tolist() == expected
    assert found.variance.tolist() != in_fp32


def test_fp16_breaks_where_the_sum_of_squares_leaves_its_range() -> None:
    found = {(each.dtype, each.statistics): each for each in cell("norm", width=1024).norms}
    fp16, bf16, fp32 = found["fp16", "fp16"], found["bf16", "bf16"], found["fp32", "fp32"]
    # 1024 squares of deviation s add up to 1024 s²: beyond 65504 from s = 8 on; 1024 numbers of mean s from 64 on.
    assert fp16.variance_overflows_from == 8
    assert fp16.mean_overflows_from == 64
    assert fp16.wrong_from == 8
    # Squares of 2**-13 are 2**-26: under half of the smallest number, 2**-24.
    assert fp16.variance_vanishes_to == 2.0**-13
    # 1024 s² beyond 2**128.
    assert bf16.variance_overflows_from == fp32.variance_overflows_from == 2.0**59
    assert bf16.wrong_to is None
    assert bf16.error_at_one > fp16.error_at_one > fp32.error_at_one
    inside = found["fp16", "fp32"]
    assert inside.wrong_from is not None
    assert inside.wrong_from > 1000


def test_an_eps_that_fp16_has_not_got_lets_rsqrt_break() -> None:
    small = {each.statistics: each for each in cell("norm", eps=1e-8, dtype="fp16", width=64).norms}
    assert small["fp16"].wrong_to == 2.0**-13
    assert small["fp16"].variance_vanishes_to == small["fp16"].reciprocal_overflows_to == 2.0**-13


def test_rounded_formats_round_once() -> None:
    tf32 = Arithmetic.of("tf32", HERE)
    assert tf32.add(tf32.number(1.0), tf32.number(2.0**-11)) == 1.0  # a tie, to even
    assert tf32.add(tf32.number(1.0), tf32.number(2.0**-10)) == 1 + 2.0**-10

"""Formats in exact arithmetic, against numpy's and torch's own arithmetic in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sysbench.commands.accum import sums
from sysbench.lab.precision import Arithmetic
from sysbench.rounding import FORMATS, FormatName, equal_steps, exact, stall
from tests.commands.accum.exact_sums import running_sum

CPU = torch.device("cpu")


def _torch(dtype: torch.dtype) -> Callable[[float], float]:
    return lambda value: torch.tensor(value, dtype=torch.float32).to(dtype).item()


REFERENCES: dict[FormatName, Callable[[float], float]] = {
    "fp32": lambda value: float(np.float32(value)),
    "fp16": lambda value: float(np.float16(value)),
    "bf16": _torch(torch.bfloat16),
    "fp8-e4m3": lambda value: _torch(torch.float8_e4m3fn)(min(max(value, -448.0), 448.0)),
    "fp8-e5m2": _torch(torch.float8_e5m2),
}

FP32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
EVERY = pytest.mark.parametrize("name", REFERENCES)


@EVERY
@given(value=FP32)
def test_a_number_is_rounded_as_hardware_rounds_it(name: FormatName, value: float) -> None:
    with np.errstate(over="ignore"):
        expected = REFERENCES[name](value)
    rounded = FORMATS[name].rounded(Fraction(value))
    if rounded is None:
        assert not math.isfinite(expected)
    else:
        assert float(rounded) == expected


@pytest.mark.parametrize("name", REFERENCES)
def test_the_ends_of_a_format_are_those_that_torch_has(name: FormatName) -> None:
    dtypes = {
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8-e4m3": torch.float8_e4m3fn,
        "fp8-e5m2": torch.float8_e5m2,
    }
    told, known = torch.finfo(dtypes[name]), FORMATS[name]
    assert float(known.largest) == told.max
    assert math.ldexp(1.0, 1 - known.significant_bits) == told.eps
    assert known.smallest == told.smallest_normal * told.eps


@pytest.mark.parametrize(("name", "dtype"), [("fp16", np.float16), ("fp32", np.float32)])
@given(value=st.floats(2**-20, 2**10), count=st.integers(1, 3000))
def test_a_running_sum_is_known_without_its_steps(
    name: FormatName, dtype: type[np.floating], value: float, count: int
) -> None:
    addend = dtype(value)
    with np.errstate(over="ignore"):
        expected = float(np.add.accumulate(np.full(count, addend), dtype=dtype)[-1])
    found = running_sum(Fraction(float(addend)), count, FORMATS[name])
    assert (float(found) if found is not None else math.inf) == expected


def round_to_tf32(values: Tensor) -> Tensor:
    """Round fp32 values to 10 mantissa bits, ties to even, as tensor cores do with their TF32 inputs."""
    bits = values.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000).view(torch.float32)


STEPS: dict[FormatName, Callable[[Tensor], Tensor]] = {
    "bf16": lambda total: total.to(torch.bfloat16).float(),
    "tf32": round_to_tf32,
    "fp8-e4m3": lambda total: total.clamp(-448, 448).to(torch.float8_e4m3fn).float(),
    "fp8-e5m2": lambda total: total.to(torch.float8_e5m2).float(),
}


@pytest.mark.parametrize("name", STEPS)
@given(value=st.floats(2**-6, 2**3), count=st.integers(1, 200))
def test_sums_in_formats_without_numpy_are_those_of_torchs_conversions(
    name: FormatName, value: float, count: int
) -> None:
    convert = STEPS[name]
    addend, total = convert(torch.tensor(value)), torch.tensor(0.0)
    for _ in range(count):
        total = convert(total + addend)
    arithmetic = Arithmetic.of(name, CPU)
    assert arithmetic.value(arithmetic.number(value)) == addend.item()
    assert sums.sequential(arithmetic, arithmetic.number(value), count) == total.item()
    found = running_sum(Fraction(addend.item()), count, FORMATS[name])
    assert (float(found) if found is not None else math.inf) == total.item()


@pytest.mark.parametrize("name", FORMATS)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_quick_rounding_is_exact_rounding(name: FormatName, value: float) -> None:
    expected = FORMATS[name].rounded(Fraction(value))
    found = FORMATS[name].nearest(value)
    assert found == (float(expected) if expected is not None else math.copysign(math.inf, value))


@pytest.mark.parametrize(
    ("value", "dtype"), [(0.01, np.float16), (0.3, np.float16), (1e-4, np.float16), (7.0, np.float16)]
)
def test_a_sum_stalls_at_the_step_that_is_said(value: float, dtype: type[np.floating]) -> None:
    addend, total, step = dtype(value), dtype(0), 0
    while (reached := dtype(total + addend)) != total:
        total, step = reached, step + 1
    found = stall(Fraction(float(addend)), FORMATS["fp16"])
    assert found is not None
    assert (found.step, float(found.total)) == (step, float(total))


def test_a_sum_of_hundreds_of_millions_of_steps_takes_none_of_them() -> None:
    """fp32 += 0.01 stalls at 2**18: half the distance to the next number is more than 0.01 from there on."""
    found = stall(Fraction(float(np.float32(0.01))), FORMATS["fp32"])
    assert found is not None
    assert float(found.total) == 2.0**18
    assert found.step == sum(each.steps for each in equal_steps(Fraction(float(np.float32(0.01))), FORMATS["fp32"]))


def test_a_sum_that_overflows_never_stalls() -> None:
    assert stall(Fraction(60000), FORMATS["fp16"]) is None
    assert running_sum(Fraction(60000), 2, FORMATS["fp16"]) is None


def test_a_decimal_is_what_a_person_wrote() -> None:
    assert exact(0.01) == Fraction(1, 100)
    assert exact(1e-30) == Fraction(1, 10**30)

"""Numbers on the screen: the unit is there, the digits are those that matter, and the value can be read back."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sysbench import units

FACTORS = {
    "s": 1.0,
    "ms": 1e-3,
    "µs": 1e-6,
    "ns": 1e-9,
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "FLOP": 1.0,
    "kFLOP": 1e3,
    "MFLOP": 1e6,
    "GFLOP": 1e9,
    "TFLOP": 1e12,
    "PFLOP": 1e15,
}


def read_back(text: str) -> float:
    *number, unit = text.split()
    return float("".join(number).replace(",", "")) * FACTORS[unit]


@pytest.mark.parametrize(
    ("value_s", "shown"),
    [
        (0.1056, "105.6 ms"),
        (8.4, "8.40 s"),
        (81.4465, "81.4 s"),
        (2.1e-5, "21.0 µs"),
        (0.99996, "1.00 s"),
        (0, "0 s"),
        (None, "—"),
        (math.nan, "—"),
    ],
)
def test_a_time_is_shown_in_the_unit_it_is_spoken_of(value_s: float | None, shown: str) -> None:
    assert units.seconds(value_s) == shown


@pytest.mark.parametrize(
    ("mean_s", "deviation_s", "shown"),
    [
        (0.1056, 0.0002, "105.6 ± 0.2 ms"),
        (0.020956, 0.0022656, "21.0 ± 2.3 ms"),
        (0.0212, 0.00002, "21.20 ± 0.02 ms"),
        (1.6165, 0.0012, "1,616 ± 1 ms"),
        (81.4465, 0.2, "81.4 ± 0.2 s"),
        (0.0341996, 0.0344231, "34.2 ± 34.4 ms"),
        (0.05, 0.0, "50.0 ± 0.0 ms"),
    ],
)
def test_a_mean_and_its_deviation_share_one_unit_and_one_number_of_decimals(
    mean_s: float, deviation_s: float, shown: str
) -> None:
    assert units.seconds_with_deviation(mean_s, deviation_s) == shown


@given(st.floats(min_value=2e-9, max_value=1e6))
def test_a_shown_time_reads_back_to_three_digits(value_s: float) -> None:
    assert read_back(units.seconds(value_s)) == pytest.approx(value_s, rel=0.006)


@given(st.integers(min_value=1, max_value=10**15))
def test_shown_bytes_and_operations_read_back_to_three_digits(value: int) -> None:
    assert read_back(units.size(value)) == pytest.approx(value, rel=0.006)
    assert read_back(units.flops(value)) == pytest.approx(value, rel=0.006)


@given(st.integers(min_value=1, max_value=10**15))
@example(1048064)  # 1023.5 KiB
@example(999_950)
def test_a_number_never_shows_more_than_its_unit_holds(value: int) -> None:
    number, _ = units.size(value).rsplit(" ", 1)
    assert float(number.replace(",", "")) < 1024 or value >= 1024**5
    number, _ = units.flops(value).rsplit(" ", 1)
    assert float(number.replace(",", "")) < 1000 or value >= 10**18


def test_bytes_are_counted_in_powers_of_two_and_say_so() -> None:
    assert units.size(18.2 * 2**30) == "18.2 GiB"
    assert units.size(0) == "0 B"
    assert units.size(512) == "512 B"


def test_operations_counts_and_rates_have_decimal_prefixes() -> None:
    assert units.flops(1.78e12) == "1.78 TFLOP"
    assert units.flop_rate(15.2e12) == "15.2 TFLOP/s"
    assert units.count(423_183_360) == "423.2 M"
    assert units.count(3_406_809_600) == "3.41 B"
    assert units.count(12) == "12"
    assert units.frequency(1.41e9) == "1410 MHz"
    assert units.ratio(3.651) == "3.65×"
    assert units.ratio(1.0042) == "1.004×"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.78, "78%"), (0.012, "1.2%"), (None, "—"), (math.nan, "—"), (1, "100%")]
)
def test_a_share_has_a_decimal_only_where_it_matters(value: float | None, shown: str) -> None:
    assert units.share(value) == shown


@pytest.mark.parametrize(
    ("value_s", "shown"), [(8.4, "8 s"), (99.4, "99 s"), (120, "2 min"), (4800, "80 min"), (6000, "1 h 40 min")]
)
def test_a_waiting_time_is_coarse(value_s: float, shown: str) -> None:
    assert units.duration(value_s) == shown


def test_the_values_of_a_column_share_a_unit_and_decimals_that_suit_the_typical_one() -> None:
    scale = units.shared_scale("s", [0.0221, 0.0243, 0.1118])
    assert scale.symbol == "ms"
    assert units.shared_decimals(scale, [0.0221, 0.0243, 0.1118], [0.00009, 0.00022, 0.00005]) == 2
    assert units.shared_decimals(scale, [0.0221, 0.0243], [0.004, 0.005]) == 1
    assert units.shared_scale("s", []).symbol


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0944, "0.0944"),
        (0.1, "0.100"),
        (0.09996, "0.100"),
        (1.5, "1.50"),
        (9.999, "10.0"),
        (123.4, "123"),
        (1234.0, "1,230"),
        (0, "0"),
    ],
)
def test_significant_digits_include_final_zeros_and_need_no_exponent(value: float, text: str) -> None:
    assert units.with_digits(value) == text

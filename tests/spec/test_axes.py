"""The axis grammar: what it expands to, and what it says about what it cannot read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.spec.axes import MAX_VALUES, choices, integers

positive = integers(1)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("128", (128,)),
        ("128,256", (128, 256)),
        (" 128 , 256 ", (128, 256)),
        ("128-1024*2", (128, 256, 512, 1024)),
        ("128-1000*2", (128, 256, 512)),
        ("10-50+10", (10, 20, 30, 40, 50)),
        ("1-81*3", (1, 3, 9, 27, 81)),
        ("7-7+1", (7,)),
        ("64,128-512*2", (64, 128, 256, 512)),
        ("256,128,256", (256, 128)),
    ],
)
def test_an_axis_expands_in_the_order_in_which_it_is_written(text: str, values: tuple[int, ...]) -> None:
    assert positive(text) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "(nothing) is not a value, list or range: write 128 or 128,256 or 128-1024*2 or 10-50+10"),
        ("128,", "128, is not a value, list or range: write 128 or 128,256 or 128-1024*2 or 10-50+10"),
        ("1e3", "1e3 is not a value, list or range: write 128 or 128,256 or 128-1024*2 or 10-50+10"),
        ("128-1024", "128-1024 has no stride: write 128-1024*2 (doubling) or 128-1024+896 (adding)"),
        ("1024-128*2", "1024-128*2 runs backwards: write 128-1024*2"),
        ("128-1024*1", "128-1024*1 never reaches 1024: multiply by 2 or more (not from 0), or add 1 or more"),
        ("1-9+0", "1-9+0 never reaches 9: multiply by 2 or more (not from 0), or add 1 or more"),
        ("0", "0 is out of range: it must be 1 or more. Nearest: 1"),
        ("4,-2", "-2 is out of range: it must be 1 or more. Nearest: 1"),
        ("1-100000000+1", "has more than 1000 values: use a larger stride"),
    ],
)
def test_a_malformed_axis_is_answered_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        positive(text)
    assert str(error.value) == message


def test_an_upper_bound_names_itself_as_the_nearest_value() -> None:
    with pytest.raises(ValueError, match=r"9 is out of range: it must be 1 to 8\. Nearest: 8"):
        integers(1, 8)("9")


@pytest.mark.parametrize("value", [True, 1.5, ["128"], None])
def test_what_is_no_whole_number_is_refused_in_files_too(value: object) -> None:
    with pytest.raises(ValueError, match="is not a list of whole numbers"):
        positive(value)


def test_a_name_outside_the_set_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"^smal is not a size\. Did you mean small\? \(small, medium\)$"):
        choices("a size", ("small", "medium"))("medium,smal")


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20))
def test_a_list_of_numbers_reads_back_as_itself_without_repetition(numbers: list[int]) -> None:
    assert positive(",".join(map(str, numbers))) == tuple(dict.fromkeys(numbers))


@given(st.integers(1, 1000), st.integers(0, 5000), st.integers(1, 50))
def test_an_arithmetic_range_is_pythons_range(first: int, length: int, step: int) -> None:
    expected = range(first, first + length + 1, step)
    if len(expected) <= MAX_VALUES:
        assert positive(f"{first}-{first + length}+{step}") == tuple(expected)


@given(st.text(alphabet="0123456789-*+, x", max_size=12))
def test_no_text_does_anything_but_expand_or_raise_one_line(text: str) -> None:
    try:
        values = positive(text)
    except ValueError as error:
        lines, values = str(error).count("\n") + 1, (1,)
    else:
        lines = 1
    assert lines == 1
    assert all(value >= 1 for value in values)
    assert 0 < len(set(values)) == len(values) <= MAX_VALUES

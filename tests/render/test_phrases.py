"""Numbers in sentences, and sentences without numbers where no difference was resolved."""

from __future__ import annotations

import pytest

from sysbench.render.sentences.findings import Finding, with_setting
from sysbench.render.sentences.phrases import contains_one, no_difference_clause, ratio_range, with_interval
from sysbench.statistics import Ratio
from tests.fixtures_findings import time_cell


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (Ratio(1.3, 1.299, 1.301), "1.30×"),
        (Ratio(3.65, 3.61, 3.69), "3.65× (95% CI 3.61–3.69)"),
        (Ratio(3.65, None, None), "3.65×"),
    ],
)
def test_an_interval_is_shown_if_its_ends_differ_from_the_ratio(found: Ratio, shown: str) -> None:
    assert with_interval(found) == shown


@pytest.mark.parametrize(
    ("found", "contained"),
    [(Ratio(2.24, 0.64, 3.86), True), (Ratio(2.24, 1.64, 3.86), False), (Ratio(1.0, None, None), False)],
)
def test_only_an_interval_contains_one(found: Ratio, contained: bool) -> None:
    assert contains_one(found) == contained


def test_a_ratio_whose_interval_contains_one_is_replaced_by_its_interval_the_widest_of_several() -> None:
    assert no_difference_clause("bf16", "fp32", [(Ratio(2.24, 0.64, 3.86), 6)]) == (
        "bf16 and fp32 do not differ measurably: the 95% interval of the ratio is 0.64–3.86"
    )
    assert no_difference_clause("a", "b", [(Ratio(1.2, 0.9, 1.5), 6), (Ratio(2.24, 0.64, 3.86), 10)], "call") == (
        "a and b do not differ measurably in both cells: the 95% interval of the ratio is 0.64–3.86"
    )


def test_what_is_resolved_to_be_equal_is_said_to_be() -> None:
    assert no_difference_clause("a", "b", [(Ratio(1.001, 0.998, 1.004), 40)]) == "a and b are equally fast to within 1%"


def test_an_interval_without_one_that_is_insignificant_is_said_to_be_of_too_few_steps() -> None:
    assert no_difference_clause("a", "b", [(Ratio(1.9, 1.89, 1.91), 6), (Ratio(1.9, 1.89, 1.91), 6)]) == (
        "6 steps are too few, or vary too much, to tell whether a or b is faster in any of 2 cells"
    )


def test_the_ends_of_a_range_have_the_same_decimals() -> None:
    assert ratio_range(0.993, 1.27) == "0.99 to 1.27×"
    assert ratio_range(1.001, 1.004) == "1.001 to 1.004×"
    assert ratio_range(1.311, 1.309) == "1.31×"


def test_a_setting_is_said_unless_the_finding_names_it_whatever_its_text_contains() -> None:
    short, long = (time_cell({"forward": [0.01, 0.011]}, ctx=ctx) for ctx in (12, 128))
    silent, named = (
        Finding("slower than ctx 128.", (short,)),
        Finding("ctx 12 is slow.", (short,), named=frozenset({"ctx"})),
    )
    texts = [each.text for each in with_setting([silent, named], [short, long])]
    assert texts == ["ctx 12: slower than ctx 128.", "ctx 12 is slow."]

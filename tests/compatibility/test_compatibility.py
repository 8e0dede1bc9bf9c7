"""Saved runs of every command are shown as they were, to the byte.

The suite asks every eighth line of each group; `python -m tests.compatibility` asks all.
"""

from __future__ import annotations

import shutil

import pytest

from tests.compatibility import answers
from tests.compatibility.__main__ import answered, compared, same
from tests.compatibility.lines import lines

EVERY = 8

GROUPS = tuple(dict.fromkeys(line.group for line in lines()))


@pytest.mark.parametrize("group", GROUPS)
def test_every_answer_is_as_it_was_recorded(group: str) -> None:
    if group == "help" and {"typer", "rich"} & set(others := answers.other_libraries()):
        pytest.skip(f"help was recorded with other versions than {others}")
    if group == "here" and shutil.which("nvidia-smi"):
        pytest.skip("recorded on a machine without a GPU")
    found = answered([line for line in lines() if line.group == group][::EVERY])
    different = [difference for line, text in found.items() if (difference := compared(line, text))]
    assert not different, "\n".join(different)


@pytest.mark.parametrize(
    ("then", "now", "is_same"),
    [
        ("slope 2.0 of 4 sizes", "slope 1.9999999999999998 of 4 sizes", True),
        ("1.5e-07,3", "1.50000000001e-07,3", True),
        ("slope 2.0", "slope 2.001", False),
        ("slope 2.0 of 4 sizes", "slope 2.0 of 5 sizes", False),  # whole numbers are exact
        ("slope 2.0", "slope  2.0", False),
        ("torch 2.0.1", "torch 2.0.2", False),
        ("1.0 2.0", "1.0", False),
    ],
)
def test_answers_are_compared_by_words_and_by_numbers(then: str, now: str, is_same: bool) -> None:
    assert same(then, now) is is_same


def test_no_answer_is_recorded_that_is_not_asked_for() -> None:
    asked = {group: [line.text for line in lines() if line.group == group] for group in GROUPS}
    assert {group: list(answers.recorded(group)) for group in GROUPS} == asked
    assert {path.stem for path in answers.ANSWERS.iterdir()} == set(GROUPS)

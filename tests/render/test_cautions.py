"""Remarks about several cells say what holds for all of them."""

from __future__ import annotations

from typing import get_args

import pytest

from sysbench.commands.attention.spec import AttentionSpec
from sysbench.log.outcomes import Caution, CautionCode, caution
from sysbench.render.sentences.cautions import SENTENCES, cautions_of, say
from sysbench.render.sentences.phrases import name_among
from tests import fixtures_attention as runs
from tests.fixtures_cautions import drift


def modes(gap_share: float, lower_s: float, upper_s: float) -> Caution:
    levels = {"gap_share": gap_share, "lower_s": lower_s, "upper_s": upper_s, "upper_share": 0.4}
    return caution("two-modes", "wait", about=("step",), **levels)


def too_few(steps: int) -> Caution:
    return caution("too-few-steps", "wait", steps=steps)


@pytest.mark.parametrize(
    ("doubts", "said"),
    [
        (
            (drift(0.48), drift(0.11), drift(1.77)),
            ["every cell: steps get slower, by 11% to 177% from the first to the last"],
        ),
        ((drift(0.48), drift(0.48), drift(0.48)), ["every cell: steps get slower, by 48% from the first to the last"]),
        ((too_few(3), too_few(1), too_few(3)), ["every cell: 1 to 3 measured steps are too few for a 95% interval"]),
        # Ranges of two numbers would say nothing about any one cell.
        (
            (modes(0.1, 0.009, 0.0099), modes(0.5, 0.008, 0.012), modes(0.2, 0.01, 0.012)),
            [
                "every cell: step times switch between 8.00 ms and 12.0 ms, and 40% of the steps are slow: the mean "
                "represents neither (the worst of 3 cells: N 512)"
            ],
        ),
        # What is not about the same thing has a sentence of its own.
        (
            (drift(0.1), drift(0.2, direction="faster"), drift(0.1)),
            [
                "N 256 and N 1024: steps get slower, by 10% from the first to the last",
                "N 512: steps get faster, by 20% from the first to the last",
            ],
        ),
    ],
)  # fmt: skip
def test_cautions_about_several_cells_say_a_range_or_the_worst(doubts: tuple[Caution, ...], said: list[str]) -> None:
    record = runs.record(AttentionSpec(seq="256,512,1024"))
    cells = [cell.model_copy(update={"cautions": [doubt]}) for cell, doubt in zip(record.cells, doubts, strict=True)]
    assert [remark.text for remark in cautions_of(record.model_copy(update={"cells": cells}))] == said


def test_numbers_that_the_sentence_does_not_state_do_not_matter() -> None:
    busy = [
        (name, caution("host-busy", "", busy_share=share, off_share=share / 2))
        for name, share in (("a", 0.2), ("b", 0.4))
    ]
    assert say(busy, str) == "other processes used 20% to 40% of the CPU during the run"


def test_the_smallest_margin_is_the_worst() -> None:
    margins = [
        (name, caution("narrow-margin", "", margin_bytes=margin, uncertainty_bytes=4 * margin))
        for name, margin in (("a", 2e6), ("b", 1e6))
    ]
    assert say(margins, str).endswith("(the worst of 2 cells: b)")


@pytest.mark.parametrize("code", get_args(CautionCode))
def test_a_caution_that_lacks_what_its_sentence_states_is_said_with_what_it_has(code: CautionCode) -> None:
    assert SENTENCES[code]
    said = say([("here", caution(code, "", a_share=0.5))], str)
    assert said
    assert "{" not in said


def test_cells_that_are_all_with_some_values_of_an_axis_are_named_by_these_values() -> None:
    cells = runs.record(AttentionSpec(impl="naive,compiled,sdpa-flash", seq="256,512,1024,4096")).cells
    of = {name: [cell for cell in cells if cell.cell.implementation == name] for name in ("naive", "compiled")}
    assert name_among(of["naive"], cells) == "naive"
    assert name_among([*of["naive"], *of["compiled"]], cells) == "naive and compiled"
    assert name_among([cell for cell in cells if cell.cell.seq == 512], cells) == "N 512"
    assert name_among(of["naive"][:2], cells) == "naive N 256, naive N 512"
    assert name_among(of["naive"][:1], cells) == "naive N 256"
    assert name_among(cells, cells) == "every cell"

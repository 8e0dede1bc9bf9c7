"""Remarks about several cells say what holds for all of them."""

from __future__ import annotations

import pytest

from sysbench.commands.attention.spec import AttentionSpec
from sysbench.log.outcomes import Caution
from sysbench.render import remarks
from tests import fixtures_attention as runs


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (("spans 48%", "spans 11%", "spans 177%"), "every cell: spans 11 to 177%"),
        (("spans 48%", "spans 48%", "spans 48%"), "every cell: spans 48%"),
        (("1,016.0 MiB of 2 GiB", "254.0 MiB of 2 GiB", "9.5 MiB of 2 GiB"), "every cell: 9.5 to 1,016.0 MiB of 2 GiB"),
        # Not the same quantity in the same unit: the sentence is of one cell, and names it.
        (("12.0 ms late", "900 µs late", "2.0 ms late"), "every cell: 12.0 ms late (e.g. N 256)"),
        (("slower than fp16", "slower than fp32", "slower than fp16"), "every cell: slower than fp16 (e.g. N 256)"),
    ],
)  # fmt: skip
def test_cautions_that_differ_in_numbers_have_the_range_of_all_cells(messages: tuple[str, ...], said: str) -> None:
    record = runs.record(AttentionSpec(seq="256,512,1024"))
    cells = [
        cell.model_copy(update={"cautions": [Caution(code="drift", message=text, remedy="wait")]})
        for cell, text in zip(record.cells, messages, strict=True)
    ]
    (remark,) = remarks.cautions(record.model_copy(update={"cells": cells}))
    assert remark.text == said


def test_cells_that_are_all_with_some_values_of_an_axis_are_named_by_these_values() -> None:
    cells = runs.record(AttentionSpec(impl="naive,compiled,sdpa-flash", seq="256,512,1024,4096")).cells
    of = {name: [cell for cell in cells if cell.cell.implementation == name] for name in ("naive", "compiled")}
    assert remarks.name_cells(of["naive"], cells) == "naive"
    assert remarks.name_cells([*of["naive"], *of["compiled"]], cells) == "naive and compiled"
    assert remarks.name_cells([cell for cell in cells if cell.cell.seq == 512], cells) == "N 512"
    assert remarks.name_cells(of["naive"][:2], cells) == "naive N 256, naive N 512"
    assert remarks.name_cells(of["naive"][:1], cells) == "naive N 256"
    assert remarks.name_cells(cells, cells) == "every cell"

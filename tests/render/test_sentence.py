"""What is found is said in sentences, whatever it is put together from."""

from __future__ import annotations

import pytest

from sysbench.commands.report.document import ReportedFinding
from sysbench.render.table import Remark, sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the first step takes 12 s.", "The first step takes 12 s."),
        ("a full step needs 2 GiB", "A full step needs 2 GiB."),
        ("forward: softmax takes 1 ms", "Forward: softmax takes 1 ms."),
        ("small, fp32: it grows.", "Small, fp32: it grows."),
        ("bf16 is faster.", "bf16 is faster."),
        ("sdpa-math keeps 2 GiB.", "sdpa-math keeps 2 GiB."),
        ("xl needs most.", "xl needs most."),
        ("trace.json is slowest", "trace.json is slowest."),
        ("s += x is off", "s += x is off."),
        ("2.7b does not fit.", "2.7b does not fit."),
        ("the interval is 1%", "The interval is 1%."),
        ("", ""),
    ],
)
def test_a_finding_begins_and_ends_as_a_sentence_and_names_keep_their_letters(text: str, said: str) -> None:
    assert sentence(text) == said
    assert Remark("finding", text).text == ReportedFinding(text, ()).text == said


def test_what_is_no_finding_is_left_as_it_is() -> None:
    assert Remark("note", "warm-up steps in brackets").text == "warm-up steps in brackets"

"""Answers that docs/fit.md quotes, against simulations of the step as asked and of the suggested one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from sysbench import units
from sysbench.commands.fit.search.changes import Change, changed
from sysbench.commands.fit.spec import FitCell, FitSpec
from sysbench.commands.fit.suggestions import words
from sysbench.extras import installed_torch
from sysbench.predict.simulated_step import SimulatedStep

PAGE = Path(__file__).parents[3] / "docs" / "fit.md"
FUSED = {"attention": "sdpa", "optimizer": "fused"}


@pytest.mark.skipif(installed_torch() != (2, 15), reason="the page quotes what PyTorch 2.15 needs")
@pytest.mark.parametrize(
    ("question", "changes"),
    [
        ("Small on a card with 8 GiB?", {**FUSED, "cross_entropy": "chunked"}),
        ("A batch of 64 on 40 GB?", {**FUSED, "batch": 32, "grad_accum": 2}),
        ("Medium fits on 80 GB: what makes it faster?", {"optimizer": "fused"}),
    ],
)
def test_a_quoted_answer_is_what_is_simulated(question: str, changes: dict[str, Any]) -> None:
    cell, answer = quoted(question)
    (gpu,) = cell.on
    asked = SimulatedStep(cell.step, gpu).memory[1]
    suggested = SimulatedStep(changed(cell, (Change("all", tuple(changes.items())),)).step, gpu)
    margin = units.size(abs(asked.margin_bytes))
    assert f"{margin} {'to spare' if asked.fits else 'more are needed'}" in answer
    assert f"with {words(changes)}: {units.size(suggested.memory[1].margin_bytes)} to spare" in answer
    if "a step of" in answer:
        assert answer.endswith(f"a step of {units.seconds(suggested.prediction.time.point_s)}.")


def quoted(question: str) -> tuple[FitCell, str]:
    """Return what the page asks, and the answer that it quotes."""
    found = re.search(rf"\*\*{re.escape(question)}\*\*\s`(.*?)`\n\n(.*?)\n\n", PAGE.read_text(), re.DOTALL)
    assert found is not None
    options = shlex.split(found[1])
    given: dict[str, Any] = {}
    for option, value in zip(options, [*options[1:], ""], strict=True):
        if option == "--bf16":
            given["precision"] = "bf16"
        elif option == "--on":
            given["gpus"] = value
        elif option.startswith("--") and option not in ("--faster", "--keep"):
            given[option[2:].replace("-", "_")] = value
    (cell,) = FitSpec(**given).cells()
    return cell, " ".join(found[2].split())

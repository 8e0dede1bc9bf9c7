"""Whatever was done to a record or a log, the answer is a result, or one line and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import answered
from tests.log.damage import RUNS, Mutant, answers, mutants, originals

COMMANDS = ("from", "report", "compare", "resume")
EACH = 60
"""So many of each of two seeds; `tests.bench.faults` has as many as it is asked for."""


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_run_is_shown_or_refused_in_one_line(seed: int, tmp_path: Path) -> None:
    found = mutants(seed, EACH, originals(largest_bytes=20_000)[seed % 2 :: 2])
    wrong = [
        (mutant.original.name, mutant.change, answer)
        for number, mutant in enumerate(found)
        for answer in answers(mutant, tmp_path, [COMMANDS[(number // 2) % 4]])
        if not answer.acceptable
    ]
    assert not wrong


@pytest.mark.parametrize("name", ["rounded_addend", "result"])
def test_a_sum_beyond_the_range_of_every_format_is_left_out(tmp_path: Path, name: str) -> None:
    original = RUNS / "accum-sums.jsonl"
    before, found, after = original.read_text(encoding="utf-8").rpartition(f'"{name}":')
    content = f"{before}{found}1e308{after[after.index(',') :]}"
    number = before.count("\n") + 1
    for answer in answers(Mutant(original, name, content.encode()), tmp_path, ("from", "report", "compare")):
        assert answer.acceptable
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(content, encoding="utf-8")
    ran = answered("accum", "--from", str(damaged))
    assert f"line {number} of the log is damaged" in ran.out

"""What command lines answer about the saved runs of `tests/fixtures/runs`, as a reader sees it.

Every file of `tests/golden/outputs` has a command line in its first line, with variables in front of it if it needs
any, and below it the exit code, stdout and stderr. `SYSBENCH_UPDATE_GOLDEN=1 pytest tests/golden` writes what is
answered now; another output is another file with such a first line.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.running import answered

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
OUTPUTS = sorted((Path(__file__).parent / "outputs").glob("*.txt"))
FRACTION = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+e-\d+")
VERSION = re.compile(r"\bsysbench \d+\.\d+\.\d+\S*")
TOLERANCE = 2e-8
"""Relative difference of two fractions that are the same: processors differ in the last digits."""


def output(line: str) -> str:
    """Run a command line in the directory of the saved runs; return its exit code and what it prints."""
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words[: words.index("sysbench")])
    ran = answered(*words[words.index("sysbench") + 1 :], cwd=RUNS, **{"TERM": "dumb", **variables})
    shown = f"exit {ran.code}\n{ran.out}" + (f"--- stderr\n{ran.err}" if ran.err else "")
    shown = VERSION.sub("sysbench VERSION", shown).replace("\x1b", "␛")
    return "\n".join(line.rstrip() for line in shown.splitlines()) + "\n"


def is_same(expected: str, actual: str) -> bool:
    """Whether words and whole numbers are equal, and fractions are equal as numbers."""
    fractions = zip(FRACTION.findall(expected), FRACTION.findall(actual), strict=False)
    return FRACTION.split(expected) == FRACTION.split(actual) and all(
        math.isclose(float(one), float(other), rel_tol=TOLERANCE) for one, other in fractions
    )


@pytest.mark.parametrize("file", OUTPUTS, ids=lambda file: file.stem)
def test_a_command_line_answers_as_expected(file: Path) -> None:
    line, _, expected = file.read_text(encoding="utf-8").partition("\n")
    actual = output(line)
    if os.environ.get("SYSBENCH_UPDATE_GOLDEN"):
        file.write_text(f"{line}\n{actual}", encoding="utf-8")
    elif not is_same(expected, actual):
        assert actual == expected


def test_every_command_that_shows_saved_runs_has_an_output() -> None:
    lines = [file.read_text(encoding="utf-8").partition("\n")[0] for file in OUTPUTS]
    shown = {words[words.index("sysbench") + 1] for line in lines if (words := shlex.split(line))}
    shows = {"time", "memory", "fit", "profile", "attention", "accum", "calibrate", "loop", "compare", "report"}
    assert shows <= shown

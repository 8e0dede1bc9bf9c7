"""`pytest -m gpu`: what can run side by side, and what needs the GPU for itself.

Tests marked `slow` are those that other parts do: memory simulated against measured, and what sysbench costs.
"""

from __future__ import annotations

import importlib.util
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from tests.gpu.evidence.promises import at_least, none_of
from tests.gpu.evidence.work import Part, Work

AT_ONCE = 5
"""Processes with a CUDA context each; a host of 16 cores has some left for the parts beside this one."""


def outcomes(report: Path) -> list[dict[str, Any]]:
    """Every test of a JUnit report: name, outcome, seconds, and the last lines of what went wrong."""
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = {None: "passed", "skipped": "skipped"}.get(problem.tag if problem is not None else None, "failed")
        said = "" if problem is None else f"{problem.get('message') or ''}\n{(problem.text or '')[-1500:]}"
        found.append(
            {
                "test": f"{case.get('classname')}::{case.get('name')}",
                "outcome": outcome,
                "took_s": float(case.get("time") or 0),
                "detail": said.strip(),
            }
        )
    return found


def _run(work: Work, marked: str, *words: str) -> None:
    report = work.place / "junit.xml"
    if work.rehearsal:
        # There is nothing to run these on here: that they can be collected is all there is to see.
        work.command(sys.executable, "-m", "pytest", "-q", "-W", "default", "-m", marked, "--collect-only", "tests/gpu")
        marked, words = "not gpu", ("tests/render/test_units.py",)
    # Warnings of plugins and libraries that happen to be installed there are no errors; see conftest.py.
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-W", "default")
    command = ["-m", "pytest", *quiet, "-m", marked, f"--junitxml={report}", "--durations=15"]
    work.command(sys.executable, *command, *words, codes=(0, 1))
    with work.attempt("the report of pytest"):
        _tell(work, outcomes(report))


def _tell(work: Work, tests: list[dict[str, Any]]) -> None:
    work.numbers["tests"] = tests
    failed = [test["test"] for test in tests if test["outcome"] == "failed"]
    passed = sum(test["outcome"] == "passed" for test in tests)
    skipped = [test for test in tests if test["outcome"] == "skipped"]
    work.see(work.part.promises[0].name, len(failed), "; ".join(failed)[:1000])
    work.see(work.part.promises[1].name, passed, f"{len(skipped)} skipped")
    rows = sorted((test["outcome"], test["test"], f"{test['took_s']:.1f}") for test in tests)
    work.table(work.part.title, ("outcome", "test", "s"), rows)


def _together(work: Work) -> None:
    parallel = ["-n", str(AT_ONCE), "--dist", "worksteal"] if importlib.util.find_spec("xdist") else []
    _run(work, "gpu and not alone and not slow", *parallel, "tests/gpu")


def _alone(work: Work) -> None:
    _run(work, "gpu and alone and not slow", "tests/gpu")


TOGETHER = Part(
    "tests-together",
    "pytest -m gpu: tests that can share the GPU",
    110,
    _together,
    (none_of("tests that fail, of those that share"), at_least("tests that pass, of those that share", 1, "count")),
    alone=False,
    limit_s=240,
)
ALONE = Part(
    "tests-alone",
    "pytest -m gpu: tests that need the GPU for themselves",
    150,
    _alone,
    (none_of("tests that fail, of those alone"), at_least("tests that pass, of those alone", 1, "count")),
    limit_s=280,
)

"""The page of `sysbench fit`: what it holds, and what a browser shows of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sysbench.commands.fit import page
from sysbench.commands.fit.record import FitRecord, PhaseMemory, SurveyedStep
from tests import fixtures_runs
from tests.render.browser import browser, missing


def surveyed(name: str = "backward") -> FitRecord:
    """The record of a run with its trials as the steps of a page; `name` stands wherever a name is free."""
    record = fixtures_runs.record("fit", name)
    assert isinstance(record, FitRecord)
    (cell,) = record.cells
    steps = [
        SurveyedStep(
            trial=trial.model_copy(update={"phase": name, "by_category": {name: trial.allocated_peak_bytes}}),
            usable_bytes=23 << 30,
            phases=[
                PhaseMemory(name="forward", duration_s=0.1, allocated_bytes=[1 << 30, 2 << 30]),
                PhaseMemory(name=name, duration_s=0.2, allocated_bytes=[trial.allocated_peak_bytes]),
            ],
        )
        for trial in cell.trials
    ]
    return record.model_copy(update={"cells": [cell.model_copy(update={"surveyed": steps})]})


def data_of(html: str) -> Any:
    return json.loads(html.split('<script type="application/json" id="data">')[1].split("</script>")[0])


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_names_are_text() -> None:
    html = page.render(surveyed(HOSTILE))
    assert "<img" not in html
    assert "alert(1)</script>" not in html
    assert {step["phases"][1][0] for step in data_of(html)["steps"]} == {HOSTILE}


def test_the_page_refers_to_nothing_outside_itself() -> None:
    html = page.render(surveyed())
    assert "default-src 'none'" in html
    for word in ("http://", "https://", "src=", "@import", "url("):
        assert word not in html.replace("http://www.w3.org/2000/svg", "")


CHOOSE = """
const select = document.getElementById(arguments[0]);
select.value = arguments[1];
select.dispatchEvent(new Event("change"));
"""


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("name", ["backward", HOSTILE])
def test_the_page_shows_what_is_chosen(name: str, tmp_path: Path) -> None:
    written = tmp_path / "page.html"
    page.write(written, surveyed(name))
    steps = data_of(written.read_text())["steps"]
    assert {step["verdict"] for step in steps} == {"does not fit", "fits"}
    with browser(tmp_path / "profile") as shown:
        shown.open(written)
        for step in steps:
            for axis in ("gpu", "batch", "ctx", "changes"):
                shown.run(CHOOSE, axis, str(step[axis]))
            assert shown.text("#command") == step["command"]
            assert shown.text("#verdict").startswith(f"The step {step['verdict']}: ")
            assert step["phase"] in shown.text("#facts")
            (path,) = shown.run(
                "return [...document.querySelectorAll('path.area')].map((path) => path.getAttribute('d'))"
            )
            assert path.count("L") == 2 * 3 + 1
        assert shown.complaints() == []

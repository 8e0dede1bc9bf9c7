"""Adding an axis is a field of a cell and the place in `lab` that acts on it: all else follows from the field."""

import csv
import json
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sysbench
from sysbench.spec.cell import spec_of
from tests.cli.running import MINUTE, only, record_in
from tests.cli.running import sysbench as process

FIELD = """
    stall: Annotated[
        str,
        Axis("choice", "{} stall", parse=choices("a stall", ("no", "long"))),
        Option(metavar="KIND,…", panel=STEP),
    ] = stored_unless("no", description="Wait before each forward pass: no, long.")
"""

STALL_S = 0.5

ACT = f"""
        if self.cell.stall == "long":
            __import__("time").sleep({STALL_S})
"""

pytestmark = pytest.mark.slow

TINY = (*MINUTE, "--ctx", "16", "--steps", "2", "--warmup", "1", "--device", "cpu", "--mode", "forward")


@dataclass(frozen=True)
class Changed:
    """A copy of the package in which the axis was added in two places, with a run of both of its values in `both`."""

    directory: Path

    def __call__(self, *arguments: str) -> str:
        ran = process(*arguments, cwd=self.directory, PYTHONPATH=str(self.directory / "copy"))
        assert ran.code == 0, ran.err
        return ran.out

    @property
    def record(self) -> str:
        return str(only(self.directory / "both", "*.json"))

    @property
    def cells(self) -> list[dict[str, Any]]:
        cells: list[dict[str, Any]] = record_in(self.directory / "both")["cells"]
        return cells


def insert(file: Path, before: str, text: str) -> None:
    source = file.read_text()
    assert source.count(before) == 1
    file.write_text(source.replace(before, text.removeprefix("\n") + before))


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Changed:
    changed = Changed(tmp_path_factory.mktemp("changed"))
    package = changed.directory / "copy" / "sysbench"
    shutil.copytree(Path(sysbench.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    insert(package / "spec" / "grid.py", "    seed: Annotated[Seed", FIELD)
    insert(package / "lab" / "step.py", "        batch = self.work.batches[number]\n", ACT)
    changed("time", *TINY, "--stall", "no,long", "--no-live", "--out", "both")
    return changed


def step_s(cell: dict[str, Any]) -> float:
    return statistics.median(cell["phases"]["step"]["wall"]["samples_s"])


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_it_is_an_option_and_an_axis_of_the_plan(changed: Changed) -> None:
    assert "--stall" in changed("time", "--help", "all")
    plan = json.loads(changed("time", *TINY, "--stall", "no,long", "--plan", "--json", "-"))
    assert [row["stall"] for row in plan["tables"][0]["rows"]] == ["no", "long"]


def test_it_acts_where_the_step_is_computed(changed: Changed) -> None:
    quick, slow = changed.cells
    assert (quick["outcome"], slow["outcome"]) == ("ok", "ok")
    assert step_s(slow) > STALL_S > step_s(quick)


def test_cells_with_its_default_keep_the_keys_of_older_runs(changed: Changed) -> None:
    quick, slow = changed.cells
    assert "stall" not in quick["axes"]
    assert slow["axes"]["stall"] == "long"
    spec = record_in(changed.directory / "both")["spec"]
    (older,) = spec_of({name: value for name, value in spec.items() if name != "stall"}).cells()
    assert quick["key"] == older.key != slow["key"]


def test_it_is_tabulated_and_named(changed: Changed) -> None:
    cells = table(changed("time", "--from", changed.record, "--format", "csv", "--tables", "cells"))
    assert {row["stall"] for row in cells} == {"no", "long"}
    (arms,) = table(changed("time", "--from", changed.record, "--format", "csv", "--tables", "stall"))
    assert float(arms["forward_long_s"]) > STALL_S > float(arms["forward_no_s"])
    changed("report", changed.record, "-o", "report.md")
    assert "long stall" in (changed.directory / "report.md").read_text()


def test_it_is_resumed(changed: Changed) -> None:
    resumed, (quick, slow) = changed.directory / "resumed", changed.cells
    shutil.copytree(changed.directory / "both", resumed)
    log = only(resumed, "*.jsonl")
    kept = [line for line in log.read_text().splitlines() if json.loads(line).get("cell") != slow["key"]]
    log.write_text("\n".join([*kept, ""]))
    log.with_suffix(".json").unlink()
    changed("time", "--resume", str(log), "--no-live")
    first, second = record_in(resumed)["cells"]
    assert first["phases"] == quick["phases"]
    assert second["phases"] != slow["phases"]
    assert step_s(second) > STALL_S


def test_its_effect_is_compared(changed: Changed) -> None:
    for value in ("no", "long"):
        changed("time", *TINY, "--stall", value, "--no-live", "--out", value)
    compared = json.loads(changed("compare", "no", "long", "--across", "stall", "--json", "-"))
    assert compared["across"] == ["stall"]
    (cell,) = compared["cells"]
    assert cell["times"][0]["ratio"] > 1


def test_files_of_its_cells_are_named_by_it(changed: Changed) -> None:
    simulated = (*MINUTE, "--ctx", "16", "--mode", "forward", "--simulate", "24GiB")
    changed("memory", *simulated, "--stall", "no,long", "--page", "page.html")
    assert {path.name for path in changed.directory.glob("page*")} == {"page.html", "page-no.html", "page-long.html"}

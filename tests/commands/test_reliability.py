"""What cautions exclude stands in no finding of any command, whatever its numbers are, and is marked in tables."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from sysbench.command import kinds
from sysbench.commands.compare.cells import build_side
from sysbench.commands.compare.comparison import Rules, compare
from sysbench.commands.compare.tables import sheet as comparison_sheet
from sysbench.commands.kinds import command_of
from sysbench.commands.report.agreement import CROSS_RUN_FINDINGS
from sysbench.commands.report.assemble import assemble_document
from sysbench.commands.report.document import ReportedRun
from sysbench.commands.sheets import sheet
from sysbench.log.outcomes import EXCLUDING, CautionCode
from sysbench.log.records import RunRecord
from sysbench.log.runs import load
from sysbench.render.markdown import table as markdown_table
from sysbench.render.sentences.findings import Finding
from sysbench.statistics.doubt import Cause

FOLDER = Path(__file__).parents[1] / "fixtures" / "runs"
RUNS = sorted(FOLDER.glob("*.jsonl"))
EXCLUDING_TIMES = sorted(EXCLUDING["times"] | set(get_args(Cause)))
"""Codes of cautions that exclude times, those about doubts where they do not say by how much."""
DESCRIPTIVE = ("axes", "device", "gpu", "model", "own_model", "cautions")
"""Parts of a cell that are no results."""


def with_doubt(record: RunRecord[Any], doubted: Mapping[int, CautionCode], factor: float) -> RunRecord[Any]:
    """The record with a caution about each of these cells, whose every time and size is multiplied by a factor."""
    fields = record.model_dump(mode="json")
    for number, code in doubted.items():
        cell = fields["cells"][number]
        units = ("_s", "_ns", "_bytes") if code in EXCLUDING["memory"] else ("_s", "_ns")
        changed = {key: scaled(value, factor, units) for key, value in cell.items() if key not in DESCRIPTIVE}
        caution = {"code": code, "remedy": ""}
        fields["cells"][number] = {**cell, **changed, "cautions": [*cell["cautions"], caution]}
    return type(record).model_validate(fields)


def scaled(value: Any, factor: float, units: tuple[str, ...], key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: scaled(each, factor, units, name) for name, each in value.items()}
    if isinstance(value, list):
        return [scaled(each, factor, units, key) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float) or not key.endswith(units):
        return value
    return type(value)(value * factor)


def findings_of(record: RunRecord[Any]) -> list[Finding]:
    command = command_of(record.kind).results()
    below = command.headlines(record.cells) if command.headlines else ()
    return [*below, *command.findings(record)]


def cases() -> Iterator[tuple[RunRecord[Any], dict[int, CautionCode]]]:
    """Every recorded run, twice, with cautions about some cells that exclude them."""
    for path in RUNS:
        record, dice = load(path), random.Random(path.name)
        for _ in range(2):
            chosen = [number for number in range(len(record.cells)) if dice.random() < 0.4]
            yield record, {number: dice.choice(EXCLUDING_TIMES) for number in chosen}


def test_no_finding_of_any_command_rests_on_an_excluded_cell() -> None:
    seen = set()
    for record, doubted in cases():
        seen.add(record.kind)
        one, other = (with_doubt(record, doubted, factor) for factor in (1, 7))
        said = findings_of(one)
        for each in said:
            excluded = [cell for cell in each.cells if {c.code for c in cell.cautions} & EXCLUDING[each.about]]
            assert each.is_exclusion or not excluded, each.text
        # Independent of what findings say that they rest on: other numbers of these cells change not a word.
        assert [each.text for each in findings_of(other)] == [each.text for each in said]
    assert seen >= set(kinds()) - {"loop", "calibrate", "fit"}  # which have no cautions that exclude


def test_agreements_between_runs_and_comparisons_leave_excluded_cells_out() -> None:
    record = load(FOLDER / "time-a100.jsonl")
    everything: dict[int, CautionCode] = dict.fromkeys(range(len(record.cells)), "throttled")
    first = dict(list(everything.items())[:1])
    for doubted in (everything, first):
        one, other = (with_doubt(record, doubted, factor) for factor in (1, 7))
        said = [
            [
                remark.text
                for remark in comparison_sheet(
                    compare(build_side("a", {1: record}), build_side("b", {1: changed}), Rules())
                ).remarks
                if remark.kind == "finding"
            ]
            for changed in (one, other)
        ]
        assert said[0] == said[1]
        assert any("throttled" in text for text in said[0])
    assert "cannot be decided" in comparison_text(record, with_doubt(record, everything, 7))
    profile = load(FOLDER / "profile-a100.jsonl")
    runs = [ReportedRun("time", with_doubt(record, everything, 7)), ReportedRun("profile", profile)]
    assert not [finding for across in CROSS_RUN_FINDINGS for finding in across(runs)]


def comparison_text(one: RunRecord[Any], other: RunRecord[Any]) -> str:
    found = compare(build_side("a", {1: one}), build_side("b", {1: other}), Rules())
    return " ".join(remark.text for remark in comparison_sheet(found).remarks)


@pytest.mark.parametrize("name", ["time-a100.jsonl", "attention-a100.jsonl", "profile-a100.jsonl"])
def test_rows_of_excluded_cells_are_marked_and_say_why(name: str) -> None:
    record = load(FOLDER / name)
    doubted: dict[int, CautionCode] = dict.fromkeys(range(0, len(record.cells), 2), "throttled")
    tables = sheet(with_doubt(record, doubted, 1)).tables
    assert any(table.excluded for table in tables)
    for table in tables:
        *_, rows, _ = [*markdown_table(table), ""] if not table.excluded else markdown_table(table)
        marked = [number for number, row in enumerate(rows.split("\n")[2:]) if " ! " in row]
        assert marked == sorted(table.excluded)
        assert ("excluded from findings because of cautions" in "".join(markdown_table(table))) is bool(table.excluded)
    assert not any(table.excluded for table in sheet(record).tables if not caution_codes(record))


def caution_codes(record: RunRecord[Any]) -> set[str]:
    return {caution.code for cell in record.cells for caution in cell.cautions}


def test_a_section_answers_its_question_even_if_every_cell_is_excluded() -> None:
    for name, answer in (
        ("time-precisions.jsonl", "Whether bf16 or fp32 is faster cannot be decided"),
        ("time-warmup.jsonl", "Small: what a missing warm-up costs cannot be decided"),
        ("profile-a100.jsonl", "Where the time goes cannot be decided"),
        ("attention-a100.jsonl", "Which implementation is fastest cannot be decided"),
    ):
        record = load(FOLDER / name)
        doubted: dict[int, CautionCode] = dict.fromkeys(range(len(record.cells)), "throttled")
        (section,) = assemble_document([ReportedRun("run", with_doubt(record, doubted, 1))]).sections
        assert section.findings[0].text.startswith(answer), [each.text for each in section.findings]


def test_the_page_about_cautions_lists_what_excludes_a_cell() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cautions.md").read_text(encoding="utf-8")
    listed = {row.split("|")[1].strip(): set(re.findall(r"`([a-z-]+)`", row)) for row in page.split("\n") if "|" in row}
    assert listed["memory"] == EXCLUDING["memory"]
    assert listed["times"] == EXCLUDING["times"] - EXCLUDING["memory"]

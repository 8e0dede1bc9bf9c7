"""What a comparison writes: tables, JSON, and formats that CI services read.

bmf      Bencher Metric Format (bencher.dev/docs/reference/bencher-metric-format): latency in nanoseconds
gha      github-action-benchmark, `customSmallerIsBetter` (github.com/benchmark-action/github-action-benchmark)
junit    JUnit XML: one test for each cell, which fails if the cell fails the gate
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from rich.text import Text

from sysbench.commands.compare import tables
from sysbench.commands.compare.comparison import CellComparison, Comparison
from sysbench.commands.compare.spec import CompareOptions, Export
from sysbench.log.storage import write_atomically
from sysbench.render import theme
from sysbench.render.output import print_json, results, show_sheet
from sysbench.units import Unit

REGRESSION_EXIT_CODE = 3


def exit_code(comparison: Comparison) -> int:
    return 0 if comparison.gate is None or comparison.gate.holds else REGRESSION_EXIT_CODE


def show(comparison: Comparison, options: CompareOptions) -> None:
    content = comparison.model_dump_json(indent=1) if options.json_path is not None else ""
    if options.json_path not in (None, "-"):
        write_atomically(Path(options.json_path), content.encode() + b"\n")
    with results() as console:
        if options.json_path == "-":
            print_json(content)
        elif options.export is not None:
            sys.stdout.write(export_text(comparison, options.export))
        elif options.quiet and not options.tables and options.format == "terminal":
            console.print(Text(tables.summary_line(comparison)), soft_wrap=True)
        else:
            sheet = tables.sheet(comparison, options.tables, complete=options.format == "csv")
            show_sheet(sheet, console, options.format)


def export_text(comparison: Comparison, export_format: Export) -> str:
    """Return the comparison in the format of a CI service. Values are those of B; times are medians."""
    return theme.encodable(theme.without_control_characters(_FORMATS[export_format](comparison)), "utf-8") + "\n"


def _named_cells(comparison: Comparison) -> Iterator[tuple[str, CellComparison]]:
    for name, cell in comparison.named_cells:
        yield f"{cell.kind} {name}".strip() + ", simulated" * cell.b_simulated, cell


_BMF_MEASURES: Mapping[Unit, tuple[str, int]] = {"bytes": ("memory", 1), "s": ("latency", 10**9)}


def _bmf(comparison: Comparison) -> str:
    content: dict[str, dict[str, object]] = {}
    for name, cell in _named_cells(comparison):
        for time in cell.times:
            content[f"{name} {time.quantity}"] = {"latency": {"value": time.b_s * 1e9}}
        for number in cell.amounts:
            measure, factor = _BMF_MEASURES.get(number.unit, (number.unit, 1))
            content[f"{name} {number.quantity}"] = {measure: {"value": number.b * factor}}
    return json.dumps(content, indent=1)


def _gha(comparison: Comparison) -> str:
    content = []
    for name, cell in _named_cells(comparison):
        for time in cell.times:
            extra = f"B / A {time.ratio:.4g}, {time.verdict}"
            content.append({"name": f"{name} {time.quantity}", "unit": "ms", "value": time.b_s * 1e3, "extra": extra})
        for number in cell.amounts:
            if number.better == "lower":
                content.append({"name": f"{name} {number.quantity}", "unit": number.unit, "value": number.b})
    return json.dumps(content, indent=1)


def _junit(comparison: Comparison) -> str:
    """Format cells as JUnit tests. Undecided cells are failures if the gate is strict, otherwise skipped."""
    gate = comparison.gate
    assert gate is not None, "--export junit needs --gate"
    suite = ElementTree.Element("testsuite", name=f"sysbench compare {comparison.a.name} {comparison.b.name}")
    counts = {"failure": 0, "skipped": 0}
    for name, cell in comparison.named_cells:
        step_s = next((time.b_s for time in cell.times if time.headline), 0.0)
        class_name = cell.kind + ", simulated" * cell.b_simulated
        case = ElementTree.SubElement(suite, "testcase", classname=class_name, name=name, time=f"{step_s:.9f}")
        failures = [text for text in gate.failed if text.startswith(f"{name}: ")]
        unresolved = [text for text in gate.undecided if text.startswith(f"{name}: ")]
        if failures or unresolved:
            kind = "failure" if failures or gate.strict else "skipped"
            message = theme.without_control_characters("; ".join([*failures, *unresolved]))
            ElementTree.SubElement(case, kind, message=message)
            counts[kind] += 1
    suite.set("tests", str(len(comparison.cells)))
    suite.set("failures", str(counts["failure"]))
    suite.set("skipped", str(counts["skipped"]))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode")


_FORMATS: Final[Mapping[Export, Callable[[Comparison], str]]] = {"bmf": _bmf, "gha": _gha, "junit": _junit}

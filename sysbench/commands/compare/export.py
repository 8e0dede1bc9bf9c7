"""Export of a comparison for CI services. Values are those of B, the newer side; times are medians.

bmf      Bencher Metric Format (bencher.dev/docs/reference/bencher-metric-format): latency in nanoseconds
gha      github-action-benchmark, `customSmallerIsBetter` (github.com/benchmark-action/github-action-benchmark)
pytorch  PyTorch's benchmark database, version 3 (github.com/pytorch/pytorch/wiki/PyTorch-OSS-benchmark-infra)
junit    JUnit XML: one test for each cell, which fails if the cell fails the gate
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final, get_args
from xml.etree import ElementTree

from sysbench.commands.compare.comparison import CellComparison, Comparison
from sysbench.commands.compare.spec import Export
from sysbench.render import theme

MODES: Final = {"inference": "inference", "forward": "inference"}
"""Modes in PyTorch's database; all other modes are `training`."""


def export_text(comparison: Comparison, export_format: Export) -> str:
    return theme.encodable(theme.without_control_characters(_FORMATS[export_format](comparison)), "utf-8") + "\n"


def _named_cells(comparison: Comparison) -> Iterator[tuple[str, CellComparison]]:
    for name, cell in comparison.named_cells:
        yield f"{cell.kind} {name}".strip() + ", simulated" * cell.b_simulated, cell


def _bmf(comparison: Comparison) -> str:
    content: dict[str, dict[str, object]] = {}
    for name, cell in _named_cells(comparison):
        for time in cell.times:
            content[f"{name} {time.quantity}"] = {"latency": {"value": time.b_s * 1e9}}
        for number in cell.amounts:
            measure = "memory" if number.unit == "bytes" else number.unit
            content[f"{name} {number.quantity}"] = {measure: {"value": number.b}}
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


def _pytorch(comparison: Comparison) -> str:
    content = []
    for name, cell in _named_cells(comparison):
        model = str(cell.axes.get("size") or cell.axes.get("implementation") or name)
        benchmark = {
            "name": f"sysbench {cell.kind}",
            "mode": MODES.get(str(cell.axes.get("mode")), "training"),
            "dtype": str(cell.axes.get("precision", "")),
            "extra_info": {axis: str(value) for axis, value in cell.axes.items()}
            | ({"source": "simulated"} if cell.b_simulated else {}),
        }
        measured: list[tuple[str, str, float]] = [(time.quantity, "ms", time.b_s * 1e3) for time in cell.times]
        measured += [(number.quantity, number.unit, number.b) for number in cell.amounts]
        content += [
            {
                "benchmark": benchmark,
                "model": {"name": model},
                "metric": {"name": quantity, "unit": unit, "benchmark_values": [value]},
            }
            for quantity, unit, value in measured
        ]
    return json.dumps(content, indent=1)


def _junit(comparison: Comparison) -> str:
    """Format cells as JUnit tests. Undecided cells are failures if the gate is strict, otherwise skipped."""
    gate = comparison.gate
    failed, undecided = (gate.failed, gate.undecided) if gate else ([], [])
    suite = ElementTree.Element("testsuite", name=f"sysbench compare {comparison.a.name} {comparison.b.name}")
    counts = {"failure": 0, "skipped": 0}
    for name, cell in comparison.named_cells:
        step_s = next((time.b_s for time in cell.times if time.headline), 0.0)
        class_name = cell.kind + ", simulated" * cell.b_simulated
        case = ElementTree.SubElement(suite, "testcase", classname=class_name, name=name or "all", time=f"{step_s:.9f}")
        failures = [text for text in failed if text.startswith(f"{name}: ")]
        unresolved = [text for text in undecided if text.startswith(f"{name}: ")]
        kind = "failure" if failures or (unresolved and gate and gate.strict) else "skipped" if unresolved else ""
        if kind:
            ElementTree.SubElement(
                case, kind, message=theme.without_control_characters("; ".join([*failures, *unresolved]))
            )
            counts[kind] += 1
    suite.set("tests", str(len(comparison.cells)))
    suite.set("failures", str(counts["failure"]))
    suite.set("skipped", str(counts["skipped"]))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode")


_FORMATS: Final[Mapping[str, Callable[[Comparison], str]]] = dict(
    zip(get_args(Export), (_bmf, _gha, _pytorch, _junit), strict=True)
)

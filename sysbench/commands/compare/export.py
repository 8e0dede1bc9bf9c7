"""Export of a comparison for CI services. Values are those of B, the newer side; times are medians.

bmf      Bencher Metric Format (bencher.dev/docs/reference/bencher-metric-format): latency in nanoseconds
gha      github-action-benchmark, `customSmallerIsBetter` (github.com/benchmark-action/github-action-benchmark)
pytorch  PyTorch's benchmark database, version 3 (github.com/pytorch/pytorch/wiki/PyTorch-OSS-benchmark-infra)
junit    JUnit XML: one test for each cell, which fails if the cell fails the gate
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, get_args
from xml.etree import ElementTree

from sysbench.commands.compare.cells import labels
from sysbench.commands.compare.comparison import CellComparison, Comparison
from sysbench.commands.compare.spec import Export
from sysbench.render import theme

MODES: Final = {"inference": "inference", "forward": "inference"}
"""Modes in PyTorch's database; all other modes are `training`."""


def exported(found: Comparison, form: Export) -> str:
    """Return the comparison in one of the formats, with a final newline."""
    return theme.encodable(theme.without_control_characters(_FORMATS[form](found)), "utf-8") + "\n"


def _named(found: Comparison) -> Iterator[tuple[str, CellComparison]]:
    names = labels([(cell.kind, cell.axes) for cell in found.cells])
    for name, cell in zip(names, found.cells, strict=True):
        yield f"{cell.kind} {name}".strip(), cell


def _bmf(found: Comparison) -> str:
    content: dict[str, dict[str, Any]] = {}
    for name, cell in _named(found):
        for time in cell.times:
            content[f"{name} {time.quantity}"] = {"latency": {"value": time.b_s * 1e9}}
        for memory in cell.memory:
            content[f"{name} {memory.quantity}"] = {"memory": {"value": memory.b_bytes}}
    return json.dumps(content, indent=1)


def _gha(found: Comparison) -> str:
    content = []
    for name, cell in _named(found):
        for time in cell.times:
            extra = f"B / A {time.ratio:.4g}, {time.verdict}"
            content.append({"name": f"{name} {time.quantity}", "unit": "ms", "value": time.b_s * 1e3, "extra": extra})
        for memory in cell.memory:
            content.append({"name": f"{name} {memory.quantity}", "unit": "bytes", "value": memory.b_bytes})
    return json.dumps(content, indent=1)


def _pytorch(found: Comparison) -> str:
    content = []
    for name, cell in _named(found):
        model = str(cell.axes.get("size") or cell.axes.get("implementation") or name)
        benchmark = {
            "name": f"sysbench {cell.kind}",
            "mode": MODES.get(str(cell.axes.get("mode")), "training"),
            "dtype": str(cell.axes.get("precision", "")),
            "extra_info": {axis: str(value) for axis, value in cell.axes.items()},
        }
        measured = [(time.quantity, "ms", time.b_s * 1e3) for time in cell.times]
        measured += [(memory.quantity, "bytes", memory.b_bytes) for memory in cell.memory]
        content += [
            {
                "benchmark": benchmark,
                "model": {"name": model},
                "metric": {"name": quantity, "unit": unit, "benchmark_values": [value]},
            }
            for quantity, unit, value in measured
        ]
    return json.dumps(content, indent=1)


def _junit(found: Comparison) -> str:
    """Format cells as JUnit tests. Undecided cells are failures if the gate is strict, otherwise skipped."""
    gate = found.gate
    failed, undecided = (gate.failed, gate.undecided) if gate else ([], [])
    suite = ElementTree.Element("testsuite", name=f"sysbench compare {found.a.name} {found.b.name}")
    names = labels([(cell.kind, cell.axes) for cell in found.cells])
    count = {"failure": 0, "skipped": 0}
    for name, cell in zip(names, found.cells, strict=True):
        seconds = next((time.b_s for time in cell.times if time.headline), 0.0)
        case = ElementTree.SubElement(suite, "testcase", classname=cell.kind, name=name or "all", time=f"{seconds:.9f}")
        bad = [text for text in failed if text.startswith(f"{name}: ")]
        open_ = [text for text in undecided if text.startswith(f"{name}: ")]
        kind = "failure" if bad or (open_ and gate and gate.strict) else "skipped" if open_ else ""
        if kind:
            ElementTree.SubElement(case, kind, message=theme.without_control_characters("; ".join([*bad, *open_])))
            count[kind] += 1
    suite.set("tests", str(len(found.cells)))
    suite.set("failures", str(count["failure"]))
    suite.set("skipped", str(count["skipped"]))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode")


_FORMATS: Final[Mapping[str, Callable[[Comparison], str]]] = dict(
    zip(get_args(Export), (_bmf, _gha, _pytorch, _junit), strict=True)
)

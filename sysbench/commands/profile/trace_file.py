"""Traces of any program as input files of `report` and `compare`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sysbench.commands.artefacts import Breakdown, FileComparison, Key
from sysbench.commands.profile.record import TraceRecord
from sysbench.render.table import Sheet
from sysbench.trace.ranks.summary import RanksSummary
from sysbench.trace.summary import ProfileSummary

_BINARY_SUFFIXES = (".json.gz", ".sqlite", ".nsys-rep")
"""Suffixes of traces that are not text."""

_TRACE_START = re.compile(rb'\A\s*\[|"(traceEvents|schemaVersion|deviceProperties|distributedInfo)"')
"""Matches the beginning of a file in Chrome's trace format, but not of files that sysbench writes."""


@dataclass(frozen=True)
class TraceArtefact:
    """Summaries of one or more traces."""

    name: str
    summaries: tuple[ProfileSummary, ...]
    ranks: RanksSummary | None = None
    kind: str = "trace"
    is_simulated: bool = False

    @property
    def sheet(self) -> Sheet:
        from sysbench.commands.profile.tables import traces_sheet

        return traces_sheet(self.summaries, ranks=self.ranks)

    def compared_with(self, other: TraceArtefact) -> FileComparison:
        sources = {summary.source for side in (self, other) for summary in side.summaries}
        works = ["kernel"] * (sources != {"cpu"}) + ["operator"] * ("cpu" in sources)
        (a_seconds, a_calls), (b_seconds, b_calls) = self._per_step(), other._per_step()
        work = " or ".join(works)
        kernels = Breakdown(
            "kernels", f"time by {work}", {"class": "class", "kernel": work}, "s", a_seconds, b_seconds,
            (a_calls, b_calls),
        )  # fmt: skip
        classes = replace(
            kernels,
            table="classes",
            title=f"time by class of {work}",
            columns={"class": "class"},
            a=_by_class(a_seconds),
            b=_by_class(b_seconds),
            calls=(_by_class(a_calls), _by_class(b_calls)),
        )
        basis = f"per step: A {self._steps}, B {other._steps}"
        return FileComparison((classes, kernels), basis, " and ".join(f"{work}s" for work in works))

    @property
    def _steps(self) -> str:
        steps = sum(summary.steps for summary in self.summaries)
        return f"{steps} step{'' if steps == 1 else 's'}"

    def _per_step(self) -> tuple[dict[Key, float], dict[Key, float]]:
        """Return seconds and calls per step, by class and name of kernel; for several traces, their mean."""
        seconds: dict[Key, float] = defaultdict(float)
        calls: dict[Key, float] = defaultdict(float)
        for summary in self.summaries:
            step_count = max(summary.steps, 1) * len(self.summaries)
            for time in summary.times():
                key = (time.kernel_class, time.name.short)
                seconds[key] += time.total_ns * 1e-9 / step_count
                calls[key] += time.calls / step_count
        return seconds, calls


def read(path: Path, beginning: bytes) -> TraceArtefact | None:
    """Return the trace in this file, or the summaries that `--from` wrote to it with `--json`; None for other files."""
    if path.name.lower().endswith(_BINARY_SUFFIXES) or _TRACE_START.search(beginning):
        from sysbench.trace import traces

        return TraceArtefact(path.name, (traces.summary_of(traces.read(path)),))
    if b'"kind": "traces"' in beginning:
        record = TraceRecord.model_validate_json(path.read_bytes())
        return TraceArtefact(path.name, tuple(record.summaries), record.ranks)
    return None


def _by_class(amounts: Mapping[Key, float]) -> dict[Key, float]:
    by_class: dict[Key, float] = defaultdict(float)
    for (kernel_class, _), amount in amounts.items():
        by_class[(kernel_class,)] += amount
    return by_class

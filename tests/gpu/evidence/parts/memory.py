"""Memory simulated against measured, over 54 configurations."""

from __future__ import annotations

import math
import statistics

from tests.gpu import memory_accuracy
from tests.gpu.evidence.promises import at_least, at_most, none_of
from tests.gpu.evidence.work import TINY, Part, Work

AT_ONCE = 6
"""Processes that measure, and as many that simulate: peaks are of each one's own allocator."""

COUNT = "configurations with both peaks"
OPTIMISTIC = "configurations said to fit that ran out of memory"
LIMITS = {
    ("peak_allocated_bytes", "median"): ("allocated peak, median error", 0.01),
    ("peak_allocated_bytes", "p95"): ("allocated peak, 95% of errors", 0.03),
    ("peak_reserved_bytes", "median"): ("reserved peak, median error", 0.02),
    ("peak_reserved_bytes", "p95"): ("reserved peak, 95% of errors", 0.05),
}
COLUMNS = (
    *("size", "ctx", "batch", "precision", "mode", "attention", "optimizer"),
    *("allocated GiB", "simulated", "off", "reserved GiB", "simulated", "off"),
)


def _run(work: Work) -> None:
    groups = memory_accuracy.jobs()
    target: str | None = None
    measured: tuple[str, ...] = ("--device=cuda", "--force")
    if work.rehearsal:  # a simulation against itself, in place of a GPU
        tiny = (*TINY, "--ctx=16,32", "--mode=forward,train")
        groups, target, measured = [tiny], "24GiB", ("--simulate=24GiB",)
    found = memory_accuracy.pairs(work.place, groups, target, measured, at_once=AT_ONCE, problems=work.problems)
    work.numbers["configurations"] = [_numbers(pair) for pair in found]
    work.table("Peak memory of a step, measured and simulated", COLUMNS, [_row(pair) for pair in found])
    known = [pair for pair in found if pair.both_known]
    work.see(COUNT, len(known))
    for (peak, statistic), (name, _) in LIMITS.items():
        errors = [error for pair in known if not math.isnan(error := pair.error(peak))]
        if errors:
            value = statistics.median(errors) if statistic == "median" else memory_accuracy.quantile(errors, 0.95)
            worst = max(known, key=lambda pair: pair.error(peak))
            work.see(name, value, f"worst: {worst.name}, {worst.error(peak):.2%}")
    if found:
        optimistic = [pair.name for pair in found if pair.promised_too_much]
        work.see(OPTIMISTIC, len(optimistic), "; ".join(optimistic))


def _numbers(pair: memory_accuracy.Pair) -> dict[str, object]:
    peaks = ("peak_allocated_bytes", "peak_reserved_bytes", "peaks_by_phase", "outcome", "detail")
    return {
        "name": pair.name,
        "measured": {peak: pair.measured[peak] for peak in peaks},
        "simulated": {peak: pair.simulated[peak] for peak in peaks},
    }


def _row(pair: memory_accuracy.Pair) -> list[str]:
    row = [str(each) for each in pair.identity]
    for peak in ("peak_allocated_bytes", "peak_reserved_bytes"):
        measured, simulated = pair.measured[peak], pair.simulated[peak]
        if not pair.both_known or not measured or not simulated:
            row += [pair.measured["outcome"], pair.simulated["outcome"], ""]
            continue
        row += [f"{measured / 2**30:.3f}", f"{simulated / 2**30:.3f}", f"{simulated / measured - 1:+.2%}"]
    return row


PART = Part(
    "memory",
    "memory simulated against measured",
    100,
    _run,
    (
        at_least(COUNT, 40, "count"),
        *(at_most(name, limit) for name, limit in LIMITS.values()),
        none_of(OPTIMISTIC),
    ),
    alone=False,
    limit_s=240,
)

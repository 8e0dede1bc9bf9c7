"""How a cell ended, and what makes its numbers doubtful."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Outcome = Literal["ok", "oom", "timeout", "crashed", "invalid", "skipped", "interrupted"]
"""ok           every sample that was asked for is there
oom          memory ran out: a measurement, not a failure
timeout      the worker said nothing for longer than allowed and was stopped
crashed      the worker raised or died; the detail names the error or the signal
invalid      this combination does not exist here (a kernel that is not there, say)
skipped      not started: larger than a cell that ran out of memory, or predicted not to fit
interrupted  stopped by the user; what was measured until then is kept
"""

FAILURES: frozenset[Outcome] = frozenset({"crashed", "invalid", "timeout"})
"""Outcomes that make a run exit with 1, whatever else it measured."""

LASTING: frozenset[Outcome] = frozenset({"ok", "oom", "invalid"})
"""Outcomes that running a cell again would not change; a resumed run repeats the cells with any other."""

RunStatus = Literal["complete", "interrupted", "failed"]

CautionCode = Literal[
    "warmup-unfinished",
    "outliers",
    "drift",
    "two-modes",
    "autocorrelated",
    "too-few-steps",
    "interval-too-wide",
    "throttled",
    "launch-bound",
    "gpu-shared",
    "host-busy",
    "emulated",
    "parameters-unchanged",
    "gradients-missing",
    "below-lower-bound",
    "ceiling-doubtful",
    "compile-fell-back",
    "readings-lost",
    "not-measured",
    "allocator-retried",
    "narrow-margin",
    "check-failed",
    "kernels-missing",
    "kernels-unlinked",
    "kernels-slower",
    "precision-differs",
    "profiler-costly",
    "trace-damaged",
    "calibration-differs",
    "operators-unknown",
]


class Caution(BaseModel):
    """A reason to doubt a number, and what would remove it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    code: CautionCode
    message: str
    remedy: str

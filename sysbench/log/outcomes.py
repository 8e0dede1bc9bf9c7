"""Possible outcomes of a cell, and the class for cautions about a cell's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Finite, stored_unless
from sysbench.units import Unit

Outcome = Literal["ok", "oom", "timeout", "crashed", "invalid", "skipped", "interrupted", "unfinished", "not run"]
"""ok           all requested samples were measured
oom          memory ran out: a result, not a failure
timeout      the worker was silent for longer than allowed and was stopped
crashed      the worker raised an exception or died; the detail names the error or the signal
invalid      this combination is not available here (for example a missing kernel)
skipped      not started: larger than a cell that ran out of memory, or predicted not to fit
interrupted  begun, then stopped by the user; earlier samples are kept
unfinished   begun, but the log ends before it did: the run is in progress or was killed; earlier samples are kept
not run      not begun before the run or the log ended
"""

MEASURED: frozenset[Outcome] = frozenset({"ok", "interrupted", "unfinished"})
"""Outcomes whose samples are valid; samples of a failed cell are not used."""

EXPECTED: frozenset[Outcome] = frozenset({"ok", "skipped", "interrupted", "unfinished", "not run"})

FAILURES: frozenset[Outcome] = frozenset({"crashed", "invalid", "timeout"})
"""Outcomes that make a run exit with 1, whatever its other results."""

LASTING: frozenset[Outcome] = frozenset({"ok", "oom", "invalid"})
"""Outcomes that would not change if a cell ran again; a resumed run repeats cells with any other outcome."""

Reason = Literal[
    "out-of-memory",
    "larger-than-failed",
    "exceeds-memory",
    "over-budget",
    "unavailable",
    "no-answer",
    "failed",
    "stopped",
    "log-ended",
]
"""Why a cell has no result, or only a part of it; the detail says more.

out-of-memory       memory ran out, on the device or in a simulation
larger-than-failed  skipped: at least as large as a cell that ran out of memory, or was simulated to do so
exceeds-memory      skipped: needs more memory than is free, according to a formula or a simulation
over-budget         skipped: would take longer than allowed
unavailable         there is no such kernel, or no such combination of options, on this device
no-answer           the worker, or one of its ranks, was silent for longer than allowed
failed              an exception, or the end of the worker's process
stopped             the user stopped the run
log-ended           the log ends within the cell, or is damaged there
"""

REASONS: Final[Mapping[Outcome, Reason]] = {
    "oom": "out-of-memory",
    "timeout": "no-answer",
    "crashed": "failed",
    "invalid": "unavailable",
    "interrupted": "stopped",
    "unfinished": "log-ended",
}

LACK_OF_MEMORY: Final[frozenset[Reason]] = frozenset({"out-of-memory", "larger-than-failed", "exceeds-memory"})

BUILD: Final = "build"
"""The stage before the first step: creation of model and batch."""
ATTENTION_TRIAL: Final = "attention trial"
"""The stage within BUILD in which attention runs once, to find out which kernel computes it."""

_STAGE_PHRASES: Final[Mapping[str, str]] = {
    BUILD: "while the model is built",
    ATTENTION_TRIAL: "in a trial run of the model's attention",
}


def stage_phrase(stage: str | None) -> str:
    """Return when something happens: `in backward` for a phase, `while the model is built` for BUILD."""
    return _STAGE_PHRASES.get(stage or "", f"in {stage}")


RunStatus = Literal["complete", "interrupted", "failed", "unfinished"]
"""complete     every cell has an outcome
interrupted  stopped by the user
failed       ended by an error
unfinished   the log has no end: the run is in progress or was killed
"""

CautionCode = Literal[
    "warmup-unfinished",
    "outliers",
    "drift",
    "two-modes",
    "autocorrelated",
    "too-few-steps",
    "interval-too-wide",
    "suspended",
    "throttled",
    "launch-bound",
    "gpu-shared",
    "host-busy",
    "threads-wait",
    "cores-shared",
    "emulated",
    "parameters-unchanged",
    "gradients-missing",
    "loss-not-finite",
    "below-lower-bound",
    "ceiling-doubtful",
    "compile-fell-back",
    "graphs-skipped",
    "graph-breaks",
    "compiled-simulated",
    "readings-lost",
    "not-measured",
    "allocator-retried",
    "narrow-margin",
    "check-failed",
    "kernels-missing",
    "kernels-unlinked",
    "kernels-slower",
    "precision-differs",
    "precision-overridden",
    "not-checked",
    "profiler-costly",
    "trace-damaged",
    "calibration-differs",
    "operators-unknown",
    "selection-assumed",
    "own-compiling",
    "modelled",
    "never-compared",
    "host-time-missing",
    "device-unused",
]

Subject = Literal["times", "memory"]
"""What a finding, a table or a figure is about: times of steps, or bytes."""

_INCOMPLETE: Final[frozenset[CautionCode]] = frozenset(
    {"gradients-missing", "parameters-unchanged", "trace-damaged", "device-unused"}
)
"""Part of the step is missing, or it ran elsewhere: neither its times nor its memory are those of the step."""

_WRONG_TIMES: Final[frozenset[CautionCode]] = frozenset(
    {
        "too-few-steps",
        "throttled",
        "cores-shared",
        "below-lower-bound",
        "compile-fell-back",
        "graphs-skipped",
        "not-measured",
        "check-failed",
        "kernels-missing",
        "kernels-unlinked",
    }
)
"""The times are those of something else, or are not there. What makes them imprecise widens their interval instead."""

EXCLUDING: Final[Mapping[Subject, frozenset[CautionCode]]] = {
    "times": _INCOMPLETE | _WRONG_TIMES,
    "memory": _INCOMPLETE,
}
"""Cautions that exclude a cell from everything said about a subject. Peaks do not depend on how long a step took."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True))
class NamedNumber:
    """A number that a sentence states, with its unit and, if known, the ends of its interval."""

    name: str
    """Name for programs, with the unit: `width_share`."""
    value: Finite
    unit: Unit
    low: Finite | None = stored_unless(None)
    high: Finite | None = stored_unless(None)


class Caution(Frozen):
    """A reason to doubt a number, and a remedy; `render/sentences/cautions.py` has a sentence for every code.

    A record of another version may say it in words, too, which are left out.
    """

    model_config = ConfigDict(extra="ignore")

    code: CautionCode
    numbers: tuple[NamedNumber, ...] = ()
    """What the sentence states. The first number tells of several cells the worst: that in which it is largest."""
    about: tuple[str, ...] = ()
    """What the caution is about, if that is no number: phases, operators, the words of a library."""
    remedy: str


_UNITS: Final[Mapping[str, Unit]] = {
    "_flops_per_s": "flops_per_s",
    "_flops": "flops",
    "_bytes": "bytes",
    "_share": "share",
    "_ratio": "ratio",
    "_correlation": "number",
    "_s": "s",
}


def caution(code: CautionCode, remedy: str, *, about: Sequence[str] = (), **numbers: float) -> Caution:
    """Return a caution. The names of its numbers end in their unit, `width_share`; names without one are of counts."""
    named = [NamedNumber(name, value, _unit(name)) for name, value in numbers.items()]
    return Caution(code=code, numbers=tuple(named), about=tuple(about), remedy=remedy)


def _unit(name: str) -> Unit:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "count")

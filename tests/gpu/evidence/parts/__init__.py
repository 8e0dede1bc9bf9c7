"""The parts, in the order of their worth: what is cut off by a deadline is worth less than what comes before it."""

from __future__ import annotations

from tests.gpu.evidence.parts import (
    attention,
    ceilings,
    doctor,
    fidelity,
    fit,
    fixtures,
    memory,
    oom,
    profile,
    speed,
    suite,
    timing,
)
from tests.gpu.evidence.work import Part

PARTS: tuple[Part, ...] = (
    memory.PART,
    fit.PART,
    fixtures.PART,
    ceilings.PART,
    speed.LARGEST,
    profile.PART,
    suite.TOGETHER,
    timing.PRECISIONS,
    suite.ALONE,
    attention.PART,
    oom.PART,
    speed.XL,
    fidelity.PART,
    doctor.PART,
    timing.FLASH,
    timing.COMPILED,
    profile.MORE,
    speed.CUDNN,
    attention.SWEEP,
    timing.WHOLE,
    timing.WHOLE_COMPILED,
)

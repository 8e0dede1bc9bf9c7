"""A clock that reports given seconds."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sysbench.lab.clocks import Call, StepTimes, sum_of
from sysbench.log.events import PhaseSample

if TYPE_CHECKING:
    from sysbench.spec.steps import Sync


class FakeClock:
    """Runs every phase and reports the next of `seconds` as its time; tests then do not depend on machine speed."""

    def __init__(self, seconds: Iterable[float]) -> None:
        self._seconds: Iterator[float] = iter(seconds)

    def measure(self, phases: Iterable[tuple[str, Call]], sync: "Sync") -> StepTimes:
        """See `Clock.measure`."""
        found: dict[str, list[PhaseSample]] = {}
        for name, phase in phases:
            phase()
            found.setdefault(name, []).append(PhaseSample(wall_s=next(self._seconds)))
        samples = {name: sum_of(each) for name, each in found.items()}
        step = sum_of(samples.values())
        return StepTimes(samples if sync == "phase" else dict.fromkeys(samples, PhaseSample(wall_s=None)), step)

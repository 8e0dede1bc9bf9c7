"""How long the phases of a step take: by the host's clock between synchronizations, and by the device's own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from sysbench.lab.devices import synchronize
from sysbench.log.events import PhaseSample

if TYPE_CHECKING:
    from sysbench.commands.time.spec import Sync

Call = Callable[[], object]


@dataclass(frozen=True)
class StepTimes:
    """What one step took, phase by phase and as a whole."""

    phases: dict[str, PhaseSample]
    step: PhaseSample

    @property
    def wall_s(self) -> float:
        """Seconds of the host's clock for the whole step; not a number if a clock kept none."""
        return math.nan if self.step.wall_s is None else self.step.wall_s


class Clock(Protocol):
    """Runs the phases of a step and says how long they took."""

    def measure(self, phases: Mapping[str, Call], sync: Sync) -> StepTimes:
        """Run `phases` in order, once.

        With `phase` the device is idle when a phase begins and again when it ends, and the step is the sum. With
        `step` this holds for the step alone: phases follow each other as in training, and have device times only.
        """
        ...


class Marks(Protocol):
    """Numbered points on a device's own timeline."""

    def place(self, number: int) -> None:
        """Put mark `number` behind all work launched so far."""
        ...

    def between_s(self, first: int, last: int) -> float | None:
        """Seconds from one mark to another, once the device has passed both; None if the device keeps no time."""
        ...


class NoMarks:
    """For devices without events, or with events that cannot be trusted."""

    def place(self, number: int) -> None:
        """Nothing to place."""

    def between_s(self, first: int, last: int) -> float | None:
        """Unknown."""
        return None


class CudaMarks:
    """CUDA events, made once and used again for every step."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._events: list[torch.cuda.Event] = []

    def place(self, number: int) -> None:
        """Record event `number` on the device's current stream."""
        while len(self._events) <= number:
            self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[number].record(self._stream)

    def between_s(self, first: int, last: int) -> float | None:
        """`cudaEventElapsedTime`, half a microsecond fine; idle gaps in between are counted."""
        elapsed_ms: float = self._events[first].elapsed_time(self._events[last])
        return elapsed_ms / 1e3


@dataclass(frozen=True)
class SynchronizedClock:
    """Reads the host's clock between two synchronizations, and the device's marks inside them.

    `launches_ahead` says that a call returns before the device has done its work, so that the host's share of the
    time is worth telling apart.
    """

    synchronize: Callable[[], None]
    marks: Marks
    launches_ahead: bool
    now_ns: Callable[[], int] = time.perf_counter_ns
    occupy: Call | None = None
    """Gives the device something to do while the host launches what is timed, so that its time holds no waiting for
    the host. The host's clock tells nothing then."""

    def measure(self, phases: Mapping[str, Call], sync: Sync) -> StepTimes:
        """See `Clock.measure`."""
        if sync == "step":
            step, device_s = self._window(list(phases.values()))
            unsynchronized = (PhaseSample(wall_s=None, device_s=each_s) for each_s in device_s)
            return StepTimes(dict(zip(phases, unsynchronized, strict=True)), step)
        samples = {name: self._window([phase])[0] for name, phase in phases.items()}
        return StepTimes(samples, sum_of(samples.values()))

    def _window(self, calls: Sequence[Call]) -> tuple[PhaseSample, list[float | None]]:
        """The calls in one timed window, and the device's time for each.

        The marks lie inside the host's readings, so that device time cannot exceed wall time.
        """
        self.synchronize()
        if self.occupy is not None:
            self.occupy()
        started_ns = self.now_ns()
        self.marks.place(0)
        for number, call in enumerate(calls, start=1):
            call()
            self.marks.place(number)
        launched_ns = self.now_ns()
        self.synchronize()
        finished_ns = self.now_ns()

        whole = PhaseSample(
            wall_s=(finished_ns - started_ns) / 1e9 if self.occupy is None else None,
            enqueue_s=(launched_ns - started_ns) / 1e9 if self.launches_ahead else None,
            device_s=self.marks.between_s(0, len(calls)),
        )
        return whole, [self.marks.between_s(number, number + 1) for number in range(len(calls))]


class FakeClock:
    """Runs every phase and says that it took the next of `seconds`: for tests that no machine's speed may decide."""

    def __init__(self, seconds: Iterable[float]) -> None:
        self._seconds: Iterator[float] = iter(seconds)

    def measure(self, phases: Mapping[str, Call], sync: Sync) -> StepTimes:
        """See `Clock.measure`."""
        samples: dict[str, PhaseSample] = {}
        for name, phase in phases.items():
            phase()
            samples[name] = PhaseSample(wall_s=next(self._seconds))
        step = sum_of(samples.values())
        return StepTimes(samples if sync == "phase" else dict.fromkeys(samples, PhaseSample(wall_s=None)), step)


OCCUPIED_CYCLES = 2_000_000
"""About a millisecond at a GPU's 1 to 2 GHz: several times what the host takes to launch one call and its backward."""


def clock_for(device: torch.device, *, without_launches: bool = False) -> Clock:
    """The clock that `device` can be trusted with.

    With `without_launches` CUDA's events begin when the device does, not when the host begins to launch: what kernels
    take, as `triton.testing.do_bench` has it, which matters where they take no longer than launching them.

    MPS has events too, but they can hang and go negative there; a synchronization and the host's clock do not.
    """
    return SynchronizedClock(
        occupy=partial(torch.cuda._sleep, OCCUPIED_CYCLES) if without_launches and device.type == "cuda" else None,
        synchronize=lambda: synchronize(device),
        marks=CudaMarks(device) if device.type == "cuda" else NoMarks(),
        launches_ahead=device.type != "cpu",
    )


def sum_of(samples: Iterable[PhaseSample]) -> PhaseSample:
    """The sum of phases, each of its times unknown where one of theirs is."""
    listed = list(samples)
    return PhaseSample(
        wall_s=_total(sample.wall_s for sample in listed),
        enqueue_s=_total(sample.enqueue_s for sample in listed),
        device_s=_total(sample.device_s for sample in listed),
    )


def _total(times_s: Iterable[float | None]) -> float | None:
    known: list[float] = []
    for time_s in times_s:
        if time_s is None:
            return None
        known.append(time_s)
    return sum(known)

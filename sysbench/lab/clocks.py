"""Timing of the phases of a step, with the host's clock between synchronizations and with the device's own clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from sysbench.lab.devices import synchronize
from sysbench.log.events import PhaseSample
from sysbench.spec.steps import Sync

Call = Callable[[], object]
T = TypeVar("T")

BUSY_S = 0.001
"""How long a device is kept busy at first: several times the host's time to launch one call and its backward."""

MAX_BUSY_S = 0.1
"""How long a device is kept busy at most. Longer launches fill CUDA's queue of 1,024, so they cannot be hidden."""


@dataclass(frozen=True)
class StepTimes:
    """Times of one step: of each phase, and of the whole step."""

    phases: dict[str, PhaseSample]
    step: PhaseSample

    @property
    def wall_s(self) -> float:
        """Seconds on the host's clock for the whole step; NaN if it was not measured."""
        return math.nan if self.step.wall_s is None else self.step.wall_s


class Clock(Protocol):
    """Runs the phases of a step and measures their time."""

    def measure(self, phases: Iterable[tuple[str, Call]], sync: Sync) -> StepTimes:
        """Run `phases` once, in order; the times of a phase that occurs several times are added up.

        With sync `phase`, the device is idle when a phase begins and ends, and the time of the step is the sum of its
        phases. With sync `step`, the device is idle only when the step begins and ends; phases follow each other as in
        training, and have only device times.
        """
        ...


class Marks:
    """Numbered marks on a device's own timeline: CUDA events, reused for every step; other devices have none."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._events: list[torch.cuda.Event] = []

    def place(self, number: int) -> None:
        """Place mark `number` after all work launched so far on the device's current stream."""
        if self._stream is not None:
            while len(self._events) <= number:
                self._events.append(torch.cuda.Event(enable_timing=True))
            self._events[number].record(self._stream)

    def between_s(self, first: int, last: int) -> float | None:
        """Return the seconds between two marks, with gaps (resolution 0.5 µs); None for a device without marks."""
        return self._events[first].elapsed_time(self._events[last]) / 1e3 if self._stream is not None else None


class DeviceIdledError(Exception):
    """A device that was to be kept busy had nothing to do before the host had launched the timed calls."""


def until_hidden(measure: Callable[[], T]) -> T:
    """Repeat a measurement until the device is busy for as long as the host launches; `measure` prepares its calls."""
    while True:
        with suppress(DeviceIdledError):
            return measure()


@dataclass
class SynchronizedClock:
    """Measures with the host's clock between two synchronizations, and with the device's marks placed in between."""

    synchronize: Callable[[], None]
    marks: Marks
    launches_ahead: bool
    now_ns: Callable[[], int] = time.perf_counter_ns
    processor_ns: Callable[[], int] | None = None
    """Processor time of all threads of this process, where they compute the step: on a CPU."""
    keep_busy: Callable[[float], object] | None = None
    """Keeps the device busy for about so many seconds while the host launches the timed calls, so that device time
    includes no waiting for the host. Host time is then meaningless, and is not reported."""
    busy_s: float = BUSY_S
    """How long the device is kept busy; grows with what launching takes."""

    def measure(self, phases: Iterable[tuple[str, Call]], sync: Sync) -> StepTimes:
        """Measure the phases; raises DeviceIdledError if launching took longer than `keep_busy` lasted."""
        names, calls = zip(*phases, strict=True)
        if sync == "step":
            step, device_s = self._time_window(calls)
            samples = [PhaseSample(wall_s=None, device_s=each_s) for each_s in device_s]
        else:
            samples = [self._time_window([call])[0] for call in calls]
            step = sum_of(samples)
        occurrences: dict[str, list[PhaseSample]] = {}
        for name, sample in zip(names, samples, strict=True):
            occurrences.setdefault(name, []).append(sample)
        return StepTimes({name: sum_of(each) for name, each in occurrences.items()}, step)

    def _time_window(self, calls: Sequence[Call]) -> tuple[PhaseSample, list[float | None]]:
        """Run the calls in one timed window; return the times of the window, and the device time of each call."""
        self.synchronize()
        processor_began_ns = self.processor_ns() if self.processor_ns is not None else 0
        began_ns = self.now_ns()
        if self.keep_busy is not None:
            self.marks.place(len(calls) + 1)
            self.keep_busy(self.busy_s)
        started_ns = self.now_ns()
        self.marks.place(0)
        for number, call in enumerate(calls, start=1):
            call()
            self.marks.place(number)
        launched_ns = self.now_ns()
        self.synchronize()
        finished_ns = self.now_ns()
        processor_s = (self.processor_ns() - processor_began_ns) / 1e9 if self.processor_ns is not None else None
        if self.keep_busy is not None:
            self._check_busy((launched_ns - began_ns) / 1e9, self.marks.between_s(len(calls) + 1, 0) or 0.0)

        total = PhaseSample(
            wall_s=(finished_ns - started_ns) / 1e9 if self.keep_busy is None else None,
            enqueue_s=(launched_ns - started_ns) / 1e9 if self.launches_ahead else None,
            device_s=self.marks.between_s(0, len(calls)),
            processor_s=processor_s,
        )
        return total, [self.marks.between_s(number, number + 1) for number in range(len(calls))]

    def _check_busy(self, launching_s: float, busy_s: float) -> None:
        if launching_s > busy_s and self.busy_s < MAX_BUSY_S:
            self.busy_s = min(2 * max(launching_s, self.busy_s), MAX_BUSY_S)
            raise DeviceIdledError


SLEEP_HZ = 2e9
"""Cycles per second of `torch.cuda._sleep`, about the highest clock rate of GPUs: at a lower one it sleeps longer."""


def clock_for(device: torch.device, *, without_launches: bool = False) -> SynchronizedClock:
    """Return a clock that is reliable on `device`.

    With `without_launches`, a CUDA device is kept busy until the host has launched the timed calls, so that the result
    is the time of the kernels alone, as with `triton.testing.do_bench`. MPS also has events, but they can hang or
    return negative times.
    """
    return SynchronizedClock(
        keep_busy=_sleep if without_launches and device.type == "cuda" else None,
        synchronize=lambda: synchronize(device),
        marks=Marks(device),
        launches_ahead=device.type != "cpu",
        processor_ns=time.process_time_ns if device.type == "cpu" else None,
    )


def _sleep(seconds: float) -> None:
    torch.cuda._sleep(int(seconds * SLEEP_HZ))


def sum_of(samples: Iterable[PhaseSample]) -> PhaseSample:
    """Add up the times of phases; a sum is None if the time of any phase is None."""
    listed = list(samples)
    return PhaseSample(
        wall_s=_total(sample.wall_s for sample in listed),
        enqueue_s=_total(sample.enqueue_s for sample in listed),
        device_s=_total(sample.device_s for sample in listed),
        processor_s=_total(sample.processor_s for sample in listed),
    )


def _total(times_s: Iterable[float | None]) -> float | None:
    known: list[float] = []
    for time_s in times_s:
        if time_s is None:
            return None
        known.append(time_s)
    return sum(known)

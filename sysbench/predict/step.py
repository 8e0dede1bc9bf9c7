"""A step on a GPU that need not be there: how long, how sure, what limits it, and what it can never be faster than."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache, partial
from typing import Literal

import numpy as np

from sysbench.predict import walk as walking
from sysbench.predict.kernels import Limit, limit, perfect_seconds, seconds
from sysbench.predict.rates import Draws, GpuRates, HostRates, unexplained
from sysbench.predict.trace import Kernel, Positions, Trace
from sysbench.spec.hardware import Rate

DRAWS = 64
"""Sets of constants that an interval is made of."""

INTERVAL = (0.05, 0.95)
"""Quantiles at the ends of an interval: 90 % lies between."""

MOST_UNKNOWN = 0.05
"""Share of a step's device time that operators unknown to the model may have; above, the step's time is withheld."""

StepLimit = Literal["host"] | Limit


@dataclass(frozen=True)
class Estimate:
    """A time in seconds, with its 90 % interval."""

    point_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, drawn: Draws, least_s: float) -> Estimate:
        """From draws, of which the first is the point; nothing takes less than `least_s`."""
        low_s, high_s = np.maximum(np.quantile(drawn, INTERVAL), least_s)
        point_s = max(least_s, float(drawn[0]))
        return cls(point_s, min(point_s, float(low_s)), max(point_s, float(high_s)))


@dataclass(frozen=True)
class Limiting:
    """What limits a phase or a step: the host, or what most of the device's time goes into."""

    name: StepLimit
    share: float
    """Of the time."""


@dataclass(frozen=True)
class KernelRow:
    """All launches of one kernel in one phase of one module."""

    phase: str
    module: str
    kernel: Kernel
    count: int
    each_s: float
    limit: Limit

    @property
    def total_s(self) -> float:
        """Of all launches."""
        return self.count * self.each_s


@dataclass(frozen=True)
class PhasePrediction:
    """One phase, synchronized before and after.

    host_s           that the host takes to issue everything
    device           that kernels take, one after the other, gaps included: as if all had been issued before
    limiting         the host, or what most of the device's time goes into
    device_limiting  what most of the device's time goes into
    lower_bound_s    at the rates of the data sheet, without a host
    """

    name: str
    time: Estimate
    host_s: float
    device: Estimate
    limiting: Limiting
    device_limiting: Limiting
    lower_bound_s: float
    launches: int
    communication_s: float = 0.0
    """That collectives take, each by itself."""
    exposed_s: float = 0.0
    """By how much they lengthen the device's time, which is less where they run beside other kernels."""

    @property
    def device_s(self) -> float:
        """That kernels take."""
        return self.device.point_s


@dataclass(frozen=True)
class Constant:
    """A rate that a prediction rests on."""

    name: str
    rate: Rate


@dataclass(frozen=True)
class StepPrediction:
    """What `predict` says. All times are predicted, none is measured."""

    trace: Trace
    gpu: GpuRates
    host: HostRates
    time: Estimate
    phases: tuple[PhasePrediction, ...]
    limiting: Limiting
    lower_bound_s: float
    unknown: Mapping[str, int]
    """Operators that the model does not know, with their launches."""
    unknown_share: float
    """Of the device's time."""
    kernel_s: tuple[float, ...]
    """Of each of the trace's kernels."""

    @property
    def withheld(self) -> str | None:
        """Why there should be no step time, or None."""
        if self.unknown_share <= MOST_UNKNOWN:
            return None
        names = ", ".join(sorted(self.unknown))
        return f"operators that the model does not know take {self.unknown_share:.0%} of the step: {names}"

    @property
    def less_certain(self) -> bool:
        """Whether parts of it are a guess: what torch.compile would fuse."""
        return self.trace.compiled

    @property
    def constants(self) -> tuple[Constant, ...]:
        """What it rests on."""
        return tuple(
            Constant(name, rate) for rates in (self.gpu.rates, self.host.rates) for name, rate in rates.items()
        )

    @cached_property
    def rows(self) -> tuple[KernelRow, ...]:
        """Every kernel by phase and module, in order of their first launch."""
        drawn = self.gpu.drawn()
        limits = [limit(kernel, drawn) for kernel in self.trace.kernels]
        launched: Counter[tuple[str, int, int]] = Counter()
        for phase in self.trace.phases:
            modules = phase.modules[phase.issuers].tolist()
            launched.update((phase.name, *each) for each in zip(modules, phase.kernels.tolist(), strict=True))
        return tuple(
            KernelRow(phase, self.trace.modules[module], self.trace.kernels[i], count, self.kernel_s[i], limits[i])
            for (phase, module, i), count in launched.items()
        )

    def lanes(self) -> walking.Lanes:
        """When the host issues and when each kernel runs in a step whose phases follow each other undisturbed.

        Kernels take whole nanoseconds, as profilers record them.
        """
        unique_s = np.rint(np.array(self.kernel_s) * 1e9)[:, None] / 1e9
        return walking.lanes(walking.Issued(self.trace.phases, self.host.drawn()), unique_s, self.gpu.drawn()["gap_s"])


def predict(
    trace: Trace, gpu: GpuRates, host: HostRates, *, whole: bool = False, draws: int = DRAWS, seed: int = 0
) -> StepPrediction:
    """The step of `trace` on that GPU and host; the interval is of that many draws of their constants.

    The device is waited for after every phase, or if the step is taken `whole` only at its end; phases are predicted by
    themselves in either case. The time of a phase that occurs several times is the sum.
    """
    drawn, issued = gpu.drawn(draws, seed), _issued(trace, host, draws, seed)
    factor = unexplained(draws, seed, compiled=trace.compiled)
    unique_s = seconds(trace.kernels, gpu, drawn)
    walk = partial(walking.walk, gap_s=drawn["gap_s"], synchronous=gpu.hardware.synchronous)
    limits = [limit(kernel, drawn) for kernel in trace.kernels]
    bounds = np.array([perfect_seconds(kernel, gpu) for kernel in trace.kernels])
    bounded = bool(gpu.hardware.peak_flops_per_s)  # rates that were measured in place of a data sheet bound nothing
    device: dict[Limit, float] = dict.fromkeys(limits, 0.0)
    phases, total_s = list[PhasePrediction](), np.zeros(draws)
    for name, counts in trace.counts.items():
        walked = _apart(issued[name], partial(walk, unique_s=unique_s))
        spent = _by_limit(unique_s[:, 0], counts, limits)
        if communication_s := spent.get("communication", 0.0):
            silent_s = np.where([[each == "communication"] for each in limits], 0.0, unique_s)
            silent = _apart(issued[name], partial(walk, unique_s=silent_s))
            spent["communication"] = max(0.0, float(walked.device_s[0] - silent.device_s[0]))
        bound_s = float(bounds @ counts)
        phases.append(
            PhasePrediction(
                name=name,
                time=Estimate.of(walked.total_s * factor, bounded * bound_s),
                host_s=float(walked.host_s[0]),
                device=Estimate.of(walked.device_s * factor, bounded * bound_s),
                limiting=_limiting(walked.host_s[0], walked.device_s[0], walked.total_s[0], spent),
                device_limiting=_limiting(0.0, walked.device_s[0], walked.device_s[0], spent),
                lower_bound_s=bound_s,
                launches=int(counts.sum()),
                communication_s=communication_s,
                exposed_s=spent.get("communication", 0.0),
            )
        )
        device = {each: device[each] + spent[each] for each in device}
        total_s += walked.total_s
    if whole:
        total_s = walk(walking.Issued(trace.phases, host.drawn(draws, seed)), unique_s).total_s
    host_s, device_s = math.fsum(each.host_s for each in phases), math.fsum(each.device_s for each in phases)
    bound_s = math.fsum(each.lower_bound_s for each in phases)
    unknown = _unknown(trace)
    unknown_s = math.fsum(unique_s[i, 0] * count for i, count in unknown.items())
    return StepPrediction(
        trace=trace,
        gpu=gpu,
        host=host,
        time=Estimate.of(total_s * factor, bounded * bound_s),
        phases=tuple(phases),
        limiting=_limiting(host_s, device_s, total_s[0], device),
        lower_bound_s=bound_s,
        unknown={trace.kernels[i].name: count for i, count in unknown.items()},
        unknown_share=float(unknown_s / max(sum(device.values()), 1e-12)),
        kernel_s=tuple(unique_s[:, 0].tolist()),
    )


@lru_cache(maxsize=2)
def _issued(trace: Trace, host: HostRates, draws: int, seed: int) -> Mapping[str, Sequence[walking.Issued]]:
    """Every occurrence of each phase, by itself; GPUs of one cell follow each other, and most have the same host."""
    issued: dict[str, list[walking.Issued]] = {}
    of_host = host.drawn(draws, seed)
    each = {id(phase): walking.Issued((phase,), of_host) for phase in trace.phases}  # micro-batches repeat
    for phase in trace.phases:
        issued.setdefault(phase.name, []).append(each[id(phase)])
    return issued


def _apart(issued: Sequence[walking.Issued], walk: Callable[[walking.Issued], walking.Walked]) -> walking.Walked:
    """Return the sums of phases that are walked one by one; those that are the same object are walked once."""
    walked = {key: walk(each) for key, each in {id(each): each for each in issued}.items()}
    columns = zip(*(astuple(walked[id(each)]) for each in issued), strict=True)
    return walking.Walked(*(sum(column[1:], column[0]) for column in columns))


def _by_limit(unique_s: Draws, counts: Positions, limits: list[Limit]) -> dict[Limit, float]:
    """Seconds of device time by what they go into."""
    return {
        name: float(unique_s @ (counts * np.array([each == name for each in limits]))) for name in dict.fromkeys(limits)
    }


def _limiting(host_s: float, device_s: float, total_s: float, spent: Mapping[Limit, float]) -> Limiting:
    """The host where it needs longer than the device, else what most of the device's time goes into."""
    if host_s >= device_s or not spent:
        return Limiting("host", float(min(1.0, host_s / max(total_s, 1e-12))))
    most_s, name = max((each_s, name) for name, each_s in spent.items())
    return Limiting(name, float(min(1.0, most_s / max(total_s, 1e-12))))


def _unknown(trace: Trace) -> dict[int, int]:
    """Positions of unknown kernels, with their launches."""
    counts = sum(trace.counts.values(), np.zeros(len(trace.kernels), dtype=np.intp))
    return {i: int(counts[i]) for i, kernel in enumerate(trace.kernels) if kernel.kind == "unknown"}

"""Prediction of a step on a GPU that is not present: time, uncertainty, bottleneck and lower bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from sysbench.predict import walk as walking
from sysbench.predict.kernels import Limit, is_unaligned, limit, lower_bound_seconds, seconds
from sysbench.predict.rates import LINK_RATES, Draws, GpuRates, HostRates, unexplained
from sysbench.predict.trace import Positions, Trace
from sysbench.spec.hardware import Rate

DRAWS = 64
"""Number of random draws of the constants from which an interval is computed."""

INTERVAL = (0.05, 0.95)
"""Quantiles at the ends of the 90% interval."""

MAX_UNKNOWN_SHARE = 0.05
"""Maximum share of the device time in operators unknown to the model; above it, the step time is withheld."""

StepLimit = Literal["host"] | Limit

_OVERLAPPED: frozenset[Limit] = frozenset({"communication", "host link"})
"""What runs beside other kernels, on streams of its own: only the time that it adds to the device's counts."""


@dataclass(frozen=True)
class Estimate:
    """A time in seconds, with its 90% interval."""

    point_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, drawn: Draws, minimum_s: float = 0.0) -> Estimate:
        """Build an estimate from draws: the first draw is the point estimate, quantiles give the interval."""
        low_s, high_s = np.maximum(np.quantile(drawn, INTERVAL), minimum_s)
        point_s = max(minimum_s, float(drawn[0]))
        return cls(point_s, min(point_s, float(low_s)), max(point_s, float(high_s)))


@dataclass(frozen=True)
class Bottleneck:
    """Bottleneck of a phase or a step: the host, or the largest component of the device time."""

    name: StepLimit
    share: float
    """Share of the phase's or step's time."""


@dataclass(frozen=True)
class PhasePrediction:
    """Prediction of one phase, with synchronization before and after.

    host_s         seconds that the host takes to issue everything
    device         seconds of all kernels in sequence, with gaps, as if all had been issued in advance
    lower_bound_s  seconds at the data sheet's rates, if the host took no time; None without a data sheet
    """

    name: str
    time: Estimate
    host_s: float
    device: Estimate
    bottleneck: Bottleneck
    device_bottleneck: Bottleneck
    lower_bound_s: float | None
    launches: int
    communication_s: float = 0.0
    """Sum of the times of all collectives."""
    exposed_s: float = 0.0
    """Device time that collectives add; less than `communication_s` if they overlap with other kernels."""

    @property
    def device_s(self) -> float:
        """Return the point estimate of the device time."""
        return self.device.point_s


@dataclass(frozen=True)
class StepPrediction:
    """Result of `predict`. All times are predicted; none are measured."""

    trace: Trace
    gpu: GpuRates
    host: HostRates
    time: Estimate
    phases: tuple[PhasePrediction, ...]
    bottleneck: Bottleneck
    limits_s: Mapping[str, float]
    """Seconds that the host takes to issue the step, and seconds of the device by what limits its kernels. The
    bottleneck's share is that of the step with a synchronization after each phase."""
    lower_bound_s: float | None
    unknown: Mapping[str, int]
    """Number of launches of each operator that is unknown to the model."""
    unknown_share: float
    """Share of unknown operators in the step's device time, its FLOPs or its bytes, whichever is largest."""
    sync_per_step: bool
    """Whether the host waits for the device only at the end of the step."""
    kernel_s: tuple[float, ...]
    """Seconds of each kernel in `trace.kernels`."""
    draws_s: tuple[float, ...]
    """Seconds of the step in each random draw of the rates, the nominal rates first. Predictions for several GPUs with
    the same host share the host's rates, draw by draw."""

    @property
    def withheld(self) -> str | None:
        """Return the reason why the step time is withheld; None if it is not withheld."""
        if self.trace.untimed:
            return f"{self.trace.untimed} has no predicted time"
        if self.trace.copies_updates and self.sync_per_step:
            return "updates on the host overlap with backward, which is not modelled: use sysbench time --sync phase"
        if self.trace.has_copies and not set(LINK_RATES) <= set(self.gpu.rates):
            return "the rate of the link between GPU and host is unknown: calibrate it, or give time --host-link 25GB/s"
        if self.unknown_share <= MAX_UNKNOWN_SHARE:
            return None
        names = ", ".join(sorted(self.unknown))
        return f"operators unknown to the model have {self.unknown_share:.0%} of the step's work: {names}"

    @property
    def constants(self) -> Mapping[str, Rate]:
        """Return the rates that the prediction uses."""
        unused = () if self.trace.has_copies else (*LINK_RATES, "update")
        unused += () if any(kernel.dtype == "fp8" for kernel in self.trace.kernels) else ("matmul_fp8",)
        unused += () if any(map(is_unaligned, self.trace.kernels)) else ("unaligned",)
        rates = [*self.gpu.rates.items(), *self.host.rates.items()]
        return {name: rate for name, rate in rates if name not in unused}

    def timeline(self) -> walking.Timeline:
        """Return when the host issues each operator and when each kernel runs, without synchronization between phases.

        Kernel times are integer nanoseconds, as in a profiler's recording.
        """
        unique_s = np.rint(np.array(self.kernel_s) * 1e9)[:, None] / 1e9
        return walking.timeline(
            walking.Issued(self.trace.phases, self.host.drawn()), unique_s, self.gpu.drawn()["gap_s"]
        )


def predict(
    trace: Trace, gpu: GpuRates, host: HostRates, *, sync_per_step: bool = False, draws: int = DRAWS, seed: int = 0
) -> StepPrediction:
    """Predict the step of `trace` on a GPU and host, with an interval from `draws` random draws of their rates.

    With `sync_per_step`, the host waits for the device only at the end of the step, but phase times assume a wait each.
    """
    drawn, issued = gpu.drawn(draws, seed), _issued(trace, host, draws, seed)
    unique_s = seconds(trace.kernels, gpu, drawn)
    factor = unexplained(trace, gpu.hardware, unique_s, seed)
    walk = partial(walking.walk, gap_s=drawn["gap_s"], synchronous=gpu.hardware.synchronous)
    limits = [limit(kernel, drawn) for kernel in trace.kernels]
    bounds = [lower_bound_seconds(kernel, gpu.hardware) for kernel in trace.kernels]
    device: dict[Limit, float] = dict.fromkeys(limits, 0.0)
    phases, total_s = list[PhasePrediction](), np.zeros(draws)
    for name, counts in trace.counts.items():
        walk_with = partial(_walk_separately, issued[name], walk)
        walked = walk_with(unique_s)
        seconds_by_limit = _seconds_by_limit(unique_s[:, 0], counts, limits)
        communication_s = seconds_by_limit.get("communication", 0.0)
        seconds_by_limit |= _added_s(walk_with, walked, unique_s, limits)
        bound_s = None if None in bounds else float(np.array(bounds) @ counts)
        phases.append(
            PhasePrediction(
                name=name,
                time=Estimate.of(walked.total_s * factor, bound_s or 0.0),
                host_s=float(walked.host_s[0]),
                device=Estimate.of(walked.device_s * factor, bound_s or 0.0),
                bottleneck=_bottleneck(walked.host_s[0], walked.device_s[0], walked.total_s[0], seconds_by_limit),
                device_bottleneck=_bottleneck(0.0, walked.device_s[0], walked.device_s[0], seconds_by_limit),
                lower_bound_s=bound_s,
                launches=int(counts.sum()),
                communication_s=communication_s,
                exposed_s=seconds_by_limit.get("communication", 0.0),
            )
        )
        device = {each: device[each] + seconds_by_limit[each] for each in device}
        total_s += walked.total_s
    step_s = walk(walking.Issued(trace.phases, host.drawn(draws, seed)), unique_s).total_s if sync_per_step else total_s
    host_s, device_s = math.fsum(phase.host_s for phase in phases), math.fsum(phase.device_s for phase in phases)
    bound_s = None if None in bounds else math.fsum(phase.lower_bound_s or 0.0 for phase in phases)
    draws_s = np.maximum(step_s * factor, bound_s or 0.0)
    unknown, unknown_share = _unknown(trace, unique_s[:, 0])
    return StepPrediction(
        trace=trace,
        gpu=gpu,
        host=host,
        time=Estimate.of(draws_s),
        phases=tuple(phases),
        bottleneck=_bottleneck(host_s, device_s, total_s[0], device),
        limits_s={"host": host_s} | {str(name): each_s for name, each_s in device.items()},
        lower_bound_s=bound_s,
        unknown=unknown,
        unknown_share=unknown_share,
        sync_per_step=sync_per_step,
        kernel_s=tuple(unique_s[:, 0].tolist()),
        draws_s=tuple(draws_s.tolist()),
    )


@lru_cache(maxsize=2)
def _issued(trace: Trace, host: HostRates, draws: int, seed: int) -> Mapping[str, Sequence[walking.Issued]]:
    issued: dict[str, list[walking.Issued]] = {}
    host_rates = host.drawn(draws, seed)
    each = {id(phase): walking.Issued((phase,), host_rates) for phase in trace.phases}  # micro-batches repeat
    for phase in trace.phases:
        issued.setdefault(phase.name, []).append(each[id(phase)])
    return issued


def _walk_separately(
    issued: Sequence[walking.Issued], walk: Callable[..., walking.WalkTotals], unique_s: Draws
) -> walking.WalkTotals:
    walked = {key: walk(each, unique_s) for key, each in {id(each): each for each in issued}.items()}
    columns = zip(*(astuple(walked[id(each)]) for each in issued), strict=True)
    return walking.WalkTotals(*(sum(column[1:], column[0]) for column in columns))


def _seconds_by_limit(unique_s: Draws, counts: Positions, limits: list[Limit]) -> dict[Limit, float]:
    return {
        name: float(unique_s @ (counts * np.array([each == name for each in limits]))) for name in dict.fromkeys(limits)
    }


def _added_s(
    walk_with: Callable[[Draws], walking.WalkTotals], walked: walking.WalkTotals, unique_s: Draws, limits: list[Limit]
) -> dict[Limit, float]:
    """Return the seconds that work on streams of its own adds to the device's time."""
    added_s: dict[Limit, float] = {}
    for name in _OVERLAPPED & set(limits):
        without = walk_with(np.where([[each == name] for each in limits], 0.0, unique_s))
        added_s[name] = max(0.0, float(walked.device_s[0] - without.device_s[0]))
    return added_s


def _bottleneck(host_s: float, device_s: float, total_s: float, seconds_by_limit: Mapping[Limit, float]) -> Bottleneck:
    """Return the bottleneck: the host if it takes longer than the device, otherwise the device's largest component."""
    if host_s >= device_s or not seconds_by_limit:
        return Bottleneck("host", float(min(1.0, host_s / max(total_s, 1e-12))))
    most_s, name = max((each_s, name) for name, each_s in seconds_by_limit.items())
    return Bottleneck(name, float(min(1.0, most_s / max(total_s, 1e-12))))


def _unknown(trace: Trace, kernel_s: Draws) -> tuple[dict[str, int], float]:
    """Return the number of launches of each unknown operator, and the share of all of them in the step's work."""
    counts = sum(trace.counts.values(), np.zeros(len(trace.kernels), dtype=np.intp))
    is_unknown = np.array([kernel.kind == "unknown" for kernel in trace.kernels], dtype=bool)
    work = np.array(
        [kernel_s, *zip(*((float(kernel.flops), float(kernel.bytes)) for kernel in trace.kernels), strict=True)]
    )
    done = (work * counts).sum(axis=1)
    shares = (work * counts * is_unknown).sum(axis=1) / np.where(done > 0, done, 1.0)
    names = {trace.kernels[i].name: int(counts[i]) for i in np.flatnonzero(is_unknown)}
    return names, float(shares.max(initial=0.0))

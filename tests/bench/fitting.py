"""Fit of the rates of a device and its host to timed steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from sysbench.errors import UnavailableError
from sysbench.predict.kernels import Floats
from sysbench.predict.rates import GPU_RATES, HOST_RATES, GpuRate, GpuRates, HostRate, HostRates
from sysbench.predict.step import predict
from sysbench.predict.trace import Trace
from sysbench.spec.hardware import Rate

PHASE_SPREAD: Final = 0.08
"""Standard deviation of the logarithm of phase times at known rates (cf. `rates.UNEXPLAINED_SPREAD`)."""
MAX_SPREAD_RATIO: Final = 0.7
"""A rate counts as seen if the fit reduces its spread to at most this fraction."""
_MIN_PRIOR_SPREAD: Final = 0.15
"""Minimum prior spread: rates measured elsewhere may be off by this much on the current machine."""
_ROUNDS: Final = 6
_PERTURBATION: Final = 0.1

_GROUPS: Final[Mapping[str, tuple[GpuRate | HostRate, ...]]] = {
    "host": ("operator", "view", "operator_backward", "view_backward", "scalar", "launch"),
    "matmul_fp32": ("matmul_fp32",),
    "matmul_tf32": ("matmul_tf32",),
    "matmul_half": ("matmul_half",),
    "attention": ("attention_forward", "attention_backward"),
    "bandwidth": ("stream", "reduce", "indexed", "transpose"),
}
"""Groups of rates that step times cannot distinguish; one factor scales all rates of a group."""


_MATMUL_RATES: Final[Mapping[str, str]] = {
    "fp32": "matmul_fp32", "tf32": "matmul_tf32", "bf16": "matmul_half", "fp16": "matmul_half", "other": "matmul_fp32",
}  # fmt: skip


class Observation(NamedTuple):
    """Measured times of one piece of work, which determine a rate."""

    rate: GpuRate | HostRate
    case: str
    work: float
    """FLOPs, bytes, or units of host work. Work divided by time is the rate, or the inverse of the rate."""
    samples_s: tuple[float, ...]


class FittedRates(NamedTuple):
    """Fitted rates, and the reasons why all other rates could not be fitted."""

    observations: tuple[Observation, ...]
    unseen: Mapping[GpuRate | HostRate, str]


class TimedStep(NamedTuple):
    """The trace of a step, and the measured seconds of each phase."""

    trace: Trace
    phases_s: Mapping[str, float]


def fit_rates(steps: Sequence[TimedStep], gpu: GpuRates, host: HostRates) -> FittedRates:
    """Fit the rates of a GPU and a host to the measured times of these steps.

    The method is Gauss-Newton least squares on the logarithms of phase times, with the known rates as the prior. Rates
    that step times cannot distinguish share a factor; those that they barely constrain are treated as unseen.
    """
    measured = np.log([seconds for step in steps for seconds in step.phases_s.values()])
    if not len(measured):
        raise UnavailableError("no step of the run was measured completely: rates cannot be derived from it")
    kernels = [kernel for step in steps for kernel in step.trace.kernels]
    products = {_MATMUL_RATES[kernel.dtype] for kernel in kernels if kernel.kind == "gemm"}
    needed = {"host", "bandwidth", *products, *(kernel.kind for kernel in kernels if kernel.kind == "attention")}
    names = [name for name in _GROUPS if name in needed and (name == "host" or _GROUPS[name][0] in gpu.rates)]
    prior = np.array([host.spread if name == "host" else gpu.rates[_GROUPS[name][0]].spread for name in names])  # type: ignore[index]
    prior = np.maximum(prior, _MIN_PRIOR_SPREAD)
    factors, weight, perturbations = np.zeros(len(names)), 1 / PHASE_SPREAD**2, _PERTURBATION * np.eye(len(names))
    for _ in range(_ROUNDS):
        predicted = _log_phase_times(steps, gpu, host, names, factors)
        # Take wide steps on both sides: a power limit takes effect only well below the clock limit.
        sides = [
            [_log_phase_times(steps, gpu, host, names, factors + sign * step) for sign in (1, -1)]
            for step in perturbations
        ]
        slopes = np.stack([(above - below) / (2 * _PERTURBATION) for above, below in sides], axis=1)
        precision = weight * slopes.T @ slopes + np.diag(prior**-2.0)
        factors = factors + np.linalg.solve(precision, weight * slopes.T @ (measured - predicted) - factors / prior**2)
    spread = np.sqrt(np.diag(np.linalg.inv(precision)))
    earlier = {str(name): rate for rates in (gpu.rates, host.rates) for name, rate in rates.items()}
    observations = []
    unseen = dict.fromkeys((*GPU_RATES, *HOST_RATES), "no phase of a step depends on this rate alone")
    for name, factor, posterior_spread, prior_spread in zip(names, factors, spread, prior, strict=True):
        for rate in _GROUPS[name]:
            known = earlier.get(rate)
            if known is None or posterior_spread > MAX_SPREAD_RATIO * prior_spread:
                unseen[rate] = "step times hardly depend on this rate"
                continue
            value, slower = (
                known.value * float(np.exp(factor)),
                np.exp(posterior_spread * np.array([-1.5, -0.75, 0, 0.75, 1.5])),
            )
            case = f"{len(measured)} phases of {len(steps)} steps, with {len(names)} factors"
            is_time = rate in HOST_RATES
            taken_s = tuple((value if is_time else 1.0) * slower)
            observations.append(Observation(rate, case, 1.0 if is_time else value, taken_s))
            unseen.pop(rate, None)
    return FittedRates(tuple(observations), unseen)


def _log_phase_times(
    steps: Sequence[TimedStep], gpu: GpuRates, host: HostRates, names: Sequence[str], factors: Floats
) -> Floats:
    """Return the logarithms of predicted phase times, of shape (phases,); exp(factor) scales each group of rates."""
    scale = {rate: float(np.exp(factor)) for name, factor in zip(names, factors, strict=True) for rate in _GROUPS[name]}
    changed_gpu = replace(gpu, rates={name: _scaled(rate, scale.get(name, 1.0)) for name, rate in gpu.rates.items()})
    changed_host = replace(host, rates={name: _scaled(rate, scale.get(name, 1.0)) for name, rate in host.rates.items()})
    logs: list[float] = []
    for step in steps:
        predicted_s = {
            phase.name: phase.time.point_s for phase in predict(step.trace, changed_gpu, changed_host, draws=1).phases
        }
        logs += [np.log(predicted_s[name]) for name in step.phases_s]
    return np.array(logs)


def _scaled(rate: Rate, factor: float) -> Rate:
    return rate.model_copy(update={"value": rate.value * factor})

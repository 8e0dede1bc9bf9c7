"""The host issues, the device executes in order: when each kernel runs, in closed form.

Phases are walked one by one, where the device is waited for between them, or together.

Kernel i is issued at a[i] and ends at f[i] = max(a[i], f[i−1] + gap) + t[i]. With S the running sum of t + gap this is
f[i] = S[i] + max over j ≤ i of (a[j] − gap − S[j−1]): a running maximum, no loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sysbench.predict.kernels import Floats
from sysbench.predict.rates import Draws, HostRate
from sysbench.predict.trace import PhaseTrace, Positions

LAUNCH_LATENCY_S = 3e-6
"""From the call that launches until the kernel starts on an idle device, beside what the call itself takes."""


@dataclass(frozen=True)
class Walked:
    """Phases that follow each other, times in seconds from their start, by draw.

    total_s   (draws,) until the host knows that the device is done
    host_s    (draws,) until the host has issued everything
    device_s  (draws,) that kernels run, gaps between waiting ones included
    """

    total_s: Draws
    host_s: Draws
    device_s: Draws


@dataclass(frozen=True)
class Lanes:
    """When everything of these phases happens, in seconds from their start."""

    issued_s: Floats
    """(operators,) When the host is done with each operator."""
    started_s: Floats
    """(launches,) When each kernel starts."""
    ended_s: Floats
    """(launches,) When it ends."""


def walk(
    phases: Sequence[PhaseTrace],
    unique_s: Floats,
    gap_s: Draws,
    host: Mapping[HostRate, Draws],
    *,
    synchronous: bool = False,
) -> Walked:
    """Phases without a pause, synchronized before and after; `unique_s` (kernels, draws) are seconds of each kernel.

    On a device that is `synchronous` the host does nothing else meanwhile.
    """
    draws = len(gap_s)
    total_s, host_s, device_s = np.zeros(draws), np.zeros(draws), np.zeros(draws)
    launches, kernels = _joined(phases)
    issuer = np.repeat(np.arange(len(launches)), launches)
    by_draw = np.ascontiguousarray(unique_s.T)
    for draw in range(draws):
        at = {name: values[draw] for name, values in host.items()}
        issued_s = _issued(phases, at)
        host_s[draw] = ended_s = issued_s[-1] if len(issued_s) else 0.0
        if len(issuer):
            each_s = by_draw[draw][kernels] + gap_s[draw]
            busy_s = np.cumsum(each_s)
            device_s[draw] = busy_s[-1]
            # the last kernel's end alone, so that a maximum does where `lanes` has a running one
            waiting_s = (issued_s[issuer] + (each_s - busy_s)).max() + LAUNCH_LATENCY_S - gap_s[draw]
            ended_s = ended_s + busy_s[-1] if synchronous else max(ended_s, busy_s[-1] + waiting_s)
        total_s[draw] = ended_s + at["synchronize"]
    return Walked(total_s, host_s, device_s)


def lanes(phases: Sequence[PhaseTrace], unique_s: Floats, gap_s: Draws, host: Mapping[HostRate, Draws]) -> Lanes:
    """When everything happens, at the first draw."""
    issued_s = _issued(phases, {name: values[0] for name, values in host.items()})
    launches, kernels = _joined(phases)
    ready_s = np.repeat(issued_s, launches) + LAUNCH_LATENCY_S
    each_s, gap = unique_s[kernels, 0], gap_s[0]
    busy_s = np.cumsum(each_s + gap)
    ended_s = busy_s + np.maximum.accumulate(ready_s - gap - (busy_s - each_s - gap)) if len(each_s) else busy_s
    return Lanes(issued_s, ended_s - each_s, ended_s)


def _joined(phases: Sequence[PhaseTrace]) -> tuple[Positions, Positions]:
    """What every operator launches, and the kernels, of all phases."""
    nothing = np.empty(0, dtype=np.intp)
    launches = np.concatenate([nothing, *(phase.launches for phase in phases)])
    return launches, np.concatenate([nothing, *(phase.kernels for phase in phases)])


def _issued(phases: Sequence[PhaseTrace], host: Mapping[HostRate, float]) -> Floats:
    """(operators,) When the host is done with each."""
    taken_s = [np.empty(0)]
    for phase in phases:
        suffix = "_backward" if phase.name == "backward" else ""
        cost_s = np.array([host[f"operator{suffix}"], host[f"view{suffix}"], host["scalar"]])  # type: ignore[index]
        launch_s = 0.0 if phase.replayed else host["launch"]
        taken_s.append(cost_s[phase.host] + launch_s * phase.launches)
    return np.cumsum(np.concatenate(taken_s))

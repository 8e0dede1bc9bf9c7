"""The host issues, the device executes in order: when each kernel runs, in closed form.

Kernel i is issued at a[i] and ends at f[i] = max(a[i], f[i−1] + gap) + t[i]. With S the running sum of t + gap this is
f[i] = S[i] + max over j ≤ i of (a[j] − gap − S[j−1]): a running maximum, no loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sysbench.predict.kernels import Floats
from sysbench.predict.rates import Draws, HostRate
from sysbench.predict.trace import PhaseTrace

LAUNCH_LATENCY_S = 3e-6
"""From the call that launches until the kernel starts on an idle device, beside what the call itself takes."""


@dataclass(frozen=True)
class Walked:
    """One phase, times in seconds from its start, by draw.

    total_s   (draws,) until the host knows that the device is done
    host_s    (draws,) until the host has issued everything
    device_s  (draws,) that kernels run, gaps between waiting ones included
    """

    total_s: Draws
    host_s: Draws
    device_s: Draws


@dataclass(frozen=True)
class Lanes:
    """When everything of one phase happens, in seconds from its start."""

    issued_s: Floats
    """(operators,) When the host is done with each operator."""
    started_s: Floats
    """(launches,) When each kernel starts."""
    ended_s: Floats
    """(launches,) When it ends."""


def walk(
    phase: PhaseTrace, unique_s: Floats, gap_s: Draws, host: Mapping[HostRate, Draws], *, synchronous: bool = False
) -> Walked:
    """One phase by itself, synchronized before and after; `unique_s` (kernels, draws) are seconds of each kernel.

    On a device that is `synchronous` the host does nothing else meanwhile.
    """
    issued_s = _issued(phase, host)
    host_s = ended_s = issued_s[:, -1] if issued_s.size else np.zeros(len(gap_s))
    device_s = np.zeros(len(gap_s))
    if len(phase.kernels):
        each_s = np.ascontiguousarray(unique_s.T)[:, phase.kernels] + gap_s[:, None]
        busy_s = np.cumsum(each_s, axis=1)
        device_s = busy_s[:, -1]
        # the last kernel's end alone, so that a maximum does where `lanes` has a running one
        waiting_s = (issued_s[:, phase.issuer] + (each_s - busy_s)).max(axis=1) + LAUNCH_LATENCY_S - gap_s
        ended_s = host_s + device_s if synchronous else np.maximum(host_s, device_s + waiting_s)
    return Walked(ended_s + host["synchronize"], host_s, device_s)


def lanes(phase: PhaseTrace, unique_s: Floats, gap_s: Draws, host: Mapping[HostRate, Draws]) -> Lanes:
    """When everything happens, at the first draw."""
    issued_s = _issued(phase, host)[0]
    ready_s = issued_s[phase.issuer] + LAUNCH_LATENCY_S
    each_s = unique_s[phase.kernels, 0]
    busy_s = np.cumsum(each_s + gap_s[0])
    before_s = busy_s - each_s - gap_s[0]
    ended_s = busy_s + np.maximum.accumulate(ready_s - gap_s[0] - before_s) if len(each_s) else busy_s
    return Lanes(issued_s, ended_s - each_s, ended_s)


def _issued(phase: PhaseTrace, host: Mapping[HostRate, Draws]) -> Floats:
    """(draws, operators) When the host is done with each: its rates times how often each was asked for until then."""
    suffix = "_backward" if phase.name == "backward" else ""
    launch_s = np.zeros_like(host["launch"]) if phase.replayed else host["launch"]
    rates_s = [host[f"operator{suffix}"], host[f"view{suffix}"], host["scalar"], launch_s]  # type: ignore[index]
    issued_s: Floats = np.stack(rates_s, axis=1) @ phase.issued
    return issued_s

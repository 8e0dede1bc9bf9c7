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
    if any(phase.streams is not None for phase in phases):
        return _walk_streams(phases, unique_s, gap_s, host)
    issued_s, issuers, kernels = _issued(phases, host), *_launched(phases)
    host_s = ended_s = issued_s[:, -1] if issued_s.size else np.zeros(len(gap_s))
    device_s = np.zeros(len(gap_s))
    if len(kernels):
        each_s = np.ascontiguousarray(unique_s.T)[:, kernels] + gap_s[:, None]
        busy_s = np.cumsum(each_s, axis=1)
        device_s = busy_s[:, -1]
        # the last kernel's end alone, so that a maximum does where `lanes` has a running one
        waiting_s = (issued_s[:, issuers] + (each_s - busy_s)).max(axis=1) + LAUNCH_LATENCY_S - gap_s
        ended_s = host_s + device_s if synchronous else np.maximum(host_s, device_s + waiting_s)
    return Walked(ended_s + host["synchronize"], host_s, device_s)


def _walk_streams(
    phases: Sequence[PhaseTrace], unique_s: Floats, gap_s: Draws, host: Mapping[HostRate, Draws]
) -> Walked:
    """Phases on several streams, one after the other: a launch begins when its stream is free and its waits are over.

    The device alone is a host that takes no time.
    """
    host_s, total_s, device_s = (np.zeros(len(gap_s)) for _ in range(3))
    for phase in phases:
        issued_s = _issued((phase,), host)
        until_s = issued_s[:, -1] if issued_s.size else np.zeros(len(gap_s))
        ready_s = np.ascontiguousarray(issued_s[:, phase.issuers].T) + LAUNCH_LATENCY_S
        total_s += np.maximum(until_s, _ended(phase, ready_s, unique_s, gap_s))
        device_s += _ended(phase, np.zeros_like(ready_s), unique_s, gap_s)
        host_s += until_s
    return Walked(total_s + host["synchronize"], host_s, device_s)


def _ended(phase: PhaseTrace, ready_s: Floats, unique_s: Floats, gap_s: Draws) -> Draws:
    """(draws,) When the last kernel ends, if each may begin once it is ready (launches, draws)."""
    streams = phase.streams if phase.streams is not None else np.zeros(len(phase.kernels), dtype=np.intp)
    waits: dict[int, list[int]] = {}
    for later, earlier in phase.waits:
        waits.setdefault(later, []).append(earlier)
    ended_s = np.empty_like(ready_s)
    free_s: dict[int, Draws] = {}
    for i, (stream, kernel) in enumerate(zip(streams.tolist(), phase.kernels.tolist(), strict=True)):
        start_s = ready_s[i]
        if stream in free_s:
            start_s = np.maximum(start_s, free_s[stream] + gap_s)
        for earlier in waits.get(i, ()):
            start_s = np.maximum(start_s, ended_s[earlier])
        ended_s[i] = free_s[stream] = start_s + unique_s[kernel]
    last_s: Draws = ended_s.max(axis=0, initial=0.0)
    return last_s


def lanes(phases: Sequence[PhaseTrace], unique_s: Floats, gap_s: Draws, host: Mapping[HostRate, Draws]) -> Lanes:
    """When everything happens, at the first draw."""
    issued_s, issuers, kernels = _issued(phases, host)[0], *_launched(phases)
    ready_s = issued_s[issuers] + LAUNCH_LATENCY_S
    each_s, gap = unique_s[kernels, 0], gap_s[0]
    busy_s = np.cumsum(each_s + gap)
    ended_s = busy_s + np.maximum.accumulate(ready_s - gap - (busy_s - each_s - gap)) if len(each_s) else busy_s
    return Lanes(issued_s, ended_s - each_s, ended_s)


def _launched(phases: Sequence[PhaseTrace]) -> tuple[Positions, Positions]:
    """Of every launch of all phases, the operator that makes it, counted through, and the kernel."""
    before = np.cumsum([0, *(len(phase.host) for phase in phases)])
    nothing = np.empty(0, dtype=np.intp)
    issuers = [nothing, *(phase.issuers + first for phase, first in zip(phases, before[:-1], strict=True))]
    return np.concatenate(issuers), np.concatenate([nothing, *(phase.kernels for phase in phases)])


def _issued(phases: Sequence[PhaseTrace], host: Mapping[HostRate, Draws]) -> Floats:
    """(draws, operators) When the host is done with each: its rates times how often each was asked for until then."""
    until_s = np.zeros((len(host["launch"]), 1))
    issued_s = [until_s[:, :0]]
    for phase in phases:
        suffix = "_backward" if phase.name == "backward" else ""
        launch_s = np.zeros_like(host["launch"]) if phase.replayed else host["launch"]
        rates_s = [host[f"operator{suffix}"], host[f"view{suffix}"], host["scalar"], launch_s]  # type: ignore[index]
        issued_s.append(until_s + np.stack(rates_s, axis=1) @ phase.issued)
        if len(phase.host):
            until_s = issued_s[-1][:, -1:]
    return np.concatenate(issued_s, axis=1)

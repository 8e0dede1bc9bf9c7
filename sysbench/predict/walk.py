"""Timeline of host and device in closed form: the host issues kernels, and the device executes them in order.

A walk covers one phase, or several phases between which the host does not wait for the device.

Kernel i is issued at a[i] and ends at f[i] = max(a[i], f[i−1] + gap) + t[i]. With S the running sum of t + gap, this is
f[i] = S[i] + max over j ≤ i of (a[j] − gap − S[j−1]), which is a running maximum and needs no loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sysbench.predict.kernels import Floats
from sysbench.predict.rates import Draws, HostRate
from sysbench.predict.trace import PhaseTrace, Positions

LAUNCH_LATENCY_S = 3e-6
"""Time from the launch call until the kernel starts on an idle device, in addition to the call itself."""


_NO_POSITIONS = np.empty(0, dtype=np.intp)


@dataclass(frozen=True)
class Issued:
    """Phases that the host issues without waiting for the device; independent of the GPU."""

    phases: Sequence[PhaseTrace]
    host: Mapping[HostRate, Draws]

    @cached_property
    def operator_ends_s(self) -> Floats:
        """Return when the host has finished each operator, in seconds, of shape (draws, operators)."""
        host = self.host
        operator_ends_s = np.zeros((len(host["launch"]), 1))
        issued_s = [operator_ends_s[:, :0]]
        for phase in self.phases:
            suffix = "_backward" if phase.name == "backward" else ""
            names = (f"operator{suffix}", f"view{suffix}", "scalar", "launch")
            rates_s = [host[name] for name in names]  # type: ignore[index]
            issued_s.append(operator_ends_s + np.stack(rates_s, axis=1) @ phase.issued)
            if phase.host_bytes is not None:
                issued_s[-1] += np.cumsum(phase.host_bytes) / host["update"][:, None]
            if len(phase.host):
                operator_ends_s = issued_s[-1][:, -1:]
        return np.concatenate(issued_s, axis=1)

    @cached_property
    def launched_s(self) -> Floats:
        """Return when the host has finished each launch's operator, in seconds, of shape (draws, launches)."""
        before = np.cumsum([0, *(len(phase.host) for phase in self.phases)])
        issuers = [phase.issuers + first for phase, first in zip(self.phases, before[:-1], strict=True)]
        return self.operator_ends_s[:, np.concatenate([_NO_POSITIONS, *issuers])]

    @cached_property
    def kernels(self) -> Positions:
        """Return the position of each launch's kernel in the trace, of shape (launches,)."""
        return np.concatenate([_NO_POSITIONS, *(phase.kernels for phase in self.phases)])

    @cached_property
    def ready_s(self) -> Floats:
        """Return when each kernel could begin on an idle device, in seconds, of shape (launches, draws)."""
        return np.ascontiguousarray(self.launched_s.T) + LAUNCH_LATENCY_S

    @cached_property
    def per_phase(self) -> tuple[Issued, ...]:
        """Return one `Issued` per phase."""
        return (self,) if len(self.phases) == 1 else tuple(Issued((phase,), self.host) for phase in self.phases)

    @property
    def end_s(self) -> Draws:
        """Return when the host has finished everything, in seconds, of shape (draws,)."""
        last_s: Draws = self.operator_ends_s[:, -1] if self.operator_ends_s.size else np.zeros(len(self.host["launch"]))
        return last_s


@dataclass(frozen=True)
class WalkTotals:
    """Total times of phases in seconds, each of shape (draws,).

    total_s   until the host has synchronized with the device
    host_s    until the host has issued everything
    device_s  run time of the kernels, including gaps between queued kernels
    """

    total_s: Draws
    host_s: Draws
    device_s: Draws


@dataclass(frozen=True)
class Timeline:
    """Times of all operators and kernels in seconds since the start of the first phase."""

    issued_s: Floats
    """(operators,) Time at which the host has finished each operator."""
    started_s: Floats
    """(launches,) Start of each kernel."""
    ended_s: Floats
    """(launches,) End of each kernel."""


def walk(issued: Issued, unique_s: Floats, gap_s: Draws, *, synchronous: bool = False) -> WalkTotals:
    """Return the total times of phases with synchronization before the first and after the last.

    `unique_s` (kernels, draws) has the seconds of each distinct kernel. If the device is `synchronous`, the host waits
    while kernels run.
    """
    if any(phase.streams is not None for phase in issued.phases):
        return _walk_streams(issued, unique_s, gap_s)
    host_s = ended_s = issued.end_s
    device_s = np.zeros(len(gap_s))
    if len(issued.kernels):
        each_s = np.ascontiguousarray(unique_s.T)[:, issued.kernels] + gap_s[:, None]
        busy_s = np.cumsum(each_s, axis=1)
        device_s = busy_s[:, -1]
        # Only the last kernel's end is needed, so a maximum suffices where `timeline` needs a running one.
        waiting_s = (issued.launched_s + (each_s - busy_s)).max(axis=1) + LAUNCH_LATENCY_S - gap_s
        ended_s = host_s + device_s if synchronous else np.maximum(host_s, device_s + waiting_s)
    return WalkTotals(ended_s + issued.host["synchronize"], host_s, device_s)


def _walk_streams(issued: Issued, unique_s: Floats, gap_s: Draws) -> WalkTotals:
    """Return the total times of phases on several streams."""
    host_s, total_s, device_s = (np.zeros(len(gap_s)) for _ in range(3))
    for phase, one_phase in zip(issued.phases, issued.per_phase, strict=True):
        total_s += np.maximum(one_phase.end_s, _last_end_s(phase, one_phase.ready_s, unique_s, gap_s))
        device_s += _last_end_s(phase, np.zeros_like(one_phase.ready_s), unique_s, gap_s)
        host_s += one_phase.end_s
    return WalkTotals(total_s + issued.host["synchronize"], host_s, device_s)


def _last_end_s(phase: PhaseTrace, ready_s: Floats, unique_s: Floats, gap_s: Draws) -> Draws:
    """Return the end of the last kernel, of shape (draws,), if each one may begin at `ready_s` (launches, draws)."""
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


def timeline(issued: Issued, unique_s: Floats, gap_s: Draws) -> Timeline:
    """Return the times of all operators and kernels for the first draw."""
    ready_s = issued.launched_s[0] + LAUNCH_LATENCY_S
    each_s, gap = unique_s[issued.kernels, 0], gap_s[0]
    busy_s = np.cumsum(each_s + gap)
    ended_s = busy_s + np.maximum.accumulate(ready_s - gap - (busy_s - each_s - gap)) if len(each_s) else busy_s
    return Timeline(issued.operator_ends_s[0], ended_s - each_s, ended_s)

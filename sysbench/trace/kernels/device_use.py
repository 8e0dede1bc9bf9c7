"""Utilisation of devices: idle time, the part of it spent waiting for the host, and launch overhead."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysbench.trace.grouping import distinct, firsts, grouped
from sysbench.trace.intervals import Stretches, union
from sysbench.trace.kernels.time import Calls, StepWork
from sysbench.trace.recording import NONE, Integers
from sysbench.trace.summary import DeviceUse


class LaunchSums:
    """Sums of launch overhead, slice by slice; everything that one call launches is in one slice."""

    def __init__(self) -> None:
        self.launches = self.launch_ns = self.work_ns = 0
        self.streams: set[tuple[int, int]] = set()

    def add(self, part: StepWork) -> None:
        """Add the work of a slice that counts."""
        work = part.work
        self.work_ns += int(work.duration_ns.sum())
        (_, device), (streams, stream) = grouped(work.device), grouped(work.stream)
        pairs, which = grouped(device * len(streams) + stream)
        first = firsts(which, len(pairs))
        self.streams |= set(zip(work.device[first].tolist(), work.stream[first].tolist(), strict=True))
        queued = work.launch != NONE
        launches, which = grouped(work.launch[queued])
        self.launches += len(launches)
        self.launch_ns += int(work.launch_ns[queued][firsts(which, len(launches))].sum())


class Timeline:
    """Stretches in which any work runs, and what ended the gaps between them; built in order of time."""

    def __init__(self, windows: Stretches) -> None:
        self._windows = windows
        self.total_ns = 0
        """Time in which at least one piece of work runs."""
        self.busy_ns = 0
        """The part of that time within the windows."""
        self.waiting_ns = 0
        """Idle time before the launch of the work that ends it."""
        self._open = np.zeros((3, 0), np.int64)
        """The last stretch, which later work may extend: start, end, and launch time of its first work."""
        self._idle_since = windows.start_ns[:1]

    def add(self, start_ns: Integers, end_ns: Integers, launched_ns: Integers) -> None:
        """Add work that starts after all earlier work; `launched_ns` is NONE if unknown."""
        start, end, launched = np.concatenate([self._open, np.stack([start_ns, end_ns, launched_ns])], axis=1)
        running = union(start, end)
        # Several pieces of work may end the same gap; the first to start counts.
        order = np.lexsort((launched, start))
        beginning = order[np.searchsorted(start[order], running.start_ns)]
        self._close(running, launched[beginning], len(running.start_ns) - 1)

    def close(self) -> None:
        """Close the last stretch; no more work follows."""
        start, end, launched = self._open
        self._close(Stretches(start, end), launched, len(start))

    def _close(self, running: Stretches, launched: Integers, count: int) -> None:
        """Count the first `count` stretches; the others remain open."""
        count = max(count, 0)
        starts, ends = running.start_ns[:count], running.end_ns[:count]
        self._open = np.stack([running.start_ns[count:], running.end_ns[count:], launched[count:]])
        self.total_ns += int((ends - starts).sum())
        if not count or not len(self._windows.start_ns):
            return
        self.busy_ns += Stretches(starts, ends).within_ns(self._windows)
        gap_begins = np.concatenate([self._idle_since, ends[:-1]])
        gap_ends = np.where(launched[:count] == NONE, gap_begins, np.minimum(starts, launched[:count]))
        waited = gap_ends > gap_begins
        self.waiting_ns += Stretches(gap_begins[waited], gap_ends[waited]).within_ns(self._windows)
        self._idle_since = ends[-1:]


def busy(calls: Calls, windows: Stretches) -> tuple[Timeline, dict[int, Timeline]]:
    """Return the timeline of all devices together, and one for each device."""
    everywhere = Timeline(windows)
    devices: dict[int, Timeline] = {}
    for rows in calls.in_order_of_time():
        everywhere.add(rows.start_ns, rows.start_ns + rows.duration_ns, rows.launched_ns)
        for device in distinct(rows.device).tolist():
            here = rows.device == device
            timeline = devices.setdefault(device, Timeline(windows))
            timeline.add(rows.start_ns[here], (rows.start_ns + rows.duration_ns)[here], rows.launched_ns[here])
    for timeline in (everywhere, *devices.values()):
        timeline.close()
    return everywhere, devices


def device_use(calls: Calls, devices: Mapping[int, Timeline], launched: LaunchSums, windows: Stretches) -> DeviceUse:
    """Return the use of devices within the steps' windows by the work that counts, summed over devices."""
    queues_ns = calls.queues_ns()
    return DeviceUse(
        window_ns=windows.total_ns * len(devices),
        busy_ns=sum(device.busy_ns for device in devices.values()),
        work_ns=launched.work_ns,
        waiting_ns=sum(device.waiting_ns for device in devices.values()),
        launches=launched.launches,
        launch_ns=launched.launch_ns,
        queue_median_ns=float(np.median(queues_ns, overwrite_input=True)) if len(queues_ns) else None,
        streams=len(launched.streams),
    )

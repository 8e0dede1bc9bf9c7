"""How busy devices were: idle time, how much of it was waiting for the host, and the cost of launches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysbench.trace.grouping import distinct, firsts, grouped
from sysbench.trace.intervals import Stretches, union
from sysbench.trace.kernels.time import Calls, StepWork
from sysbench.trace.recording import NONE, Integers
from sysbench.trace.summary import DeviceUse


class LaunchSums:
    """The cost of launches. Grows with every slice; everything that a call launched is in one slice."""

    def __init__(self) -> None:
        self.launches = self.launch_ns = self.work_ns = 0
        self.streams: set[tuple[int, int]] = set()

    def add(self, part: StepWork) -> None:
        """Take in what counts of a slice."""
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
    """When at least one of many pieces of work was running, and what ended the gaps between. Grows with time."""

    def __init__(self, windows: Stretches) -> None:
        self._windows = windows
        self.total_ns = 0
        """How long at least one was running."""
        self.busy_ns = 0
        """How much of that lies in the windows."""
        self.waiting_ns = 0
        """Idle time that passed before whatever ended it had been launched."""
        self._open = np.zeros((3, 0), np.int64)
        """The last stretch, which what comes may prolong: start, end, and when what began it was launched."""
        self._idle_since = windows.start_ns[:1]

    def add(self, start_ns: Integers, end_ns: Integers, launched_ns: Integers) -> None:
        """Take in work that starts after all that was taken in before; `launched_ns` is NONE where not known."""
        start, end, launched = np.concatenate([self._open, np.stack([start_ns, end_ns, launched_ns])], axis=1)
        running = union(start, end)
        # The first to start of those that end the same gap.
        order = np.lexsort((launched, start))
        beginning = order[np.searchsorted(start[order], running.start_ns)]
        self._close(running, launched[beginning], len(running.start_ns) - 1)

    def close(self) -> None:
        """Nothing more comes."""
        start, end, launched = self._open
        self._close(Stretches(start, end), launched, len(start))

    def _close(self, running: Stretches, launched: Integers, count: int) -> None:
        """Count the first stretches; the others stay open."""
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
    """When anything ran, and the same for each device."""
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
    """The use of devices by the work that counts, within the steps' windows; added up over several devices."""
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

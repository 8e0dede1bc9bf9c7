"""How well devices were kept busy: idle time, whom it was spent waiting for, and what launching cost."""

from __future__ import annotations

import numpy as np

from sysbench.analysis.attribution import Work
from sysbench.analysis.grouping import distinct, grouped
from sysbench.analysis.intervals import Stretches, union
from sysbench.analysis.trace import NONE, Integers, Launches
from sysbench.profile_summary import DeviceUse


def device_use(work: Work, launches: Launches, windows: Stretches) -> DeviceUse:
    """Of the work that counts, in the steps' windows; where there are several devices, added up over them."""
    devices = distinct(work.device).tolist()
    busy = waiting = 0
    for device in devices:
        here = np.flatnonzero(work.device == device)
        start, end = work.start_ns[here], work.start_ns[here] + work.duration_ns[here]
        running = union(start, end)
        busy += running.within_ns(windows)
        waiting += _waiting(running, start, np.where(work.launch[here] == NONE, NONE, work.at_ns[here]), windows)
    launch = distinct(work.launch[work.launch != NONE])
    queued = work.launch != NONE
    queues = work.start_ns[queued] - work.at_ns[queued]
    return DeviceUse(
        window_ns=windows.total_ns * len(devices),
        busy_ns=busy,
        work_ns=int(work.duration_ns.sum()),
        waiting_ns=waiting,
        launches=len(launch),
        launch_ns=int(launches.duration_ns[launch].sum()) if len(launch) else 0,
        queue_median_ns=float(np.median(queues)) if len(queues) else None,
        streams=_pairs(work.device, work.stream),
    )


def _pairs(some: Integers, others: Integers) -> int:
    (_, one), (values, other) = grouped(some), grouped(others)
    return len(distinct(one * len(values) + other))


def _waiting(running: Stretches, start: Integers, launched: Integers, windows: Stretches) -> int:
    """Idle time that passed before whatever ended it had been launched; `launched` is NONE where that is not known."""
    if not len(running.start_ns) or not len(windows.start_ns):
        return 0
    # The first to start of those that end the same gap.
    order = np.lexsort((launched, start))
    ending = order[np.searchsorted(start[order], running.start_ns)]
    gap_begins = np.concatenate([windows.start_ns[:1], running.end_ns[:-1]])
    gap_ends = np.where(launched[ending] == NONE, gap_begins, np.minimum(running.start_ns, launched[ending]))
    waited = gap_ends > gap_begins
    return Stretches(gap_begins[waited], gap_ends[waited]).within_ns(windows)

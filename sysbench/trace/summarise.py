"""Computation of a `ProfileSummary` from a recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from sysbench import units
from sysbench.spec import hardware as known_hardware
from sysbench.trace.attribution import attribute, slice_recording
from sysbench.trace.columns import Intervals, union
from sysbench.trace.device_steps import DeviceSteps
from sysbench.trace.kernels.names import kernel_name
from sysbench.trace.kernels.statistics import (
    WORK_PHASES,
    Calls,
    KernelTimeSums,
    LaunchSums,
    OperatorSums,
    StepTime,
    StepWork,
    busy_timelines,
    device_use,
    kernel_statistics,
)
from sysbench.trace.kernels.work import ProductCounts, rates
from sysbench.trace.range_tree import RangeTree
from sysbench.trace.readers.reading import Progress, no_progress
from sysbench.trace.recording import NONE, Recording
from sysbench.trace.summary import KernelName, ProfileSource, ProfileSummary

if TYPE_CHECKING:
    from sysbench.spec.hardware import Hardware
    from sysbench.spec.model import ModelCell


def summarise(
    recording: Recording,
    cell: ModelCell | None = None,
    *,
    device: Hardware | None = None,
    progress: Progress = no_progress,
) -> ProfileSummary:
    """Summarise a recording. The recording cannot be used afterwards.

    `cell` is the profiled cell, if sysbench made the profile: the trace is then checked against the model of the cell.
    `device` is the hardware; the default is the hardware that the trace names.
    """
    source: ProfileSource = "device" if len(recording.work) else "cpu"
    tree, slices = slice_recording(recording)
    sums = _Sums(recording, tree, source)
    for number, part in enumerate(slices):
        progress(units.share(number / len(slices)))
        sums.add(StepWork.of(part, attribute(part, tree, recording.names), tree))
    time, windows = sums.time.total(), sums.windows()
    names = [kernel_name(recording.names[name]) for name in time.kernels.tolist()]
    anywhere, devices = busy_timelines(sums.calls, windows)
    if source == "cpu":
        device = None
    elif device is None and recording.devices:
        device = known_hardware.find(recording.devices[0])
    return ProfileSummary(
        title=recording.title,
        source=source,
        predicted=recording.predicted,
        devices=list(recording.devices),
        rank=recording.rank,
        steps=sums.steps,
        steps_marked=tree.steps > 0,
        window_ns=windows.total_ns,
        busy_ns=anywhere.total_ns if source == "device" else sums.operators_busy_ns,
        left_out=sums.left_out,
        left_out_ns=sums.left_out_ns,
        backlog=sums.backlog,
        backlog_ns=sums.backlog_ns,
        unlinked_ns=sums.unlinked_ns,
        phases=list(WORK_PHASES),
        modules=list(time.modules),
        names=names,
        spent=time.spent,
        kernels=kernel_statistics(sums.calls, time, recording.launch_shapes, len(recording.names)),
        operators=sums.operators.statistics(),
        device=device_use(devices, sums.launches, windows) if source == "device" else None,
        precisions=_precisions(time, names),
        rates=list(rates(time, names, cell, device)),
        checks=list(sums.products.checks(cell, sums.steps, source)) if cell is not None else [],
        remarks=[*recording.remarks, *_steps_left_out(tree)],
    )


class _Sums:
    def __init__(self, recording: Recording, tree: RangeTree, source: ProfileSource) -> None:
        self._tree = tree
        self._source = source
        self.time: Final = KernelTimeSums(tree.modules, len(recording.names))
        self.calls: Final = Calls()
        self.operators: Final = OperatorSums(recording.names)
        self.launches: Final = LaunchSums()
        self.products: Final = ProductCounts(recording.names)
        self.steps: Final = max(tree.steps, 1)
        self.left_out = self.left_out_ns = self.backlog = self.backlog_ns = 0
        self.unlinked_ns = self.operators_busy_ns = 0
        self._device_steps = DeviceSteps(tree.step_start_ns)
        self._step_end_ns = tree.step_end_ns.copy()
        self._extent_ns: tuple[int, int] | None = None
        """Times of the first launch and of the end of the last piece of work."""

    def add(self, part: StepWork) -> None:
        for each in (self.time, self.calls, self.operators, self.launches, self.products):
            each.add(part)
        work, found = part.work, part.attribution.work
        queued = ~part.is_counted & (found.is_backlog == 1)
        left_out = ~part.is_counted & ~queued
        self.left_out += int(left_out.sum())
        self.left_out_ns += int(found.duration_ns[left_out].sum())
        self.backlog += int(queued.sum())
        self.backlog_ns += int(found.duration_ns[queued].sum())
        self.unlinked_ns += int(work.duration_ns[work.thread == NONE].sum())
        if self._source == "cpu":
            operators = part.slice.operators
            start = operators.start_ns[part.is_counted]
            self.operators_busy_ns += union(start, start + operators.duration_ns[part.is_counted]).total_ns
        if self._tree.steps and self._source == "device":
            step = np.full(len(found.start_ns), NONE, np.int64)
            step[part.is_counted] = part.step
            ended = found.start_ns + found.duration_ns
            self._device_steps.add(found.at_ns, found.start_ns, ended, found.device, found.stream, step, queued)
        if not len(work.start_ns):
            return
        finished = work.start_ns + work.duration_ns
        if self._tree.steps and self._source == "device":
            np.maximum.at(self._step_end_ns, part.step, finished)
        begin, end = min(int(work.start_ns.min()), int(work.at_ns.min())), int(finished.max())
        if self._extent_ns is not None:
            begin, end = min(begin, self._extent_ns[0]), max(end, self._extent_ns[1])
        self._extent_ns = (begin, end)

    def windows(self) -> Intervals:
        """Return the windows of the steps.

        A step lasts from its start on the host, or until the device is done with what came before, if that is later,
        until host and device have finished it.
        """
        if self._tree.steps:
            begin_ns = np.maximum(self._tree.step_start_ns, self._device_steps.ready_ns())
            return union(np.minimum(begin_ns, self._step_end_ns), self._step_end_ns)
        extent = np.array([] if self._extent_ns is None else [self._extent_ns], np.int64).reshape(-1, 2)
        return Intervals(extent[:, 0], extent[:, 1])


def _steps_left_out(tree: RangeTree) -> Iterator[str]:
    if tree.steps_left_out:
        yield f"{tree.steps_left_out} of {len(tree.marked_step)} steps lost kernels to this and are excluded"


def _precisions(time: StepTime, names: Sequence[KernelName]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, total_ns in zip(names, time.kernel_ns.tolist(), strict=True):
        if name.kernel_class in ("matmul", "attention"):
            known = name.precision or "unknown"
            found[known] = found.get(known, 0) + total_ns
    return found

"""Readings of the machine during a run, taken by the parent process from outside the measured process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain

import psutil

from sysbench.engine.sensors.memory_limits import MemoryLimit, host_available_bytes, memory_limits
from sysbench.engine.sensors.nvml import Gpu, Nvml, NvmlUnusableError, open_nvml
from sysbench.engine.sensors.worker_tree import ForeignLoad, WorkerTree, descendants_of
from sysbench.log.events import DeviceInfo, Reading, ReadingsLost

INTERVAL_S = 0.1
LISTING_S = 1.0
LISTING_SHARE = 0.005
"""Largest share of a core for listing the worker's processes, which happens once per second or, if it is expensive (a
scan of all processes), less often."""


class Sampler:
    """Takes readings of the machine, the worker and its device, using psutil, cgroup limits and, if available, NVML."""

    interval_s = INTERVAL_S

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tree = WorkerTree()
        self._load = ForeignLoad()
        self._load_share: float | None = None
        self._next_listing_s = float("-inf")
        self._own_pids: set[int] = {os.getpid()}
        self._gpu: Gpu | None = None
        self._other_gpus: list[Gpu] = []
        self._gpus: dict[str, Gpu | None] = {}
        self._failures: list[ReadingsLost] = []

    @property
    def driver(self) -> str | None:
        """Version of the NVIDIA driver; None if there is none."""
        return self._nvml.driver if self._nvml else None

    def watch(self, *pids: int) -> None:
        """Watch these processes and their descendants, instead of the earlier ones."""
        self._tree = WorkerTree(*pids)
        self._load.restart()
        self._load_share = None
        self._next_listing_s = float("-inf")

    def use(self, device: DeviceInfo | None, others: Sequence[DeviceInfo] = ()) -> None:
        """Set the device of the next cell, None for a cell without one, and the devices of its other ranks here."""
        self._gpu = self._find(device) if device is not None else None
        self._other_gpus = [gpu for other in others if (gpu := self._find(other)) is not None]

    def read(self, at_s: float) -> Reading:
        """Take a reading of all values that are quick to read; `at_s` is its timestamp. Unknown values are None."""
        self._list_when_due()
        on_gpu = self._gpu.read() if self._gpu else {}
        throttling = [on_gpu.get("throttle_reasons"), *(gpu.throttle_reasons() for gpu in self._other_gpus)]
        known = [reasons for reasons in throttling if reasons is not None]
        on_gpu["throttle_reasons"] = list(dict.fromkeys(chain.from_iterable(known))) if known else None
        return Reading(
            at_s=at_s,
            host_rss_bytes=self._tree.rss_bytes(),
            host_available_bytes=host_available_bytes(self._memory_limits),
            host_cpu_share=self._load_share,
            **on_gpu,
        )

    def failures(self) -> list[ReadingsLost]:
        """Return what was lost since the last call. A lost value is reported once and no longer read."""
        failures, self._failures = self._failures, []
        return failures

    def count_other_processes(self) -> int | None:
        """Count the processes of other programs on the GPUs of the cell; None without a GPU, or if it is unknown."""
        if self._gpu is None:
            return None
        listed = [gpu.compute_processes() for gpu in (self._gpu, *self._other_gpus)]
        if listed[0] is None:
            return None
        pids = {int(process.pid) for processes in listed for process in processes or ()}
        self._own_pids |= descendants_of(os.getpid()) | self._tree.pids
        others = pids - self._own_pids
        if not others:
            return 0
        return sum(map(psutil.pid_exists, others)) if any(map(psutil.pid_exists, pids)) else None

    def free_bytes(self, device: DeviceInfo) -> int | None:
        """Return the memory that a new process can allocate on a GPU or, within this process's limits, on the host."""
        if device.type != "cuda":
            return host_available_bytes(self._memory_limits)
        gpu = self._find(device)
        memory = gpu.memory() if gpu else None
        return int(memory.free) if memory else None

    def close(self) -> None:
        """Release all resources; no readings are possible afterwards."""
        if "_nvml" in vars(self) and self._nvml:
            self._nvml.close()
        self._nvml = None
        self._gpu = None
        self._other_gpus.clear()
        self._gpus.clear()

    @cached_property
    def _nvml(self) -> Nvml | None:
        try:
            return open_nvml(self._report)
        except NvmlUnusableError as error:
            self._report("", str(error))
            return None

    @cached_property
    def _memory_limits(self) -> tuple[MemoryLimit, ...]:
        return memory_limits(int(psutil.virtual_memory().total))

    def _find(self, device: DeviceInfo) -> Gpu | None:
        """Return the NVML handle of a device from a cache; None if there is none, which is reported once."""
        nvml = self._nvml if device.type == "cuda" else None
        if nvml is None:
            return None
        key = device.uuid or device.torch_name
        if key not in self._gpus:
            self._gpus[key] = self._look_up(device, nvml)
        return self._gpus[key]

    def _look_up(self, device: DeviceInfo, nvml: Nvml) -> Gpu | None:
        try:
            if device.uuid is None:
                raise NvmlUnusableError(f"{device.torch_name} has no UUID to find it by")
            return nvml.gpu(device.uuid, of_cuda=True)
        except NvmlUnusableError as error:
            self._report("", str(error))
            return None

    def _list_when_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_listing_s:
            return
        self._tree.list_members()
        self._own_pids |= self._tree.pids
        self._load_share = self._load.share(self._tree)
        cost_s = time.monotonic() - now_s
        self._next_listing_s = now_s + max(LISTING_S, cost_s / LISTING_SHARE)

    def _report(self, field: str, detail: str) -> None:
        self._failures.append(ReadingsLost(at_s=self._clock(), source=f"NVML {field}".strip(), detail=detail))

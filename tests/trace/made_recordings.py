"""Recordings of training runs as Kineto writes them, with all that real ones have, and a count that reads none of them.

A host launches kernels ahead of a device with several streams. A recording begins in the middle of the run: it has the
kernels that run after that moment and the launches that are called after it. The run itself is known, so what belongs
to which step is counted from the run, not from the file.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMPUTE, COMMUNICATION, LOADING = 7, 20, 24
"""Streams."""

KERNELS = {
    "matmul": "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
    "attention": "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>(x)",
    "normalisation": "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64EEEvPT0_PT_Pf",
    "elementwise": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, A>(int)",
    "communication": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "copy": "Memcpy HtoD (Pinned -> Device)",
}  # fmt: skip


@dataclass(frozen=True)
class Looks:
    """What a recording looks like. Times are microseconds."""

    lag_us: int = 0
    """How far the device is behind the host when the recording begins."""
    leaked: int = 0
    """Launches that are recorded before the first step begins."""
    has_streams: bool = False
    """Whether batches are copied and gradients are reduced on streams of their own."""
    lost_share: float = 0.0
    """Share of the launches that are missing."""
    corrupt: int = 0
    """Number of kernels at the head whose start is wrong by 100,000 s."""
    has_graphs: bool = False
    """Whether a call launches several kernels."""
    runtime: str = "cuda"


@dataclass
class Kernel:
    """What ran, and why."""

    kind: str
    stream: int
    start_us: int
    duration_us: int
    launched_us: int
    correlation: int
    step: int | None
    """None before the first marked step."""
    is_corrupt: bool = False

    @property
    def end_us(self) -> int:
        return self.start_us + self.duration_us


@dataclass
class Run:
    """A run of which `steps` steps are marked, and the events that a recording of it has."""

    looks: Looks
    seed: int
    rank: int = 0
    ranks: int = 1
    steps: int = 4
    kernels: list[Kernel] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    marks_us: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end of each marked step on the host."""
    recording_us: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._free_us = Counter[int]()
        self._now_us, self._calls = 0, 0
        for step in range(-2, self.steps):
            if step == 0:
                self._begin_recording()
            begin_us = self._now_us
            self._step(step if step >= 0 else None)
            if step >= 0:
                self.marks_us.append((begin_us, self._now_us))
        self._corrupt_head()
        self.events = [*self._host_events(), *self._device_events()]
        self._random.shuffle(self.events)  # files have no order

    # --- the run

    def _step(self, step: int | None) -> None:
        if self.looks.has_streams:
            self._launch("copy", LOADING, 30, step)
        for _ in range(12):
            kind = self._random.choice(("matmul", "attention", "normalisation", "elementwise"))
            for _ in range(3 if self.looks.has_graphs and kind == "elementwise" else 1):
                self._launch(kind, COMPUTE, self._random.randrange(40, 90), step)
                self._calls -= self.looks.has_graphs and kind == "elementwise"
            self._calls += self.looks.has_graphs and kind == "elementwise"
            if self.looks.has_streams and self._random.random() < 0.3:
                self._launch("communication", COMMUNICATION, 60, step, after=(COMPUTE,))
        if self.ranks > 1 or self.looks.has_streams:
            self._launch("communication", COMMUNICATION, 80, step, after=(COMPUTE,))
        self._launch("elementwise", COMPUTE, 50, step, after=(COMMUNICATION,))
        if not self.looks.lag_us:  # the host waits for the device, as for a loss that is printed
            self._now_us = max(self._now_us, *self._free_us.values()) + 20

    def _launch(self, kind: str, stream: int, duration_us: int, step: int | None, after: Iterable[int] = ()) -> None:
        """Launch a kernel, which runs when its stream and the streams that it waits for are free."""
        self._calls += 1
        start_us = max(self._now_us + 8, self._free_us[stream], *(self._free_us[each] for each in after))
        self.kernels.append(Kernel(kind, stream, start_us, duration_us, self._now_us, self._calls, step))
        self._free_us[stream] = start_us + duration_us
        self._now_us += 15
        self._calls += 1  # a call that launches nothing, such as the query of a stream

    def _begin_recording(self) -> None:
        """Begin so early that `leaked` launches are recorded before the first step."""
        if self.looks.lag_us:
            self._free_us[COMPUTE] = max(self._free_us[COMPUTE], self._now_us + 100)
            while self._free_us[COMPUTE] < self._now_us + self.looks.lag_us:
                self._launch("matmul", COMPUTE, 70, None)
        before = len(self.kernels) - self.looks.leaked
        self.recording_us = self.kernels[before].launched_us if self.looks.leaked else self._now_us

    def _corrupt_head(self) -> None:
        for each in sorted(self.recorded, key=lambda each: each.start_us)[: self.looks.corrupt]:
            each.is_corrupt = True

    @property
    def recorded(self) -> list[Kernel]:
        """The kernels that begin after the recording does."""
        return [each for each in self.kernels if each.start_us >= self.recording_us]

    # --- the file

    def _host_events(self) -> Iterable[dict[str, Any]]:
        for step, (begin_us, end_us) in enumerate(self.marks_us):
            place = {"ph": "X", "name": f"ProfilerStep#{step}", "ts": begin_us, "dur": end_us - begin_us}
            yield {**place, "cat": "user_annotation", "pid": 1, "tid": 1}
            yield {**place, "cat": "gpu_user_annotation", "pid": 0, "tid": COMPUTE, "ts": begin_us + 500}
        for number in {each.correlation: each for each in reversed(self.kernels)}.values():
            if number.launched_us < self.recording_us or self._is_lost(number):
                continue
            call = {"ph": "X", "cat": f"{self.looks.runtime}_runtime", "pid": 1, "tid": 1, "ts": number.launched_us}
            name = f"{self.looks.runtime}LaunchKernel"
            yield {**call, "name": name, "dur": 4, "args": {"correlation": number.correlation}}
        for call_number in range(self._calls):
            yield {"ph": "i", "cat": "python", "name": "nothing", "ts": call_number}
        launched = {each.correlation: each.launched_us for each in self.kernels}
        for correlation, at_us in launched.items():
            if at_us >= self.recording_us:
                query = {"ph": "X", "cat": f"{self.looks.runtime}_runtime", "name": "cudaStreamIsCapturing"}
                yield {**query, "pid": 1, "tid": 1, "ts": at_us + 6, "dur": 1, "args": {"correlation": correlation + 1}}

    def _is_lost(self, kernel: Kernel) -> bool:
        """Whether the launch is missing. Without one, work that runs before all others looks like backlog."""
        may_be_lost = bool(kernel.step) and kernel.stream != LOADING
        return may_be_lost and random.Random(kernel.correlation).random() < self.looks.lost_share

    def _device_events(self) -> Iterable[dict[str, Any]]:
        for number, each in enumerate(self.recorded):
            category = "gpu_memcpy" if each.kind == "copy" else "kernel"
            arguments = {"device": 0, "stream": each.stream, "correlation": each.correlation}
            if each.kind == "communication":
                arguments |= {
                    "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "BFloat16",
                    "Group size": self.ranks, "Process Group Name": "0", "Seq": number,
                }  # fmt: skip
            start_us = each.start_us - (10**11 if each.is_corrupt else 0)
            place = {"pid": 0, "tid": each.stream, "ts": start_us, "dur": each.duration_us}
            yield {"ph": "X", "cat": category, "name": KERNELS[each.kind], **place, "args": arguments}

    def write(self, path: Path) -> None:
        """Write the file, with times since a base of its own."""
        offset_us = 7_000_000 * (self.rank + 1)
        header = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            "distributedInfo": {"rank": self.rank, "world_size": self.ranks},
            "baseTimeNanoseconds": 1_712_275_200_000_000_000 - offset_us * 1000,
        }
        events = [{**each, "ts": each["ts"] + offset_us} for each in self.events]
        path.write_text(json.dumps({**header, "traceEvents": events}))

    # --- the count

    def count(self) -> Count:
        """Count what the steps hold, from the run."""
        damaged = {each.step for each in self.kernels if each.is_corrupt} - {None}
        steps = [step for step in range(self.steps) if step not in damaged]
        own = [each for each in self.recorded if each.step in steps]
        own_ns = [(each.start_us * 1000, each.end_us * 1000) for each in own]
        windows = [(self._begin_us(step) * 1000, self._end_us(step) * 1000) for step in steps]
        by_class = defaultdict[str, int](int)
        for each in own:
            by_class[each.kind] += each.duration_us * 1000
        first_us = max(self._ready_us(steps[0]), min(each.start_us for each in own if each.step == steps[0]))
        before = [each for each in self.recorded if each.launched_us < self.recording_us and not each.is_corrupt]
        return Count(
            steps=len(steps),
            kernels=len(own),
            by_class_ns=dict(by_class),
            busy_ns=covered(own_ns),
            window_ns=covered(windows),
            device_window_ns=max(end for _, end in own_ns) - first_us * 1000,
            communication_ns=[
                sum(each.duration_us * 1000 for each in own if (each.kind, each.step) == ("communication", step))
                for step in steps
            ],
            backlog=len(before),
            backlog_ns=sum(each.duration_us for each in before) * 1000,
        )

    def _ready_us(self, step: int) -> int:
        """When the device is done with all that came before, or has begun the step on the stream of most kernels."""
        main_us = min(each.start_us for each in self.kernels if each.step == step and each.stream == COMPUTE)
        earlier = [
            each.end_us for each in self.recorded if not each.is_corrupt and (each.step is None or each.step < step)
        ]
        return min(main_us, max(earlier, default=0))

    def _begin_us(self, step: int) -> int:
        return max(self.marks_us[step][0], self._ready_us(step))

    def _end_us(self, step: int) -> int:
        return max(self.marks_us[step][1], *(each.end_us for each in self.kernels if each.step == step))


@dataclass(frozen=True)
class Count:
    """What the marked steps hold together."""

    steps: int
    kernels: int
    by_class_ns: dict[str, int]
    busy_ns: int
    window_ns: int
    device_window_ns: int
    """From the first work of the first step, or the end of earlier work, to the end of the last."""
    communication_ns: list[int]
    """Time of communication in each step."""
    backlog: int
    backlog_ns: int


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Time in which at least one interval is open."""
    total, until = 0, -(10**18)
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total

"""Traces of several ranks of a run that never was, as Kineto writes them, and what is true of them by construction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMPUTE, COMMUNICATION = 7, 20
"""Streams."""

NCCL = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}


@dataclass(frozen=True)
class Bucket:
    """A collective that starts on each rank when it has computed, and ends on all ranks after the transfer."""

    compute_us: Mapping[int, int]
    """Compute before it, by rank."""
    transfer_us: int
    name: str = "allreduce"
    elements: tuple[int, int] = (1024, 1024)
    dtype: str = "Float"
    ranks: tuple[int, ...] | None = None
    """Its process group; all ranks by default."""


@dataclass
class Waited:
    """What is true of one collective."""

    ranks: tuple[int, ...]
    waiting_us: dict[int, int]
    transfer_us: int
    last: int


@dataclass
class Run:
    """Ranks that compute and communicate on two streams, step by step; times are whole microseconds."""

    world: int
    clock_us: Mapping[int, int] = field(default_factory=dict)
    """How far each rank's clock is ahead."""
    numbered: bool = True
    """Whether collectives have their number in the group."""
    first_step: Mapping[int, int] = field(default_factory=dict)
    truth: list[Waited] = field(default_factory=list)
    events: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.compute_us = dict.fromkeys(range(self.world), 1000)
        self.free_us = dict.fromkeys(range(self.world), 1000)
        self.events = {rank: [] for rank in range(self.world)}
        self.launched = 0
        self.sequence: dict[tuple[int, ...], int] = {}
        self.steps = 0

    def step(self, buckets: Sequence[Bucket], idle_us: Mapping[int, int] | None = None) -> None:
        """Take a step; the next one begins on each rank when its last collective and its compute are over."""
        started = dict(self.compute_us)
        for rank, pause in (idle_us or {}).items():
            self.compute_us[rank] += pause
        for bucket in buckets:
            self._bucket(bucket)
        for rank in range(self.world):
            self._work(rank, "void at::native::vectorized_elementwise_kernel<4>", self.compute_us[rank], 5, COMPUTE)
            self.compute_us[rank] = max(self.compute_us[rank] + 5, self.free_us[rank])
            name = f"ProfilerStep#{self.first_step.get(rank, 10) + self.steps}"
            length = self.compute_us[rank] - started[rank]
            self._add(rank, "user_annotation", name, started[rank], length, 1, 1, {})
        self.steps += 1

    def _bucket(self, bucket: Bucket) -> None:
        ranks = bucket.ranks or tuple(range(self.world))
        for rank in range(self.world):
            if took := bucket.compute_us.get(rank, 0):
                self._work(rank, "ampere_sgemm_128x64_tn", self.compute_us[rank], took, COMPUTE)
                self.compute_us[rank] += took
        start = {rank: max(self.compute_us[rank], self.free_us[rank]) for rank in ranks}
        end = max(start.values()) + bucket.transfer_us
        number = self.sequence[ranks] = self.sequence.get(ranks, 0) + 1
        for rank in ranks:
            told = {
                "Collective name": bucket.name,
                "In msg nelems": bucket.elements[0],
                "Out msg nelems": bucket.elements[1],
                "Group size": len(ranks),
                "dtype": bucket.dtype,
                "In split size": "[]",
                "Out split size": "[]",
                "Process Group Name": str(ranks[0]) + "-" + str(len(ranks)),
                "Process Group Description": "made",
                "Process Group Ranks": str(list(ranks)),
                **({"Seq": number} if self.numbered else {}),
            }
            self._work(rank, NCCL[bucket.name], start[rank], end - start[rank], COMMUNICATION, told)
            self.free_us[rank] = end
        last = max(start.values())
        waiting = {rank: last - start[rank] for rank in ranks}
        self.truth.append(Waited(ranks, waiting, bucket.transfer_us, max(start, key=lambda rank: start[rank])))

    def _work(
        self, rank: int, name: str, at: int, duration: int, stream: int, told: Mapping[str, Any] | None = None
    ) -> None:
        """Launch a kernel a little earlier than it runs."""
        self.launched += 1
        launch = {"cbid": 211, "correlation": self.launched}
        self._add(rank, "cuda_runtime", "cudaLaunchKernel", at, 1, 1, 1, launch)
        where = {"device": 0, "stream": stream, "correlation": self.launched, "grid": [1, 1, 1], "block": [32, 1, 1]}
        self._add(rank, "kernel", name, at, duration, 0, stream, {**where, **(told or {})})

    def _add(
        self, rank: int, kind: str, name: str, at: int, duration: int, process: int, thread: int, told: dict[str, Any]
    ) -> None:
        at += self.clock_us.get(rank, 0)
        event = {"ph": "X", "cat": kind, "name": name, "pid": process, "tid": thread, "ts": at, "dur": duration}
        self.events[rank].append({**event, "args": told})

    def write(self, directory: Path, ranks: Sequence[int] | None = None, name: str = "trace-{rank}.json") -> list[Path]:
        """Write one file per rank."""
        paths = []
        for rank in ranks if ranks is not None else range(self.world):
            paths.append(directory / name.format(rank=rank))
            header = {
                "schemaVersion": 1,
                "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.world},
                "host_name": "node",
                "baseTimeNanoseconds": 1_712_275_200_000_000_000,
            }
            paths[-1].write_text(json.dumps({**header, "traceEvents": self.events[rank]}))
        return paths

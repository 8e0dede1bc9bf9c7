"""Properties of a simulated GPU that determine how much memory a program uses."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sysbench.errors import Refusal, UnavailableError
from sysbench.extras import followed_torch, installed_torch
from sysbench.log.events import DeviceInfo, GpuSimulated
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.spec.hardware import Hardware, context_of
from sysbench.spec.knobs import FP8, fp8_refusal, has_fp8
from sysbench.spec.ranks import Strategy, layout
from sysbench.spec.steps import StepPrecision
from sysbench.trace.workspaces import workspace_bytes

MIB = 1024 * 1024

CONTEXT_BYTES = 600 * MIB
"""Device memory that a process uses before its first allocation: the CUDA context, cuBLAS, and kernel code.

Observed values depend on driver, GPU and libraries. This is the upper end for a GPU whose profile has no `context`, so
that a verdict "fits" is not wrong by a few MiB; a measured value can be given instead.
"""

LEAST_CONTEXT_BYTES = 141 * MIB
"""Lower end for such a GPU: what a T4 used under recent versions, the least that was published."""

UNKNOWN_CAPABILITY = (8, 0)
"""Capability assumed if only a GPU's memory size is known: Ampere, the oldest generation that supports all kernels."""

NCCL_BYTES = {1: 0, 2: 342 * MIB}
"""Device memory of an NCCL communicator by its number of ranks, observed on NVLink; `MAX_NCCL_BYTES` for more ranks.

The size depends on the number of channels, thus on version and network: NVIDIA/nccl#964 reports 544 MiB for two
A100s and 688 MiB for more. Beyond two nodes it no longer grows (NVIDIA/nccl#986)."""

MAX_NCCL_BYTES = 392 * MIB


UNKNOWN_MULTIPROCESSORS = 132
"""Number of multiprocessors assumed if it is unknown: that of an H100. Only the scratch memory of reductions depends on
it."""


@dataclass(frozen=True)
class Multiprocessors:
    """Number of a GPU's multiprocessors, and the number of threads that each can hold."""

    count: int
    threads: int


@dataclass(frozen=True)
class Workspaces:
    """Sizes of the workspaces of cuBLAS and cuBLASLt, and how long they live.

    product_bytes  for a product by cuBLAS
    lt_bytes       for a product by cuBLASLt; None if cuBLASLt uses the workspace of cuBLAS
    are_kept       whether each thread keeps those of its first product for ever; otherwise each product has its own

    Sources: aten/src/ATen/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize, getCUDABlasLtWorkspace,
    getCurrentCUDABlasHandleWithWorkspace) and native/cuda/Blas.cpp of PyTorch 2.11 to 2.15. The allocations of each
    version were observed on a stand-in for the device (tests/fake_gpu). Later versions are taken to be like 2.15.
    """

    product_bytes: int
    lt_bytes: int | None
    are_kept: bool

    @classmethod
    def of(
        cls, major: int, torch: tuple[int, int] | None = None, environment: Mapping[str, str] | None = None
    ) -> Workspaces:
        """Return the workspaces on a GPU of compute capability `major`."""
        torch = torch or installed_torch()
        environment = os.environ if environment is None else environment
        product_bytes = workspace_bytes(major, torch, environment)
        is_kept = torch < (2, 15) or environment.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
        shared = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0" if torch < (2, 12) else "1") == "1"
        lt_kib = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
        lt_bytes = (int(lt_kib) if lt_kib.isdecimal() else 1024) * 1024
        return cls(product_bytes, None if is_kept and shared else lt_bytes, is_kept)

    @classmethod
    def on_amd(cls, architecture: str) -> Workspaces:
        """Return the workspaces of hipBLAS and hipBLASLt; both libraries have their own on these GPUs.

        Source: the branches for USE_ROCM in CublasHandlePool.cpp (parseChosenWorkspaceSize and
        parseCUDABlasLtWorkspaceSize). They were read, not observed on a device.
        """
        is_large = architecture.startswith(("gfx94", "gfx95"))
        return cls((128 if is_large else 32) * MIB, 76 * MIB, are_kept=installed_torch() < (2, 15))


class ScratchMemory(NamedTuple):
    """What determines the scratch memory of a GPU's kernels, besides the kernels."""

    workspaces: Workspaces
    multiprocessors: Multiprocessors


_THREADS_OF_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""By compute capability, from the CUDA C++ Programming Guide; 2,048 for all others."""


@dataclass(frozen=True)
class Gpu:
    """A GPU to simulate.

    title               displayed name
    memory_bytes        total memory reported by CUDA, including the three sizes below
    compute_capability  (major, minor)
    context_bytes       most memory that the CUDA context and libraries are assumed to use outside the allocator
    least_context_bytes  least memory that they are assumed to use
    other_bytes         memory used by other processes
    nccl_bytes          memory used by NCCL if there are several ranks
    sms                 number of multiprocessors
    architecture        LLVM's name of an AMD GPU's architecture, such as gfx942; None for other GPUs
    """

    title: str
    memory_bytes: int
    compute_capability: tuple[int, int] = UNKNOWN_CAPABILITY
    context_bytes: int = CONTEXT_BYTES
    other_bytes: int = 0
    nccl_bytes: int = 0
    sms: int = UNKNOWN_MULTIPROCESSORS
    architecture: str | None = None
    least_context_bytes: int = LEAST_CONTEXT_BYTES

    @property
    def outside_bytes(self) -> int:
        """Return the memory in use outside the allocator."""
        return self.context_bytes + self.other_bytes + self.nccl_bytes

    def with_nccl_memory(self, strategy: Strategy | None, ranks: int) -> Gpu:
        """Return a copy with the NCCL memory of one of `ranks` ranks, which has one communicator per process group."""
        groups = layout(strategy, ranks)
        return replace(self, nccl_bytes=sum(NCCL_BYTES.get(group, MAX_NCCL_BYTES) for group in groups))

    @classmethod
    def of(cls, hardware: Hardware, *, context_bytes: int | None = None, other_bytes: int = 0) -> Gpu:
        """Create the GPU that `hardware` describes; `context_bytes` is a measured size of the context, if any."""
        known = context_of(hardware)
        least_bytes, most_bytes = (known.low_bytes, known.high_bytes) if known else (LEAST_CONTEXT_BYTES, CONTEXT_BYTES)
        if context_bytes is not None:
            least_bytes = most_bytes = context_bytes
        capability = _capability(hardware.compute_capability)
        sms = hardware.sms or UNKNOWN_MULTIPROCESSORS
        return cls(
            hardware.title,
            hardware.memory_bytes,
            capability,
            most_bytes,
            other_bytes,
            sms=sms,
            architecture=hardware.architecture,
            least_context_bytes=least_bytes,
        )

    @classmethod
    def like(cls, device: DeviceInfo, memory_bytes: int) -> Gpu:
        """Create a GPU with `memory_bytes` of memory, and with the name and compute capability of `device`."""
        sms = device.multiprocessors or UNKNOWN_MULTIPROCESSORS
        return cls(device.name, memory_bytes, _capability(device.compute_capability), sms=sms)

    def simulation_event(self, cell: str, settings: AllocatorSettings) -> GpuSimulated:
        """Return the event that records the simulation of `cell` on this GPU with these allocator settings."""
        return GpuSimulated(
            at_s=time.time(),
            cell=cell,
            title=self.title,
            memory_bytes=self.memory_bytes,
            context_bytes=self.context_bytes,
            least_context_bytes=self.least_context_bytes,
            other_bytes=self.other_bytes,
            nccl_bytes=self.nccl_bytes,
            settings=settings.text,
            torch=followed_torch(),
        )

    @property
    def attention_generation(self) -> tuple[int, int]:
        """Return the oldest compute capability for which PyTorch selects the same attention kernels.

        These selections are in `simulate.cuda.attention`.
        """
        major, minor = self.compute_capability
        if major == 12 or (major == 8 and minor >= 6):
            return (8, 6)
        return {7: (7, 0), 10: (9, 0)}.get(major, self.compute_capability)

    @property
    def multiprocessors(self) -> Multiprocessors:
        """Return the number of multiprocessors, and how many threads each can hold."""
        return Multiprocessors(self.sms, _THREADS_OF_MULTIPROCESSOR.get(self.compute_capability, 2048))

    @property
    def workspaces(self) -> Workspaces:
        """Return the workspaces of cuBLAS or hipBLAS, as the installed PyTorch allocates them on this GPU."""
        if self.architecture is not None:
            return Workspaces.on_amd(self.architecture)
        return Workspaces.of(self.compute_capability[0])

    @property
    def scratch(self) -> ScratchMemory:
        """Return what determines the scratch memory of kernels."""
        return ScratchMemory(self.workspaces, self.multiprocessors)


def refuse_fp8(precision: StepPrecision, gpu: Gpu) -> None:
    """Raise UnavailableError if the precision has products in fp8, and the GPU has none or another format of them."""
    if precision in FP8 and gpu.architecture is not None:
        reason = f"is not modelled on AMD GPUs such as {gpu.title}"
        raise UnavailableError(Refusal(reason, "nearest: bf16", f"--precision {precision}"))
    if precision in FP8 and not has_fp8(gpu.compute_capability):
        raise UnavailableError(fp8_refusal(precision, gpu.title))


def _capability(stated: str | None) -> tuple[int, int]:
    major, _, minor = (stated or "").partition(".")
    return (int(major), int(minor)) if major and minor else UNKNOWN_CAPABILITY

"""The GPU that a simulation is of: as much of it as decides about memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sysbench.log.events import DeviceInfo, GpuSimulated
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.spec.hardware import Hardware

MIB = 1024 * 1024

CONTEXT_BYTES = 600 * MIB
"""What a process takes from the device before it allocates anything: the CUDA context, cuBLAS and kernels' code.

300 to 600 MiB were seen, depending on driver, GPU and libraries. This is the upper end, so that a verdict of "fits" is
not one for lack of a few MiB; a measured value can be given instead.
"""

UNKNOWN_CAPABILITY = (8, 0)
"""What a GPU known by nothing but its memory is taken for: Ampere, the oldest that all kernels are for."""

_DEFAULT_WORKSPACE_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
_LARGE_WORKSPACE_BYTES = 8 * 4096 * 1024
_LARGE_WORKSPACE_MAJORS = frozenset({9, 10, 12})


@dataclass(frozen=True)
class Gpu:
    """A GPU to simulate.

    title               how it is called
    memory_bytes        what CUDA reports as total
    compute_capability  major and minor
    context_bytes       of it, gone before the first allocation
    other_bytes         of it, held by other processes
    """

    title: str
    memory_bytes: int
    compute_capability: tuple[int, int] = UNKNOWN_CAPABILITY
    context_bytes: int = CONTEXT_BYTES
    other_bytes: int = 0

    @classmethod
    def of(cls, hardware: Hardware, *, context_bytes: int = CONTEXT_BYTES, other_bytes: int = 0) -> Gpu:
        """The GPU that `hardware` describes."""
        capability = _capability(hardware.compute_capability)
        return cls(hardware.title, hardware.memory_bytes, capability, context_bytes, other_bytes)

    @classmethod
    def like(cls, device: DeviceInfo, memory_bytes: int) -> Gpu:
        """A GPU of the kind that `device` is, with this much memory."""
        return cls(device.name, memory_bytes, _capability(device.compute_capability))

    def simulated(self, cell: str, settings: AllocatorSettings) -> GpuSimulated:
        """The event that says of a cell which GPU it is simulated for."""
        return GpuSimulated(
            at_s=time.time(),
            cell=cell,
            title=self.title,
            memory_bytes=self.memory_bytes,
            context_bytes=self.context_bytes,
            other_bytes=self.other_bytes,
            settings=settings.text,
        )

    @property
    def workspace_bytes(self) -> int:
        """What cuBLAS gets from the allocator for each of its handles (parseChosenWorkspaceSize, CublasHandlePool.cpp).

        A handle belongs to a thread, and autograd runs backward on a thread of its own: there are two of these, which
        is inferred from the source and was not measured.
        """
        is_large = self.compute_capability[0] in _LARGE_WORKSPACE_MAJORS
        return _LARGE_WORKSPACE_BYTES if is_large else _DEFAULT_WORKSPACE_BYTES


def _capability(stated: str | None) -> tuple[int, int]:
    """Of "9.0"; that of an unknown GPU where none is stated."""
    major, _, minor = (stated or "").partition(".")
    return (int(major), int(minor)) if major and minor else UNKNOWN_CAPABILITY

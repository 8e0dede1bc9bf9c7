"""Memory as this process sees its own: peaks, freeing, and how running out of it looks."""

from __future__ import annotations

import gc
import resource
import sys
from dataclasses import dataclass

import torch

_OUT_OF_MEMORY_PHRASES = (
    "out of memory",  # CUDA's caching allocator, the CUDA driver, "MPS backend out of memory"
    "can't allocate memory",  # c10/core/impl/alloc_cpu.cpp
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


@dataclass(frozen=True)
class Peaks:
    """High-water marks in bytes; None where the device does not tell."""

    allocated_bytes: int | None
    """Of live tensors."""
    reserved_bytes: int | None
    """Of what the allocator took from the device."""
    host_rss_bytes: int
    """Of this process's resident memory, since it began: it cannot be reset."""


def reset_peaks(device: torch.device) -> None:
    """Forget earlier peaks: the next ones are of what is live now and what comes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peaks(device: torch.device) -> Peaks:
    """Peaks since `reset_peaks`."""
    if device.type == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        return Peaks(allocated, reserved, _host_rss_peak_bytes())
    # MPS keeps no peak of live tensors; what its driver holds only grows until the cache is emptied.
    reserved_bytes = torch.mps.driver_allocated_memory() if device.type == "mps" else None
    return Peaks(None, reserved_bytes, _host_rss_peak_bytes())


def release(device: torch.device) -> None:
    """Give back everything that nothing refers to any more: Python's garbage first, then the allocator's cache."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on any device.

    Only CUDA has a type for it; the others raise RuntimeError and are told apart by their words.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _OUT_OF_MEMORY_PHRASES)


def _host_rss_peak_bytes() -> int:
    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return maximum if sys.platform == "darwin" else maximum * 1024  # getrusage(2): bytes on macOS, KiB on Linux

"""What torch says of each device, as plain fields of a `DeviceInfo`.

Apart from the model itself because importing that takes a third of a second, which `sysbench doctor` has not got.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import torch


def available() -> list[dict[str, Any]]:
    """Every device cells can run on, in the order in which `auto` prefers them: cuda, mps, cpu."""
    return [*_cuda_devices(), *_mps_devices(), _cpu()]


def _cuda_devices() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    return [_cuda_device(index) for index in range(torch.cuda.device_count())]


def _cuda_device(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "type": "cuda",
        "index": index,
        "uuid": f"GPU-{properties.uuid}",  # as NVML spells it
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


def _mps_devices() -> list[dict[str, Any]]:
    if not torch.backends.mps.is_available():
        return []
    # The GPU has no name of its own: it is part of the chip, and so is its memory.
    return [{"name": _cpu_name(), "type": "mps", "memory_bytes": torch.mps.recommended_max_memory()}]


def _cpu() -> dict[str, Any]:
    return {"name": _cpu_name(), "type": "cpu", "memory_bytes": psutil.virtual_memory().total, "bf16": cpu_bf16()}


def cpu_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware: AMX, AVX512-BF16, or FEAT_BF16 on Arm. Others emulate it."""
    # Not every torch says what the CPU has; of Intel's and AMD's all do.
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    named = any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"))
    return bool(named or torch.cpu._is_avx512_bf16_supported())


def _cpu_name() -> str:
    """The processor's name for people; the architecture's where the system tells no more."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, named), platform.processor() or platform.machine())

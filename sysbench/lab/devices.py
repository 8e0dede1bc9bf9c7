"""Which devices torch sees, as plain fields of a `DeviceInfo`.

This is apart from the model because importing that takes a third of a second, which `sysbench doctor` cannot spare.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from sysbench.log.events import DeviceInfo, TorchInfo


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


def available_devices() -> list[DeviceInfo]:
    """Every device cells can run on, in the order in which `auto` prefers them: cuda, mps, cpu."""
    return [DeviceInfo(**facts) for facts in available()]


def torch_device(device: DeviceInfo) -> torch.device:
    """The device as torch addresses it."""
    return torch.device(device.torch_name)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything that was launched; the CPU has by the time a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def torch_info(import_s: float) -> TorchInfo:
    """The torch of this process; `import_s` is how long importing it took."""
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return TorchInfo(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        cudnn=str(cudnn) if cudnn is not None else None,
        triton=_installed_version("triton"),
        threads=torch.get_num_threads(),
        allocator=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
        import_s=import_s,
    )


def _installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

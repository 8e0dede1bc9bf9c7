"""Which devices there are, and which torch drives them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil
import torch

from sysbench.events import DeviceInfo, TorchInfo


def available_devices() -> list[DeviceInfo]:
    """Every device cells can run on, in the order in which `auto` prefers them: cuda, mps, cpu."""
    return [*_cuda_devices(), *_mps_devices(), _cpu()]


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


def _cuda_devices() -> list[DeviceInfo]:
    if not torch.cuda.is_available():
        return []
    return [_cuda_device(index) for index in range(torch.cuda.device_count())]


def _cuda_device(index: int) -> DeviceInfo:
    properties = torch.cuda.get_device_properties(index)
    return DeviceInfo(
        name=properties.name,
        type="cuda",
        index=index,
        uuid=f"GPU-{properties.uuid}",  # as NVML spells it
        memory_bytes=properties.total_memory,
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
    )


def _mps_devices() -> list[DeviceInfo]:
    if not torch.backends.mps.is_available():
        return []
    # The GPU has no name of its own: it is part of the chip, and so is its memory.
    return [DeviceInfo(name=_cpu_name(), type="mps", memory_bytes=torch.mps.recommended_max_memory())]


def _cpu() -> DeviceInfo:
    return DeviceInfo(name=_cpu_name(), type="cpu", memory_bytes=psutil.virtual_memory().total)


def _cpu_name() -> str:
    """The processor's name for people; the architecture's where the system tells no more."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, named), platform.processor() or platform.machine())


def _installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

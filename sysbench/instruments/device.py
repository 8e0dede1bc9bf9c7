"""Which devices there are, and which torch drives them."""

from __future__ import annotations

import importlib.metadata
import os

import torch

from sysbench.events import DeviceInfo, TorchInfo
from sysbench.instruments import device_facts


def available_devices() -> list[DeviceInfo]:
    """Every device cells can run on, in the order in which `auto` prefers them: cuda, mps, cpu."""
    return [DeviceInfo(**facts) for facts in device_facts.available()]


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

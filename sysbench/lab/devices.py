"""The devices that torch can use, and the torch build and the CPU threads in this process.

This module imports no other part of `sysbench.lab`, so that `sysbench doctor` can use it without loading the workload.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from sysbench.extras import installed_version
from sysbench.lab.memory.allocator import refuse_expandable_segments_without_nvml
from sysbench.log.events import DeviceInfo, TorchInfo

SCATTERED_RATIO = 1.5
"""Work on several threads counts as disturbed if its slowest run takes this many times as long as its fastest."""

PREEMPTIONS_PER_S = 5.0
"""It also counts as disturbed at this many preemptions of each thread per second; on an idle machine there are almost
none.
"""


def available_device_fields() -> list[dict[str, object]]:
    """List the usable devices as fields of `DeviceInfo`, in the order in which `auto` prefers them: cuda, mps, cpu."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    devices = [_cuda_device(index) for index in gpus]
    if torch.backends.mps.is_available():
        # This GPU has no name of its own: it is part of the chip and shares its memory.
        devices.append({"name": _cpu_name(), "type": "mps", "memory_bytes": torch.mps.recommended_max_memory()})
    memory_bytes = psutil.virtual_memory().total
    return [*devices, {"name": _cpu_name(), "type": "cpu", "memory_bytes": memory_bytes, "bf16": cpu_bf16()}]


def _cuda_device(index: int) -> dict[str, object]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "type": "cuda",
        "index": index,
        "uuid": f"GPU-{properties.uuid}",  # in NVML's notation
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


def cpu_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware (AMX, AVX512-BF16, or FEAT_BF16 on Arm) instead of emulating it."""
    # Only some versions of torch report these features; those for Intel and AMD are always reported.
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    named = any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"))
    return bool(named or torch.cpu._is_avx512_bf16_supported())


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, named), platform.processor() or platform.machine())


def available_devices() -> list[DeviceInfo]:
    """List the usable devices in the order in which `auto` prefers them: cuda, mps, cpu."""
    return [DeviceInfo(**facts) for facts in available_device_fields()]


def torch_device(device: DeviceInfo) -> torch.device:
    """Convert a DeviceInfo to a `torch.device`."""
    return torch.device(device.torch_name)


def make_current(device: DeviceInfo) -> None:
    """Make a GPU the one that `.cuda()`, Triton kernels and `torch.cuda._sleep` run on; otherwise they use GPU 0."""
    if device.type == "cuda":
        names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        refuse_expandable_segments_without_nvml(",".join(os.environ.get(name, "") for name in names))
        torch.cuda.set_device(torch_device(device))


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all launched work; does nothing on a CPU, where calls are synchronous."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def using_threads(threads: int | None) -> Iterator[None]:
    """Use `threads` CPU threads inside this context; None keeps the number that torch uses."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)  # OpenMP's and MKL's as well
    try:
        yield
    finally:
        torch.set_num_threads(before)


def preemptions() -> int:
    """Return how many times the threads of this process have been preempted."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def disturbed(times_s: Sequence[float], preemptions: int, threads: int) -> bool:
    """Whether other processes have disturbed repeated work: its times are scattered, or its threads were preempted."""
    return max(times_s) > SCATTERED_RATIO * min(times_s) or preemptions > PREEMPTIONS_PER_S * threads * sum(times_s)


def torch_info(import_s: float | None) -> TorchInfo:
    """Return versions and settings of torch; `import_s` is the time in seconds to import torch, None if unknown."""
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return TorchInfo(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        cudnn=str(cudnn) if cudnn is not None else None,
        triton=installed_version("triton"),
        threads=torch.get_num_threads(),
        allocator=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
        import_s=import_s,
    )


def named_by_user_code(device: torch.device) -> torch.device:
    """Return a device as user code names it: `cuda:0` for the simulated GPU, which alone has the index of `cpu:0`."""
    return torch.device("cuda", 0) if device == torch.device("cpu", 0) else device

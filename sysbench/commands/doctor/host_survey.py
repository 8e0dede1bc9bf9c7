"""Survey of the machine without its GPUs: the resources that this process may use, and what affects measurements."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from sysbench.commands.doctor.gpu_survey import Facts, store_answer
from sysbench.commands.doctor.record import HostSection
from sysbench.engine.sensors.host import host_info
from sysbench.engine.sensors.memory_limits import MemoryLimit, directories, host_available_bytes, memory_limits
from sysbench.trace.readers.reading import processors

RELEVANT_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TRITON_INTERPRET",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CC",
    "CXX",
)
"""Environment variables that affect measurements, or make them impossible."""


def survey(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> HostSection:
    """Examine this machine; /proc, /sys and /dev are read under `root`. Never raises."""
    facts: Facts = {"unknown": {}}
    queries = {
        "system": host_info,
        "usable_cores": processors,
        "quota_cores": lambda: quota_cores(root),
        "load_1min": lambda: os.getloadavg()[0],
        "cpu_governor": lambda: _text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        "available_bytes": lambda: host_available_bytes(_limits(root)),
        "limit_bytes": lambda: min((limit.limit_bytes for limit in _limits(root)), default=None),
    }
    for field, query in queries.items():
        store_answer(facts, field, query)
    variables = {name: environment[name] for name in RELEVANT_VARIABLES if name in environment}
    return HostSection(**facts, variables=variables)


def quota_cores(root: Path) -> float | None:
    """Return the lowest limit on CPU time, in cores; None if there is no limit. See "cpu.max" in cgroup-v2.rst."""
    limits = [_text(directory / "cpu.max").split() for directory in directories("cgroup2", "cpu", root)]
    for directory in directories("cgroup", "cpu", root):
        limits.append([_text(directory / f"cpu.cfs_{name}_us") for name in ("quota", "period")])
    return min((int(limit[0]) / int(limit[1]) for limit in limits if limit and limit[0].isdigit()), default=None)


def _limits(root: Path) -> tuple[MemoryLimit, ...]:
    return memory_limits(int(psutil.virtual_memory().total), root)


def _text(path: Path) -> str:
    return path.read_text(errors="replace").strip() if path.exists() else ""

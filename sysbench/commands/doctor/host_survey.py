"""Survey of the machine without its GPUs: the resources that this process may use, and what affects measurements."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from sysbench.commands.doctor.questions import Questions
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
    questions = Questions()
    found = HostSection(
        system=questions.ask("system", host_info),
        usable_cores=questions.ask("usable_cores", processors),
        quota_cores=questions.ask("quota_cores", lambda: quota_cores(root)),
        load_1min=questions.ask("load_1min", lambda: os.getloadavg()[0]),
        cpu_governor=questions.ask("cpu_governor", lambda: _governor(root)),
        available_bytes=questions.ask("available_bytes", lambda: host_available_bytes(_limits(root))),
        limit_bytes=questions.ask(
            "limit_bytes", lambda: min((limit.limit_bytes for limit in _limits(root)), default=None)
        ),
        variables={name: environment[name] for name in RELEVANT_VARIABLES if name in environment},
    )
    return found.model_copy(update={"unknown": questions.unknown})


def quota_cores(root: Path) -> float | None:
    """Return the lowest limit on CPU time, in cores; None if there is no limit. See "cpu.max" in cgroup-v2.rst."""
    limits = [
        *((_text(directory / "cpu.max") or "max").split() for directory in directories("cgroup2", "cpu", root)),
        *(
            [(_text(directory / f"cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
            for directory in directories("cgroup", "cpu", root)
        ),
    ]
    known = [list(map(int, each)) for each in limits if len(each) == 2 and all(map(str.isdigit, each))]
    return min((quota / period for quota, period in known if period), default=None)


def _governor(root: Path) -> str | None:
    text = _text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return text.strip() or None if text else None


def _limits(root: Path) -> tuple[MemoryLimit, ...]:
    return memory_limits(int(psutil.virtual_memory().total), root)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None

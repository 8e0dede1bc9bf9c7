"""Survey of all GPUs through NVIDIA's driver: `python -m sysbench.commands.doctor.gpu_survey` prints one line of JSON.

`sysbench doctor` runs this in a separate process because a driver may hang or crash. The line has the known fields of
`commands.doctor.record.NvmlSection`. GPUs are numbered by the driver, not by CUDA; UUIDs identify them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import psutil

from sysbench.engine.sensors.nvml import READING_FIELDS, Nvml, NvmlUnusableError, open_nvml

Facts = dict[str, Any]

_COMPUTE_MODES: Final = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}

_QUERIES: Final[Mapping[str, Callable[[Any, Any], object]]] = {
    "name": lambda nvml, gpu: _text(nvml.nvmlDeviceGetName(gpu)),
    "compute_capability": lambda nvml, gpu: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(gpu))),
    "sm_clock_max_hz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6,
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
    "power_limit_default_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1e3,
    "mig": lambda nvml, gpu: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
    "compute_mode": lambda nvml, gpu: _COMPUTE_MODES.get(nvml.nvmlDeviceGetComputeMode(gpu), "unknown"),
    "uuid": lambda nvml, gpu: _text(nvml.nvmlDeviceGetUUID(gpu)),
}


def survey() -> Facts:
    """Return the fields of an NvmlSection; empty if there is no driver."""
    lost: dict[str, str] = {}
    try:
        nvml = open_nvml(lost.__setitem__)
    except NvmlUnusableError as error:
        return {"unknown": {"everything": f"NVML cannot be used: {error}"}}
    if nvml is None:
        return {}
    import pynvml

    facts: Facts = {"driver": nvml.driver, "unknown": {}}
    version = store_answer(facts, "cuda", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    if version is not None:
        facts["cuda"] = f"{version // 1000}.{version % 1000 // 10}"  # 13000 is CUDA 13.0 (cudaDriverGetVersion)
    count = store_answer(facts, "gpus", pynvml.nvmlDeviceGetCount)
    facts["gpus"] = [_gpu(nvml, pynvml, lost, index) for index in range(count or 0)]
    nvml.close()
    return facts


def store_answer(facts: Facts, field: str, query: Callable[[], Any]) -> Any:
    """Store the answer to a question in `field` and return it; on failure, store the reason and return None."""
    try:
        facts[field] = query()
    except Exception as error:  # noqa: BLE001  A machine may be broken in any way; other fields still count.
        facts[field] = None
        facts["unknown"][field] = str(error) or type(error).__name__
    return facts[field]


def _gpu(nvml: Nvml, binding: Any, lost: dict[str, str], index: int) -> Facts:
    facts: Facts = {"index": index, "unknown": {}}
    try:
        handle = binding.nvmlDeviceGetHandleByIndex(index)
        for field, query in _QUERIES.items():
            store_answer(facts, field, lambda query=query: query(binding, handle))  # type: ignore[misc]
        gpu = nvml.gpu(facts["uuid"])
    except Exception as error:  # noqa: BLE001  The driver may lose a GPU at any time.
        facts["unknown"]["everything"] = str(error)
        return facts
    lost.clear()
    # Read exactly as during a run, so that the same fields are missing here and there.
    reading, memory = gpu.read(), gpu.memory()
    facts |= {field.removeprefix("device_"): reading[field] for field in READING_FIELDS}
    if memory is not None:
        facts |= {"total_bytes": memory.total, "free_bytes": memory.free}
    if (processes := gpu.compute_processes()) is not None:
        found = [(process, *_name_and_parent(process.pid)) for process in processes]
        facts["processes"] = [
            {"pid": process.pid, "used_bytes": process.usedGpuMemory, "name": name}
            for process, name, parent in found
            if parent != os.getppid()  # the doctor's other child, in which torch uses the GPU
        ]
    fields = {**READING_FIELDS, "processes": "processes"}
    facts["unknown"] |= {field.removeprefix("device_"): lost[name] for field, name in fields.items() if name in lost}
    return facts


def _name_and_parent(pid: int) -> tuple[str | None, int | None]:
    try:
        process = psutil.Process(pid)
        return process.name(), process.ppid()
    except psutil.Error:  # in another container, or already gone
        return None, None


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


if __name__ == "__main__":
    sys.stdout.write(json.dumps(survey()) + "\n")

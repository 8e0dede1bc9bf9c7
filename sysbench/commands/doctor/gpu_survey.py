"""What NVIDIA's driver says of every GPU: `python -m sysbench.commands.doctor.gpu_survey`, one line of JSON on stdout.

Started by `sysbench doctor`, in a process of its own because a driver may hang or crash. The line holds the fields of
`commands.doctor.record.NvmlSection`, as far as they could be found out. GPUs are listed as the driver numbers them,
which is not how CUDA does; their UUIDs tell which is which.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from sysbench.engine.sensors.nvml import Gpu, Nvml, NvmlUnusableError, open_nvml

Facts = dict[str, Any]

_COMPUTE_MODES: Final = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}

_QUESTIONS: Final[Mapping[str, Callable[[Any, Any], object]]] = {
    "name": lambda nvml, gpu: _text(nvml.nvmlDeviceGetName(gpu)),
    "compute_capability": lambda nvml, gpu: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(gpu))),
    "sm_clock_max_hz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6,
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
    "power_limit_default_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1e3,
    "persistence": lambda nvml, gpu: bool(nvml.nvmlDeviceGetPersistenceMode(gpu)),
    "ecc": lambda nvml, gpu: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
    "mig": lambda nvml, gpu: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
    "compute_mode": lambda nvml, gpu: _COMPUTE_MODES.get(nvml.nvmlDeviceGetComputeMode(gpu), "unknown"),
    "processes": lambda nvml, gpu: [_process(each) for each in _computing(nvml, gpu) if not _is_ours(each.pid)],
}
_READ: Final = {
    "used_bytes": "memory",
    "utilisation": "utilisation",
    "sm_clock_hz": "SM clock",
    "power_w": "power",
    "temperature_c": "temperature",
    "energy_j": "energy",
    "throttle_reasons": "throttle reasons",
}
"""Fields of a GpuReading, and what the loss of one is called."""


def main() -> None:
    """Ask the driver everything, and say what it answered."""
    sys.stdout.write(json.dumps(survey()) + "\n")


def survey() -> Facts:
    """The fields of an NvmlSection; none where there is no driver."""
    try:
        nvml = open_nvml()
    except NvmlUnusableError as error:
        return {"unknown": {"everything": f"NVML cannot be used: {error}"}}
    if nvml is None:
        return {}
    import pynvml

    facts: Facts = {"driver": nvml.driver, "unknown": {}, "gpus": []}
    _try(facts, "cuda", lambda: _cuda(pynvml.nvmlSystemGetCudaDriverVersion_v2()))
    count = _try(facts, "gpus", pynvml.nvmlDeviceGetCount)
    facts["gpus"] = [_gpu(nvml, pynvml, index) for index in range(count or 0)]
    nvml.close()
    return facts


def _gpu(nvml: Nvml, binding: Any, index: int) -> Facts:
    facts: Facts = {"index": index, "unknown": {}}
    handle = _try(facts, "everything", lambda: binding.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        facts.pop("everything")
        return facts
    for field, question in _QUESTIONS.items():
        _try(facts, field, lambda question=question: question(binding, handle))  # type: ignore[misc]
    uuid = _try(facts, "uuid", lambda: _text(binding.nvmlDeviceGetUUID(handle)))
    gpu = _try(facts, "everything", lambda: nvml.gpu(uuid)) if uuid else None
    facts.pop("everything", None)
    if gpu is not None:
        _read(facts, gpu)
    return facts


def _read(facts: Facts, gpu: Gpu) -> None:
    """What a run reads too, in the same way: what is not there will not be there for a run either."""
    reading, memory = gpu.read(), gpu.memory()
    facts |= {field: getattr(reading, field) for field in _READ}
    if memory is not None:
        facts |= {"total_bytes": memory.total_bytes, "free_bytes": memory.free_bytes}
    losses = {loss.field: loss.detail for loss in gpu.losses()}
    facts["unknown"] |= {field: losses[name] for field, name in _READ.items() if name in losses}


def _try(facts: Facts, field: str, question: Callable[[], Any]) -> Any:
    """The answer, also noted as a field; or None, and the reason noted."""
    try:
        facts[field] = question()
    except Exception as error:  # noqa: BLE001  Drivers lack functions, refuse and fail, and the rest still counts.
        facts[field] = None
        facts["unknown"][field] = str(error) or type(error).__name__
    return facts[field]


def _computing(nvml: Any, gpu: Any) -> list[Any]:
    """Processes that compute, by the call of this driver's time."""
    try:
        return list(nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu))
    except nvml.NVMLError_FunctionNotFound:
        return list(nvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu))


def _is_ours(pid: int) -> bool:
    """Whether this is the other process that the doctor has started, in which torch wakes the GPU."""
    import psutil

    try:
        return psutil.Process(pid).ppid() == os.getppid()
    except psutil.Error:
        return False


def _process(process: Any) -> Facts:
    import psutil

    try:
        name = psutil.Process(process.pid).name()
    except psutil.Error:
        name = None  # of another container, or gone
    used = process.usedGpuMemory
    return {"pid": int(process.pid), "used_bytes": int(used) if used is not None else None, "name": name}


def _cuda(version: int) -> str:
    """13000 is CUDA 13.0 (cudaDriverGetVersion)."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


if __name__ == "__main__":
    main()

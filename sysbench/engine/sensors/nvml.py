"""GPU readings from NVIDIA's driver through NVML: memory, clocks, power, temperature, and throttle reasons.

Devices are identified by UUID, never by index: CUDA renumbers them (CUDA_VISIBLE_DEVICES, fastest first, MIG), NVML
does not. Any call may be unsupported or fail; its value is then unknown, which is reported once.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from types import ModuleType
from typing import Any, Final

# The numbers of nvml.h are its stable interface; their names in Python change ("throttle" became "event" reasons).
_GPU_GONE: Final = frozenset({1, 9, 15, 16, 18, 28})
"""Uninitialized, driver not loaded, GPU is lost, reset required, library/driver mismatch, GPU not found."""
_NO_DRIVER: Final = frozenset({9, 12})
"""Driver not loaded, library not found: a machine without an NVIDIA GPU."""

_CLOCK_SM: Final = 1
_TEMPERATURE_GPU: Final = 0
_GPU_IDLE: Final = 0x1

THROTTLE_REASONS: Final[Mapping[int, str]] = {
    0x002: "applications-clocks",
    0x004: "sw-power-cap",
    0x008: "hw-slowdown",
    0x010: "sync-boost",
    0x020: "sw-thermal",
    0x040: "hw-thermal",
    0x080: "hw-power-brake",
    0x100: "display-clocks",
    0x200: "board-limit",
    0x400: "reliability",
}
"""Names of the bits of nvmlClocksEventReasons (nvml.h). An idle GPU lowers its clocks; that is not throttling."""

_CALLS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    # The second version does not count the driver's own memory as used; nvidia-smi shows the same value.
    "memory": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2),
    "utilisation": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "power": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "energy": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,
    "processes": lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu),
    "SM clock": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, _CLOCK_SM) * 1e6,
    "temperature": lambda nvml, gpu: float(nvml.nvmlDeviceGetTemperature(gpu, _TEMPERATURE_GPU)),
    "throttle reasons": lambda nvml, gpu: _throttle_reason_names(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
}
_OF_THE_BOARD: Final = frozenset({"SM clock", "temperature", "throttle reasons"})
"""These belong to the chip; a MIG instance shares them with the whole board."""

READING_FIELDS: Final[Mapping[str, str]] = {
    "device_utilisation": "utilisation",
    "sm_clock_hz": "SM clock",
    "power_w": "power",
    "temperature_c": "temperature",
    "energy_j": "energy",
    "throttle_reasons": "throttle reasons",
}
"""Fields of a `Reading` with their names here, besides the used memory."""


Report = Callable[[str, str], None]
"""Is told once of every value that cannot be read, with NVML's reason; an empty name stands for the whole GPU."""


class NvmlUnusableError(Exception):
    """NVML is installed but cannot be used; the message has the reason."""


class Nvml:
    """The initialised NVML library. Create it with `open_nvml`, and call `close` at the end."""

    def __init__(self, binding: ModuleType, report: Report) -> None:
        self._binding = binding
        self._report = report
        self.driver: str | None = _text(binding, "nvmlSystemGetDriverVersion")

    def gpu(self, uuid: str, *, of_cuda: bool = False) -> Gpu:
        """Return the GPU or MIG instance with this UUID, with or without its prefix.

        CUDA may report the UUID of the GPU that contains its instance (cuDeviceGetUuid, unlike cuDeviceGetUuid_v2);
        with `of_cuda`, this is the instance that CUDA_VISIBLE_DEVICES names. Raises NvmlUnusableError if NVML does not
        find the device.
        """
        binding, bare, error = self._binding, uuid.removeprefix("GPU-"), None
        # CUDA reports the UUID of an instance without marking it as such.
        for spelling in (uuid,) if uuid.startswith("MIG-") else (f"GPU-{bare}", f"MIG-{bare}"):
            try:
                handle = binding.nvmlDeviceGetHandleByUUID(spelling)
            except binding.NVMLError as refused:
                error = error or refused
                continue
            if spelling.startswith("MIG-"):
                return Gpu(binding, handle, _board(binding, handle), self._report)
            if not of_cuda or not _is_divided(binding, handle):
                return Gpu(binding, handle, handle, self._report)
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
            if visible.startswith("MIG-"):
                return self.gpu(visible)
            raise NvmlUnusableError(
                f"{spelling} is divided into MIG instances: name the one to use, CUDA_VISIBLE_DEVICES=MIG-… "
                "(nvidia-smi -L)"
            )
        raise NvmlUnusableError(f"no GPU {uuid}: {error}")

    def boards(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the memory in bytes of every GPU; stops at the first GPU that cannot be queried."""
        binding = self._binding
        try:
            for index in range(binding.nvmlDeviceGetCount()):
                handle = binding.nvmlDeviceGetHandleByIndex(index)
                name = binding.nvmlDeviceGetName(handle)
                total_bytes = int(binding.nvmlDeviceGetMemoryInfo(handle).total)
                yield (name.decode() if isinstance(name, bytes) else str(name)), total_bytes
        except binding.NVMLError:
            return

    def close(self) -> None:
        """Shut NVML down."""
        try:
            self._binding.nvmlShutdown()
        except self._binding.NVMLError:
            return  # without a driver, there is nothing left to shut down


class Gpu:
    """One GPU or MIG instance, on a board. A query that fails once is not repeated."""

    def __init__(self, binding: ModuleType, handle: object, board: object, report: Report) -> None:
        self._binding = binding
        self._handles = {field: board if field in _OF_THE_BOARD else handle for field in _CALLS}
        self._report = report

    def read(self) -> dict[str, Any]:
        """Return those values of a `Reading` that are available within tens of microseconds; unknown ones are None."""
        memory = self.memory()
        values = {field: self._query(name) for field, name in READING_FIELDS.items()}
        return {"device_used_bytes": memory.used if memory else None, **values}

    def memory(self) -> Any:
        """Return `total`, `free` and `used` bytes, the last two without the driver's own memory; None if unknown."""
        return self._query("memory")

    def throttle_reasons(self) -> list[str] | None:
        """Return the names of the present reasons; None if unknown."""
        reasons: list[str] | None = self._query("throttle reasons")
        return reasons

    def compute_processes(self) -> Sequence[Any] | None:
        """Return the processes that compute on this GPU; slow: takes milliseconds, and holds a driver lock."""
        processes: Sequence[Any] | None = self._query("processes")
        return processes

    def _query(self, field: str) -> Any:
        if field not in self._handles:
            return None
        try:
            return _CALLS[field](self._binding, self._handles[field])
        except self._binding.NVMLError as error:
            is_gone = error.value in _GPU_GONE
            self._report("" if is_gone else field, str(error))
            self._handles = {} if is_gone else {name: at for name, at in self._handles.items() if name != field}
            return None


def open_nvml(report: Report = lambda field, detail: None) -> Nvml | None:
    """Initialise NVML; return None on a machine without NVIDIA's driver; raises NvmlUnusableError."""
    if not _is_library_available():
        return None
    import pynvml  # takes 20 ms, which a machine without a GPU saves

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in _NO_DRIVER:
            return None
        raise NvmlUnusableError(str(error)) from None
    return Nvml(pynvml, report)


def present_gpus() -> list[tuple[str, int]]:
    """Return the name and the memory in bytes of every NVIDIA GPU of this machine; empty if NVML cannot be used."""
    try:
        nvml = open_nvml()
    except NvmlUnusableError:
        return []
    if nvml is None:
        return []
    with closing(nvml):
        return list(nvml.boards())


def _is_library_available() -> bool:
    """Whether the NVML library can be loaded; always true on Windows, where only pynvml knows its location."""
    if sys.platform == "win32":
        return True
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _text(binding: ModuleType, function: str) -> str | None:
    try:
        answer = getattr(binding, function)()
    except binding.NVMLError:
        return None
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def _board(binding: ModuleType, instance: object) -> object:
    try:
        board: object = binding.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
    except binding.NVMLError:
        return instance
    return board


def _is_divided(binding: ModuleType, board: object) -> bool:
    try:
        return bool(binding.nvmlDeviceGetMigMode(board)[0])
    except binding.NVMLError:
        return False


def _throttle_reason_names(reasons: int) -> list[str]:
    bits = (1 << position for position in range(reasons.bit_length()) if reasons >> position & 1)
    return [THROTTLE_REASONS.get(bit, f"reason-{bit:#x}") for bit in bits if bit != _GPU_IDLE]

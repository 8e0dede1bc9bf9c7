"""GPU readings from NVIDIA's driver through NVML: memory, clocks, power, temperature, and throttle reasons.

Devices are identified by UUID, never by index: CUDA renumbers them (CUDA_VISIBLE_DEVICES, fastest first, MIG), NVML
does not. Any call may be unsupported or fail; its value is then unknown, which is reported once. It is not an error if
a machine has no NVIDIA driver, or if a GPU is lost during a run.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from sysbench import units

# The numbers of nvml.h are its stable interface; their names in Python change ("throttle" became "event" reasons).
_UNSUPPORTED: Final = frozenset({2, 3, 13, 25, 26})
"""Invalid argument, not supported, function not found, argument version mismatch, deprecated: try the older call."""
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

NvmlCalls = tuple[Callable[[Any, Any], Any], ...]
"""Calls that answer one question, given pynvml and a handle, in order of preference."""

_INSTANCE_CALLS: Final[Mapping[str, NvmlCalls]] = {
    # The second version does not count the driver's own memory as used; nvidia-smi shows the same value.
    "memory": (
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2),
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu),
    ),
    "utilisation": (lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,),
    "power": (lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,),
    "energy": (lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,),
    "processes": (
        lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu),
        lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu),
    ),
}
_BOARD_CALLS: Final[Mapping[str, NvmlCalls]] = {
    "SM clock": (lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, _CLOCK_SM) * 1e6,),
    "temperature": (
        lambda nvml, gpu: nvml.nvmlDeviceGetTemperatureV(gpu, _TEMPERATURE_GPU),
        lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, _TEMPERATURE_GPU),
    ),
    "throttle reasons": (
        lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
    ),
}
"""Clocks and temperature belong to the chip; a MIG instance shares them with the whole board."""


_LIKE_MEMORY: Final = 0.1
"""By what share the memory of a device may differ between CUDA and NVML, which counts the driver's own too."""


class NvmlUnusableError(Exception):
    """NVML is installed but cannot be used; the message has the reason."""


@dataclass(frozen=True)
class Memory:
    """Device memory in bytes. The driver's own memory is in neither `used_bytes` nor `free_bytes`."""

    total_bytes: int
    free_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class GpuReading:
    """One reading of a GPU; unavailable values are None."""

    used_bytes: int | None = None
    utilisation: float | None = None
    sm_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LostValue:
    """A value that can no longer be read, and NVML's reason; `field` is None if the whole GPU is lost."""

    field: str | None
    detail: str


class Nvml:
    """The initialised NVML library. Create it with `open_nvml`, and call `close` at the end."""

    def __init__(self, binding: ModuleType) -> None:
        self._binding = binding
        self.driver: str | None = _text(binding, "nvmlSystemGetDriverVersion")

    def gpu(self, uuid: str, memory_bytes: int | None = None) -> Gpu:
        """Return the GPU or MIG instance with this UUID, with or without its prefix.

        CUDA may report the UUID of the GPU that contains an instance (cuDeviceGetUuid, unlike cuDeviceGetUuid_v2). If
        `memory_bytes`, the device's memory according to CUDA, is given, the instance is then found by its memory, or by
        CUDA_VISIBLE_DEVICES. Raises NvmlUnusableError if NVML does not find it.
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
                return Gpu(binding, handle, _board(binding, handle))
            instances = _instances(binding, handle) if memory_bytes is not None else []
            if memory_bytes is not None and instances:
                return Gpu(binding, _instance_used(binding, instances, memory_bytes), handle)
            return Gpu(binding, handle, handle)
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

    def __init__(self, binding: ModuleType, handle: object, board: object) -> None:
        self._binding = binding
        self._calls: dict[str, tuple[object, NvmlCalls]] = {
            **{field: (handle, calls) for field, calls in _INSTANCE_CALLS.items()},
            **{field: (board, calls) for field, calls in _BOARD_CALLS.items()},
        }
        self._losses: list[LostValue] = []

    def read(self) -> GpuReading:
        """Read all values that are available within tens of microseconds."""
        memory = self.memory()
        reasons = self._query("throttle reasons")
        return GpuReading(
            used_bytes=memory.used_bytes if memory else None,
            utilisation=self._number("utilisation"),
            sm_clock_hz=self._number("SM clock"),
            power_w=self._number("power"),
            temperature_c=self._number("temperature"),
            energy_j=self._number("energy"),
            throttle_reasons=_throttle_reason_names(int(reasons)) if reasons is not None else None,
        )

    def memory(self) -> Memory | None:
        """Return total, free and used memory; None if unknown."""
        answer = self._query("memory")
        return Memory(int(answer.total), int(answer.free), int(answer.used)) if answer is not None else None

    def compute_processes(self) -> Sequence[Any] | None:
        """Return the processes that compute on this GPU, as the driver reports them; None if unknown.

        Slow: takes milliseconds, and holds a driver lock.
        """
        answer: Sequence[Any] | None = self._query("processes")
        return answer

    def losses(self) -> list[LostValue]:
        """Return the values lost since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def _number(self, field: str) -> float | None:
        answer = self._query(field)
        return float(answer) if answer is not None else None

    def _query(self, field: str) -> Any:
        """Return the answer of the first NVML call that works; None if none does.

        Later queries use the same call, because the alternatives may differ in meaning.
        """
        if field not in self._calls:
            return None
        handle, calls = self._calls[field]
        error: Exception | None = None
        for call in calls:
            try:
                answer = call(self._binding, handle)
            except AttributeError as missing:
                error = missing  # a function that this version of pynvml does not have
            except self._binding.NVMLError as failure:
                error = failure
                if failure.value not in _UNSUPPORTED:
                    break
            else:
                self._calls[field] = (handle, (call,))
                return answer
        self._mark_lost(field, error)
        return None

    def _mark_lost(self, field: str, error: Exception | None) -> None:
        if getattr(error, "value", None) in _GPU_GONE:
            self._calls.clear()
            self._losses.append(LostValue(None, str(error)))
        else:
            del self._calls[field]
            self._losses.append(LostValue(field, str(error)))


def open_nvml() -> Nvml | None:
    """Initialise NVML; return None on a machine without NVIDIA's driver.

    Raises NvmlUnusableError if the driver is installed but NVML cannot be used, for example before a pending reboot.
    """
    if not _is_library_available():
        return None
    import pynvml  # takes 20 ms, which a machine without a GPU saves

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in _NO_DRIVER:
            return None
        raise NvmlUnusableError(str(error)) from None
    return Nvml(pynvml)


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


def _instances(binding: ModuleType, board: object) -> list[object]:
    """Return the MIG instances of a GPU; empty if MIG is off, because CUDA then uses the whole GPU."""
    try:
        if not binding.nvmlDeviceGetMigMode(board)[0]:
            return []
        count = binding.nvmlDeviceGetMaxMigDeviceCount(board)
    except binding.NVMLError:
        return []
    found = []
    for index in range(count):
        with suppress(binding.NVMLError):  # not every place is taken
            found.append(binding.nvmlDeviceGetMigDeviceHandleByIndex(board, index))
    return found


def _instance_used(binding: ModuleType, instances: Sequence[object], memory_bytes: int) -> object:
    """Return the instance that CUDA uses, which has about `memory_bytes`; CUDA uses one instance at a time.

    Raises NvmlUnusableError if it is not the only one, and CUDA_VISIBLE_DEVICES does not name it.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible.startswith("MIG-"):
        with suppress(binding.NVMLError):
            return binding.nvmlDeviceGetHandleByUUID(visible.partition(",")[0])
    alike = []
    for instance in instances:
        with suppress(binding.NVMLError):
            total_bytes = int(binding.nvmlDeviceGetMemoryInfo(instance).total)
            if abs(total_bytes - memory_bytes) <= _LIKE_MEMORY * memory_bytes:
                alike.append(instance)
    if len(alike) != 1:
        raise NvmlUnusableError(
            f"{len(alike) or 'none'} of the GPU's {len(instances)} MIG instances have {units.size(memory_bytes)}: name "
            "the one to use, CUDA_VISIBLE_DEVICES=MIG-… (nvidia-smi -L)"
        )
    return alike[0]


def _throttle_reason_names(reasons: int) -> tuple[str, ...]:
    """Return the names of the throttle reasons whose bits are set; a bit without a name becomes `reason-0x800`."""
    bits = (1 << position for position in range(reasons.bit_length()) if reasons >> position & 1)
    return tuple(THROTTLE_REASONS.get(bit, f"reason-{bit:#x}") for bit in bits if bit != _GPU_IDLE)

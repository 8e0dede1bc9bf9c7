"""The record of `sysbench doctor`: what this machine has, and what works on it.

A field is None if its value is unknown (the section's `unknown` has the reason), or if the thing does not exist: no
limit, no program.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sysbench.log.events import DeviceInfo, HostInfo
from sysbench.log.schema import SCHEMA_VERSION
from sysbench.package import VERSION
from sysbench.spec.frozen import Frozen

Works = Literal["yes", "partly", "no", "unknown"]
"""partly: it works with the limitation that the reason names."""


class Section(Frozen):
    """One section of the record."""

    unknown: dict[str, str] = Field(default_factory=dict)
    """Reasons why fields are unknown, by name of the field; `everything` stands for all fields."""


class HostSection(Section):
    """The machine without its GPUs: the resources that this process may use."""

    system: HostInfo | None = None
    usable_cores: int | None = None
    """Logical cores that this process may run on."""
    quota_cores: float | None = None
    """CPU time that cgroups allow, in cores; None if there is no limit."""
    load_1min: float | None = None
    cpu_governor: str | None = None
    available_bytes: int | None = None
    """Memory available to a new process within the limits of cgroups."""
    limit_bytes: int | None = None
    """Limit of cgroups, if it is lower than the machine's memory."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables that are set and affect measurements."""


class GpuProcess(Frozen):
    """A process that uses a GPU. In a container, the driver's process id differs from the local one."""

    pid: int
    used_bytes: int | None
    name: str | None
    """None if the process is not visible from here."""


class GpuState(Section):
    """Current state of a GPU according to the driver."""

    index: int
    uuid: str | None = None
    name: str | None = None
    compute_capability: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    utilisation: float | None = None
    sm_clock_hz: float | None = None
    sm_clock_max_hz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: list[str] | None = None
    mig: bool | None = None
    compute_mode: str | None = None
    """default, exclusive-process or prohibited."""
    energy_j: float | None = None
    """Value of the energy counter."""
    processes: list[GpuProcess] | None = None


class NvmlSection(Section):
    """Answers of NVIDIA's driver; empty, with nothing unknown, if no driver is installed."""

    driver: str | None = None
    cuda: str | None = None
    """The newest CUDA version that the driver supports."""
    gpus: list[GpuState] = Field(default_factory=list)


class TorchSection(Section):
    """The installation of torch that measurements use."""

    version: str | None = None
    import_s: float | None = None
    bytecode_kept: bool | None = None
    """Whether compiled modules are on disk; otherwise every process that imports them compiles them again."""
    cuda: str | None = None
    """The CUDA version that torch was built for; None for a build without CUDA."""
    hip: str | None = None
    cudnn: str | None = None
    triton: str | None = None
    flash_attn: str | None = None
    """Version of the flash-attn package."""
    archs: list[str] = Field(default_factory=list)
    """Architectures that torch's kernels are compiled for: sm_80, compute_90."""
    threads: int | None = None
    cpu_capability: str | None = None
    cpu_bf16: bool | None = None
    """Whether this CPU multiplies bf16 in hardware."""
    devices: list[DeviceInfo] = Field(default_factory=list)
    """Devices for cells, in the order in which `--device auto` prefers them."""
    cuda_problem: str | None = None
    """Message of torch that explains why a CUDA build finds no device."""
    context_bytes: int | None = None
    """Memory of the first CUDA device that a process has outside PyTorch's allocator."""
    attention_kernels: dict[str, list[str]] = Field(default_factory=dict)
    """Precisions that each kernel of scaled_dot_product_attention supports on the first CUDA device."""
    profiler_activities: list[str] = Field(default_factory=list)
    backends: list[str] = Field(default_factory=list)
    """Backends through which ranks can communicate: gloo, tested with one operation, and nccl with its version."""


class Tool(Frozen):
    """A program that some options need."""

    path: str | None = None
    version: str | None = None
    problem: str | None = None
    """Why the program cannot be used; None if it can."""


class ToolsSection(Section):
    """Programs and files that some options need, and the settings of CUDA's caching allocator."""

    nsys: Tool = Tool()
    c_compiler: Tool = Tool()
    """C compiler, with which Triton compiles its launchers."""
    cxx_compiler: Tool = Tool()
    """C++ compiler, with which torch.compile compiles CPU kernels."""
    python_headers: str | None = None
    """Directory of Python.h, which compiled launchers include."""
    allocator: str | None = None
    """The environment variable with the allocator's settings: NAME=VALUE."""
    allocator_problem: str | None = None
    """What torch will refuse in the settings."""
    allocator_not_simulated: str | None = None
    """A valid setting that cannot be simulated."""


class Prospect(Frozen):
    """Whether a command or an option works on this machine."""

    what: str
    works: Works
    reason: str
    remedy: str | None = None


class Advice(Frozen):
    """A property of this machine that distorts measurements, and how to fix it."""

    message: str
    remedy: str


class Machine(Frozen):
    """All facts about a machine."""

    host: HostSection
    nvml: NvmlSection
    torch: TorchSection
    tools: ToolsSection

    @property
    def device(self) -> DeviceInfo | None:
        """The device that `--device auto` selects; None if torch cannot be used."""
        return self.torch.devices[0] if self.torch.devices else None

    @property
    def gpu(self) -> DeviceInfo | None:
        """The first CUDA device that torch sees."""
        return next((device for device in self.torch.devices if device.type == "cuda"), None)

    @property
    def state(self) -> GpuState | None:
        """State of `gpu` according to the driver; None if it does not list it."""
        uuid = self.gpu.uuid if self.gpu else None
        return next((state for state in self.nvml.gpus if uuid and _bare(state.uuid) == _bare(uuid)), None)


class DoctorRecord(Machine):
    """The complete result of `sysbench doctor`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["doctor"] = "doctor"
    sysbench_version: str = VERSION
    at: str
    """ISO 8601, UTC."""
    prospects: list[Prospect]
    advice: list[Advice]


def _bare(uuid: str | None) -> str:
    # Only the driver puts a prefix before UUIDs.
    return (uuid or "").removeprefix("GPU-").removeprefix("MIG-").lower()

"""What `sysbench doctor` finds out: what this machine is, what will work on it and why not, and what sysbench costs.

Every field is None where it was not found out; `unknown` of its section then says why, by the field's name. A field
that is None without an entry there is simply not the case: no limit, no container, no such program.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sysbench import __version__
from sysbench.log.events import DeviceInfo, HostInfo
from sysbench.spec.frozen import Frozen

DOCTOR_SCHEMA_VERSION = 1

Works = Literal["yes", "partly", "no", "unknown"]
"""partly: it works, and the reason says what to mind."""


class Section(Frozen):
    """One part of the machine."""

    unknown: dict[str, str] = Field(default_factory=dict)
    """Why a field is not known, by its name; `everything` stands for all of them."""


class HostSection(Section):
    """The machine without its GPUs, as this process may use it."""

    system: HostInfo | None = None
    usable_cores: int | None = None
    """Logical cores that this process may run on."""
    quota_cores: float | None = None
    """As many cores' worth of time as cgroups allow; None is no limit."""
    load_1min: float | None = None
    """Processes that wanted to run, on average over the last minute."""
    cpu_governor: str | None = None
    available_bytes: int | None = None
    """What a new process may still take, within the limits of cgroups."""
    limit_bytes: int | None = None
    """What cgroups allow, where that is less than the machine has."""
    shm_bytes: int | None = None
    """Size of /dev/shm."""
    shm_free_bytes: int | None = None
    container: str | None = None
    """What kind of container this is: docker, podman, kubernetes, apptainer, …; `unnamed` where signs are all there
    is."""
    batch_job: str | None = None
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables that are set and change what is measured."""


class GpuProcess(Frozen):
    """A process that computes on a GPU, as the driver numbers it, which in a container is not as we do."""

    pid: int
    used_bytes: int | None
    name: str | None
    """None where the process cannot be seen from here."""


class GpuState(Section):
    """One GPU as the driver sees it now."""

    index: int
    uuid: str | None = None
    name: str | None = None
    compute_capability: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    utilisation: float | None = None
    sm_clock_hz: float | None = None
    sm_clock_max_hz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: list[str] | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    mig: bool | None = None
    compute_mode: str | None = None
    """default, exclusive-process or prohibited."""
    energy_j: float | None = None
    """What the counter of energy stands at."""
    processes: list[GpuProcess] | None = None


class NvmlSection(Section):
    """What NVIDIA's driver says; nothing, with nothing unknown, where there is no such driver."""

    driver: str | None = None
    cuda: str | None = None
    """The newest CUDA that the driver runs."""
    gpus: list[GpuState] = Field(default_factory=list)


class TorchSection(Section):
    """The torch that would measure."""

    version: str | None = None
    import_s: float | None = None
    bytecode_kept: bool | None = None
    """Whether its modules lie compiled on disk; every process that imports them compiles them itself otherwise."""
    cuda: str | None = None
    """The CUDA that it was built for; None for a build without."""
    hip: str | None = None
    cudnn: str | None = None
    triton: str | None = None
    flash_attn: str | None = None
    """Version of the flash-attn package."""
    archs: list[str] = Field(default_factory=list)
    """What its kernels were compiled for: sm_80, compute_90."""
    threads: int | None = None
    cpu_capability: str | None = None
    cpu_bf16: bool | None = None
    """Whether this CPU multiplies bf16 in hardware."""
    devices: list[DeviceInfo] = Field(default_factory=list)
    """What cells can run on, in the order in which `--device auto` prefers them."""
    cuda_problem: str | None = None
    """Why a build for CUDA finds no device, in torch's words."""
    attention_kernels: dict[str, list[str]] = Field(default_factory=dict)
    """Of the first CUDA device: precisions that each kernel of scaled_dot_product_attention takes."""
    profiler_activities: list[str] = Field(default_factory=list)


class Tool(Frozen):
    """A program that some options need."""

    path: str | None
    version: str | None
    problem: str | None
    """Why it is of no use, where that is so."""


class ToolsSection(Section):
    """Programs and files that some options need."""

    nsys: Tool | None = None
    c_compiler: Tool | None = None
    """What Triton compiles its launchers with."""
    cxx_compiler: Tool | None = None
    """What torch.compile makes kernels for the CPU with."""
    python_headers: str | None = None
    """Where Python.h is, which compiled launchers include."""
    matplotlib: str | None = None


class AllocatorSection(Section):
    """The settings of CUDA's caching allocator in this environment."""

    variable: str | None = None
    """The environment variable that they are taken from."""
    text: str | None = None
    problem: str | None = None
    """What is wrong with them."""
    not_simulated: str | None = None
    """What is right with them and cannot be simulated."""
    overridden: str | None = None
    """Another variable that is set to something else, and not heeded."""


class Prospect(Frozen):
    """Whether a command or an option will work here."""

    what: str
    works: Works
    reason: str
    remedy: str | None = None


class Advice(Frozen):
    """Something about this machine that spoils measurements, and what to do about it."""

    message: str
    remedy: str | None = None


class CostArm(Frozen):
    """What one part of sysbench costs the step that is measured."""

    part: str
    """dashboard, sampler or history."""
    explanation: str
    with_s: list[float]
    """The median step with it, one for each round."""
    without_s: list[float]
    """The median step without it, in the same rounds."""
    ratio: float
    """The median over the rounds of with / without."""
    ratio_low: float | None
    """95 % interval; None with fewer than six rounds."""
    ratio_high: float | None


class SelfCost(Frozen):
    """What sysbench itself costs on this machine, measured in turns."""

    device: str
    workload: str
    """The step that was measured, in words."""
    rounds: int
    took_s: float
    arms: list[CostArm]
    not_measured: dict[str, str] = Field(default_factory=dict)
    """Parts that could not be measured, and why."""


class DoctorRecord(Frozen):
    """Everything that the doctor has to say."""

    schema_version: int = DOCTOR_SCHEMA_VERSION
    kind: Literal["doctor"] = "doctor"
    sysbench_version: str = __version__
    at: str
    """ISO 8601, UTC."""
    host: HostSection
    nvml: NvmlSection
    torch: TorchSection
    tools: ToolsSection
    allocator: AllocatorSection
    prospects: list[Prospect]
    advice: list[Advice]
    self_cost: SelfCost | None = None

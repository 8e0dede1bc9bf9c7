"""Which commands and options work on this machine; for those that do not, the reason and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sysbench.command import spec_of
from sysbench.commands.doctor.record import (
    AllocatorSection,
    GpuState,
    HostSection,
    NvmlSection,
    Prospect,
    Tool,
    ToolsSection,
    TorchSection,
)
from sysbench.engine.admission import Admission
from sysbench.engine.plan import place
from sysbench.errors import UsageError
from sysbench.log.events import DeviceInfo
from sysbench.spec.run import RunOptions

TENSOR_CORES_TF32_BF16 = (8, 0)
"""Ampere, the first architecture with tensor cores for tf32 and bf16 (CUDA C++ Programming Guide, "Arithmetic
instructions")."""
TENSOR_CORES_FP16 = (7, 0)
TRITON_MIN_CAPABILITY = (7, 0)
"""Oldest supported compute capability (torch/utils/_triton.py and inductor's `has_triton`)."""

_INSTALL_TORCH = "install torch 2.11 or later: uv sync, or pip install torch"
_USE_CPU = "--device cpu measures on the CPU; --simulate GPU predicts times and simulates memory"


@dataclass(frozen=True)
class Facts:
    """All facts about a machine, as sections of the record."""

    host: HostSection
    nvml: NvmlSection
    torch: TorchSection
    tools: ToolsSection
    allocator: AllocatorSection

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
        """State of `gpu` according to the driver; None if the driver does not list it."""
        gpu = self.gpu
        bare_uuid = _bare_uuid(gpu.uuid) if gpu else None
        return next((state for state in self.nvml.gpus if bare_uuid and _bare_uuid(state.uuid) == bare_uuid), None)


def prospects(facts: Facts) -> list[Prospect]:
    """Return which commands and machine-dependent options work, in the order of the help screen."""
    device = facts.device
    independent = [
        _nsys(facts),
        _energy(facts),
        _figures(facts),
        _yes("report, compare, --from", "do not need torch"),
    ]
    if device is None:
        unknown = facts.torch.unknown
        reason = unknown.get("everything") or unknown.get("devices") or "torch lists no device"
        commands = ("time", "memory", "profile", "attention", "accum", "run")
        return [*(_no(command, reason, _INSTALL_TORCH) for command in commands), _compile(facts), *independent]
    return [
        *_commands(facts, device),
        *_cuda(facts),
        *(_cuda_precisions(device) if device.type == "cuda" else _other_precisions(facts, device)),
        _compile(facts),
        *_attention(facts, device),
        _ranks(facts, device),
        *independent,
    ]


def cuda_refusal(facts: Facts) -> tuple[str, str | None] | None:
    """Return why no CUDA device can be used, and a remedy; None if one can be used."""
    torch, gpu = facts.torch, facts.gpu
    if gpu is not None:
        return _gpu_problem(facts, gpu)
    gpu_names = [state.name or "a GPU" for state in facts.nvml.gpus]
    if torch.cuda is None and gpu_names:
        return (
            f"{gpu_names[0]} is present, but this torch ({torch.version}) is built without CUDA",
            "install a CUDA build of torch: https://pytorch.org/get-started/locally",
        )
    hidden = facts.host.variables.get("CUDA_VISIBLE_DEVICES")
    if gpu_names and hidden is not None:
        return (
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides "
            + ("the GPU" if len(gpu_names) == 1 else f"all {len(gpu_names)} GPUs"),
            "unset it, or name a GPU that exists: CUDA_VISIBLE_DEVICES=0",
        )
    if (
        gpu_names
        and facts.nvml.cuda
        and torch.cuda
        and _parse_version(torch.cuda)[0] > _parse_version(facts.nvml.cuda)[0]
    ):
        return (
            f"driver {facts.nvml.driver} supports CUDA {facts.nvml.cuda}, and this torch needs {torch.cuda}",
            f"update the driver, or install a torch built for CUDA {facts.nvml.cuda} or older",
        )
    if gpu_names:
        return (facts.torch.cuda_problem or "torch finds no CUDA device", "nvidia-smi shows the state of the driver")
    return ("no NVIDIA GPU found", _USE_CPU)


def supports_capability(archs: Sequence[str], capability: str) -> bool:
    """Whether kernels compiled for `archs` (sm_80, sm_90a, compute_90) run on a GPU of this compute capability.

    Code for sm_XY runs on the same major version with an equal or higher minor version; code for compute_XY (PTX) is
    compiled at load time for XY and anything newer; code for an architecture with a letter suffix runs on that version
    only (CUDA C++ Programming Guide, "Application compatibility").
    """
    version = _parse_version(capability)
    for arch in archs:
        kind, _, number = arch.partition("_")
        digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
        if not digits.isdigit() or len(digits) < 2:
            continue
        arch_version = (int(digits[:-1]), int(digits[-1]))
        if arch_version == version or (
            digits == number and arch_version < version and (kind == "compute" or arch_version[0] == version[0])
        ):
            return True
    return False


def _yes(what: str, reason: str) -> Prospect:
    return Prospect(what=what, works="yes", reason=reason)


def _partly(what: str, reason: str, remedy: str | None = None) -> Prospect:
    return Prospect(what=what, works="partly", reason=reason, remedy=remedy)


def _no(what: str, reason: str, remedy: str | None = None) -> Prospect:
    return Prospect(what=what, works="no", reason=reason, remedy=remedy)


def _commands(facts: Facts, device: DeviceInfo) -> Iterator[Prospect]:
    device_label = _describe_device(facts, device)
    gpu_problem = _gpu_problem(facts, device) if device.type == "cuda" else None
    if gpu_problem:
        for command in ("time", "memory", "profile", "attention"):
            yield _no(command, gpu_problem[0], f"{gpu_problem[1]}; or --device cpu")
    else:
        yield _yes("time", f"on {device_label}")
        yield _memory(facts, device)
        yield _profile(facts, device)
        yield _yes("attention", f"on {device_label}")
    yield _yes("accum", f"on {device_label}; formats without hardware support are computed on the CPU")
    yield _yes("run", "runs several of these; simulates or skips runs that cannot be measured here")
    what, allocator = "--simulate GPU", facts.allocator
    allocator_problem = allocator.problem or allocator.not_simulated
    if allocator_problem:
        yield _no(what, f"{allocator.variable}: {allocator_problem}", "change or unset it")
    else:
        yield _yes(what, "time, profile, attention: predicted times; memory: simulated, also for a size such as 24GiB")


def _describe_device(facts: Facts, device: DeviceInfo) -> str:
    if device.type == "cpu":
        threads = facts.torch.threads
        return f"the CPU, {device.name}" + (f", {threads} thread{'' if threads == 1 else 's'}" if threads else "")
    return f"{device.torch_name}, {device.name}"


def _memory(facts: Facts, device: DeviceInfo) -> Prospect:
    what, allocator = "memory", facts.allocator
    if device.type != "cuda":
        return _yes(what, "counts tensors one by one; simulates what a GPU would need")
    if allocator.text and "cudaMallocAsync" in allocator.text:
        return _no(
            what,
            "the allocator cudaMallocAsync records no history (CUDAMallocAsyncAllocator.cpp, recordHistory)",
            f"remove backend:cudaMallocAsync from {allocator.variable}",
        )
    if facts.host.variables.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return _no(what, "PYTORCH_NO_CUDA_MEMORY_CACHING disables the allocator whose history is measured", "unset it")
    return _yes(what, f"the allocator's complete history, on {device.torch_name}")


def _profile(facts: Facts, device: DeviceInfo) -> Prospect:
    activity = "CUDA" if device.type == "cuda" else "CPU"
    if activity in facts.torch.profiler_activities:
        recorded = "kernels and operators" if device.type == "cuda" else "operators, as a substitute for kernels"
        return _yes("profile", f"torch.profiler: {recorded}")
    return _partly(
        "profile",
        f"the profiler of this torch does not record {activity} activity (Kineto, CUPTI): operators only",
        "install a build of torch with Kineto, or use --with nsys",
    )


def _cuda(facts: Facts) -> Iterator[Prospect]:
    refusal = cuda_refusal(facts)
    if refusal:
        yield _no("--device cuda", *refusal)
    elif facts.gpu:
        yield _yes("--device cuda", _describe_device(facts, facts.gpu))


def _gpu_problem(facts: Facts, gpu: DeviceInfo) -> tuple[str, str] | None:
    torch, state = facts.torch, facts.state
    if facts.allocator.problem:
        return f"torch will refuse {facts.allocator.variable}: {facts.allocator.problem}", "correct or unset it"
    if gpu.compute_capability and torch.archs and not supports_capability(torch.archs, gpu.compute_capability):
        return (
            f"{gpu.name} has compute capability {gpu.compute_capability}, but this torch only has kernels for "
            f"{', '.join(torch.archs)}",
            "install a build of torch for this GPU",
        )
    if state and state.compute_mode == "prohibited":
        return "the GPU's compute mode is prohibited", "nvidia-smi -c DEFAULT, as root"
    if state and state.compute_mode == "exclusive-process" and state.processes:
        return "the GPU is in use and accepts only one process (compute mode exclusive-process)", "wait for it to end"
    return None


def _refused(facts: Facts, what: str, **option: object) -> Prospect | None:
    """Return why a run would refuse a cell with this option here, or None; the spec and the engine are asked."""
    (name,) = option
    cell = next(spec_of({"kind": "time", "size": ("tiny",), "ctx": (64,)}).cells()).model_copy(update=option)
    try:
        (placed,) = place([cell], facts.torch.devices)
    except UsageError as error:
        complaint = str(error)
    else:
        refusal = Admission(RunOptions(), lambda _: None).refusal(placed)
        if refusal is None:
            return None
        complaint = refusal.detail
    reason, *remedy = re.split(r"; |\. ", complaint.removeprefix(f"--{name} {option[name]} "), maxsplit=1)
    return _no(what, reason, *remedy)


def _other_precisions(facts: Facts, device: DeviceInfo) -> Iterator[Prospect]:
    if device.type == "mps":
        yield _yes("--precision bf16", f"on {device.torch_name}")
    elif facts.torch.cpu_bf16:
        yield _yes("--precision bf16", "this CPU multiplies bf16 in hardware")
    else:
        yield _partly(
            "--precision bf16",
            "this CPU has no bf16 instructions (AMX, AVX512-BF16): bf16 is emulated, and slower than fp32",
            "--precision fp32 for times; dtypes and memory are correct",
        )
    for name in ("fp16", "tf32"):
        if refused := _refused(facts, f"--precision {name}", precision=name):
            yield refused


def _cuda_precisions(device: DeviceInfo) -> Iterator[Prospect]:
    capability = _parse_version(device.compute_capability or "0.0")
    for name, min_capability, limitation in (
        ("bf16", TENSOR_CORES_TF32_BF16, "bf16 runs without tensor cores, slowly"),
        ("fp16", TENSOR_CORES_FP16, "fp16 runs without tensor cores, slowly"),
        ("tf32", TENSOR_CORES_TF32_BF16, "tf32 is computed as fp32"),
    ):
        if capability >= min_capability:
            yield _yes(f"--precision {name}", "on tensor cores")
        else:
            remedy = "--precision fp16" if capability >= TENSOR_CORES_FP16 else "--precision fp32"
            reason = f"compute capability {device.compute_capability}: {limitation}"
            yield _partly(f"--precision {name}", reason, remedy)


def _compile(facts: Facts) -> Prospect:
    what, device, tools = "--compile", facts.device, facts.tools
    if device is None:
        return _no(what, "torch is not installed", _INSTALL_TORCH)
    disabling = [
        name for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE") if facts.host.variables.get(name) == "1"
    ]
    if disabling:
        return _no(what, f"{disabling[0]}=1 disables torch.compile", "unset it")
    on_cuda = device.type == "cuda"
    compiler, variable = (tools.c_compiler, "CC") if on_cuda else (tools.cxx_compiler, "CXX")
    if on_cuda and facts.torch.triton is None:
        refusal = "Triton, which generates GPU kernels, is not installed"
        return _no(what, refusal, "pip install triton (CUDA builds of torch include it)")
    if on_cuda and _parse_version(device.compute_capability or "0.0") < TRITON_MIN_CAPABILITY:
        reason = f"Triton supports compute capability 7.0 and later, not {device.compute_capability}"
        return _no(what, reason, "--execution eager")
    if compiler is None:
        return _no(what, "no compiler information available", f"set {variable} to a compiler")
    if compiler.problem:
        return _no(
            what, f"no compiler: {compiler.problem}", f"install gcc and g++ (build-essential), or set {variable}"
        )
    if tools.python_headers is None:
        return _no(what, "Python.h, which compiled code includes, is missing", "install python3-dev")
    backend = f"Triton {facts.torch.triton}" if on_cuda else "C++"
    return _yes(what, f"{backend}, compiled by {_describe_tool(compiler)}")


def _describe_tool(tool: Tool) -> str:
    return f"{tool.path} {tool.version or ''}".strip()


def _attention(facts: Facts, device: DeviceInfo) -> Iterator[Prospect]:
    on_cuda = device.type == "cuda"
    if on_cuda:
        yield _yes("--attention naive, sdpa, math", "on every CUDA device")
        yield from (_attention_kernel(facts, name) for name in ("flash", "efficient", "cudnn"))
        compiled = _compile(facts)
        if compiled.works == "yes":
            yield _yes("--attention flex", "compiled by Triton")
        else:
            yield _no("--attention flex", f"it needs compilation: {compiled.reason}", compiled.remedy)
    else:
        names = ("naive", "sdpa", "flash", "math", "efficient", "cudnn", "flex")
        refused = {name: _refused(facts, f"--attention {name}", attention=name) for name in names}
        usable = [name for name, refusal in refused.items() if refusal is None and name != "flex"]
        yield _yes(f"--attention {', '.join(usable)}", f"{device.type.upper()} kernels")
        yield from (refusal for refusal in refused.values() if refusal is not None)
        if refused["flex"] is None:
            reason = "on the CPU it has no backward: --mode inference only"
            yield _partly("--attention flex", reason, "--attention sdpa for training")
    what, version = "attention --impl flash-attn", facts.torch.flash_attn
    if version is None:
        remedy = "pip install flash-attn" if on_cuda else "it needs a CUDA device"
        yield _no(what, "the package flash-attn is not installed", remedy)
    elif on_cuda:
        yield _partly(what, f"flash-attn {version}, in bf16 and fp16 only")
    else:
        yield _no(what, "it runs in bf16 and fp16 on CUDA devices", "--impl sdpa-flash")


def _attention_kernel(facts: Facts, name: str) -> Prospect:
    what, reason = f"--attention {name}", facts.torch.unknown.get("attention_kernels")
    if reason:
        return Prospect(what=what, works="unknown", reason=f"torch did not answer: {reason}")
    precisions = facts.torch.attention_kernels.get(name, [])
    if not precisions:
        return _no(what, "torch has no such kernel for this GPU", "--attention sdpa")
    if "fp32" in precisions:
        return _yes(what, f"in {', '.join(precisions)}")
    return _partly(
        what, f"in {' and '.join(precisions)} only", f"--precision {precisions[0]}; in fp32 --attention efficient"
    )


def _ranks(facts: Facts, device: DeviceInfo) -> Prospect:
    what, torch = "time --ranks", facts.torch
    if "gloo" not in torch.backends:
        return _no(what, torch.unknown.get("backends", "this torch has no gloo, which ranks need to communicate"))
    if device.type != "cuda":
        cores = facts.host.usable_cores or 1
        return _yes(what, f"gloo, over {cores} cores") if cores > 1 else _partly(what, "gloo, but they share one core")
    gpus = sum(each.type == "cuda" for each in torch.devices)
    nccl = next((each for each in torch.backends if each.startswith("nccl")), None)
    if refused := _refused(facts, what, ranks=2):
        return refused.model_copy(update={"works": "partly"})
    if nccl is None:
        return _partly(what, "this torch has no nccl", "use --device cpu: its ranks communicate through gloo")
    return _yes(what, f"{nccl.upper()}, over {gpus} GPUs")


def _nsys(facts: Facts) -> Prospect:
    what, tool = "profile --with nsys", facts.tools.nsys
    if facts.gpu is None:
        return _no(what, "it records kernels of NVIDIA GPUs, and none is usable", "--with torch")
    if tool is None or tool.problem:
        return _no(
            what,
            tool.problem if tool and tool.problem else "cannot tell whether nsys is installed",
            "install Nsight Systems (https://developer.nvidia.com/nsight-systems), or use --with torch",
        )
    return _yes(what, _describe_tool(tool))


def _energy(facts: Facts) -> Prospect:
    what, state = "--columns +energy", facts.state
    if facts.gpu is None:
        return _no(what, "only NVIDIA's driver counts energy, and there is no NVIDIA GPU")
    if state is None and facts.nvml.driver is None and not facts.nvml.unknown:
        return _no(
            what,
            "NVIDIA's management library (libnvidia-ml.so.1) is not installed",
            "it comes with the driver; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    if state is None:
        reason = facts.nvml.unknown.get("everything") or "the driver does not know the GPU that torch uses"
        return _no(what, reason, "energy, clocks and power are only known through NVML")
    if state.energy_j is None:
        return _no(what, f"this GPU has no energy counter ({state.unknown.get('energy_j', 'no answer')})")
    return _yes(what, "NVML's counter, read ten times a second; a cell must be measured for at least a second")


def _figures(facts: Facts) -> Prospect:
    if facts.tools.matplotlib:
        return _yes("--figure", f"matplotlib {facts.tools.matplotlib}")
    return _no("--figure", "matplotlib is not installed", "pip install matplotlib")


def _parse_version(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    minor = minor.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _bare_uuid(uuid: str | None) -> str | None:
    """Return a UUID without its prefix, which only the driver adds."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower() if uuid else None

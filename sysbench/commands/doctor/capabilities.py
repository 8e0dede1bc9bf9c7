"""Which commands and options work on this machine; for those that do not, the reason and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sysbench.commands.doctor.record import Machine, Prospect, Tool, Works
from sysbench.engine.plan import PlacedCell, refusal_of, resolve_device
from sysbench.errors import Refusal
from sysbench.log.events import DeviceInfo
from sysbench.spec.cell import spec_of

TENSOR_CORES = {"bf16": (8, 0), "fp16": (7, 0), "tf32": (8, 0)}
"""Oldest compute capability with tensor cores for a precision (CUDA C++ Programming Guide, "Arithmetic
instructions")."""
TRITON_MIN_CAPABILITY = (7, 0)
"""Oldest supported compute capability (torch/utils/_triton.py and inductor's `has_triton`)."""

_INSTALL_TORCH = "install torch 2.11 or later: uv sync, or pip install torch"
_USE_CPU = "--device cpu measures on the CPU; --simulate GPU predicts times and simulates memory"


def prospects(machine: Machine) -> list[Prospect]:
    """Return which commands and machine-dependent options work."""
    device, unknown = machine.device, machine.torch.unknown
    if device is None:
        reason = unknown.get("everything") or unknown.get("devices") or "torch lists no device"
        return [_prospect("whatever measures", "no", reason, _INSTALL_TORCH), _simulate(machine)]
    return [
        *_commands(machine, device),
        _simulate(machine),
        _cuda(machine),
        *_precisions(machine, device),
        _compile(machine, device),
        *_attention(machine, device),
        _ranks(machine, device),
        _nsys(machine),
        _energy(machine),
    ]


def supports_capability(archs: Sequence[str], capability: str) -> bool:
    """Whether kernels compiled for `archs` (sm_80, sm_90a, compute_90) run on a GPU of this compute capability.

    Code for sm_XY runs on the same major version with an equal or higher minor version; code for compute_XY (PTX) is
    compiled at load time for XY and anything newer; code for an architecture with a letter suffix runs on that version
    only (CUDA C++ Programming Guide, "Application compatibility").
    """
    version = _parse_version(capability)
    for kind, major, minor, suffix in re.findall(r"\b(sm|compute)_(\d+)(\d)([a-z]?)\b", " ".join(archs)):
        built_for = (int(major), int(minor))
        is_compatible = not suffix and built_for < version and (kind == "compute" or built_for[0] == version[0])
        if built_for == version or is_compatible:
            return True
    return False


def _prospect(what: str, works: Works, reason: str, remedy: str | None = None) -> Prospect:
    return Prospect(what=what, works=works, reason=reason, remedy=remedy)


def _refused(what: str, refusal: Refusal, works: Works = "no") -> Prospect:
    return _prospect(what, works, refusal.reason, refusal.remedy or None)


def _commands(machine: Machine, device: DeviceInfo) -> Iterator[Prospect]:
    on_cuda = device.type == "cuda"
    if on_cuda and (problem := _gpu_problem(machine, device)):
        yield _prospect("whatever measures", "no", problem.reason, f"{problem.remedy}; or --device cpu")
        return
    yield _prospect("time, attention, accum", "yes", f"on {_describe(machine, device)}")
    settings = machine.tools.allocator or ""
    if not on_cuda:
        yield _prospect("memory", "yes", "counts tensors one by one; simulates what a GPU would need")
    elif "cudaMallocAsync" in settings:
        reason = "the allocator cudaMallocAsync records no history (CUDAMallocAsyncAllocator.cpp, recordHistory)"
        yield _prospect("memory", "no", reason, f"remove backend:cudaMallocAsync from {settings.partition('=')[0]}")
    elif machine.host.variables.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        reason = "PYTORCH_NO_CUDA_MEMORY_CACHING disables the allocator whose history is measured"
        yield _prospect("memory", "no", reason, "unset it")
    else:
        yield _prospect("memory", "yes", f"the allocator's complete history, on {device.torch_name}")
    activity = "CUDA" if on_cuda else "CPU"
    if activity in machine.torch.profiler_activities:
        recorded = "kernels and operators" if on_cuda else "operators, as a substitute for kernels"
        yield _prospect("profile", "yes", f"torch.profiler: {recorded}")
    else:
        reason = f"the profiler of this torch does not record {activity} activity (Kineto, CUPTI): operators only"
        yield _prospect("profile", "partly", reason, "install a build of torch with Kineto, or use --with nsys")


def _describe(machine: Machine, device: DeviceInfo) -> str:
    threads = machine.torch.threads
    if device.type == "cpu":
        return f"the CPU, {device.name}" + (f", {threads} thread{'' if threads == 1 else 's'}" if threads else "")
    return f"{device.torch_name}, {device.name}"


def _simulate(machine: Machine) -> Prospect:
    tools = machine.tools
    if problem := tools.allocator_problem or tools.allocator_not_simulated:
        return _prospect("--simulate GPU", "no", f"{tools.allocator}: {problem}", "change or unset it")
    return _prospect("--simulate GPU", "yes", "predicts times; simulates memory, also of a size such as 24GiB")


def _cuda(machine: Machine) -> Prospect:
    gpu = machine.gpu
    if gpu is None:
        return _refused("--device cuda", _why_no_gpu(machine))
    if problem := _gpu_problem(machine, gpu):
        return _refused("--device cuda", problem)
    return _prospect("--device cuda", "yes", _describe(machine, gpu))


def _why_no_gpu(machine: Machine) -> Refusal:
    torch, nvml = machine.torch, machine.nvml
    hidden = machine.host.variables.get("CUDA_VISIBLE_DEVICES")
    if not nvml.gpus:
        return Refusal("no NVIDIA GPU found", _USE_CPU)
    if torch.cuda is None:
        return Refusal(
            f"{nvml.gpus[0].name} is present, but this torch ({torch.version}) is built without CUDA",
            "install a CUDA build of torch: https://pytorch.org/get-started/locally",
        )
    if hidden is not None:
        hides = f"CUDA_VISIBLE_DEVICES={hidden!r} hides all GPUs"
        return Refusal(hides, "unset it, or name one: CUDA_VISIBLE_DEVICES=0")
    if nvml.cuda and _parse_version(torch.cuda)[0] > _parse_version(nvml.cuda)[0]:
        return Refusal(
            f"driver {nvml.driver} supports CUDA {nvml.cuda}, and this torch needs {torch.cuda}",
            f"update the driver, or install a torch built for CUDA {nvml.cuda} or older",
        )
    return Refusal(torch.cuda_problem or "torch finds no CUDA device", "nvidia-smi shows the state of the driver")


def _gpu_problem(machine: Machine, gpu: DeviceInfo) -> Refusal | None:
    archs, state, tools = machine.torch.archs, machine.state, machine.tools
    if tools.allocator_problem:
        return Refusal(f"torch will refuse {tools.allocator}: {tools.allocator_problem}", "correct or unset it")
    if gpu.compute_capability and archs and not supports_capability(archs, gpu.compute_capability):
        return Refusal(
            f"{gpu.name} has compute capability {gpu.compute_capability}, but this torch only has kernels for "
            f"{', '.join(archs)}",
            "install a build of torch for this GPU",
        )
    if state and state.compute_mode == "prohibited":
        return Refusal("the GPU's compute mode is prohibited", "nvidia-smi -c DEFAULT, as root")
    if state and state.compute_mode == "exclusive-process" and state.processes:
        in_use = "the GPU is in use and accepts only one process (compute mode exclusive-process)"
        return Refusal(in_use, "wait for it to end")
    return None


def _refusal(machine: Machine, **option: object) -> Refusal | None:
    """Return why a run would refuse a cell with this option here, or None; the spec and the engine are asked."""
    cell = next(spec_of({"kind": "time", "size": ("tiny",), "ctx": (64,)}).cells()).model_copy(update=option)
    placed = PlacedCell(0, cell, resolve_device(cell.device, machine.torch.devices))
    return refusal_of(placed, machine.torch.devices) or cell.unavailable(placed.device.type)


def _precisions(machine: Machine, device: DeviceInfo) -> Iterator[Prospect]:
    capability = _parse_version(device.compute_capability or "0.0")
    for name, least in TENSOR_CORES.items():
        what = f"--precision {name}"
        if refusal := _refusal(machine, precision=name):
            yield _refused(what, refusal)
        elif device.type == "cpu" and machine.torch.cpu_bf16 is False:
            reason = "this CPU has no bf16 instructions (AMX, AVX512-BF16): bf16 is emulated, and slower than fp32"
            yield _prospect(what, "partly", reason, "--precision fp32 for times; dtypes and memory are correct")
        elif device.type == "cuda" and capability < least:
            reason = f"compute capability {device.compute_capability} has no tensor cores for it: no faster than fp32"
            yield _prospect(what, "partly", reason, "--precision fp32")
        else:
            reasons = {"cuda": "on tensor cores", "cpu": "this CPU multiplies bf16 in hardware"}
            yield _prospect(what, "yes", reasons.get(device.type, f"on {device.torch_name}"))


def _compile(machine: Machine, device: DeviceInfo) -> Prospect:
    on_cuda, triton, tools = device.type == "cuda", machine.torch.triton, machine.tools
    compiler, variable = (tools.c_compiler, "CC") if on_cuda else (tools.cxx_compiler, "CXX")
    capability, variables = device.compute_capability or "0.0", machine.host.variables
    disabling = [name for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE") if variables.get(name) == "1"]
    problem: Refusal | None = None
    if disabling:
        problem = Refusal(f"{disabling[0]}=1 disables torch.compile", "unset it")
    elif on_cuda and triton is None:
        problem = Refusal("Triton, which generates GPU kernels, is not installed", "pip install triton")
    elif on_cuda and _parse_version(capability) < TRITON_MIN_CAPABILITY:
        problem = Refusal(f"Triton supports compute capability 7.0 and later, not {capability}", "--execution eager")
    elif compiler.problem:
        remedy = f"install gcc and g++ (build-essential), or set {variable}"
        problem = Refusal(f"no compiler: {compiler.problem}", remedy)
    elif tools.python_headers is None:
        problem = Refusal("Python.h, which compiled code includes, is missing", "install python3-dev")
    if problem:
        return _refused("--compile", problem)
    backend = f"Triton {triton}" if on_cuda else "C++"
    return _prospect("--compile", "yes", f"{backend}, compiled by {_describe_tool(compiler)}")


def _describe_tool(tool: Tool) -> str:
    return f"{tool.path} {tool.version or ''}".strip()


def _attention(machine: Machine, device: DeviceInfo) -> Iterator[Prospect]:
    on_cuda = device.type == "cuda"
    names = ("naive", "sdpa", "math") if on_cuda else ("naive", "sdpa", "flash", "math", "efficient", "cudnn")
    refusals = {name: _refusal(machine, attention=name) for name in (*names, "flex")}
    usable = [name for name in names if refusals[name] is None]
    yield _prospect(f"--attention {', '.join(usable)}", "yes", f"{device.type.upper()} kernels")
    yield from (_refused(f"--attention {name}", refusal) for name, refusal in refusals.items() if refusal)
    if on_cuda:
        yield from (_attention_kernel(machine, name) for name in ("flash", "efficient", "cudnn"))
        compiled = _compile(machine, device)
        yield _prospect("--attention flex", compiled.works, f"compilation: {compiled.reason}", compiled.remedy)
    elif refusals["flex"] is None:
        reason = "on the CPU it has no backward: --mode inference only"
        yield _prospect("--attention flex", "partly", reason, "--attention sdpa for training")
    what, version = "attention --impl flash-attn", machine.torch.flash_attn
    if not on_cuda:
        yield _prospect(what, "no", "it runs in bf16 and fp16 on CUDA devices", "--impl sdpa-flash")
    elif version is None:
        yield _prospect(what, "no", "the package flash-attn is not installed", "pip install flash-attn")
    else:
        yield _prospect(what, "partly", f"flash-attn {version}, in bf16 and fp16 only")


def _attention_kernel(machine: Machine, name: str) -> Prospect:
    what, unknown = f"--attention {name}", machine.torch.unknown.get("attention_kernels")
    precisions = machine.torch.attention_kernels.get(name, [])
    if unknown:
        return _prospect(what, "unknown", f"torch did not answer: {unknown}")
    if not precisions:
        return _prospect(what, "no", "torch has no such kernel for this GPU", "--attention sdpa")
    if "fp32" in precisions:
        return _prospect(what, "yes", f"in {', '.join(precisions)}")
    remedy = f"--precision {precisions[0]}; in fp32 --attention efficient"
    return _prospect(what, "partly", f"in {' and '.join(precisions)} only", remedy)


def _ranks(machine: Machine, device: DeviceInfo) -> Prospect:
    what, torch, cores = "time --ranks", machine.torch, machine.host.usable_cores or 1
    nccl = next((backend for backend in torch.backends if backend.startswith("nccl")), None)
    if "gloo" not in torch.backends:
        reason = torch.unknown.get("backends", "this torch has no gloo, which ranks need to communicate")
        return _prospect(what, "no", reason)
    if device.type != "cuda":
        return _prospect(what, "yes" if cores > 1 else "partly", f"gloo, over {cores} core{'s' * (cores > 1)}")
    if refusal := _refusal(machine, ranks=2):
        return _refused(what, refusal, "partly")
    if nccl is None:
        remedy = "use --device cpu: its ranks communicate through gloo"
        return _prospect(what, "partly", "this torch has no nccl", remedy)
    return _prospect(what, "yes", f"{nccl.upper()}, over {sum(each.type == 'cuda' for each in torch.devices)} GPUs")


def _nsys(machine: Machine) -> Prospect:
    what, tool = "profile --with nsys", machine.tools.nsys
    if machine.gpu is None:
        reason = "it records kernels of NVIDIA GPUs, and none is usable"
        return _prospect(what, "no", reason, "--with torch")
    if tool.problem:
        remedy = "install Nsight Systems (https://developer.nvidia.com/nsight-systems), or use --with torch"
        return _prospect(what, "no", tool.problem, remedy)
    return _prospect(what, "yes", _describe_tool(tool))


def _energy(machine: Machine) -> Prospect:
    what, state, nvml = "--columns +energy", machine.state, machine.nvml
    if machine.gpu is None:
        return _prospect(what, "no", "only NVIDIA's driver counts energy, and there is no NVIDIA GPU")
    if state is None and nvml.driver is None and not nvml.unknown:
        reason = "NVIDIA's management library (libnvidia-ml.so.1) is not installed"
        remedy = "it comes with the driver; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return _prospect(what, "no", reason, remedy)
    if state is None:
        reason = nvml.unknown.get("everything", "the driver does not know the GPU that torch uses")
        return _prospect(what, "no", reason)
    if state.energy_j is None:
        reason = f"this GPU has no energy counter ({state.unknown.get('energy_j', 'no answer')})"
        return _prospect(what, "no", reason)
    return _prospect(what, "yes", "NVML's counter, read ten times a second; a cell must take at least a second")


def _parse_version(version: str) -> tuple[int, int]:
    """Return the major and minor version; 0.0 for a text without them."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)

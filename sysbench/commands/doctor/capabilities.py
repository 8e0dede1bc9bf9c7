"""From what a machine is to what will work on it, why not, and what would help. Pure: facts in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from sysbench.log.events import DeviceInfo

TENSOR_CORES_TF32_BF16 = (8, 0)
"""Ampere: the first with tensor cores for tf32 and bf16 (CUDA C++ Programming Guide, "Arithmetic instructions")."""
TENSOR_CORES_FP16 = (7, 0)
TRITON_FROM = (7, 0)
"""torch/utils/_triton.py and inductor's `has_triton`: older GPUs are not compiled for."""

_NO_TORCH = "install torch 2.11 or later: uv sync, or pip install torch"
_CPU_INSTEAD = "--device cpu measures on the CPU; memory and attention also take --simulate GPU"


@dataclass(frozen=True)
class Facts:
    """Everything that prospects depend on."""

    host: HostSection
    nvml: NvmlSection
    torch: TorchSection
    tools: ToolsSection
    allocator: AllocatorSection

    @property
    def device(self) -> DeviceInfo | None:
        """What `--device auto` stands for; None without a torch."""
        return self.torch.devices[0] if self.torch.devices else None

    @property
    def gpu(self) -> DeviceInfo | None:
        """The first CUDA device that torch sees."""
        return next((device for device in self.torch.devices if device.type == "cuda"), None)

    @property
    def state(self) -> GpuState | None:
        """That device as the driver sees it."""
        gpu = self.gpu
        bare = _bare(gpu.uuid) if gpu else None
        return next((state for state in self.nvml.gpus if bare and _bare(state.uuid) == bare), None)


def measurable(facts: Facts) -> bool:
    """Whether anything at all can be measured here."""
    return facts.device is not None


def prospects(facts: Facts) -> list[Prospect]:
    """Every command and every option that depends on the machine, in the order in which the help has them."""
    return [
        *_commands(facts),
        *_cuda(facts),
        *_precisions(facts),
        _compile(facts),
        *_attention(facts),
        _nsys(facts),
        _energy(facts),
        _figures(facts),
        Prospect(what="report, compare, --from", works="yes", reason="they read what earlier runs left; no torch"),
    ]


def cuda_refusal(facts: Facts) -> tuple[str, str | None] | None:
    """Why no CUDA device can be used, and what would help; None where one can."""
    torch, gpu = facts.torch, facts.gpu
    if gpu is not None:
        return _unfit(facts, gpu)
    here = [state.name or "a GPU" for state in facts.nvml.gpus]
    if torch.cuda is None and here:
        return (
            f"{here[0]} is here, but this torch ({torch.version}) is built without CUDA",
            "install a CUDA build of torch: https://pytorch.org/get-started/locally",
        )
    hidden = facts.host.variables.get("CUDA_VISIBLE_DEVICES")
    if here and hidden is not None:
        return (
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides {'the GPU' if len(here) == 1 else f'all {len(here)} GPUs'}",
            "unset it, or name one that is there: CUDA_VISIBLE_DEVICES=0",
        )
    if here and facts.nvml.cuda and torch.cuda and _number(torch.cuda)[0] > _number(facts.nvml.cuda)[0]:
        return (
            f"driver {facts.nvml.driver} runs CUDA {facts.nvml.cuda}, and this torch wants {torch.cuda}",
            f"update the driver, or install a torch built for CUDA {facts.nvml.cuda} or older",
        )
    if here:
        return (facts.torch.cuda_problem or "torch finds no CUDA device", "nvidia-smi shows what the driver thinks")
    return ("there is no NVIDIA GPU here", _CPU_INSTEAD)


def runs_on(archs: Sequence[str], capability: str) -> bool:
    """Whether kernels compiled for `archs` (sm_80, sm_90a, compute_90) run on a GPU of this compute capability.

    Code for sm_XY runs on the same major version from that minor one on; compute_XY is translated for anything newer;
    what ends in a letter is for that version alone (CUDA C++ Programming Guide, "Application compatibility").
    """
    return any(_runs(arch, _number(capability)) for arch in archs)


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    kind, _, number = arch.partition("_")
    digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
    if not digits.isdigit() or len(digits) < 2:
        return False
    own = (int(digits[:-1]), int(digits[-1]))
    if digits != number:
        return own == capability
    return own <= capability if kind == "compute" else own[0] == capability[0] and own[1] <= capability[1]


def _commands(facts: Facts) -> Iterator[Prospect]:
    unknown = facts.torch.unknown
    device, why = facts.device, unknown.get("everything") or unknown.get("devices")
    if device is None:
        for command in ("time", "memory", "profile", "attention", "accum", "run"):
            yield Prospect(what=command, works="no", reason=why or "torch names no device", remedy=_NO_TORCH)
        return
    where = _where(facts, device)
    spoilt = _unfit(facts, device) if device.type == "cuda" else None
    if spoilt:
        for command in ("time", "memory", "profile", "attention"):
            yield Prospect(what=command, works="no", reason=spoilt[0], remedy=f"{spoilt[1]}; or --device cpu")
    else:
        yield Prospect(what="time", works="yes", reason=f"on {where}")
        yield _memory(facts, device)
        yield _profile(facts, device)
        yield Prospect(what="attention", works="yes", reason=f"on {where}")
    yield Prospect(
        what="accum", works="yes", reason=f"on {where}; rounding of formats that it lacks is worked out on the CPU"
    )
    yield Prospect(
        what="run", works="yes", reason="several of these; what cannot be measured here is simulated or skipped"
    )
    yield _simulation(facts)


def _where(facts: Facts, device: DeviceInfo) -> str:
    if device.type == "cpu":
        threads = facts.torch.threads
        return f"the CPU, {device.name}" + (f", {threads} thread{'' if threads == 1 else 's'}" if threads else "")
    return f"{device.torch_name}, {device.name}"


def _memory(facts: Facts, device: DeviceInfo) -> Prospect:
    if device.type != "cuda":
        return Prospect(
            what="memory", works="yes", reason="tensors are counted one by one; what a GPU would need is simulated"
        )
    allocator = facts.allocator
    if allocator.text and "cudaMallocAsync" in allocator.text:
        return Prospect(
            what="memory",
            works="no",
            reason="the allocator cudaMallocAsync keeps no history (CUDAMallocAsyncAllocator.cpp, recordHistory)",
            remedy=f"take backend:cudaMallocAsync out of {allocator.variable}",
        )
    if facts.host.variables.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return Prospect(
            what="memory",
            works="no",
            reason="PYTORCH_NO_CUDA_MEMORY_CACHING turns the allocator off whose history is measured",
            remedy="unset it",
        )
    return Prospect(what="memory", works="yes", reason=f"the allocator's whole history, on {device.torch_name}")


def _simulation(facts: Facts) -> Prospect:
    what = "memory, attention --simulate GPU"
    allocator = facts.allocator
    bad = allocator.problem or allocator.not_simulated
    if bad:
        return Prospect(what=what, works="no", reason=f"{allocator.variable}: {bad}", remedy="change or unset it")
    return Prospect(what=what, works="yes", reason="worked out on the CPU for any GPU, or a size such as 24GiB")


def _profile(facts: Facts, device: DeviceInfo) -> Prospect:
    wanted = "CUDA" if device.type == "cuda" else "CPU"
    if wanted in facts.torch.profiler_activities:
        seen = "kernels and operators" if device.type == "cuda" else "operators, which stand in for kernels"
        return Prospect(what="profile", works="yes", reason=f"torch.profiler: {seen}")
    return Prospect(
        what="profile",
        works="partly",
        reason=f"this torch's profiler does not see {wanted} (Kineto, CUPTI): operators alone",
        remedy="install a build of torch with Kineto, or use --with nsys",
    )


def _cuda(facts: Facts) -> Iterator[Prospect]:
    if facts.device is None:
        return
    refusal = cuda_refusal(facts)
    if refusal:
        yield Prospect(what="--device cuda", works="no", reason=refusal[0], remedy=refusal[1])
    elif facts.gpu:
        yield Prospect(what="--device cuda", works="yes", reason=_where(facts, facts.gpu))


def _unfit(facts: Facts, gpu: DeviceInfo) -> tuple[str, str] | None:
    """Why a CUDA device that torch sees will not run anything."""
    torch, state = facts.torch, facts.state
    if gpu.type != "cuda":
        return None
    if facts.allocator.problem:
        return f"torch will refuse {facts.allocator.variable}: {facts.allocator.problem}", "correct or unset it"
    if gpu.compute_capability and torch.archs and not runs_on(torch.archs, gpu.compute_capability):
        return (
            f"{gpu.name} has compute capability {gpu.compute_capability}, and this torch has kernels for "
            f"{', '.join(torch.archs)}",
            "install a build of torch for this GPU",
        )
    if state and state.compute_mode == "prohibited":
        return "the GPU's compute mode is prohibited", "nvidia-smi -c DEFAULT, as root"
    if state and state.compute_mode == "exclusive-process" and state.processes:
        return "the GPU takes one process (compute mode exclusive-process), and one is there", "wait until it is gone"
    return None


def _precisions(facts: Facts) -> Iterator[Prospect]:
    device = facts.device
    if device is None:
        return
    if device.type != "cuda":
        yield _cpu_bf16(facts, device)
        why = "the CPU emulates it" if device.type == "cpu" else "it is a format of CUDA's matrix products"
        if device.type == "cpu":
            yield Prospect(what="--precision fp16", works="no", reason=why, remedy="--precision bf16")
        yield Prospect(
            what="--precision tf32", works="no", reason="a format of NVIDIA's tensor cores", remedy="--precision fp32"
        )
        return
    capability = _number(device.compute_capability or "0.0")
    for name, since in (
        ("bf16", TENSOR_CORES_TF32_BF16),
        ("fp16", TENSOR_CORES_FP16),
        ("tf32", TENSOR_CORES_TF32_BF16),
    ):
        if capability >= since:
            yield Prospect(what=f"--precision {name}", works="yes", reason="on tensor cores")
            continue
        effect = "is computed as fp32" if name == "tf32" else "runs without tensor cores, slowly"
        yield Prospect(
            what=f"--precision {name}",
            works="partly",
            reason=f"compute capability {device.compute_capability}: {name} {effect}",
            remedy="--precision fp16" if capability >= TENSOR_CORES_FP16 else "--precision fp32",
        )


def _cpu_bf16(facts: Facts, device: DeviceInfo) -> Prospect:
    if device.type == "mps":
        return Prospect(what="--precision bf16", works="yes", reason=f"on {device.torch_name}")
    if facts.torch.cpu_bf16:
        return Prospect(what="--precision bf16", works="yes", reason="this CPU multiplies bf16 in hardware")
    return Prospect(
        what="--precision bf16",
        works="partly",
        reason="this CPU has no instructions for bf16 (AMX, AVX512-BF16): it is emulated, and slower than fp32",
        remedy="--precision fp32 for times; dtypes and memory come out right",
    )


def _compile(facts: Facts) -> Prospect:
    what, device, tools = "--compile", facts.device, facts.tools
    if device is None:
        return Prospect(what=what, works="no", reason="there is no torch", remedy=_NO_TORCH)
    off = next(
        (name for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE") if facts.host.variables.get(name) == "1"),
        None,
    )
    if off:
        return Prospect(what=what, works="no", reason=f"{off}=1 turns torch.compile off", remedy="unset it")
    refusal = _no_triton(facts, device) if device.type == "cuda" else None
    compiler = tools.c_compiler if device.type == "cuda" else tools.cxx_compiler
    if refusal is None:
        refusal = _no_compiler(compiler, "CC" if device.type == "cuda" else "CXX")
    if refusal is None and tools.python_headers is None:
        refusal = ("Python.h is missing, which compiled code includes", "install python3-dev, or a Python that has it")
    if refusal:
        return Prospect(what=what, works="no", reason=refusal[0], remedy=refusal[1])
    by = f"Triton {facts.torch.triton}" if device.type == "cuda" else "C++"
    return Prospect(what=what, works="yes", reason=f"{by}, compiled by {_named(compiler)}")


def _no_triton(facts: Facts, device: DeviceInfo) -> tuple[str, str] | None:
    if facts.torch.triton is None:
        return "Triton is not installed, which makes kernels for GPUs", "pip install triton (CUDA builds of torch do)"
    if _number(device.compute_capability or "0.0") < TRITON_FROM:
        return (
            f"Triton has no code for compute capability {device.compute_capability}, only for 7.0 and later",
            "--execution eager",
        )
    return None


def _no_compiler(tool: Tool | None, variable: str) -> tuple[str, str] | None:
    if tool is None:
        return "whether there is a compiler is not known", f"set {variable} to one"
    if tool.problem:
        return f"no compiler: {tool.problem}", f"install gcc and g++ (build-essential), or set {variable}"
    return None


def _named(tool: Tool | None) -> str:
    return f"{tool.path} {tool.version or ''}".strip() if tool else "a compiler"


def _attention(facts: Facts) -> Iterator[Prospect]:
    device = facts.device
    if device is None:
        return
    if device.type != "cuda":
        names = "naive, sdpa, flash, math" if device.type == "cpu" else "naive, sdpa, math"
        yield Prospect(what=f"--attention {names}", works="yes", reason=f"kernels of the {device.type.upper()}")
        yield Prospect(
            what="--attention efficient, cudnn",
            works="no",
            reason="CUDA kernels, and the device is not one of CUDA's",
            remedy="--attention sdpa",
        )
        yield _flex_elsewhere(device)
    else:
        yield Prospect(what="--attention naive, sdpa, math", works="yes", reason="on every CUDA device")
        yield from (_kernel(facts, name) for name in ("flash", "efficient", "cudnn"))
        compiled = _compile(facts)
        works = compiled.works == "yes"
        yield Prospect(
            what="--attention flex",
            works="yes" if works else "no",
            reason="compiled by Triton" if works else f"it has to be compiled: {compiled.reason}",
            remedy=compiled.remedy,
        )
    yield _flash_attn(facts, device)


def _flex_elsewhere(device: DeviceInfo) -> Prospect:
    if device.type == "mps":
        return Prospect(what="--attention flex", works="no", reason="not there on mps", remedy="--attention sdpa")
    return Prospect(
        what="--attention flex",
        works="partly",
        reason="on the CPU it has no backward: --mode inference alone",
        remedy="--attention sdpa for training",
    )


def _kernel(facts: Facts, name: str) -> Prospect:
    what, why = f"--attention {name}", facts.torch.unknown.get("attention_kernels")
    if why:
        return Prospect(what=what, works="unknown", reason=f"torch did not tell: {why}")
    taken = facts.torch.attention_kernels.get(name, [])
    if not taken:
        return Prospect(
            what=what, works="no", reason="torch has no such kernel for this GPU", remedy="--attention sdpa"
        )
    if "fp32" in taken:
        return Prospect(what=what, works="yes", reason=f"in {', '.join(taken)}")
    return Prospect(
        what=what,
        works="partly",
        reason=f"in {' and '.join(taken)} alone",
        remedy=f"--precision {taken[0]}; in fp32 --attention efficient",
    )


def _flash_attn(facts: Facts, device: DeviceInfo) -> Prospect:
    what = "attention --impl flash-attn"
    if facts.torch.flash_attn is None:
        return Prospect(
            what=what,
            works="no",
            reason="the package flash-attn is not installed",
            remedy="pip install flash-attn" if device.type == "cuda" else "it needs a CUDA device",
        )
    if device.type != "cuda":
        return Prospect(
            what=what, works="no", reason="it takes bf16 and fp16 on CUDA devices", remedy="--impl sdpa-flash"
        )
    return Prospect(what=what, works="partly", reason=f"flash-attn {facts.torch.flash_attn}, in bf16 and fp16 alone")


def _nsys(facts: Facts) -> Prospect:
    what, tool = "profile --with nsys", facts.tools.nsys
    if facts.gpu is None:
        return Prospect(
            what=what,
            works="no",
            reason="it sees kernels of NVIDIA's GPUs, of which none is usable",
            remedy="--with torch",
        )
    if tool is None or tool.problem:
        reason = tool.problem if tool and tool.problem else "whether nsys is here is not known"
        return Prospect(
            what=what,
            works="no",
            reason=reason,
            remedy="install Nsight Systems (https://developer.nvidia.com/nsight-systems), or use --with torch",
        )
    return Prospect(what=what, works="yes", reason=_named(tool))


def _energy(facts: Facts) -> Prospect:
    what, state = "--columns +energy", facts.state
    if facts.gpu is None:
        return Prospect(what=what, works="no", reason="joules are counted by NVIDIA's driver, and there is no such GPU")
    if state is None:
        why = facts.nvml.unknown.get("everything") or "the driver does not know the GPU that torch uses"
        return Prospect(what=what, works="no", reason=why, remedy="without NVML nothing tells energy, clocks and power")
    if state.energy_j is None:
        why = state.unknown.get("energy_j", "not told")
        return Prospect(what=what, works="no", reason=f"this GPU has no counter of energy ({why})")
    return Prospect(
        what=what, works="yes", reason="NVML's counter, read ten times a second; a cell has to be measured for a second"
    )


def _figures(facts: Facts) -> Prospect:
    if facts.tools.matplotlib:
        return Prospect(what="--figure", works="yes", reason=f"matplotlib {facts.tools.matplotlib}")
    return Prospect(what="--figure", works="no", reason="matplotlib is not installed", remedy="pip install matplotlib")


def _number(version: str) -> tuple[int, int]:
    """`9.0` as (9, 0); what is no version as (0, 0)."""
    major, _, minor = version.partition(".")
    minor = minor.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _bare(uuid: str | None) -> str | None:
    """Without its prefix, which torch leaves out and the driver does not."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower() if uuid else None

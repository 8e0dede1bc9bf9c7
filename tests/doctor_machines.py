"""Machines as the doctor may find them, without being on one."""

from __future__ import annotations

from sysbench.commands.doctor.record import (
    GpuProcess,
    GpuState,
    HostSection,
    Machine,
    NvmlSection,
    Tool,
    ToolsSection,
    TorchSection,
)
from sysbench.log.events import DeviceInfo
from tests.hosts import BENCH

GIB = 2**30
UUID = "GPU-5d1e7a3c-0b6f-4c5e-9a39-2f1f6c1f9a10"

HOST = HostSection(
    system=BENCH.model_copy(update={"platform": "Linux-6.8.0-x86_64-with-glibc2.39", "python": "3.12.3"}),
    usable_cores=128,
    load_1min=0.4,
    available_bytes=490 * GIB,
)

CPU = DeviceInfo(name="AMD EPYC 7763 64-Core Processor", type="cpu", memory_bytes=512 * GIB)


def gpu(name: str = "NVIDIA H100 80GB HBM3", capability: str = "9.0") -> DeviceInfo:
    return DeviceInfo(
        name=name, type="cuda", uuid=UUID, memory_bytes=79 * GIB, compute_capability=capability, multiprocessors=132
    )


STATE = GpuState(
    index=0,
    uuid=UUID,
    name="NVIDIA H100 80GB HBM3",
    compute_capability="9.0",
    total_bytes=80 * GIB,
    free_bytes=79 * GIB,
    utilisation=0.0,
    sm_clock_hz=1980e6,
    sm_clock_max_hz=1980e6,
    power_w=71.0,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    temperature_c=33.0,
    throttle_reasons=[],
    mig=False,
    compute_mode="default",
    energy_j=123456.0,
    processes=[],
)

NVML = NvmlSection(driver="580.95.05", cuda="13.0", gpus=[STATE])

TORCH = TorchSection(
    version="2.13.0+cu130",
    import_s=2.6,
    bytecode_kept=True,
    cuda="13.0",
    cudnn="91200",
    triton="3.5.0",
    archs=["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"],
    threads=64,
    cpu_capability="AVX2",
    cpu_bf16=False,
    devices=[gpu(), CPU],
    attention_kernels={
        "flash": ["bf16", "fp16"],
        "efficient": ["fp32", "bf16", "fp16"],
        "cudnn": ["bf16", "fp16"],
    },
    profiler_activities=["CPU", "CUDA"],
    backends=["gloo", "nccl 2.28.9"],
)

CPU_TORCH = TorchSection(
    version="2.13.0+cpu",
    import_s=1.9,
    threads=64,
    cpu_capability="AVX512",
    cpu_bf16=True,
    devices=[CPU],
    profiler_activities=["CPU"],
    backends=["gloo"],
)

TOOLS = ToolsSection(
    nsys=Tool(path="/usr/local/bin/nsys", version="2025.1.1", problem=None),
    c_compiler=Tool(path="/usr/bin/gcc", version="13.3.0", problem=None),
    cxx_compiler=Tool(path="/usr/bin/g++", version="13.3.0", problem=None),
    python_headers="/usr/include/python3.12",
)

SOUND = Machine(host=HOST, nvml=NVML, torch=TORCH, tools=TOOLS)
"""An H100 where everything works."""

CPU_ALONE = Machine(host=HOST, nvml=NvmlSection(), torch=CPU_TORCH, tools=TOOLS)

POOR = Machine(
    host=HOST.model_copy(
        update={
            "system": HOST.system.model_copy(update={"memory_bytes": 32 * GIB, "container": True})
            if HOST.system
            else None,
            "usable_cores": 8,
            "quota_cores": 4.0,
            "load_1min": 6.2,
            "limit_bytes": 32 * GIB,
            "available_bytes": 20 * GIB,
            "cpu_governor": "powersave",
            "variables": {"CUDA_LAUNCH_BLOCKING": "1", "CUDA_VISIBLE_DEVICES": "0"},
        }
    ),
    nvml=NVML.model_copy(
        update={
            "gpus": [
                STATE.model_copy(
                    update={
                        "free_bytes": 12 * GIB,
                        "power_limit_w": 350.0,
                        "throttle_reasons": ["sw-power-cap", "hw-thermal"],
                        "energy_j": None,
                        "processes": [
                            GpuProcess(pid=811, used_bytes=64 * GIB, name="[bold]python[/]\x1b[31m"),
                            GpuProcess(pid=90210, used_bytes=None, name=None),
                        ],
                        "unknown": {"energy_j": "Not Supported"},
                    }
                )
            ]
        }
    ),
    torch=TORCH.model_copy(update={"flash_attn": "2.8.3", "triton": None, "bytecode_kept": False}),
    tools=TOOLS.model_copy(
        update={
            "nsys": Tool(path="/usr/bin/nsys", version=None, problem="nsys exited with 1: no importer"),
            "python_headers": None,
            "allocator": "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync",
            "allocator_not_simulated": "backend:cudaMallocAsync is not simulated; backend:native is",
        }
    ),
)
"""A shared node in a container, on which much is amiss."""

"""Survey of torch and its devices: `python -m sysbench.worker.survey` prints one line of JSON on stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Facts = dict[str, Any]


def main() -> None:
    """Import torch, query it, and print the answers."""
    channel = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not mix with the answer
    began_s = time.perf_counter()
    facts: Facts = {"unknown": {}}
    try:
        import torch
    except Exception as error:  # noqa: BLE001  An installation may be broken in any way; saying how is the purpose.
        facts["unknown"]["everything"] = f"torch cannot be imported: {_one_line(error)}"
    else:
        facts["import_s"] = time.perf_counter() - began_s
        _query_torch(facts, torch)
    # Exit at once, because an orderly shutdown of torch and CUDA takes too long.
    with os.fdopen(channel, "w") as out:
        out.write(json.dumps(facts) + "\n")
    sys.stderr.flush()
    os._exit(0)


def _query_torch(facts: Facts, torch: Any) -> None:
    """Collect each fact separately, so that a failure does not affect the others."""
    from sysbench.extras import installed_version

    queries: dict[str, Callable[[], object]] = {
        "version": lambda: str(torch.__version__),
        "bytecode_kept": lambda: Path(torch.__cached__).is_file(),
        "cuda": lambda: torch.version.cuda,
        "hip": lambda: torch.version.hip,
        "archs": lambda: list(torch.cuda.get_arch_list()),
        "triton": lambda: installed_version("triton"),
        "flash_attn": lambda: installed_version("flash-attn"),
        "threads": lambda: torch.get_num_threads(),  # also what a broken torch lacks is looked up within the query
        "cpu_capability": lambda: torch.backends.cpu.get_cpu_capability(),
        "cpu_bf16": lambda: _lab_devices().cpu_bf16(),
        "cuda_problem": lambda: _cuda_problem(torch),
        "context_bytes": lambda: _context_bytes(torch),  # before all else that uses the device
        "devices": lambda: _lab_devices().available_device_fields(),
        "cudnn": lambda: _cudnn(torch),
        "attention_kernels": lambda: _attention_kernels(torch),
        "backends": lambda: _backends(torch),
        "profiler_activities": lambda: sorted(activity.name for activity in torch.profiler.supported_activities()),
    }
    for field, query in queries.items():
        try:
            facts[field] = query()
        except Exception as error:  # noqa: BLE001  As above: drivers and devices fail in ways of their own.
            facts["unknown"][field] = _one_line(error)


def _lab_devices() -> Any:
    from sysbench.lab import devices

    return devices


def _cuda_problem(torch: Any) -> str | None:
    if torch.version.cuda is None or torch.cuda.is_available():
        return None
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return _one_line(error)
    return "torch finds no CUDA device and gives no reason"


def _context_bytes(torch: Any) -> int | None:
    """Return the device memory that this process has outside PyTorch's allocator, after a product in each precision.

    The driver says what each process has. In a container it numbers processes otherwise: the one that is new is this.
    """
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    import pynvml

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def used() -> dict[int, int | None]:
        return {each.pid: each.usedGpuMemory for each in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}

    others = used()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.ones(256, 256, dtype=dtype, device="cuda:0", requires_grad=True)
        torch.nn.functional.softmax(x @ x, -1).sum().backward()
    torch.cuda.synchronize()
    found = {pid: size for pid, size in used().items() if pid == os.getpid() or pid not in others}
    own = found.get(os.getpid(), next(iter(found.values())) if len(found) == 1 else None)
    if own is None:
        raise RuntimeError("the driver does not say how much memory this process has")
    return int(own - torch.cuda.memory_reserved())


def _cudnn(torch: Any) -> str | None:
    version = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return str(version) if version is not None else None


def _attention_kernels(torch: Any) -> dict[str, list[str]]:
    """Return the precisions that each kernel of scaled_dot_product_attention supports on the first CUDA device."""
    if not torch.cuda.is_available():
        return {}
    backends = torch.backends.cuda
    kernels = {
        "flash": backends.can_use_flash_attention,
        "efficient": backends.can_use_efficient_attention,
        "cudnn": backends.can_use_cudnn_attention,
    }
    supported: dict[str, list[str]] = {name: [] for name in kernels}
    for precision, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        tensors = [torch.zeros(1, 1, 128, 64, dtype=dtype, device="cuda:0", requires_grad=True) for _ in range(3)]
        parameters = backends.SDPAParams(*tensors, None, 0.0, True, False)
        for name, supports in kernels.items():
            if supports(parameters):
                supported[name].append(precision)
    return supported


def _backends(torch: Any) -> list[str]:
    """Return the backends with which ranks can communicate; gloo is tested, because it needs a network interface."""
    found = []
    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        torch.distributed.all_reduce(torch.ones(1))
        torch.distributed.destroy_process_group()
        found.append("gloo")
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found.append(f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}")
    return found


def _one_line(error: BaseException) -> str:
    words = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return words if len(words) <= 300 else f"{words[:299]}…"


if __name__ == "__main__":
    main()

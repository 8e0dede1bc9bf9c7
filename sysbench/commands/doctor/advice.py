"""Advice on what would distort measurements on this machine, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench import units
from sysbench.commands.doctor.capabilities import Facts
from sysbench.commands.doctor.record import Advice, GpuState, HostSection, TorchSection

BUSY_SHARE = 0.25
"""Load, as a fraction of the usable cores, above which other processes disturb measurements."""

MIN_FREE_SHARE = 0.5
"""If a smaller share of a GPU's memory is free, cells that fit elsewhere may not fit here."""


def advice(facts: Facts) -> list[Advice]:
    """Return all advice, most serious first."""
    return [
        *_allocator(facts),
        *_variables(facts.host),
        *(each for state in facts.nvml.gpus for each in _gpu(state)),
        *_processor(facts),
        *_imports(facts.torch),
    ]


def _allocator(facts: Facts) -> Iterator[Advice]:
    allocator = facts.allocator
    if allocator.problem:
        yield Advice(
            message=f"{allocator.variable}={allocator.text}: {allocator.problem}", remedy="correct or unset it"
        )
    if allocator.overridden:
        yield Advice(
            message=f"{allocator.overridden} is ignored, because {allocator.variable} is set",
            remedy="unset one of them",
        )


def _variables(host: HostSection) -> Iterator[Advice]:
    effects = {
        "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel, so steps take longer than in training",
        "NVIDIA_TF32_OVERRIDE": "overrides --precision for tf32",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "overrides --precision for tf32",
        "TRITON_INTERPRET": "Python interprets Triton's kernels",
    }
    for name, effect in effects.items():
        if (value := host.variables.get(name)) and not (name == "CUDA_LAUNCH_BLOCKING" and value == "0"):
            yield Advice(message=f"{name}={value}: {effect}", remedy="unset it")


def _gpu(state: GpuState) -> Iterator[Advice]:
    name = f"GPU {state.index}"
    if state.processes:
        yield Advice(message=f"{name}: {_describe_processes(state)}", remedy="wait until they end, or use another GPU")
    if state.throttle_reasons:
        yield Advice(
            message=f"{name} is throttled: {', '.join(state.throttle_reasons)}",
            remedy="check its cooling and its power limit (nvidia-smi -q -d PERFORMANCE)",
        )
    if state.power_limit_w and state.power_limit_default_w and state.power_limit_w < state.power_limit_default_w * 0.99:
        yield Advice(
            message=f"{name} is limited to {state.power_limit_w:.0f} W instead of {state.power_limit_default_w:.0f} "
            "W and does not reach its data-sheet rates",
            remedy=f"nvidia-smi -i {state.index} -pl {state.power_limit_default_w:.0f}, as root",
        )
    if state.mig:
        yield Advice(
            message=f"{name} is split into MIG instances, each with a part of its memory; their peak rates are unknown"
        )
    if state.free_bytes is not None and state.total_bytes and state.free_bytes < MIN_FREE_SHARE * state.total_bytes:
        yield Advice(
            message=f"{name} has {units.size(state.free_bytes)} of {units.size(state.total_bytes)} free",
            remedy="end the processes that use it, or check what fits with --simulate and that size",
        )


def _describe_processes(state: GpuState) -> str:
    processes = state.processes or []
    named = ", ".join(
        f"{each.name or 'a process not visible from here'} ({each.pid}"
        + (f", {units.size(each.used_bytes)}" if each.used_bytes else "")
        + ")"
        for each in processes[:3]
    )
    more = f" and {len(processes) - 3} more" if len(processes) > 3 else ""
    return f"in use by {'another process' if len(processes) == 1 else 'other processes'}: {named}{more}"


def _processor(facts: Facts) -> Iterator[Advice]:
    host, threads = facts.host, facts.torch.threads
    cores = host.usable_cores
    if host.load_1min is not None and cores and host.load_1min > max(BUSY_SHARE * cores, 0.5):
        yield Advice(
            message=f"load average {host.load_1min:.1f} on {cores} usable core{'' if cores == 1 else 's'}",
            remedy="measure when the machine is idle" + _suggest_fewer_threads(threads, cores, host.load_1min),
        )
    if host.quota_cores is not None and threads is not None and threads > host.quota_cores:
        yield Advice(
            message=f"torch uses {threads} threads, but the cgroup allows {host.quota_cores:g} cores of CPU time: "
            "threads will be throttled during steps",
            remedy=f"OMP_NUM_THREADS={max(1, int(host.quota_cores))}",
        )
    if threads == 1 and cores and cores > 1 and host.variables.get("OMP_NUM_THREADS") == "1":
        yield Advice(message=f"OMP_NUM_THREADS=1: torch uses one of {cores} cores", remedy="unset it to use all")
    if host.cpu_governor in ("powersave", "ondemand", "conservative"):
        yield Advice(
            message=f"the CPU's clock follows its load (governor {host.cpu_governor}): short steps run at a low clock",
            remedy="cpupower frequency-set -g performance, as root",
        )


def _suggest_fewer_threads(threads: int | None, cores: int, load: float) -> str:
    """Return a suggestion to use fewer threads; empty if there is only one thread."""
    if threads is None or threads < 2:
        return ""
    free_cores = max(1, min(threads, cores) - round(load))
    return f", or use --threads {free_cores}: if one thread has to share its core, all others wait for it"


def _imports(torch: TorchSection) -> Iterator[Advice]:
    if torch.bytecode_kept is False and torch.import_s is not None:
        yield Advice(
            message=f"importing torch takes {units.seconds(torch.import_s)} in every process: Python compiles it to "
            "bytecode each time, because there is no bytecode cache and Python cannot or may not write one",
            remedy="unset PYTHONDONTWRITEBYTECODE, or run python -m compileall once on torch's directory",
        )

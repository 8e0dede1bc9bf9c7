"""Advice on what would distort measurements on this machine, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench import units
from sysbench.commands.doctor.record import Advice, GpuState, Machine

BUSY_SHARE = 0.25
"""Load, as a fraction of the usable cores, above which other processes disturb measurements."""

MIN_FREE_SHARE = 0.5
"""If a smaller share of a GPU's memory is free, cells that fit elsewhere may not fit here."""

_EFFECTS = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel, so steps take longer than in training",
    "NVIDIA_TF32_OVERRIDE": "overrides --precision for tf32",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "overrides --precision for tf32",
    "TRITON_INTERPRET": "Python interprets Triton's kernels",
}
"""What environment variables do to measurements."""


def advice(machine: Machine) -> list[Advice]:
    """Return all advice, most serious first."""
    advised = [
        *_variables(machine),
        *(each for state in machine.nvml.gpus for each in _gpu(state)),
        *_processor(machine),
    ]
    return [Advice(message=message, remedy=remedy) for message, remedy in advised]


def _variables(machine: Machine) -> Iterator[tuple[str, str]]:
    tools = machine.tools
    if tools.allocator_problem:
        yield f"{tools.allocator}: {tools.allocator_problem}", "correct or unset it"
    for name, effect in _EFFECTS.items():
        if (value := machine.host.variables.get(name, "0")) != "0":
            yield f"{name}={value}: {effect}", "unset it"


def _gpu(state: GpuState) -> Iterator[tuple[str, str]]:
    name = f"GPU {state.index}"
    if state.processes:
        users = ", ".join(
            f"{process.name or 'a process not visible from here'} ({process.pid})" for process in state.processes
        )
        yield f"{name} is in use by others: {users}", "wait until they end, or use another GPU"
    if state.throttle_reasons:
        yield (
            f"{name} is throttled: {', '.join(state.throttle_reasons)}",
            "check its cooling and its power limit (nvidia-smi -q -d PERFORMANCE)",
        )
    if state.power_limit_w and state.power_limit_default_w and state.power_limit_w < state.power_limit_default_w * 0.99:
        yield (
            f"{name} is limited to {state.power_limit_w:.0f} W instead of {state.power_limit_default_w:.0f} W and does "
            "not reach its data-sheet rates",
            f"nvidia-smi -i {state.index} -pl {state.power_limit_default_w:.0f}, as root",
        )
    if state.mig:
        yield (
            f"{name} is split into MIG instances, each with a part of its memory",
            "their peak rates are unknown: compare times, not shares of a peak",
        )
    if state.free_bytes is not None and state.total_bytes and state.free_bytes < MIN_FREE_SHARE * state.total_bytes:
        yield (
            f"{name} has {units.size(state.free_bytes)} of {units.size(state.total_bytes)} free",
            "end the processes that use it, or check what fits with --simulate and that size",
        )


def _processor(machine: Machine) -> Iterator[tuple[str, str]]:
    host, torch = machine.host, machine.torch
    cores, threads = host.usable_cores or 1, torch.threads or 1
    if host.load_1min is not None and host.load_1min > max(BUSY_SHARE * cores, 0.5):
        yield (
            f"load average {host.load_1min:.1f} on {cores} usable core{'' if cores == 1 else 's'}",
            "measure when the machine is idle",
        )
    if host.quota_cores is not None and threads > host.quota_cores:
        yield (
            f"torch uses {threads} threads, but the cgroup allows {host.quota_cores:g} cores of CPU time: "
            "threads will be throttled during steps",
            f"OMP_NUM_THREADS={max(1, int(host.quota_cores))}",
        )
    if threads == 1 < cores and host.variables.get("OMP_NUM_THREADS") == "1":
        yield f"OMP_NUM_THREADS=1: torch uses one of {cores} cores", "unset it to use all"
    if host.cpu_governor in ("powersave", "ondemand", "conservative"):
        yield (
            f"the CPU's clock follows its load (governor {host.cpu_governor}): short steps run at a low clock",
            "cpupower frequency-set -g performance, as root",
        )
    if torch.bytecode_kept is False and torch.import_s is not None:
        yield (
            f"importing torch takes {units.seconds(torch.import_s)} in every process, because Python cannot or may not "
            "keep its bytecode",
            "unset PYTHONDONTWRITEBYTECODE, or run python -m compileall once on torch's directory",
        )

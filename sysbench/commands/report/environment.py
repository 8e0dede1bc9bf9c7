"""The environment of a report's runs: machines, their software, and simulated GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from sysbench import units
from sysbench.commands.report.document import ReportedRun
from sysbench.log.events import DeviceInfo, SimulatedGpuRecord
from sysbench.render.table import Cell, Column, Measure, Table


def machine_names(runs: Sequence[ReportedRun]) -> dict[str, str]:
    """Return the name of each run's machine; machines with equal host names, such as containers, are numbered."""
    names: dict[tuple[object, ...], str] = {}
    counts: Counter[str] = Counter()
    for run in runs:
        hostname, *_ = key = _identity(run)
        if key not in names:
            counts[hostname] += 1
            names[key] = hostname if counts[hostname] == 1 else f"{hostname} ({counts[hostname]})"
    return {run.name: names[_identity(run)] for run in runs}


def _identity(run: ReportedRun) -> tuple[str, str, int, int]:
    host = run.record.environment.host
    return host.hostname, host.cpu, host.logical_cores, host.memory_bytes


def tables(runs: Sequence[ReportedRun]) -> tuple[Table, ...]:
    names = machine_names(runs)
    candidates = (_machines(runs, names), _software(runs, names), _simulated(runs))
    return tuple(table for table in candidates if table.rows)


def _machines(runs: Sequence[ReportedRun], names: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in dict.fromkeys(names.values()):
        environments = [run.record.environment for run in runs if names[run.name] == name]
        host = environments[0].host
        accelerators = dict.fromkeys(
            _describe_accelerator(device)
            for environment in environments
            for device in environment.devices
            if device.type != "cpu"
        )
        has_threads = host.physical_cores not in (None, host.logical_cores)
        cores = f"{host.physical_cores}, with {host.logical_cores} threads" if has_threads else str(host.logical_cores)
        container = "yes" if host.container else "no"
        rows.append(
            (name, host.cpu, cores, Measure(host.memory_bytes), host.platform, container, "; ".join(accelerators))
        )
    columns = (
        Column("machine", "machine"),
        Column("cpu", "CPU"),
        Column("cores", "cores"),
        Column("memory", "memory", "bytes"),
        Column("platform", "platform"),
        Column("container", "container"),
        Column("accelerators", "accelerators", wraps=True),
    )
    return Table("machines", "machines", columns, tuple(rows), 1)


def _describe_accelerator(device: DeviceInfo) -> str:
    memory = units.size(device.memory_bytes) if device.memory_bytes is not None else None
    capability = f"compute capability {device.compute_capability}" if device.compute_capability else None
    properties = ", ".join(filter(None, (memory, capability, device.uuid)))
    return f"{device.torch_name} {device.name}" + (f" ({properties})" if properties else "")


def _software(runs: Sequence[ReportedRun], names: dict[str, str]) -> Table:
    runs_by_software: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        runs_by_software.setdefault(tuple(_versions(run, names[run.name])), []).append(run.name)
    titles = dict.fromkeys(title for versions in runs_by_software for title, _ in versions)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (*(dict(versions).get(title, "") for title in titles), ", ".join(run_names))
        for versions, run_names in runs_by_software.items()
    )
    columns = (
        *(Column(title.lower().replace(" ", "_"), title) for title in titles),
        Column("runs", "runs", wraps=True),
    )
    return Table("software", "software", columns, rows, 1)


def _versions(run: ReportedRun, machine: str) -> Iterator[tuple[str, str]]:
    environment, torch = run.record.environment, run.record.environment.torch
    commit = environment.host.commit or ""
    dirty = "-dirty" if commit.endswith("-dirty") and not commit[:12].endswith("-dirty") else ""
    versions = {
        "machine": machine,
        "sysbench": run.record.sysbench_version,
        "commit": commit[:12] + dirty,
        "Python": environment.host.python,
        "torch": torch.torch if torch else None,
        "CUDA": torch.cuda if torch else None,
        "cuDNN": torch.cudnn if torch else None,
        "Triton": torch.triton if torch else None,
        "driver": environment.driver,
        "threads": str(torch.threads) if torch else None,
        "allocator settings": torch.allocator if torch else None,
    }
    return ((title, version) for title, version in versions.items() if version)


def _simulated(runs: Sequence[ReportedRun]) -> Table:
    run_names: dict[SimulatedGpuRecord, list[str]] = {}
    for run in runs:
        for gpu in dict.fromkeys(gpu for cell in run.record.cells if (gpu := getattr(cell, "gpu", None)) is not None):
            run_names.setdefault(gpu, []).append(run.name)
    has_nccl, rows = any(gpu.nccl_bytes for gpu in run_names), list[tuple[Cell, ...]]()
    columns = (
        Column("gpu", "simulated GPU"),
        Column("memory", "memory", "bytes"),
        Column("context", "CUDA context", "bytes"),
        Column("other", "used by others", "bytes"),
        *([Column("nccl", "NCCL's buffers", "bytes")] if has_nccl else []),
        Column("settings", "allocator settings"),
        Column("runs", "runs"),
    )
    for gpu, names in run_names.items():
        nccl = [Measure(gpu.nccl_bytes)] if has_nccl else []
        sizes = map(Measure, (gpu.memory_bytes, gpu.context_bytes, gpu.other_bytes))
        rows.append((gpu.title, *sizes, *nccl, gpu.settings, ", ".join(names)))
    note = "assumed, not measured: these GPUs were not present"
    return Table("simulated", "simulated GPUs", columns, tuple(rows), 1, (note,))

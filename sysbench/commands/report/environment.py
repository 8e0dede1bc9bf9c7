"""The environment of a report's runs: machines, their software, and simulated GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from sysbench.commands.report.document import ReportedRun
from sysbench.log.events import DeviceInfo, HostInfo, SimulatedGpuRecord
from sysbench.render.declared import DeclaredTable, Field, leading_fields
from sysbench.render.table import EMPTY_CELL, Cell, Column, Table

Identity = tuple[str, str, int, int]
"""Properties that identify a machine; its name alone does not, because containers and replaced machines share it."""


@dataclass(frozen=True)
class Machine:
    """A machine on which runs took place."""

    name: str
    """Name, unique in the report."""
    host: HostInfo
    devices: tuple[DeviceInfo, ...]
    """Every device listed by a run on this machine."""


def machines(runs: Iterable[ReportedRun]) -> Mapping[Identity, Machine]:
    """Return the machines of these runs by identity, in the order of the runs."""
    runs_by_identity: dict[Identity, list[ReportedRun]] = {}
    for run in runs:
        runs_by_identity.setdefault(identity(run), []).append(run)
    name_counts: dict[str, int] = {}
    machines_by_identity = {}
    for key, machine_runs in runs_by_identity.items():
        host = machine_runs[0].record.environment.host
        name_counts[host.hostname] = name_counts.get(host.hostname, 0) + 1
        name = host.hostname if name_counts[host.hostname] == 1 else f"{host.hostname} ({name_counts[host.hostname]})"
        devices = {
            each.uuid or f"{each.torch_name} {each.name}": each
            for run in machine_runs
            for each in run.record.environment.devices
        }
        machines_by_identity[key] = Machine(name, host, tuple(devices.values()))
    return machines_by_identity


def identity(run: ReportedRun) -> Identity:
    host = run.record.environment.host
    return host.hostname, host.cpu, host.logical_cores, host.memory_bytes


def tables(runs: Sequence[ReportedRun]) -> tuple[Table, ...]:
    machines_by_identity = machines(runs)
    candidates = (
        *_MACHINES(machines_by_identity.values()),
        *_DEVICES(machines_by_identity.values()),
        _software(runs, machines_by_identity),
        *_SIMULATED(runs),
    )
    return tuple(table for table in candidates if table.rows)


def _cores(machine: Machine) -> str:
    host = machine.host
    if host.physical_cores is None or host.physical_cores == host.logical_cores:
        return str(host.logical_cores)
    return f"{host.physical_cores}, with {host.logical_cores} threads"


_MACHINES = DeclaredTable(
    "machines",
    "machines",
    (
        Field("cpu", "CPU", get=attrgetter("host.cpu")),
        Field("cores", get=_cores),
        Field("memory", unit="bytes", get=attrgetter("host.memory_bytes")),
        Field("platform", get=attrgetter("host.platform")),
        Field("container", get=lambda machine: "yes" if machine.host.container else "no"),
    ),
    rows=lambda known: known,
    leading=leading_fields(Field("machine", get=attrgetter("name"))),
)

_DEVICES = DeclaredTable(
    "devices",
    "devices",
    (
        Field("name", get=lambda row: row[1].name),
        Field("memory", unit="bytes", get=lambda row: row[1].memory_bytes),
        Field("multiprocessors", get=lambda row: EMPTY_CELL if (found := row[1].multiprocessors) is None else found),
        Field("capability", "compute capability", get=lambda row: row[1].compute_capability or ""),
        Field("uuid", "UUID", get=lambda row: row[1].uuid or ""),
    ),
    rows=lambda known: [(machine.name, each) for machine in known for each in machine.devices if each.type != "cpu"],
    leading=leading_fields(Field("machine", get=itemgetter(0)), Field("device", get=lambda row: row[1].torch_name)),
)
"""Table of accelerators; CPUs are in the table of machines."""


def _software(runs: Sequence[ReportedRun], machines_by_identity: Mapping[Identity, Machine]) -> Table:
    by_software: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    for run in runs:
        by_software.setdefault(tuple(_versions(run, machines_by_identity[identity(run)].name)), []).append(run.name)
    titles = {key: title for programs in by_software for key, title, _ in programs}
    rows: list[tuple[Cell, ...]] = []
    for programs, names in by_software.items():
        versions = {key: version for key, _, version in programs}
        all_alike = len(by_software) == 1 and len(runs) > 1
        rows.append((*(versions.get(key, "") for key in titles), "all" if all_alike else ", ".join(names)))
    columns = (*(Column(key, title) for key, title in titles.items()), Column("runs", "runs"))
    return Table("software", "software", columns, tuple(rows), 1)


def _versions(run: ReportedRun, machine: str) -> Iterator[tuple[str, str, str]]:
    record = run.record
    environment, torch = record.environment, record.environment.torch
    commit = environment.host.commit or ""
    dirty = "-dirty" if commit.endswith("-dirty") and not commit[:12].endswith("-dirty") else ""
    values = {
        ("machine", "machine"): machine,
        ("sysbench", "sysbench"): record.sysbench_version,
        ("commit", "commit"): commit[:12] + dirty,
        ("python", "Python"): environment.host.python,
        ("torch", "torch"): torch.torch if torch else None,
        ("cuda", "CUDA"): torch.cuda if torch else None,
        ("cudnn", "cuDNN"): torch.cudnn if torch else None,
        ("triton", "Triton"): torch.triton if torch else None,
        ("driver", "driver"): environment.driver,
        ("threads", "threads"): str(torch.threads) if torch else None,
        ("allocator", "allocator settings"): torch.allocator if torch else None,
    }
    return ((key, title, version) for (key, title), version in values.items() if version)


def _simulated_gpus(runs: Iterable[ReportedRun]) -> Iterable[tuple[SimulatedGpuRecord, list[str]]]:
    run_names: dict[SimulatedGpuRecord, list[str]] = {}
    for run in runs:
        for gpu in dict.fromkeys(gpu for cell in run.record.cells if (gpu := getattr(cell, "gpu", None)) is not None):
            run_names.setdefault(gpu, []).append(run.name)
    return run_names.items()


_SIMULATED = DeclaredTable(
    "simulated",
    "simulated GPUs",
    (
        Field("memory", unit="bytes", get=lambda row: row[0].memory_bytes),
        Field("context", "CUDA context", "bytes", get=lambda row: row[0].context_bytes),
        Field("other", "used by others", "bytes", get=lambda row: row[0].other_bytes),
        Field("nccl", "NCCL's buffers", "bytes", get=lambda row: row[0].nccl_bytes or None, optional=True),
        Field("settings", "allocator settings", get=lambda row: row[0].settings),
        Field("runs", get=lambda row: ", ".join(row[1])),
    ),
    rows=_simulated_gpus,
    leading=leading_fields(Field("gpu", "simulated GPU", get=lambda row: row[0].title)),
    notes=("assumed, not measured: these GPUs were not present",),
)

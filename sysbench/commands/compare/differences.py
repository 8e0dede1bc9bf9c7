"""Differences between the specs and between the environments of two sides, and reasons to doubt the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from sysbench import units
from sysbench.commands.compare.cells import MACHINE, Obstacle, Side, value_text
from sysbench.log.outcomes import CautionCode
from sysbench.log.records import CellRecord, RunRecord
from sysbench.spec.command_options import keys_of
from sysbench.spec.frozen import Frozen
from sysbench.spec.options import flag_of

THREADS = "threads"

Part = Literal["spec", "code", "environment"]

Values = dict[str, dict[str, None]]
"""The distinct values of each setting or property, in order of appearance."""


class Difference(Frozen):
    """A setting or property that differs between the sides; a side with several runs may have several values."""

    part: Part
    name: str
    a: str
    b: str


def differences(a: Side, b: Side) -> list[Difference]:
    """Return all differences: first in the specs, then in the user's code, then in the environments."""
    found = []
    for part, read in _PARTS.items():
        a_values, b_values = read(a, b), read(b, a)
        for name in a_values:
            # What is unknown on one side, because its run was killed early, does not count as a difference.
            if name in b_values and a_values[name].keys() != b_values[name].keys():
                texts = (" | ".join(values[name]) for values in (a_values, b_values))
                found.append(Difference(part=part, name=name, a=next(texts), b=next(texts)))
    return found


def _spec(side: Side, other: Side) -> Values:
    """Return the values of every option of the commands that both sides have; an option that is not stored is none."""
    kinds = [kind for kind in side.kinds if kind in other.kinds]
    options = dict.fromkeys(
        (record.kind, field)
        for each in (side, other)
        for record in each.records
        for field in record.spec
        if field in {key.field for key in keys_of(record.kind).values()}
    )
    values: Values = {}
    for kind, field in options:
        name = f"{kind} {flag_of(field)}" if len(kinds) > 1 else flag_of(field)
        for record in side.records:
            if record.kind == kind in kinds and field != "kind":
                values.setdefault(name, {})[value_text(record.spec.get(field))] = None
    return values


def _code(side: Side, other: Side) -> Values:
    values: Values = {}
    for file in (file for record in side.records for cell in record.cells for file in cell.code_files):
        if file.sha256 is not None:
            values.setdefault(f"file of {file.target}", {})[file.sha256[:8]] = None
    return values


def _environment(side: Side, other: Side) -> Values:
    values: Values = {}
    for record in side.records:
        for name, value in _properties(record):
            if value is not None:
                values.setdefault(name, {})[value_text(value)] = None
    return values


_PARTS: Mapping[Part, Callable[[Side, Side], Values]] = {"spec": _spec, "code": _code, "environment": _environment}


def _properties(record: RunRecord) -> Iterator[tuple[str, object]]:
    environment, host, torch = record.environment, record.environment.host, record.environment.torch
    devices = (cell.device for cell in record.cells if cell.device is not None and _is_measured(cell))
    names = dict.fromkeys(f"{device.name} {device.uuid}" if device.uuid else device.name for device in devices)
    commit, separator, dirty = (host.commit or "").partition("-")
    yield "sysbench", f"{record.sysbench_version} ({record.source_digest[:8]})"
    yield "commit", f"{commit[:12]}{separator}{dirty}" or None
    yield "device", ", ".join(names) or None
    yield "driver", environment.driver
    if torch is not None:
        yield "torch", torch.torch
        yield "CUDA", value_text(torch.cuda)
        yield "cuDNN", value_text(torch.cudnn)
        yield "Triton", value_text(torch.triton)
        yield "threads", torch.threads
        yield "allocator settings", value_text(torch.allocator)
    yield "Python", host.python
    yield "platform", host.platform
    yield "host", host.hostname
    yield "CPU", host.cpu
    yield "cores", host.logical_cores
    yield "container", host.container
    yield "host memory", units.size(host.memory_bytes)


def _is_measured(cell: CellRecord) -> bool:
    return cell.device is not None and not cell.axes.get("simulate")


def machine_obstacles(a: Side, b: Side, across: Sequence[str]) -> list[Obstacle]:
    """Return an obstacle if the two sides were measured on different machines, unless `across` contains `machine`.

    A machine is identified by processor, number of cores and host name; random host names of containers are ignored.
    """
    a_machines, b_machines = _machines_by_identity(a), _machines_by_identity(b)
    if MACHINE in across or not a_machines or not b_machines or a_machines.keys() & b_machines.keys():
        return []
    a_machine, b_machine = (next(iter(machines.values())) for machines in (a_machines, b_machines))
    return [Obstacle(MACHINE, f"machine is {a_machine} in A and {b_machine} in B")]


def threads_obstacles(a: Side, b: Side, across: Sequence[str]) -> list[Obstacle]:
    """Return an obstacle if the runs chose other numbers of CPU threads on the two sides, unless `across` allows it."""
    a_threads, b_threads = (
        {
            record.environment.torch.threads
            for record in side.records
            if record.environment.threads_probe is not None and record.environment.torch is not None
        }
        for side in (a, b)
    )
    if {THREADS, MACHINE} & set(across) or not a_threads or not b_threads or a_threads & b_threads:
        return []
    said = f"threads is {min(a_threads)} in A and {min(b_threads)} in B, as each run chose (--threads sets it)"
    return [Obstacle(THREADS, said)]


def _machines_by_identity(side: Side) -> dict[tuple[str, str, int], str]:
    hosts = [record.environment.host for record in side.records if any(map(_is_measured, record.cells))]
    return {
        (
            "" if host.container else host.hostname,
            host.cpu,
            host.logical_cores,
        ): f"{host.hostname} ({host.cpu}, {host.logical_cores} cores)"
        for host in reversed(hosts)
    }


def warnings(a: Side, b: Side) -> Iterator[str]:
    """Yield reasons to doubt the comparison: unfinished runs, different GPUs, and cautions."""
    sides_by_cautions: dict[str, list[str]] = {}
    for name, side in (("A", a), ("B", b)):
        if unfinished := sum(record.status != "complete" for record in side.records):
            yield f"{unfinished} of the runs of {name} did not finish; the comparison uses what was measured"
        sides_by_cautions.setdefault(_count_cautions(side), []).append(name)
    uuids = [
        {cell.device.uuid for record in side.records for cell in record.cells if cell.device and cell.device.uuid}
        for side in (a, b)
    ]
    if all(uuids) and not uuids[0] & uuids[1]:
        yield "A and B were measured on different GPUs: GPUs of the same model differ by a few per cent"
    for cautions, names in sides_by_cautions.items():
        if cautions:
            yield f"cautions in {' and '.join(names)}: {cautions}; the output of the runs explains them"


def _count_cautions(side: Side) -> str:
    """Count the cells with each caution: `host-busy (3 of 4 cells), drift (1 of 4 cells)`."""
    codes_by_cell = [{caution.code for caution in cell.cautions} for record in side.records for cell in record.cells]
    counts = {code: sum(code in codes for codes in codes_by_cell) for code in get_args(CautionCode)}
    return ", ".join(f"{code} ({count} of {len(codes_by_cell)} cells)" for code, count in counts.items() if count)

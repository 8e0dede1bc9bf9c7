"""Differences between the specs and between the environments of two sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from sysbench import units
from sysbench.commands.compare.cells import MACHINE, Obstacle, Side, value_text
from sysbench.log.outcomes import CautionCode
from sysbench.log.records import CellRecord, RunRecord
from sysbench.spec.frozen import Frozen
from sysbench.spec.options import flag_of

Record = RunRecord


class Difference(Frozen):
    """A setting or property that differs between the sides; a side with several runs may have several values."""

    part: Literal["spec", "code", "environment"]
    name: str
    a: str
    b: str


def differences(a: Side, b: Side) -> list[Difference]:
    """Return all differences: first in the specs, then in the user's code, then in the environments."""
    return [*_spec_differences(a, b), *_code_differences(a, b), *_environment_differences(a, b)]


def _spec_differences(a: Side, b: Side) -> Iterator[Difference]:
    kinds = [kind for kind in a.kinds if kind in b.kinds]
    for kind in kinds:
        a_records, b_records = ([record for record in side.records if record.kind == kind] for side in (a, b))
        for name in dict.fromkeys(field for record in (*a_records, *b_records) for field in record.spec):
            if name == "kind":
                continue
            a_values = _distinct(a_records, lambda record, name=name: value_text(record.spec.get(name)))  # type: ignore[misc]
            b_values = _distinct(b_records, lambda record, name=name: value_text(record.spec.get(name)))  # type: ignore[misc]
            if set(a_values) != set(b_values):
                label = f"{kind} {flag_of(name)}" if len(kinds) > 1 else flag_of(name)
                yield Difference(part="spec", name=label, a=_join(a_values), b=_join(b_values))


def _code_differences(a: Side, b: Side) -> Iterator[Difference]:
    a_digests, b_digests = _digests_by_target(a), _digests_by_target(b)
    for target in _common_targets(a_digests, b_digests):
        if set(a_digests[target]) != set(b_digests[target]):
            a_short, b_short = (_join([digest[:8] for digest in side[target]]) for side in (a_digests, b_digests))
            yield Difference(part="code", name=f"file of {target}", a=a_short, b=b_short)


def same_code(a: Side, b: Side) -> list[str]:
    """Return the references to the user's code whose files are equal on both sides."""
    a_digests, b_digests = _digests_by_target(a), _digests_by_target(b)
    return [
        target for target in _common_targets(a_digests, b_digests) if set(a_digests[target]) == set(b_digests[target])
    ]


def _common_targets(a: Iterable[str], b: Iterable[str]) -> list[str]:
    known = set(b)
    return [target for target in a if target in known]


def _digests_by_target(side: Side) -> dict[str, list[str]]:
    digests: dict[str, dict[str, None]] = {}
    for file in (file for record in side.records for cell in record.cells for file in cell.code_files):
        if file.sha256 is not None:
            digests.setdefault(file.target, {})[file.sha256] = None
    return {target: list(found) for target, found in digests.items()}


def _environment_differences(a: Side, b: Side) -> Iterator[Difference]:
    for name, read in _ENVIRONMENT_PROPERTIES.items():
        a_values, b_values = _distinct(a.records, read), _distinct(b.records, read)
        # A value that is missing on one side, because its run was killed early, does not count as a difference.
        if a_values and b_values and set(a_values) != set(b_values):
            yield Difference(part="environment", name=name, a=_join(a_values), b=_join(b_values))


def _distinct(records: Sequence[Record], read: Callable[[Record], str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for record in records if (value := read(record)) is not None))


def _join(values: Sequence[str]) -> str:
    return " | ".join(values) if len(values) > 1 else values[0] if values else units.UNKNOWN


def _torch_field(name: str) -> Callable[[Record], str | None]:
    def read(record: Record) -> str | None:
        torch = record.environment.torch
        return None if torch is None else value_text(getattr(torch, name))

    return read


def _host_field(name: str) -> Callable[[Record], str | None]:
    return lambda record: value_text(getattr(record.environment.host, name))


def _device_names(record: Record) -> str | None:
    used = (cell.device for cell in record.cells if cell.device is not None and _is_measured(cell))
    names = dict.fromkeys(f"{device.name} {device.uuid}" if device.uuid else device.name for device in used)
    return ", ".join(names) or None


def _short_commit(commit: str | None) -> str | None:
    if commit is None:
        return None
    digits, separator, suffix = commit.partition("-")
    return f"{digits[:12]}{separator}{suffix}"


_ENVIRONMENT_PROPERTIES: Mapping[str, Callable[[Record], str | None]] = {
    "sysbench": lambda record: f"{record.sysbench_version} ({record.source_digest[:8]})",
    "commit": lambda record: _short_commit(record.environment.host.commit),
    "device": _device_names,
    "driver": lambda record: record.environment.driver,
    "torch": _torch_field("torch"),
    "CUDA": _torch_field("cuda"),
    "cuDNN": _torch_field("cudnn"),
    "Triton": _torch_field("triton"),
    "threads": _torch_field("threads"),
    "allocator settings": _torch_field("allocator"),
    "Python": _host_field("python"),
    "platform": _host_field("platform"),
    "host": _host_field("hostname"),
    "CPU": _host_field("cpu"),
    "cores": _host_field("logical_cores"),
    "container": _host_field("container"),
    "host memory": lambda record: units.size(record.environment.host.memory_bytes),
}


def machine_obstacles(a: Side, b: Side, across: Sequence[str]) -> list[Obstacle]:
    """Return an obstacle if the two sides were measured on different machines, unless `across` contains `machine`.

    A machine is identified by processor, number of cores and host name; random host names of containers are ignored.
    """
    a_machines, b_machines = _machines_by_identity(a), _machines_by_identity(b)
    if MACHINE in across or not a_machines or not b_machines or a_machines.keys() & b_machines.keys():
        return []
    a_machine, b_machine = (next(iter(machines.values())) for machines in (a_machines, b_machines))
    return [Obstacle(MACHINE, f"machine is {a_machine} in A and {b_machine} in B")]


def _machines_by_identity(side: Side) -> dict[tuple[str, ...], str]:
    hosts = [record.environment.host for record in side.records if any(map(_is_measured, record.cells))]
    return {
        (
            "" if host.container else host.hostname,
            host.cpu,
            str(host.logical_cores),
        ): f"{host.hostname} ({host.cpu}, {host.logical_cores} cores)"
        for host in reversed(hosts)
    }


def _is_measured(cell: CellRecord) -> bool:
    return cell.device is not None and not cell.axes.get("simulate")


GPU_VARIATION = "GPUs of the same model differ by a few per cent"

_TIMING_CAUTIONS: tuple[CautionCode, ...] = (
    "throttled",
    "gpu-shared",
    "host-busy",
    "threads-wait",
    "warmup-unfinished",
    "drift",
    "two-modes",
    "autocorrelated",
    "parameters-unchanged",
    "gradients-missing",
    "below-lower-bound",
    "compile-fell-back",
)
"""Cautions that affect a comparison of times most."""

CAUTIONS = tuple(dict.fromkeys((*_TIMING_CAUTIONS, *get_args(CautionCode))))
"""All cautions in the order in which they are listed."""


def warnings(a: Side, b: Side) -> Iterator[str]:
    """Yield reasons to doubt the comparison: unfinished runs, different GPUs, and cautions."""
    for name, side in (("A", a), ("B", b)):
        unfinished = sum(record.status != "complete" for record in side.records)
        if unfinished:
            runs = "the run of" if len(side.records) == 1 else f"{unfinished} of the {len(side.records)} runs of"
            yield f"{runs} {name} did not finish; the comparison uses the data that it measured"
    uuids = [
        {cell.device.uuid for record in side.records for cell in record.cells if cell.device and cell.device.uuid}
        for side in (a, b)
    ]
    if all(uuids) and not uuids[0] & uuids[1]:
        yield f"A and B were measured on different GPUs: {GPU_VARIATION}"
    a_cautions, b_cautions = _count_cautions(a), _count_cautions(b)
    if a_cautions and a_cautions == b_cautions:
        yield f"A and B have the same warnings: {a_cautions}; the output of those runs explains them"
        return
    for name, caution_counts in (("A", a_cautions), ("B", b_cautions)):
        if caution_counts:
            yield f"{name} has warnings: {caution_counts}; the output of that run explains them"


def _count_cautions(side: Side) -> str:
    """Count the cells with each caution: `host-busy (3 of 4 cells), drift (1 of 4 cells)`."""
    codes_by_cell = [{caution.code for caution in cell.cautions} for record in side.records for cell in record.cells]
    counts = {code: sum(code in codes for codes in codes_by_cell) for code in CAUTIONS}
    return ", ".join(f"{code} ({count} of {len(codes_by_cell)} cells)" for code, count in counts.items() if count)

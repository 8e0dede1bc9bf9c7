"""Differences between the specs and between the environments of two sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sysbench import units
from sysbench.commands.compare.cells import MACHINE, Side, text
from sysbench.errors import UsageError
from sysbench.log.records import CellRecord, RunRecord
from sysbench.spec.frozen import Frozen
from sysbench.spec.options import flag_of

Record = RunRecord[Any]


class Difference(Frozen):
    """A setting or property that differs between the sides; a side with several runs may have several values."""

    part: Literal["spec", "environment"]
    name: str
    a: str
    b: str


def differences(a: Side, b: Side) -> list[Difference]:
    """Return all differences: first in the specs, then in the environments."""
    return [*_of_specs(a, b), *_of_environments(a, b)]


def _of_specs(a: Side, b: Side) -> Iterator[Difference]:
    kinds = [kind for kind in a.kinds if kind in b.kinds]
    for kind in kinds:
        there, here = ([record for record in side.records if record.kind == kind] for side in (a, b))
        for name in dict.fromkeys(field for record in (*there, *here) for field in record.spec):
            if name == "kind":
                continue
            found = _distinct(there, lambda record, name=name: text(record.spec.get(name)))  # type: ignore[misc]
            other = _distinct(here, lambda record, name=name: text(record.spec.get(name)))  # type: ignore[misc]
            if set(found) != set(other):
                label = f"{kind} {flag_of(name)}" if len(kinds) > 1 else flag_of(name)
                yield Difference(part="spec", name=label, a=_joined(found), b=_joined(other))


def _of_environments(a: Side, b: Side) -> Iterator[Difference]:
    for name, read in _SURROUNDINGS.items():
        found, other = _distinct(a.records, read), _distinct(b.records, read)
        # A value that is missing on one side, because its run was killed early, does not count as a difference.
        if found and other and set(found) != set(other):
            yield Difference(part="environment", name=name, a=_joined(found), b=_joined(other))


def _distinct(records: Sequence[Record], read: Callable[[Record], str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for record in records if (value := read(record)) is not None))


def _joined(values: Sequence[str]) -> str:
    return " | ".join(values) if len(values) > 1 else values[0] if values else units.UNKNOWN


def _torch(name: str) -> Callable[[Record], str | None]:
    def read(record: Record) -> str | None:
        torch = record.environment.torch
        return None if torch is None else text(getattr(torch, name))

    return read


def _host(name: str) -> Callable[[Record], str | None]:
    return lambda record: text(getattr(record.environment.host, name))


def _devices(record: Record) -> str | None:
    used = (cell.device for cell in record.cells if cell.device is not None and _is_measured(cell))
    names = dict.fromkeys(f"{device.name} {device.uuid}" if device.uuid else device.name for device in used)
    return ", ".join(names) or None


def _short(commit: str | None) -> str | None:
    """Abbreviate the hash of a commit, but keep the suffix of a modified checkout."""
    if commit is None:
        return None
    digits, dash, changed = commit.partition("-")
    return f"{digits[:12]}{dash}{changed}"


_SURROUNDINGS: Mapping[str, Callable[[Record], str | None]] = {
    "sysbench": lambda record: f"{record.sysbench_version} ({record.source_digest[:8]})",
    "commit": lambda record: _short(record.environment.host.commit),
    "device": _devices,
    "driver": lambda record: record.environment.driver,
    "torch": _torch("torch"),
    "CUDA": _torch("cuda"),
    "cuDNN": _torch("cudnn"),
    "Triton": _torch("triton"),
    "threads": _torch("threads"),
    "allocator settings": _torch("allocator"),
    "Python": _host("python"),
    "platform": _host("platform"),
    "host": _host("hostname"),
    "CPU": _host("cpu"),
    "cores": _host("logical_cores"),
    "container": _host("container"),
    "host memory": lambda record: units.size(record.environment.host.memory_bytes),
}


def refuse_other_machines(a: Side, b: Side, across: Sequence[str]) -> None:
    """Raise UsageError if the two sides were measured on different machines.

    A machine is identified by processor, number of cores and host name; random host names of containers are ignored.
    """
    if MACHINE in across:
        return
    there, here = _machines(a), _machines(b)
    if there and here and not there.keys() & here.keys():
        one, other = (next(iter(machines.values())) for machines in (there, here))
        raise UsageError(
            f"A was measured on {one}, and B on {other}: differences between the machines would distort the "
            f"comparison. --across {MACHINE} compares them anyway"
        )


def _machines(side: Side) -> dict[tuple[str, ...], str]:
    """Return descriptions of the machines on which a side was measured, keyed by identity."""
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


CARDS = "GPUs of the same model differ by a few per cent"

DOUBTFUL = (
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
"""Cautions that affect a comparison of times, in display order."""


def warnings(a: Side, b: Side) -> Iterator[str]:
    """Yield reasons to doubt the comparison: unfinished runs, different GPUs, and cautions."""
    for name, side in (("A", a), ("B", b)):
        killed = sum(record.status != "complete" for record in side.records)
        if killed:
            runs = "the run of" if len(side.records) == 1 else f"{killed} of the {len(side.records)} runs of"
            yield f"{runs} {name} did not finish; the comparison uses the data that it measured"
    uuids = [
        {cell.device.uuid for record in side.records for cell in record.cells if cell.device and cell.device.uuid}
        for side in (a, b)
    ]
    if all(uuids) and not uuids[0] & uuids[1]:
        yield f"A and B were measured on different GPUs: {CARDS}"
    for name, side in (("A", a), ("B", b)):
        if listed := _cautions(side):
            yield f"{name} has warnings: {listed}; the output of that run explains them"


def _cautions(side: Side) -> str:
    """Count the cells with each caution: `host-busy (3 of 4 cells), drift (1 of 4 cells)`."""
    of_cells = [{caution.code for caution in cell.cautions} for record in side.records for cell in record.cells]
    counts = {code: sum(code in codes for codes in of_cells) for code in DOUBTFUL}
    return ", ".join(f"{code} ({count} of {len(of_cells)} cells)" for code, count in counts.items() if count)

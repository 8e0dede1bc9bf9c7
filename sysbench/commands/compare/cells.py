"""What one side of a comparison holds: cells by their axes, each with every run that has measured it.

What a compared cell is called: by what sets it apart from the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sysbench.command import Kind
from sysbench.commands.attention.record import AttentionCellRecord
from sysbench.commands.compare.match import EFFORT, TREATMENTS, UNEQUAL, text
from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.records import CellRecord, RunRecord, Samples

Axes = Mapping[str, Any]

SAMPLED = ("host_rss_peak", "device_used_peak")
"""Memory that is only looked at now and then, from outside: it may be off, and decides nothing."""


@dataclass(frozen=True)
class Occurrence:
    """One cell of one run."""

    run: int
    """Which of the side's runs, by its number."""
    record: CellRecord


@dataclass(frozen=True)
class SideCell:
    """A cell and every time that it was run; `axes` are what sets it apart, by name, without what only says how often.

    The model's dimensions are one axis, `size`; `device` is what it ran on, by its own name.
    """

    kind: Kind
    axes: Axes
    occurrences: tuple[Occurrence, ...]

    @property
    def last(self) -> CellRecord:
        """As it was run last; of one that failed once, the last time that it did not."""
        measured = [each.record for each in self.occurrences if each.record.outcome in ("ok", "interrupted")]
        return measured[-1] if measured else self.occurrences[-1].record

    def times(self, quantity: str, *, whole: bool = False) -> dict[int, list[float]]:
        """The samples of a quantity in seconds, by run; only of runs that have any, and if `whole` have all of them."""
        accepted = ("ok",) if whole else ("ok", "interrupted")
        measured = (each for each in self.occurrences if each.record.outcome in accepted)
        found = ((each.run, times_of(each.record).get(quantity)) for each in measured)
        return {run: samples.samples_s for run, samples in found if samples is not None and samples.samples_s}

    def memory(self) -> dict[str, int]:
        """What is known of its memory, in bytes: of several runs the most."""
        most: dict[str, int] = {}
        for each in self.occurrences:
            for name, value in memory_of(each.record).items():
                most[name] = max(value, most.get(name, value))
        return most


@dataclass(frozen=True)
class Side:
    """Everything that is compared with the other side."""

    name: str
    records: Sequence[RunRecord[Any]]
    cells: tuple[SideCell, ...] = field(default=())

    def of_kind(self, kind: Kind) -> list[SideCell]:
        """Its cells of one kind of run, in the order in which they first appear."""
        return [cell for cell in self.cells if cell.kind == kind]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of run that it has cells of, in the order in which they first appear."""
        return tuple(dict.fromkeys(cell.kind for cell in self.cells))


def side(name: str, runs: Mapping[int, RunRecord[Any]]) -> Side:
    """Sort the cells of several runs by their axes; runs come in the order in which they began, each with a number."""
    found: dict[tuple[str, ...], tuple[Kind, Axes, list[Occurrence]]] = {}
    for run, record in runs.items():
        for cell in record.cells:
            axes = flattened(cell.axes, _device(record, cell))
            key = (record.kind, *(f"{name} {axes[name]!r}" for name in sorted(axes)))
            found.setdefault(key, (record.kind, axes, []))[2].append(Occurrence(run, cell))
    return Side(
        name, tuple(runs.values()), tuple(SideCell(kind, axes, tuple(each)) for kind, axes, each in found.values())
    )


def flattened(axes: Axes, device: str | None = None) -> dict[str, Any]:
    """The axes of a cell as they are compared: its model is its size, and its device goes by its own name.

    What was simulated for some GPU was worked out on another device, which is of no consequence.
    """
    flat = {name: value for name, value in axes.items() if name not in ("kind", "model")}
    if isinstance(model := axes.get("model"), Mapping):
        flat["size"] = _size(str(axes.get("size")), model)
    flat["device"] = "simulation" if axes.get("simulate") else device or axes.get("device")
    return flat


def _size(label: str, model: Mapping[str, Any]) -> str:
    """`small`, and with its dimensions wherever the name alone does not say them."""
    name = label.split()[0] if label.split() else "custom"
    from sysbench.spec.model import SIZES

    known = SIZES.get(name)
    usual = known.model_dump() if known else {}
    differing = {key: value for key, value in model.items() if usual.get(key) != value}
    return " ".join([name, *(f"{key}={value}" for key, value in differing.items())])


def _device(record: RunRecord[Any], cell: CellRecord) -> str | None:
    """What a cell ran on, or would have, had it been started; None of a run that ended before it knew."""
    asked = str(cell.axes.get("device"))
    found = cell.device or next(
        (each for each in record.environment.devices if asked in ("auto", each.type, each.torch_name)), None
    )
    if found is None:
        return None
    return f"{found.name} ({asked})" if len(record.spec.get("device", ())) > 1 else found.name


def times_of(cell: CellRecord) -> dict[str, Samples]:
    """The times that a cell has samples of: by the host's clock, around synchronized steps, wherever there is one."""
    match cell:
        case TimeCellRecord():
            found = {name: phase.wall or phase.device for name, phase in cell.phases.items()}
        case AttentionCellRecord():
            found = {"forward": cell.forward, "backward": cell.backward}
        case ProfileCellRecord():
            found = {"step": cell.unprofiled}
        case _:
            found = {}
    return {name: samples for name, samples in found.items() if samples is not None}


def memory_of(cell: CellRecord) -> dict[str, int]:
    """What a cell says of memory, in bytes."""
    return {name: value for name, value in _memory(cell) if value is not None}


def _memory(cell: CellRecord) -> Iterator[tuple[str, int | None]]:
    match cell:
        case TimeCellRecord():
            yield "allocated_peak", cell.memory.allocated_peak_bytes
            yield "reserved_peak", cell.memory.reserved_peak_bytes
            yield "device_used_peak", cell.memory.device_used_peak_bytes
            yield "host_rss_peak", cell.memory.host_rss_peak_bytes
        case MemoryCellRecord():
            yield "allocated_peak", cell.peak_allocated_bytes
            yield "reserved_peak", cell.peak_reserved_bytes
            yield "device_used_peak", cell.device_used_peak_bytes
            yield "host_rss_peak", cell.host_rss_peak_bytes
        case AttentionCellRecord():
            yield "allocated_peak", cell.peak_allocated_bytes
            yield "saved_for_backward", cell.saved_bytes
        case _:
            return


CompareLabelAxes = Mapping[str, Any]

ORDER = (
    "device",
    "simulate",
    "size",
    "implementation",
    "dim",
    "seq",
    "ctx",
    "batch",
    "precision",
    "mode",
    *(axis for axis in (*TREATMENTS, *UNEQUAL) if axis not in ("size", "implementation", "dim", "seq", "ctx")),
    *EFFORT,
)
"""In this order axes are named."""

_PHRASES = {
    "ctx": "ctx {}",
    "batch": "batch {}",
    "dim": "d {}",
    "seq": "N {}",
    "attention": "{} attention",
    "simulate": "simulated for {}",
    "heads": "{} heads",
    "sync": "synchronized by {}",
    "warmup": "{} warm-ups",
    "steps": "{} steps",
    "repeats": "{} repeats",
    "active": "{} profiled steps",
}
"""Axes of which the value alone would not say what it is of; others are named where that is so."""

_SPEAK_FOR_THEMSELVES = ("device", "size", "implementation", "precision", "mode", "execution", "optimizer", "profiler")


def sets_apart(cells: Sequence[CompareLabelAxes]) -> tuple[str, ...]:
    """The axes in which these cells differ, in the order in which they are named; an axis that some lack is one."""
    return tuple(
        axis for axis in dict.fromkeys(ORDER) if len({text(cell[axis]) if axis in cell else "" for cell in cells}) > 1
    )


def labels(cells: Sequence[tuple[Kind, CompareLabelAxes]]) -> list[str]:
    """What each cell is called among the others of its kind: `ctx 512 bf16`; and of several kinds, of which it is."""
    kinds = dict.fromkeys(kind for kind, _ in cells)
    apart = {kind: sets_apart([axes for other, axes in cells if other == kind]) for kind in kinds}
    return [f"{kind} " * (len(kinds) > 1) + _label(kind, axes, apart[kind]) for kind, axes in cells]


def _label(kind: Kind, cell: CompareLabelAxes, axes: Sequence[str]) -> str:
    """Where nothing sets it apart, its size or what it implements, or the command."""
    phrases = [_phrase(axis, cell[axis]) for axis in axes if cell.get(axis) not in (None, False)]
    return " ".join(phrases) or text(cell.get("size") or cell.get("implementation") or kind)


def _phrase(axis: str, value: object) -> str:
    if value is True:
        return axis.replace("_", " ")
    if axis in _SPEAK_FOR_THEMSELVES:
        return text(value)
    return _PHRASES.get(axis, f"{axis.replace('_', ' ')} {{}}").format(text(value))

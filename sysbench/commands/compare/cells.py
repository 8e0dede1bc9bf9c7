"""One side of a comparison: its cells by axes, each with every run that measured it, and labels for cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sysbench.command import Kind
from sysbench.commands.attention.record import AttentionCellRecord
from sysbench.commands.compare.match import EFFORT, TREATMENTS, UNEQUAL, text
from sysbench.commands.loop.record import LoopCellRecord
from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.predictions import PredictedStep, PredictedTime
from sysbench.log.records import CellRecord, RunRecord, Samples

Axes = Mapping[str, Any]

SAMPLED = ("host_rss_peak", "device_used_peak")
"""Memory figures that are sampled from outside: inexact, so they decide nothing."""


@dataclass(frozen=True)
class Occurrence:
    """One cell of one run."""

    run: int
    """Number of the run."""
    record: CellRecord


@dataclass(frozen=True)
class SideCell:
    """A cell with all its runs; in `axes`, `size` stands for the model's dimensions, `device` for the hardware."""

    kind: Kind
    axes: Axes
    occurrences: tuple[Occurrence, ...]

    @property
    def last(self) -> CellRecord:
        """The last record of a run that did not fail, or else the last record."""
        measured = [each.record for each in self.occurrences if each.record.outcome in ("ok", "interrupted")]
        return measured[-1] if measured else self.occurrences[-1].record

    def times(self, quantity: str, *, whole: bool = False) -> dict[int, list[float]]:
        """Samples of a quantity in seconds, by run, omitting runs without any; `whole` also omits interrupted runs."""
        accepted = ("ok",) if whole else ("ok", "interrupted")
        measured = (each for each in self.occurrences if each.record.outcome in accepted)
        found = ((each.run, times_of(each.record).get(quantity)) for each in measured)
        return {run: samples.samples_s for run, samples in found if samples is not None and samples.samples_s}

    def memory(self) -> dict[str, int]:
        """Memory figures in bytes, each the maximum over all runs."""
        most: dict[str, int] = {}
        for each in self.occurrences:
            for name, value in memory_of(each.record).items():
                most[name] = max(value, most.get(name, value))
        return most


@dataclass(frozen=True)
class Side:
    """All runs of one side, and their cells."""

    name: str
    records: Sequence[RunRecord[Any]]
    cells: tuple[SideCell, ...] = field(default=())

    def of_kind(self, kind: Kind) -> list[SideCell]:
        """Cells of one command, in order of first appearance."""
        return [cell for cell in self.cells if cell.kind == kind]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Commands that have cells, in order of first appearance."""
        return tuple(dict.fromkeys(cell.kind for cell in self.cells))


def side(name: str, runs: Mapping[int, RunRecord[Any]]) -> Side:
    """Group the cells of several runs by their axes; `runs` are ordered by start time, each with a number."""
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
    """Axes for comparison: `size` replaces the model's dimensions, and `device` becomes the hardware's name.

    The device that carries out a simulation does not matter, so all simulations have the same one.
    """
    flat = {name: value for name, value in axes.items() if name not in ("kind", "model")}
    if isinstance(model := axes.get("model"), Mapping):
        label = str(axes.get("size"))
        flat["size"] = f"{label} of {model['target']}" if "target" in model else _size(label, model)
    flat["device"] = "simulation" if axes.get("simulate") else device or axes.get("device")
    return flat


def _size(label: str, model: Mapping[str, Any]) -> str:
    """The size's name, with all dimensions that differ from the known size of this name."""
    name = label.split()[0] if label.split() else "custom"
    from sysbench.spec.model import SIZES

    known = SIZES.get(name)
    usual = known.model_dump() if known else {}
    differing = {key: value for key, value in model.items() if usual.get(key) != value}
    return " ".join([name, *(f"{key}={value}" for key, value in differing.items())])


def _device(record: RunRecord[Any], cell: CellRecord) -> str | None:
    """The device of a cell, or the one a cell that never started would have used; None if the run ended before that."""
    asked = str(cell.axes.get("device"))
    found = cell.device or next(
        (each for each in record.environment.devices if asked in ("auto", each.type, each.torch_name)), None
    )
    if found is None:
        return None
    return f"{found.name} ({asked})" if len(record.spec.get("device", ())) > 1 else found.name


def times_of(cell: CellRecord) -> dict[str, Samples]:
    """Times that a cell has samples of, preferring the host's clock around synchronized steps."""
    match cell:
        case TimeCellRecord() | LoopCellRecord():
            found = {name: phase.times for name, phase in cell.phases.items()}
        case AttentionCellRecord():
            found = {"forward": cell.forward, "backward": cell.backward}
        case ProfileCellRecord():
            found = {"step": cell.unprofiled}
        case _:
            found = {}
    return {name: samples for name, samples in found.items() if samples is not None}


def predictions_of(cell: CellRecord) -> dict[str, PredictedTime]:
    """Predicted times of a cell, the whole step first; none if it was measured, or if its times are withheld."""
    if not isinstance(cell, TimeCellRecord | ProfileCellRecord | AttentionCellRecord) or cell.prediction is None:
        return {}
    prediction = cell.prediction
    whole = prediction.step if isinstance(prediction, PredictedStep) else None
    found: dict[str, PredictedTime | None] = {"step": whole}
    found |= {phase.name: prediction.phase(phase.name) for phase in prediction.phases}
    return {name: time for name, time in found.items() if time is not None}


def memory_of(cell: CellRecord) -> dict[str, int]:
    """Known memory figures of a cell, in bytes."""
    found: dict[str, int | None] = {}
    match cell:
        case TimeCellRecord() | LoopCellRecord():
            found = {
                "allocated_peak": cell.memory.allocated_peak_bytes,
                "reserved_peak": cell.memory.reserved_peak_bytes,
                "device_used_peak": cell.memory.device_used_peak_bytes,
                "host_rss_peak": cell.memory.host_rss_peak_bytes,
            }
        case MemoryCellRecord():
            found = {
                "allocated_peak": cell.peak_allocated_bytes,
                "reserved_peak": cell.peak_reserved_bytes,
                "device_used_peak": cell.device_used_peak_bytes,
                "host_rss_peak": cell.host_rss_peak_bytes,
            }
        case AttentionCellRecord():
            found = {"allocated_peak": cell.peak_allocated_bytes, "saved_for_backward": cell.saved_bytes}
    return {name: value for name, value in found.items() if value is not None}


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
"""The order of axes in labels."""

_PHRASES = {
    "ctx": "ctx {}",
    "batch": "batch {}",
    "grad_accum": "grad accum {}",
    "dim": "d {}",
    "seq": "N {}",
    "attention": "{} attention",
    "simulate": "simulated for {}",
    "heads": "{} heads",
    "sync": "synchronized by {}",
    "warmup": "{} warm-ups",
    "steps": "{} steps",
    "repeats": "{} repeats",
    "tokens": "{} tokens",
    "name": "{}",
    "active": "{} profiled steps",
}
"""Labels for axes whose value alone would be unclear."""

_SPEAK_FOR_THEMSELVES = ("device", "size", "implementation", "precision", "mode", "execution", "optimizer", "profiler")


def sets_apart(cells: Sequence[Axes]) -> tuple[str, ...]:
    """Axes in which these cells differ, including axes that some of them lack, in the order of labels."""
    return tuple(
        axis for axis in dict.fromkeys(ORDER) if len({text(cell[axis]) if axis in cell else "" for cell in cells}) > 1
    )


def labels(cells: Sequence[tuple[Kind, Axes]]) -> list[str]:
    """A label per cell that tells it from the others: `ctx 512 bf16`, preceded by the command if there are several."""
    kinds = dict.fromkeys(kind for kind, _ in cells)
    apart = {kind: sets_apart([axes for other, axes in cells if other == kind]) for kind in kinds}
    return [f"{kind} " * (len(kinds) > 1) + _label(kind, axes, apart[kind]) for kind, axes in cells]


def _label(kind: Kind, cell: Axes, axes: Sequence[str]) -> str:
    """If there is nothing to tell it apart from, its size, implementation or command."""
    phrases = [_phrase(axis, cell[axis]) for axis in axes if cell.get(axis) not in (None, False)]
    return " ".join(phrases) or text(cell.get("size") or cell.get("implementation") or kind)


def _phrase(axis: str, value: object) -> str:
    if value is True:
        return axis.replace("_", " ")
    if axis in _SPEAK_FOR_THEMSELVES:
        return text(value)
    return _PHRASES.get(axis, f"{axis.replace('_', ' ')} {{}}").format(text(value))

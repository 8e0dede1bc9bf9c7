"""The two sides of a comparison: cells of several runs grouped by their axes, and matched between the sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sysbench.command import Kind
from sysbench.commands.attention.record import AttentionCellRecord
from sysbench.commands.loop.record import LoopCellRecord
from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.commands.time.record import TimeCellRecord
from sysbench.errors import UsageError, unknown
from sysbench.log.predictions import PredictedStep, PredictedTime
from sysbench.log.records import CellRecord, RunRecord, Samples

UNEQUAL: Mapping[str, str] = {
    "precision": "precision",
    "batch": "batch",
    "grad_accum": "micro-batches per step",
    "mode": "mode",
    "device": "device",
    "simulate": "simulated GPU",
    "sync": "synchronization",
    "cold": "cold caches",
    "tokens": "tokens per step",
    "by": "measured by",
}
"""Axes on which cells must agree for their times and peaks to be comparable, with their names in messages."""

TREATMENTS: Mapping[str, str] = {
    "size": "size",
    "ctx": "ctx",
    "attention": "attention",
    "execution": "execution",
    "optimizer": "optimizer",
    "threads": "threads",
    "implementation": "implementation",
    "dim": "head dimension",
    "seq": "sequence length",
    "heads": "heads",
    "causal": "causal mask",
    "profiler": "profiler",
    "shapes": "recorded shapes",
    "find": "search",
    "name": "name",
}
"""Axes whose effect a comparison can show, with their names in messages."""

EFFORT = ("warmup", "steps", "until", "max_steps", "repeats", "active", "budget", "seed")
"""Axes of measurement effort: how often or how long something was measured."""

MACHINE = "machine"

ACROSS = (*UNEQUAL, *TREATMENTS, MACHINE)
"""Allowed values of --across."""


class NothingInCommonError(UsageError):
    """The two sides have no cell in common."""


@dataclass(frozen=True)
class Matching:
    """Result of matching two lists of cells: pairs of positions, and the positions without a partner."""

    pairs: tuple[tuple[int, int], ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    across: tuple[str, ...]
    """Axes in which the two cells of every pair differ."""


def refuse_unknown(across: Iterable[str]) -> None:
    """Raise UsageError for an unknown axis in `--across`."""
    for name in across:
        if name not in ACROSS:
            raise UsageError(f"--across {unknown(name, 'an axis', ACROSS)}")


def match(a: Sequence[Axes], b: Sequence[Axes], across: Sequence[str] = ()) -> Matching:
    """Match the cells of two sides, all of one command, by their axes.

    Cells match if they agree on all axes, with two exceptions. An EFFORT axis is ignored if none of its values occurs
    on both sides. An axis with a single value on each side may differ: it is then the subject of the comparison.

    Raises UsageError for several such axes, or for an UNEQUAL axis without common values, unless they are in `across`.
    Raises NothingInCommonError if no cells match.
    """
    names = list(dict.fromkeys(name for cell in (*a, *b) for name in cell))
    held = {name: (set(values(a, name)), set(values(b, name))) for name in names}
    disjoint = [name for name, (there, here) in held.items() if not there & here]
    crossed = [name for name in disjoint if name not in EFFORT and all(len(side) == 1 for side in held[name])]
    _refuse(disjoint, crossed, across, a, b)
    ignored = {*crossed, *(axis for axis in disjoint if axis in EFFORT)}
    keys_a, keys_b = _by_key(a, ignored), _by_key(b, ignored)
    pairs = tuple((place, keys_b[key]) for key, place in keys_a.items() if key in keys_b)
    if not pairs:
        why = "; ".join(_difference(axis, a, b) for axis in disjoint if axis not in EFFORT)
        raise NothingInCommonError(
            f"no cell of A matches a cell of B: {why or 'their axes have no combination in common'}"
        )
    matched_a, matched_b = {first for first, _ in pairs}, {second for _, second in pairs}
    return Matching(
        pairs,
        tuple(place for place in range(len(a)) if place not in matched_a),
        tuple(place for place in range(len(b)) if place not in matched_b),
        tuple(crossed),
    )


def values(cells: Iterable[Axes], axis: str) -> tuple[str, ...]:
    """Return the distinct values of an axis as text, in order of appearance."""
    return tuple(dict.fromkeys(text(cell.get(axis)) for cell in cells))


def text(value: object) -> str:
    """Return the value of an axis as text."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(text(each) for each in value) or "none"
    return str(value)


def _refuse(
    disjoint: Sequence[str], crossed: Sequence[str], across: Sequence[str], a: Sequence[Axes], b: Sequence[Axes]
) -> None:
    """Raise UsageError if the axes without a common value (`disjoint`) make the two sides incomparable."""
    unequal = [axis for axis in disjoint if axis in UNEQUAL and axis not in across]
    if unequal:
        raise UsageError(
            f"A and B are not comparable: {'; '.join(_difference(axis, a, b) for axis in unequal)}. "
            f"--across {','.join(unequal)} compares them anyway"
        )
    several = [axis for axis in crossed if axis not in across]
    if len(several) > 1:
        raise UsageError(
            "A and B differ in several ways, so the cause of a difference would be unclear: "
            f"{'; '.join(_difference(axis, a, b) for axis in several)}. --across {','.join(several)} compares them "
            "anyway"
        )
    for axis in disjoint:
        if axis in across and axis not in crossed and axis not in EFFORT:
            raise UsageError(f"--across {axis} needs one value on each side: {_difference(axis, a, b)}")


def _difference(axis: str, a: Sequence[Axes], b: Sequence[Axes]) -> str:
    """Describe a difference: `precision is fp32 in A and bf16 in B`."""
    name = UNEQUAL.get(axis) or TREATMENTS.get(axis) or axis.replace("_", " ")
    return f"{name} is {_some(values(a, axis))} in A and {_some(values(b, axis))} in B"


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")


Key = tuple[tuple[str, str], ...]


def _by_key(cells: Sequence[Axes], ignored: set[str]) -> dict[Key, int]:
    """Return the position of each cell by its axes without `ignored`; the last cell with the same key is kept."""
    return {
        tuple((name, text(cell[name])) for name in sorted(cell) if name not in ignored): place
        for place, cell in enumerate(cells)
    }


Axes = Mapping[str, Any]

SAMPLED = ("host_rss_peak", "device_used_peak")
"""Memory figures that are sampled from outside the process: inexact, so the gate ignores them."""


@dataclass(frozen=True)
class Occurrence:
    """One cell of one run."""

    run: int
    """Number of the run."""
    record: CellRecord


@dataclass(frozen=True)
class SideCell:
    """A cell with its records from all runs of a side; `axes` is the result of `flattened`."""

    kind: Kind
    axes: Axes
    occurrences: tuple[Occurrence, ...]

    @property
    def last(self) -> CellRecord:
        """The last successful or interrupted record, or else the last record."""
        measured = [each.record for each in self.occurrences if each.record.outcome in ("ok", "interrupted")]
        return measured[-1] if measured else self.occurrences[-1].record

    def times(self, quantity: str, *, whole: bool = False) -> dict[int, list[float]]:
        """Return the samples of a quantity in seconds, by run; `whole` omits runs in which the cell was interrupted."""
        accepted = ("ok",) if whole else ("ok", "interrupted")
        measured = (each for each in self.occurrences if each.record.outcome in accepted)
        found = ((each.run, times_of(each.record).get(quantity)) for each in measured)
        return {run: samples.samples_s for run, samples in found if samples is not None and samples.samples_s}

    def memory(self) -> dict[str, int]:
        """Return the memory figures in bytes, each the maximum over all runs."""
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
        """Return the cells of one command, in order of first appearance."""
        return [cell for cell in self.cells if cell.kind == kind]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Commands that have cells, in order of first appearance."""
        return tuple(dict.fromkeys(cell.kind for cell in self.cells))


def side(name: str, runs: Mapping[int, RunRecord[Any]]) -> Side:
    """Group the cells of several runs by their axes; `runs` are numbered and in order of start time."""
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
    """Return the axes to compare: `size` replaces the model's dimensions, `device` is the name of the hardware.

    For simulated cells, `device` is `simulation`: the device that runs a simulation does not matter.
    """
    flat = {name: value for name, value in axes.items() if name not in ("kind", "model")}
    if isinstance(model := axes.get("model"), Mapping):
        label = str(axes.get("size"))
        flat["size"] = f"{label} of {model['target']}" if "target" in model else _size(label, model)
    flat["device"] = "simulation" if axes.get("simulate") else device or axes.get("device")
    return flat


def _size(label: str, model: Mapping[str, Any]) -> str:
    """Return the size's name, followed by every dimension that differs from the predefined size."""
    name = label.split()[0] if label.split() else "custom"
    from sysbench.spec.model import SIZES

    known = SIZES.get(name)
    usual = known.model_dump() if known else {}
    differing = {key: value for key, value in model.items() if usual.get(key) != value}
    return " ".join([name, *(f"{key}={value}" for key, value in differing.items())])


def _device(record: RunRecord[Any], cell: CellRecord) -> str | None:
    """Return the name of a cell's device, or of the planned device if the cell never started; None if unknown."""
    asked = str(cell.axes.get("device"))
    found = cell.device or next(
        (each for each in record.environment.devices if asked in ("auto", each.type, each.torch_name)), None
    )
    if found is None:
        return None
    return f"{found.name} ({asked})" if len(record.spec.get("device", ())) > 1 else found.name


def times_of(cell: CellRecord) -> dict[str, Samples]:
    """Return all times for which a cell has samples, by quantity."""
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
    """Return the predicted times of a cell by quantity, the whole step first; empty if there are none."""
    if not isinstance(cell, TimeCellRecord | ProfileCellRecord | AttentionCellRecord) or cell.prediction is None:
        return {}
    prediction = cell.prediction
    whole = prediction.step if isinstance(prediction, PredictedStep) else None
    found: dict[str, PredictedTime | None] = {"step": whole}
    found |= {phase.name: prediction.phase(phase.name) for phase in prediction.phases}
    return {name: time for name, time in found.items() if time is not None}


def memory_of(cell: CellRecord) -> dict[str, int]:
    """Return the known memory figures of a cell in bytes."""
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
    """Return the axes in which these cells differ, in the order of labels; a missing axis counts as a value."""
    return tuple(
        axis for axis in dict.fromkeys(ORDER) if len({text(cell[axis]) if axis in cell else "" for cell in cells}) > 1
    )


def labels(cells: Sequence[tuple[Kind, Axes]]) -> list[str]:
    """Return a label for each cell that distinguishes it from the others: `ctx 512 bf16`.

    If there are cells of several commands, the label begins with the command.
    """
    kinds = dict.fromkeys(kind for kind, _ in cells)
    apart = {kind: sets_apart([axes for other, axes in cells if other == kind]) for kind in kinds}
    return [f"{kind} " * (len(kinds) > 1) + _label(kind, axes, apart[kind]) for kind, axes in cells]


def _label(kind: Kind, cell: Axes, axes: Sequence[str]) -> str:
    """Return the values of `axes` as a label; if all are empty, the size, implementation or command."""
    phrases = [_phrase(axis, cell[axis]) for axis in axes if cell.get(axis) not in (None, False)]
    return " ".join(phrases) or text(cell.get("size") or cell.get("implementation") or kind)


def _phrase(axis: str, value: object) -> str:
    if value is True:
        return axis.replace("_", " ")
    if axis in _SPEAK_FOR_THEMSELVES:
        return text(value)
    return _PHRASES.get(axis, f"{axis.replace('_', ' ')} {{}}").format(text(value))

"""The two sides of a comparison: cells of several runs grouped by their axes, and matched between the sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from sysbench.cells import HasAxes
from sysbench.command import Kind
from sysbench.commands.kinds import measures_of
from sysbench.errors import UsageError, unknown
from sysbench.log import runs
from sysbench.log.measures import Amount, Measures
from sysbench.log.outcomes import MEASURED
from sysbench.log.records import CellRecord, RunRecord
from sysbench.spec.axis import SETTING, Axis, declared_fields
from sysbench.spec.grid import SIZES
from sysbench.statistics import Estimate

MACHINE = "machine"

Axes = Mapping[str, Any]


def acceptable_axes() -> tuple[str, ...]:
    """Return the allowed values of --across."""
    return (*(name for name, axis in declared_fields().items() if axis.compares != "effort"), MACHINE)


def refuse_unknown_axes(across: Iterable[str]) -> None:
    for name in across:
        if name not in acceptable_axes():
            raise UsageError(f"--across {unknown(name, 'an axis', acceptable_axes())}")


def _axis(name: str) -> Axis:
    return declared_fields().get(name, SETTING)


# --- cells of one side


@dataclass(frozen=True)
class Occurrence:
    """A cell in one run."""

    run: int
    """Number of the run."""
    record: CellRecord

    @cached_property
    def measures(self) -> Measures:
        return measures_of(self.record)


@dataclass(frozen=True)
class SideCell:
    """A cell in all runs of a side; `axes` is the result of `flatten_axes`."""

    kind: Kind
    axes: Axes
    occurrences: tuple[Occurrence, ...]

    @property
    def latest(self) -> Occurrence:
        """The last occurrence with valid samples, or else the last one."""
        measured = [occurrence for occurrence in self.occurrences if occurrence.record.outcome in MEASURED]
        return measured[-1] if measured else self.occurrences[-1]

    def times(self, quantity: str, *, complete_only: bool) -> dict[int, Estimate]:
        """Return the samples of a quantity in seconds, by run; `complete_only` omits unfinished runs."""
        accepted = {"ok"} if complete_only else MEASURED
        measured = (occurrence for occurrence in self.occurrences if occurrence.record.outcome in accepted)
        samples_by_run = ((occurrence.run, occurrence.measures.times.get(quantity)) for occurrence in measured)
        return {run: samples.estimate for run, samples in samples_by_run if samples is not None}

    def amounts(self) -> dict[str, Amount]:
        """Return the numbers without samples, each the worst of all runs, or the largest if none is better."""
        worst: dict[str, Amount] = {}
        for amounts in (occurrence.measures.amounts for occurrence in self.occurrences):
            for name, amount in amounts.items():
                choose = min if amount.better == "higher" else max
                worst[name] = choose(worst.get(name, amount), amount, key=attrgetter("value"))
        return worst


@dataclass(frozen=True)
class Side:
    """All runs of one side, and their cells."""

    name: str
    records: Sequence[RunRecord]
    cells: tuple[SideCell, ...]

    def of_kind(self, kind: Kind) -> list[SideCell]:
        return [cell for cell in self.cells if cell.kind == kind]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(dict.fromkeys(cell.kind for cell in self.cells))


def load_side(name: str, files: Mapping[int, Path]) -> Side:
    """Load the runs of one side; `files` maps run numbers to files. Raises LogError if a file cannot be read."""
    return build_side(name, {number: runs.load(path) for number, path in files.items()})


def build_side(name: str, records: Mapping[int, RunRecord]) -> Side:
    """Group the cells of several runs by their axes; `records` are numbered and in order of start time."""
    grouped: dict[tuple[Kind, frozenset[tuple[str, str]]], tuple[Axes, list[Occurrence]]] = {}
    for run, record in records.items():
        for cell in record.cells:
            axes = flatten_axes(cell.axes, _device_name(record, cell))
            key = record.kind, frozenset((axis, repr(value)) for axis, value in axes.items())
            grouped.setdefault(key, (axes, []))[1].append(Occurrence(run, cell))
    cells = (SideCell(kind, axes, tuple(occurrences)) for (kind, _), (axes, occurrences) in grouped.items())
    return Side(name, tuple(records.values()), tuple(cells))


def flatten_axes(axes: Axes, device: str | None = None) -> dict[str, object]:
    """Return the axes to compare: `size` replaces the model's dimensions, `device` is the name of the hardware.

    For simulated cells, `device` is `simulation`: the device that runs a simulation does not matter.
    """
    flat = {
        name: value_text(value) if isinstance(value, list) else value
        for name, value in axes.items()
        if name not in ("kind", "model", "hardware")
    }
    if isinstance(model := axes.get("model"), Mapping):
        label = str(axes.get("size"))
        flat["size"] = f"{label} of {model['target']}" if "target" in model else _size_label(label, model)
    flat["device"] = "simulation" if axes.get("simulate") else device or axes.get("device")
    return flat


def _size_label(label: str, model: Mapping[str, object]) -> str:
    name = label.split()[0] if label.split() else "custom"
    preset_values = SIZES[name].model_dump() if name in SIZES else {}
    differing = {key: value for key, value in model.items() if preset_values.get(key) != value}
    return " ".join([name, *(f"{key}={value}" for key, value in differing.items())])


def _device_name(record: RunRecord, cell: CellRecord) -> str | None:
    requested = str(cell.axes.get("device"))
    # A cell that never started has no device of its own.
    fitting = (device for device in record.environment.devices if requested in ("auto", device.type, device.torch_name))
    device = cell.device or next(fitting, None)
    if device is None:
        return None
    return f"{device.name} ({requested})" if len(record.spec.get("device", ())) > 1 else device.name


# --- cells of both sides


class NoMatchingCellsError(UsageError):
    """The two sides have no cell in common."""


@dataclass(frozen=True)
class Matching:
    """Result of matching two lists of cells: pairs of positions, and the positions without a partner."""

    pairs: tuple[tuple[int, int], ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    across: tuple[str, ...]
    """Axes in which the two cells of every pair differ."""


@dataclass(frozen=True)
class Obstacle:
    """A difference between the sides that prevents a comparison unless `--across` names its axis."""

    axis: str
    description: str
    """The values on both sides: `precision is fp32 in A and bf16 in B`."""
    confounds: bool = False
    """Whether the axis is an obstacle only because other axes differ as well."""
    coverable: bool = True
    """Whether naming the axis in `--across` helps: it must have a single value on each side."""


def find_obstacles(a: Sequence[Axes], b: Sequence[Axes], across: Sequence[str] = ()) -> list[Obstacle]:
    """Return the differences between the cells of two sides, all of one command, that prevent a comparison.

    These are the controlled axes without a common value, and all axes with a different value on each side if
    there are several. Axes in `across` do not count if they have a single value on each side.
    """
    disjoint, single_valued = _differing_axes(a, b)
    controlled = [
        axis
        for axis in disjoint
        if (_axis(axis).compares == "controlled" and axis not in across)
        or (axis in across and axis not in single_valued and _axis(axis).compares != "effort")
    ]
    treatments = [
        axis
        for axis in single_valued
        if axis not in across and axis not in controlled and not _follows_from_another(axis, disjoint, a, b)
    ]
    return [
        Obstacle(axis, _describe_difference(axis, a, b), coverable=axis in single_valued) for axis in controlled
    ] + [Obstacle(axis, _describe_difference(axis, a, b), confounds=True) for axis in treatments if len(treatments) > 1]


def refuse_obstacles(obstacles: Iterable[Obstacle], across: Sequence[str] = ()) -> None:
    """Raise UsageError if there are obstacles, with the complete `--across` that helps; `across` was given already."""
    distinct = list(dict.fromkeys(obstacles))
    if not distinct:
        return
    reason = "A and B are not comparable"
    if all(obstacle.confounds for obstacle in distinct):
        reason = "A and B differ in several ways, so the cause of a difference would be unclear"
    axes = dict.fromkeys([*across, *(obstacle.axis for obstacle in distinct)])
    advice = _single_value_advice(list(dict.fromkeys(obstacle.axis for obstacle in distinct if not obstacle.coverable)))
    advice = advice or f". --across {','.join(axes)} compares them anyway"
    raise UsageError(f"{reason}: {'; '.join(obstacle.description for obstacle in distinct)}{advice}")


def _single_value_advice(axes: Sequence[str]) -> str:
    return f". --across needs a single value of {' and of '.join(axes)} on each side" if axes else ""


def match(a: Sequence[Axes], b: Sequence[Axes]) -> Matching:
    """Match the cells of two sides, all of one command, by their axes.

    Cells match if they agree on all axes, with two exceptions. An axis of effort is ignored if none of its values
    occurs on both sides. An axis with a single value on each side may differ: it is then the subject of the comparison.

    Raises NoMatchingCellsError if no cells match.
    """
    disjoint, single_valued = _differing_axes(a, b)
    ignored = {*single_valued, *(axis for axis in disjoint if _axis(axis).compares == "effort")}
    keys_a, keys_b = (
        {
            tuple((name, value_text(cell[name])) for name in sorted(cell) if name not in ignored): index
            for index, cell in enumerate(side)
        }
        for side in (a, b)
    )
    pairs = tuple((index, keys_b[key]) for key, index in keys_a.items() if key in keys_b)
    if not pairs:
        reasons = [_describe_difference(axis, a, b) for axis in disjoint if _axis(axis).compares != "effort"]
        several_valued = [axis for axis in disjoint if axis not in ignored]
        if not several_valued:
            reasons.append(f"their {'other ' if reasons else ''}axes have no combination in common")
        advice = _single_value_advice(several_valued)
        raise NoMatchingCellsError(f"no cell of A matches a cell of B: {'; '.join(reasons)}{advice}")
    matched_a, matched_b = ({pair[side] for pair in pairs} for side in (0, 1))
    return Matching(
        pairs,
        tuple(index for index in range(len(a)) if index not in matched_a),
        tuple(index for index in range(len(b)) if index not in matched_b),
        tuple(single_valued),
    )


def _differing_axes(a: Sequence[Axes], b: Sequence[Axes]) -> tuple[list[str], list[str]]:
    """Return the axes without a common value, and those with a single value on each side (without axes of effort)."""
    names = dict.fromkeys(name for cell in (*a, *b) for name in cell)
    values = {name: (_distinct_values(a, name), _distinct_values(b, name)) for name in names}
    disjoint = [name for name, (a_values, b_values) in values.items() if not set(a_values) & set(b_values)]
    single_valued = [
        name for name in disjoint if _axis(name).compares != "effort" and all(len(side) == 1 for side in values[name])
    ]
    return disjoint, single_valued


def _follows_from_another(axis: str, disjoint: Sequence[str], a: Sequence[Axes], b: Sequence[Axes]) -> bool:
    """Whether a side lacks this axis only because another axis differs."""
    determining = {other for other, _ in _axis(axis).applies_to}
    return bool(determining & set(disjoint)) and any(all(cell.get(axis) is None for cell in side) for side in (a, b))


def _distinct_values(cells: Iterable[Axes], axis: str) -> tuple[str, ...]:
    """Return the distinct values of an axis as text, in order of appearance; cells without it have its default."""
    return tuple(dict.fromkeys(value_text(cell.get(axis, _axis(axis).stored_default)) for cell in cells))


def value_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(value_text, value)) or "none"
    return str(value)


def _describe_difference(axis: str, a: Sequence[Axes], b: Sequence[Axes]) -> str:
    a_values, b_values = (_abbreviated_list(_distinct_values(side, axis)) for side in (a, b))
    return f"{axis.replace('_', ' ')} is {a_values} in A and {b_values} in B"


def _abbreviated_list(words: Sequence[str]) -> str:
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")


# --- names


def varying_axes(cells: Sequence[HasAxes]) -> tuple[str, ...]:
    """Return the axes and settings in which these cells differ, in the order of names; a missing one is a value."""
    return tuple(axis for axis in declared_fields() if len({cell.axes.get(axis, "") for cell in cells}) > 1)


def label(cell: HasAxes, axes: Iterable[str]) -> str:
    phrases = (_phrase(axis, value) for axis in axes if (value := cell.axes.get(axis)) not in (None, False))
    return " ".join(phrases) or str(cell.axes.get("size") or cell.axes.get("implementation") or "")


def _phrase(axis: str, value: object) -> str:
    return axis.replace("_", " ") if value is True else _axis(axis).format_value(value)

"""Tables that sum kernel times by module, phase, class and name, and a table that compares files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, get_args

from sysbench import units
from sysbench.commands.profile.findings import RANGES
from sysbench.commands.profile.profiles import NS, SLOWEST_MARGIN_SHARE, Profile, Profiles, find_range
from sysbench.errors import UsageError
from sysbench.render.declared import DeclaredTable, Each, Field, Fill, Leading, leading_fields
from sysbench.render.table import EMPTY_CELL, Cell, Measure, multiplicity
from sysbench.spec.run import Sort
from sysbench.trace.summary import (
    EVERYWHERE,
    PHASES,
    KernelClass,
    KernelStatistics,
    KernelTime,
    ancestry,
    folded,
    part_of,
)

PROFILE: Final = Leading(
    columns=lambda profiles: profiles.columns,
    values=lambda _: lambda row: row.profile.leading,
    is_excluded=lambda row: bool(row.profile.excluded),
)
"""Leading columns that identify the profile."""

WORK: Final = {
    "work": Fill(("kernel", "operator"), lambda profiles: profiles.work_noun),
    "per": Fill(("per step", "in the trace"), lambda profiles: profiles.per),
}


@dataclass(frozen=True)
class BreakdownRow:
    """One row of a table: times of some kernels in a profile, and the total time to which the row's share refers."""

    profile: Profile
    label: str
    times: Sequence[KernelTime]
    whole_ns: int
    count: int = 1

    @cached_property
    def total_ns(self) -> int:
        return sum(each.total_ns for each in self.times)

    @property
    def share(self) -> float:
        return self.total_ns / self.whole_ns if self.whole_ns else 0.0

    @property
    def total(self) -> Measure:
        return self.profile.per_step(self.total_ns)

    @property
    def calls(self) -> Measure:
        return self.profile.calls_per_step(sum(each.calls for each in self.times))

    def time_in_phase(self, phase: str) -> Measure:
        return self.profile.per_step(sum(each.total_ns for each in self.times if each.phase == phase))


# --- modules and phases

MAX_DEPTH: Final = 6
"""Maximum depth of the module tree; deeper modules count towards their ancestors."""


def _tree_title(profiles: Profiles) -> str:
    pattern, range_name = profiles.selection.kernel, profiles.selection.range
    kernels = f" of {profiles.work_noun}s with {pattern.pattern}" if pattern else ""
    return f"where the time{kernels}{f' in {range_name}' if range_name else ''} goes"


def _tree_phases(profiles: Profiles) -> list[str]:
    present = {each.phase for profile in profiles.all for each in profiles.selected_times(profile)}
    return [phase for phase in PHASES if phase in present]


def _tree_rows(profiles: Profiles) -> Iterator[BreakdownRow]:
    for profile in profiles.all:
        times = profiles.selected_times(profile)
        if not times:
            continue
        whole_ns = sum(each.total_ns for each in times)
        yield BreakdownRow(profile, "everything", times, whole_ns)
        inclusive, members = _inclusive_times(times)
        first_position: dict[str, int] = {}
        for number, module in enumerate(profile.summary.modules):
            for path in ancestry(folded(module)):
                first_position.setdefault(path, number)
        for path in sorted(inclusive, key=lambda path: [first_position[ancestor] for ancestor in ancestry(path)]):
            ancestors = [each for each in ancestry(path)[:-1] if each in inclusive]
            name = f"{'  ' * len(ancestors)}  {path[len(ancestors[-1]) + 1 :] if ancestors else path}"
            yield BreakdownRow(profile, name, inclusive[path], whole_ns, len(members[path]))
        outside = [each for each in times if each.module == EVERYWHERE]
        if inclusive and outside:
            yield BreakdownRow(profile, "  outside modules", outside, whole_ns)


def _inclusive_times(times: Sequence[KernelTime]) -> tuple[dict[str, list[KernelTime]], dict[str, set[str]]]:
    """For each folded path, return the times including submodules, and the set of modules that the path stands for."""
    inclusive: dict[str, list[KernelTime]] = defaultdict(list)
    members: dict[str, set[str]] = defaultdict(set)
    for each in times:
        for path in ancestry(each.module)[:MAX_DEPTH]:
            inclusive[folded(path)].append(each)
            members[folded(path)].add(path)
    # A list of layers is redundant if its layers have all of its time.
    for path in list(inclusive):
        if len(inclusive[path]) == len(inclusive.get(f"{path}.*", ())):
            del inclusive[path]
    return inclusive, members


TREE = DeclaredTable(
    "tree",
    _tree_title,
    (
        Field("module", elastic=True, get=lambda row: row.label),
        Field("count", unit="count", importance=2, get=lambda row: multiplicity(row.count)),
        Field("share", "time", "share", get=lambda row: row.share),
        Field("total", "all", "s", "{per}", get=lambda row: row.total),
        Each(
            "phase",
            (
                Field(
                    "{phase}",
                    unit="s",
                    group="{per}",
                    importance=lambda _, phase: {"forward": 0, "backward": 0, "optimizer": 2}.get(phase, 4),
                    get=lambda row, phase: row.time_in_phase(phase),
                ),
            ),
            values=_tree_phases,
            possible_values=PHASES,
        ),
        Field("calls", "{work}s", "count", "{per}", importance=1, get=lambda row: row.calls),
    ),
    rows=_tree_rows,
    leading=PROFILE,
    words=WORK,
)
"""Tree of modules, with their time in every phase."""


# --- classes

LARGE_OTHER_SHARE: Final = 0.1
"""If class `other` takes a larger share of time, its kernels are named."""
LARGE_UNKNOWN_SHARE: Final = 0.01
"""Kernels whose names match no class are named if they take a larger share of time."""
MAX_OTHERS: Final = 3
MAX_SOFTMAX_CLASSES: Final = 2
"""Maximum number of classes that are named for a softmax without a kernel of its own."""

_PHASE_GROUPS: Final[Mapping[str, tuple[str, tuple[str, ...] | None]]] = {
    "forward": ("forward", RANGES["forward"]),
    "forward_backward": ("forward + backward", RANGES["forward and backward"]),
    "step": ("full step", None),
    "all": ("everything", None),
}
"""Heading and phases of each group by key; None stands for all phases."""


def _group_keys(profiles: Profiles) -> list[str]:
    """Return the keys of the groups to show. A group that would add no phase to the previous one is omitted."""
    conditions: Mapping[str, Callable[[Profile], bool]] = {
        "forward": lambda profile: "forward" in profile.phases,
        "forward_backward": lambda profile: "backward" in profile.phases,
        "step" if profiles.steps_marked else "all": lambda profile: any(
            each.phase not in ("forward", "loss", "backward") for each in profile.times
        ),
    }
    return [key for key, condition in conditions.items() if any(map(condition, profiles.all))] or ["all"]


@dataclass(frozen=True)
class _ClassRow:
    profile: Profile
    label: str
    time_ns: Mapping[str, int]
    whole_ns: Mapping[str, int]

    def share(self, group: str) -> float:
        whole_ns = self.whole_ns[group]
        return self.time_ns[group] / whole_ns if whole_ns else float(self.label == "all")


def _class_rows(profiles: Profiles) -> Iterator[_ClassRow]:
    groups = _group_keys(profiles)
    for profile in profiles.all:
        times = {group: profile.summary.by_class(_PHASE_GROUPS[group][1]) for group in groups}
        totals = {group: sum(found.values()) for group, found in times.items()}
        largest = {name: max(found.get(name, 0) for found in times.values()) for name in get_args(KernelClass)}
        present = [name for name in largest if any(name in found for found in times.values())]
        for name in sorted(present, key=lambda name: -largest[name]):
            yield _ClassRow(profile, name, {group: found.get(name, 0) for group, found in times.items()}, totals)
        yield _ClassRow(profile, "all", totals, totals)


def _class_notes(profiles: Profiles) -> list[str]:
    notes = []
    for profile in profiles.all:
        others, unknown = Counter[int](), Counter[int]()
        softmax = Counter[KernelClass]()
        for each in profile.times:
            if each.kernel_class == "other":
                others[each.kernel] += each.total_ns
                if not each.name.placed:
                    unknown[each.kernel] += each.total_ns
            elif part_of(each.module) == "softmax":
                softmax[each.kernel_class] += each.total_ns
        named_kernels = others if others.total() > LARGE_OTHER_SHARE * profile.total_ns else unknown
        if named_kernels.total() > LARGE_UNKNOWN_SHARE * profile.total_ns:
            names = [
                f"{profile.summary.names[kernel].short} {units.share(total_ns / profile.total_ns)}"
                for kernel, total_ns in named_kernels.most_common(MAX_OTHERS)
            ]
            names[0] += f" of all {profiles.work_noun} time"
            more = len(named_kernels) - len(names)
            notes.append(f"in other: {', '.join([*names, *([f'{more} more'] if more else [])])}")
        softmax_classes = [kind for kind, _ in softmax.most_common(MAX_SOFTMAX_CLASSES)]
        if softmax_classes and "softmax" not in softmax_classes:
            notes.append(
                f"softmax within attention has no kernel of its own and counts as {' and '.join(softmax_classes)}; "
                "the attention table shows its time"
            )
    return notes


CLASSES = DeclaredTable(
    "classes",
    lambda profiles: f"time by class of {profiles.work_noun}, {profiles.per}",
    (
        Each(
            "group",
            (
                Field("{group}", "share", "share", "{group}", get=lambda row, group: row.share(group)),
                Field(
                    "{group}_time",
                    "time",
                    "s",
                    "{group}",
                    importance=1,
                    get=lambda row, group: row.profile.per_step(row.time_ns[group]),
                ),
            ),
            values=_group_keys,
            possible_values=tuple(_PHASE_GROUPS),
            format_value=lambda group: _PHASE_GROUPS[group][0],
        ),
    ),
    rows=_class_rows,
    leading=(PROFILE, leading_fields(Field("class", get=lambda row: row.label))),
    notes=_class_notes,
)
"""Share of each kernel class in forward, in forward and backward, and in the whole step."""

# --- kernels

_SORT_KEYS: Mapping[Sort, Callable[[KernelStatistics], float]] = {
    "total": lambda row: row.total_ns,
    "calls": lambda row: row.calls,
    "avg": lambda row: row.mean_ns,
    "med": lambda row: row.median_ns,
    "min": lambda row: row.min_ns,
    "max": lambda row: row.max_ns,
    "std": lambda row: row.std_ns,
}
"""Sort keys, all descending."""


@dataclass(frozen=True)
class _KernelRow(BreakdownRow):
    """A kernel within a range, or the sum of all kernels that are not listed; the sum has no statistics."""

    statistics: KernelStatistics | None = field(kw_only=True)

    def per_call(self, name: str) -> Cell:
        if self.statistics is not None:
            return Measure(getattr(self.statistics, name) * NS)
        calls = sum(each.calls for each in self.times)
        return Measure(self.total_ns * NS / calls) if name == "mean_ns" else EMPTY_CELL

    @property
    def kernel_class(self) -> Cell:
        if self.statistics is None:
            return EMPTY_CELL
        time_ns = Counter[str]()
        for each in self.times:
            time_ns[each.kernel_class] += each.total_ns
        return ", ".join(kind for kind, _ in time_ns.most_common())

    def launch_shape(self, name: str) -> Cell:
        if self.statistics is None:
            return EMPTY_CELL
        shape, kinds = getattr(self.statistics, name), self.statistics.launch_shapes
        return "×".join(map(str, shape)) if shape is not None else f"{kinds} kinds" if kinds > 1 else None


def _kernel_rows(profiles: Profiles) -> Iterator[_KernelRow]:
    for profile in profiles.all:
        selected_range, names = find_range(profile, profiles.selection.range), profile.summary.names
        found = [row for row in profile.summary.kernels if row.range == selected_range.name]
        times = [each for each in profile.times if selected_range.contains(each)]
        if not found and times:
            raise UsageError(
                f"--range {selected_range.name}: this record only has statistics of all layers together: use "
                "layers.*.attention instead of layers.3.attention, or give the trace to --from"
            )
        chosen = [row for row in found if profiles.matches(names[row.kernel].name)]
        if profiles.selection.sort == "name":
            chosen.sort(key=lambda row: names[row.kernel].short.casefold())
        else:
            value = _SORT_KEYS[profiles.selection.sort]
            chosen.sort(key=lambda row: -value(row))
        listed = chosen[: profiles.row_limit(len(chosen))]
        whole_ns = sum(each.total_ns for each in times)
        by_kernel: dict[int, list[KernelTime]] = defaultdict(list)
        for each in times:
            by_kernel[each.kernel].append(each)
        for row in listed:
            yield _KernelRow(profile, names[row.kernel].short, by_kernel.pop(row.kernel, []), whole_ns, statistics=row)
        rest = {number: each for number, each in by_kernel.items() if profiles.matches(names[number].name)}
        if rest:
            label = f"{len(rest)} others" if len(rest) > 1 else "1 other"
            remaining_times = [each for of_kernel in rest.values() for each in of_kernel]
            yield _KernelRow(profile, label, remaining_times, whole_ns, statistics=None)


def _per_call_field(key: str, name: str, importance: int) -> Field:
    return Field(key, unit="s", group="of one call", importance=importance, get=lambda row: row.per_call(name))


KERNELS = DeclaredTable(
    "kernels",
    lambda profiles: (
        f"{profiles.work_noun}s launched in {profiles.selection.range}"
        if profiles.selection.range
        else f"{profiles.work_noun}s {'of a step' if profiles.steps_marked else profiles.per}"
    ),
    (
        Field("time", unit="share", get=lambda row: row.share),
        Field("total", unit="s", group="{per}", get=lambda row: row.total),
        Field("calls", unit="count", group="{per}", get=lambda row: row.calls),
        _per_call_field("avg", "mean_ns", 0),
        _per_call_field("med", "median_ns", 1),
        _per_call_field("min", "min_ns", 3),
        _per_call_field("max", "max_ns", 3),
        _per_call_field("std", "std_ns", 2),
        Field("{work}", elastic=True, get=lambda row: row.label),
        Field("class", importance=4, get=lambda row: row.kernel_class),
        Field(
            "grid",
            importance=5,
            get=lambda row: row.launch_shape("grid"),
            when=lambda profiles: profiles.launches_recorded,
        ),
        Field(
            "block",
            importance=5,
            get=lambda row: row.launch_shape("block"),
            when=lambda profiles: profiles.launches_recorded,
        ),
    ),
    rows=_kernel_rows,
    leading=PROFILE,
    words=WORK,
)
"""Kernels of the selected range or of the whole step, with their times and calls."""

# --- comparison of several files


class _FileColumn(NamedTuple):
    number: int
    heading: str

    def __str__(self) -> str:
        return str(self.number)


class _ComparisonRow(NamedTuple):
    label: str
    cells: Sequence[Cell]


def _file_columns(profiles: Profiles) -> list[_FileColumn]:
    return [
        _FileColumn(number, f"{profile.label} (slowest)" if number == profiles.slowest_index else profile.label)
        for number, profile in enumerate(profiles.all)
    ]


def _comparison_rows(profiles: Profiles) -> Iterator[_ComparisonRow]:
    for label, name in (("step", "window_ns"), ("busy", "busy_ns")):
        yield _ComparisonRow(label, [profile.per_step(getattr(profile.summary, name)) for profile in profiles.all])
    times = [profile.summary.by_class() for profile in profiles.all]
    for kind in get_args(KernelClass):
        if any(kind in each for each in times):
            values = [
                profile.per_step(each.get(kind, 0)).value for profile, each in zip(profiles.all, times, strict=True)
            ]
            largest = max(values)
            is_notable = largest > (1 + SLOWEST_MARGIN_SHARE) * min(values)
            yield _ComparisonRow(
                kind,
                [Measure(value, tone="strong" if is_notable and value == largest else "plain") for value in values],
            )


FILE_COMPARISON = DeclaredTable(
    "ranks",
    "file comparison",
    (
        Each(
            "file",
            (Field("file_{file}", "{file}", "s", get=lambda row, file: row.cells[file.number]),),
            values=_file_columns,
            possible_values=(),
            format_value=lambda file: file.heading,
        ),
    ),
    rows=_comparison_rows,
    leading=leading_fields(Field("what", "time", get=lambda row: row.label)),
    when=lambda profiles: len(profiles.all) > 1,
)
"""One column per file: step time, busy time, and time by kernel class; the slowest is marked."""

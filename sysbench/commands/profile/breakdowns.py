"""Tables that sum kernel times by module and phase, by class, and by name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, get_args

from sysbench import units
from sysbench.commands.profile.findings import RANGES, Phases
from sysbench.commands.profile.profiles import NS, Profile, Profiles, find_range
from sysbench.render.declared import DeclaredTable, Each, Field, Fill, Leading, leading_fields
from sysbench.render.table import EMPTY_CELL, Cell, Measure, multiplicity
from sysbench.trace.kernels.names import distinct_short_names
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
        return sum(time.total_ns for time in self.times)

    @property
    def share(self) -> float:
        return self.total_ns / self.whole_ns if self.whole_ns else 0.0

    @property
    def total(self) -> Measure:
        return self.profile.per_step(self.total_ns)

    @cached_property
    def calls(self) -> int:
        return sum(time.calls for time in self.times)

    @property
    def calls_per_step(self) -> Measure:
        return self.profile.calls_per_step(self.calls)

    def time_in_phase(self, phase: str) -> Measure:
        return self.profile.per_step(sum(time.total_ns for time in self.times if time.phase == phase))


# --- modules and phases

MAX_DEPTH: Final = 6
"""Maximum depth of the module tree; deeper modules count towards their ancestors."""


def _tree_title(profiles: Profiles) -> str:
    pattern, range_name = profiles.selection.kernel, profiles.selection.range
    kernels = f" of {profiles.work_noun}s with {pattern.pattern}" if pattern else ""
    return f"where the time{kernels}{f' in {range_name}' if range_name else ''} goes"


def _tree_phases(profiles: Profiles) -> list[str]:
    present = {time.phase for profile in profiles.all for time in profiles.selected_times(profile)}
    return [phase for phase in PHASES if phase in present]


def _tree_rows(profiles: Profiles) -> Iterator[BreakdownRow]:
    for profile in profiles.all:
        times = profiles.selected_times(profile)
        if not times:
            continue
        whole_ns = sum(time.total_ns for time in times)
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
        outside = [time for time in times if time.module == EVERYWHERE]
        if inclusive and outside:
            yield BreakdownRow(profile, "  outside modules", outside, whole_ns)


def _inclusive_times(times: Sequence[KernelTime]) -> tuple[dict[str, list[KernelTime]], dict[str, set[str]]]:
    """For each folded path, return the times including submodules, and the set of modules that the path stands for."""
    inclusive: dict[str, list[KernelTime]] = defaultdict(list)
    members: dict[str, set[str]] = defaultdict(set)
    for time in times:
        for path in ancestry(time.module)[:MAX_DEPTH]:
            inclusive[folded(path)].append(time)
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
        Field("calls", "{work}s", "count", "{per}", importance=1, get=lambda row: row.calls_per_step),
    ),
    rows=_tree_rows,
    leading=PROFILE,
    words=WORK,
)
"""Tree of modules, with their time in every phase."""


# --- classes

LARGE_OTHER_SHARE: Final = 0.1
"""If class `other` takes a larger share of time, its largest kernels are named."""
MAX_OTHERS: Final = 3

_PHASE_GROUPS: Final[Mapping[str, tuple[str, Phases]]] = {
    "forward": ("forward", RANGES["forward"][0]),
    "forward_backward": ("forward + backward", RANGES["forward and backward"][0]),
    "step": ("full step", None),
    "all": ("everything", None),
}
"""Heading and phases of each group by key; None stands for all phases."""


def _group_keys(profiles: Profiles) -> list[str]:
    """Return the keys of the groups to show. A group that would add no phase to the previous one is omitted."""
    present = {time.phase for profile in profiles.all for time in profile.times}
    keys = [key for key, phase in (("forward", "forward"), ("forward_backward", "backward")) if phase in present]
    if not keys or present - {"forward", "loss", "backward"}:
        keys.append("step" if profiles.per == "per step" else "all")
    return keys


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


def _class_notes(profiles: Profiles) -> Iterator[str]:
    for profile in profiles.all:
        others = Counter[str]()
        softmax_classes = set()
        for time in profile.times:
            if time.kernel_class == "other":
                others[time.name.short] += time.total_ns
            elif part_of(time.module) == "softmax":
                softmax_classes.add(time.kernel_class)
        if others.total() > LARGE_OTHER_SHARE * profile.total_ns:
            names = [
                f"{name} {units.share(total_ns / profile.total_ns)}"
                for name, total_ns in others.most_common(MAX_OTHERS)
            ]
            yield f"in other, as shares of all {profiles.work_noun} time: {', '.join(names)}"
        if softmax_classes and "softmax" not in softmax_classes:
            yield (
                "softmax within attention has no kernel of its own and counts as other classes; the attention table "
                "shows its time"
            )


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

_STATISTICS: Final = {"med": "median_ns", "min": "min_ns", "max": "max_ns", "std": "std_ns"}
"""Statistics of single calls, by column: only the whole step and its phases have them."""


@dataclass(frozen=True)
class _KernelRow(BreakdownRow):
    """A kernel within a range; `statistics` are None within a module, and in the row of all kernels not listed."""

    statistics: KernelStatistics | None = None
    is_rest: bool = False

    def sort_key(self, column: str) -> float:
        if column in _STATISTICS:
            return -self.statistic_ns(column) if self.statistics else 0.0
        return -{"total": self.total_ns, "calls": self.calls, "avg": self.total_ns / self.calls}[column]

    def statistic_ns(self, column: str) -> float:
        return float(getattr(self.statistics, _STATISTICS[column]))

    def per_call(self, column: str) -> Cell:
        if column == "avg":
            return Measure(self.total_ns * NS / self.calls)
        return Measure(self.statistic_ns(column) * NS) if self.statistics else EMPTY_CELL

    @property
    def kernel_class(self) -> Cell:
        time_ns = Counter[str]()
        for time in self.times:
            time_ns[time.kernel_class] += time.total_ns
        return EMPTY_CELL if self.is_rest else ", ".join(kind for kind, _ in time_ns.most_common())

    def launch_shape(self, name: str) -> Cell:
        shape = getattr(self.statistics, name, None)
        return "×".join(map(str, shape)) if shape else EMPTY_CELL


def _kernel_rows(profiles: Profiles) -> Iterator[_KernelRow]:
    for profile in profiles.all:
        selected_range, names = find_range(profile, profiles.selection.range), profile.summary.names
        statistics = {row.kernel: row for row in profile.summary.kernels if row.range == selected_range.name}
        whole_ns = sum(time.total_ns for time in profile.times if selected_range.contains(time))
        by_kernel: dict[int, list[KernelTime]] = defaultdict(list)
        for each in profiles.selected_times(profile):
            by_kernel[each.kernel].append(each)
        labels = distinct_short_names([names[kernel] for kernel in sorted(by_kernel)])
        rows = [
            _KernelRow(profile, label, by_kernel[kernel], whole_ns, statistics=statistics.get(kernel))
            for kernel, label in zip(sorted(by_kernel), labels, strict=True)
        ]
        if (column := profiles.selection.sort) == "name":
            rows.sort(key=lambda row: row.label.casefold())
        else:
            rows.sort(key=lambda row: row.sort_key(column))
        limit = profiles.row_limit(len(rows))
        yield from rows[:limit]
        if rest := rows[limit:]:
            label = f"{len(rest)} other{'' if len(rest) == 1 else 's'}"
            yield _KernelRow(profile, label, [time for row in rest for time in row.times], whole_ns, is_rest=True)


def _per_call_field(column: str, importance: int) -> Field:
    return Field(column, unit="s", group="of one call", importance=importance, get=lambda row: row.per_call(column))


def _launch_shape_field(name: str) -> Field:
    return Field(name, importance=5, get=lambda row: row.launch_shape(name), optional=True)


KERNELS = DeclaredTable(
    "kernels",
    lambda profiles: (
        f"{profiles.work_noun}s launched in {profiles.selection.range}"
        if profiles.selection.range
        else f"{profiles.work_noun}s {'of a step' if profiles.per == 'per step' else profiles.per}"
    ),
    (
        Field("time", unit="share", get=lambda row: row.share),
        Field("total", unit="s", group="{per}", get=lambda row: row.total),
        Field("calls", unit="count", group="{per}", get=lambda row: row.calls_per_step),
        _per_call_field("avg", 0),
        _per_call_field("med", 1),
        _per_call_field("min", 3),
        _per_call_field("max", 3),
        _per_call_field("std", 2),
        Field("{work}", elastic=True, get=lambda row: row.label),
        Field("class", importance=4, get=lambda row: row.kernel_class),
        _launch_shape_field("grid"),
        _launch_shape_field("block"),
    ),
    rows=_kernel_rows,
    leading=PROFILE,
    words=WORK,
)
"""Kernels of the selected range or of the whole step, with their times and calls."""

"""Where the time goes: by module, by phase, by class of kernel.

Kernels, or on the CPU operators, one row each: how often, how long, launched by which range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, get_args

from sysbench import units
from sysbench.commands.profile.shown import FORWARD_BACKWARD, NS, Profiles, Shown, Spent, Within, top, within
from sysbench.errors import UsageError
from sysbench.render.table import NOTHING, Cell, Column, Measure, Table, Word
from sysbench.spec.run import Sort
from sysbench.trace.kernel_statistics import folded
from sysbench.trace.range_tree import PHASES, part_of
from sysbench.trace.summary import EVERYWHERE, NO_PHASE, KernelClass, KernelStatistics

DEPTH: Final = 6
"""Modules further down are counted in those above them."""

OUTSIDE: Final = "outside modules"

LARGE_UNPLACED_SHARE: Final = 0.01
"""Of the time, from which on a kernel that no pattern knows is named."""

MOST_UNPLACED: Final = 5

LARGE_OTHER_SHARE: Final = 0.1
"""Of the time, from which on it is said what the class other is made of."""

MOST_OTHERS: Final = 3

MOST_WRITTEN_OUT: Final = 2
"""Classes that softmax is said to be made of, where it has no kernel of its own."""


def tree(profiles: Profiles) -> list[Table]:
    """Modules below those that they are part of, and what each takes in every phase."""
    there = {each.phase for shown in profiles.each for each in profiles.chosen(shown)}
    phases = [phase for phase in PHASES if phase in there]
    columns = (
        Column("module", "module", elastic=True),
        Column("count", "count", importance=2),
        Column("share", "time", "share"),
        Column("total", "all", "s", "per step"),
        *(Column(phase, phase, "s", "per step", importance=_importance(phase)) for phase in phases),
        Column("calls", f"{profiles.work}s", "count", "per step", importance=1),
    )
    return profiles.table(
        "tree",
        f"where the time{_of(profiles)} goes",
        columns,
        lambda shown: _tree_rows(shown, profiles.chosen(shown), phases),
        axes=0,
    )


def _of(profiles: Profiles) -> str:
    """What part of the time is meant, where it is not all of it."""
    asked = profiles.selection
    named = f" of {profiles.work}s with {asked.kernel.pattern}" if asked.kernel else ""
    return f"{named}{f' in {asked.range}' if asked.range else ''}"


def _importance(phase: str) -> int:
    return 0 if phase in ("forward", "backward") else 2 if phase == "optimizer" else 4


def _tree_rows(shown: Shown, spent: Sequence[Spent], phases: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    if not spent:
        return
    whole_ns = sum(each.total_ns for each in spent)
    inclusive, members = _inclusive(spent)
    outside = [each for each in spent if each.module == EVERYWHERE]
    yield _tree_row(shown, "everything", "", spent, phases, whole_ns)
    for path, above in _in_order(shown, inclusive):
        name = f"{'  ' * len(above)}  {path[len(above[-1]) + 1 :] if above else path}"
        count = len(members[path])
        yield _tree_row(shown, name, f"{count} ×" if count > 1 else "", inclusive[path], phases, whole_ns)
    if inclusive and outside:
        yield _tree_row(shown, f"  {OUTSIDE}", "", outside, phases, whole_ns)


def _inclusive(spent: Sequence[Spent]) -> tuple[dict[str, list[Spent]], dict[str, set[str]]]:
    """For every folded path all that was spent there and below, and the modules that it stands for."""
    inclusive: dict[str, list[Spent]] = defaultdict(list)
    members: dict[str, set[str]] = defaultdict(set)
    for each in spent:
        for path in _ancestry(each.module)[:DEPTH]:
            inclusive[folded(path)].append(each)
            members[folded(path)].add(path)
    # A list of layers says nothing that its layers together do not say.
    for path in list(inclusive):
        if len(inclusive[path]) == len(inclusive.get(f"{path}.*", ())):
            del inclusive[path]
    return inclusive, members


def _ancestry(path: str) -> list[str]:
    """`layers`, `layers.3`, `layers.3.attention`."""
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _in_order(shown: Shown, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Every path with those of the others that are above it, as a tree is read: siblings in the order of the model."""
    known = set(paths)
    first: dict[str, int] = {}
    for number, module in enumerate(shown.summary.modules):
        for path in _ancestry(folded(module)):
            first.setdefault(path, number)
    for path in sorted(known, key=lambda path: [first[above] for above in _ancestry(path)]):
        yield path, [above for above in _ancestry(path)[:-1] if above in known]


def _tree_row(
    shown: Shown, name: str, count: str, spent: Sequence[Spent], phases: Sequence[str], whole_ns: int
) -> tuple[Cell, ...]:
    total_ns = sum(each.total_ns for each in spent)
    by_phase = dict.fromkeys(phases, 0)
    for each in spent:
        if each.phase in by_phase:
            by_phase[each.phase] += each.total_ns
    return (
        name,
        count,
        Measure(total_ns / whole_ns if whole_ns else 0.0),
        shown.per_step(total_ns),
        *(shown.per_step(ns) for ns in by_phase.values()),
        shown.calls_per_step(sum(each.calls for each in spent)),
    )


def phases(profiles: Profiles) -> list[Table]:
    """What was launched in each phase."""
    columns = (
        Column("phase", "phase"),
        Column("share", "time", "share"),
        Column("total", "total", "s", "per step"),
        Column("calls", f"{profiles.work}s", "count", "per step"),
    )
    return profiles.table("phases", "time by phase", columns, _phase_rows)


def _phase_rows(shown: Shown) -> Iterator[tuple[Cell, ...]]:
    whole_ns = shown.total_ns
    for phase in (*shown.phases, NO_PHASE):
        spent = [each for each in shown.spent if each.phase == phase]
        if spent:
            total_ns = sum(each.total_ns for each in spent)
            calls = sum(each.calls for each in spent)
            share = Measure(total_ns / whole_ns if whole_ns else 0.0)
            yield phase or "not known", share, shown.per_step(total_ns), shown.calls_per_step(calls)
    calls = sum(each.calls for each in shown.spent)
    yield "all", Measure(1.0), shown.per_step(whole_ns), shown.calls_per_step(calls)


def classes(profiles: Profiles) -> list[Table]:
    """Shares of the classes of kernels in a forward pass, with backward, and in the whole step, beside each other."""
    groups = [
        (name, key, chosen) for name, key, chosen in _GROUPS if any(_adds(shown, chosen) for shown in profiles.each)
    ]
    if not groups:
        groups = [("everything", "all", None)]
    columns = [Column("class", "class")]
    for name, key, _ in groups:
        columns += [
            Column(key, "share", "share", name),
            Column(f"{key}_time", "time", "s", name, importance=1),
        ]
    chosen = [each for _, _, each in groups]
    return profiles.table(
        "classes",
        f"time by class of {profiles.work}, per step",
        columns,
        lambda shown: _class_rows(shown, chosen),
        notes=tuple(
            note for shown in profiles.each for note in (*unplaced(shown), *others(shown), *written_out(shown))
        ),
    )


_GROUPS: Final[tuple[tuple[str, str, tuple[str, ...] | None], ...]] = (
    ("forward", "forward", ("forward",)),
    ("forward + backward", "forward_backward", FORWARD_BACKWARD),
    ("full step", "step", None),
)
"""Heading, key, and the phases that are meant; None is all of them."""


def _adds(shown: Shown, phases: Sequence[str] | None) -> bool:
    """Whether a group has something to say that the ones before it have not."""
    if phases is None:
        return any(each.phase not in FORWARD_BACKWARD for each in shown.spent)
    return phases[-1] in shown.phases


def _class_rows(shown: Shown, groups: Sequence[Sequence[str] | None]) -> Iterator[tuple[Cell, ...]]:
    times = [_by_class(shown, phases) for phases in groups]
    wholes = [sum(each.values()) for each in times]
    present = [name for name in get_args(KernelClass) if any(name in each for each in times)]
    for name in sorted(present, key=lambda name: -max(each.get(name, 0) for each in times)):
        cells: list[Cell] = []
        for each, whole in zip(times, wholes, strict=True):
            total_ns = each.get(name, 0)
            cells += [Measure(total_ns / whole if whole else 0.0), shown.per_step(total_ns)]
        yield (name, *cells)
    cells = []
    for whole in wholes:
        cells += [Measure(1.0), shown.per_step(whole)]
    yield ("all", *cells)


def _by_class(shown: Shown, phases: Sequence[str] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in shown.spent:
        if phases is None or each.phase in phases:
            kind = shown.class_of(each)
            found[kind] = found.get(kind, 0) + each.total_ns
    return found


def written_out(shown: Shown) -> Iterator[str]:
    """Where attention's softmax is made of kernels of other classes, so that the class softmax lacks it."""
    found: dict[str, int] = defaultdict(int)
    for each in shown.spent:
        if part_of(each.module) == "softmax" and shown.class_of(each) != "other":
            found[shown.class_of(each)] += each.total_ns
    most = sorted(found, key=lambda kind: -found[kind])[:MOST_WRITTEN_OUT]
    if most and "softmax" not in most:
        yield (
            f"softmax within attention is written out, and counts as {' and '.join(most)}: the table attention has its "
            "time"
        )


def others(shown: Shown) -> Iterator[str]:
    """What is in the class other and known to belong there, where it takes long enough to matter."""
    total = _by_kernel(shown, lambda each: shown.class_of(each) == "other" and shown.name(each).placed)
    if sum(total.values()) > LARGE_OTHER_SHARE * shown.total_ns:
        yield f"in other: {_named_with_shares(shown, total, list(total)[:MOST_OTHERS])}"


def unplaced(shown: Shown) -> Iterator[str]:
    """Kernels that no pattern knows, where they take long enough to matter."""
    total = _by_kernel(shown, lambda each: not shown.name(each).placed)
    large = [kernel for kernel, ns in total.items() if ns > LARGE_UNPLACED_SHARE * shown.total_ns]
    if large or sum(total.values()) > LARGE_UNPLACED_SHARE * shown.total_ns:
        yield f"in no class, and counted as other: {_named_with_shares(shown, total, large[:MOST_UNPLACED])}"


def _by_kernel(shown: Shown, wanted: Callable[[Spent], bool]) -> dict[int, int]:
    """Nanoseconds of each kernel that is wanted, the longest first."""
    total: dict[int, int] = defaultdict(int)
    for each in shown.spent:
        if wanted(each):
            total[each.kernel] += each.total_ns
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _named_with_shares(shown: Shown, total: Mapping[int, int], chosen: Sequence[int]) -> str:
    """Some kernels with their shares of all time, and how many more there are."""
    names = shown.summary.names
    named = [f"{names[kernel].short} {units.share(total[kernel] / shown.total_ns)}" for kernel in chosen]
    more = len(total) - len(named)
    return ", ".join([*named, *([f"{more} more"] if more else [])])


STATISTICS = "of one call"

_SORTS: Mapping[Sort, Callable[[Shown, KernelStatistics], float | str]] = {
    "total": lambda _, row: -row.total_ns,
    "calls": lambda _, row: -row.calls,
    "avg": lambda _, row: -row.mean_ns,
    "med": lambda _, row: -row.median_ns,
    "min": lambda _, row: -row.min_ns,
    "max": lambda _, row: -row.max_ns,
    "std": lambda _, row: -row.std_ns,
    "name": lambda shown, row: shown.summary.names[row.kernel].short.casefold(),
}
"""Names from A to Z, everything else from the largest down."""


def kernels(profiles: Profiles) -> list[Table]:
    """The kernels of the range that was chosen, or of the whole step."""
    asked = profiles.selection.range
    title = f"{profiles.work}s launched in {asked}" if asked else f"{profiles.work}s of a step"
    return profiles.table("kernels", title, _columns(profiles), lambda shown: _rows(profiles, shown), axes=0)


def _columns(profiles: Profiles) -> tuple[Column, ...]:
    statistics = (("avg", 0), ("med", 1), ("min", 3), ("max", 3), ("std", 2))
    return (
        Column("time", "time", "share"),
        Column("total", "total", "s", "per step"),
        Column("calls", "calls", "count", "per step"),
        *(Column(key, key, "s", STATISTICS, importance=importance) for key, importance in statistics),
        Column(profiles.work, profiles.work, elastic=True),
        Column("class", "class", importance=4),
        *(
            (Column("grid", "grid", importance=5), Column("block", "block", importance=5))
            if profiles.launches_recorded
            else ()
        ),
    )


def _rows(profiles: Profiles, shown: Shown) -> Iterator[tuple[Cell, ...]]:
    here = within(shown, profiles.selection.range)
    found = [row for row in shown.summary.kernels if row.range == here.name]
    everything = [spent for spent in shown.spent if here.holds(spent)]
    if not found and everything:
        raise UsageError(
            f"--range {here.name} has no statistics in this record, which keeps those of folded modules: "
            "layers.*.attention instead of layers.3.attention; or give the trace to --from"
        )
    chosen = [row for row in found if profiles.wanted(shown.summary.names[row.kernel].name)]
    key = _SORTS[profiles.selection.sort]
    chosen.sort(key=lambda row: key(shown, row))
    whole_ns = sum(spent.total_ns for spent in everything)
    listed = chosen[: top(profiles.selection.top, len(chosen))]
    recorded = profiles.launches_recorded
    for row in listed:
        yield _row(shown, row, whole_ns, recorded)
    yield from _rest(profiles, shown, here, listed, whole_ns, 2 * recorded)


def _row(shown: Shown, row: KernelStatistics, whole_ns: int, recorded: bool) -> tuple[Cell, ...]:
    name = shown.summary.names[row.kernel]
    statistics = (row.mean_ns, row.median_ns, row.min_ns, row.max_ns, row.std_ns)
    return (
        Measure(row.total_ns / whole_ns if whole_ns else 0.0),
        shown.per_step(row.total_ns),
        shown.calls_per_step(row.calls),
        *(Measure(each * NS) for each in statistics),
        name.short,
        name.kernel_class if name.placed else Word("unplaced", "bad"),
        *((_shape(row.grid, row), _shape(row.block, row)) if recorded else ()),
    )


def _shape(shape: Sequence[int] | None, row: KernelStatistics) -> Cell:
    """`128×4×1`; how many there are, where calls differ."""
    if shape is not None:
        return "×".join(map(str, shape))
    return f"{row.launch_shapes} kinds" if row.launch_shapes > 1 else None


def _rest(
    profiles: Profiles, shown: Shown, here: Within, listed: Sequence[KernelStatistics], whole_ns: int, shapes: int
) -> Iterator[tuple[Cell, ...]]:
    """What is not listed, of what was asked for, in one row."""
    known = {row.kernel for row in listed}
    rest = [
        spent
        for spent in shown.spent
        if spent.kernel not in known and here.holds(spent) and profiles.wanted(shown.name(spent).name)
    ]
    total_ns, calls = sum(spent.total_ns for spent in rest), sum(spent.calls for spent in rest)
    if rest:
        count = len({spent.kernel for spent in rest})
        yield (
            Measure(total_ns / whole_ns if whole_ns else 0.0),
            shown.per_step(total_ns),
            shown.calls_per_step(calls),
            Measure(total_ns * NS / calls),
            *[NOTHING] * 4,
            f"{count} others" if count > 1 else "1 other",
            *[NOTHING] * (1 + shapes),
        )

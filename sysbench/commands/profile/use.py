"""Operators, copies, how busy the device was, which number formats were multiplied, ranks beside each other.

Time against FLOPs and bytes, and what follows from it in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args

from sysbench import units
from sysbench.commands.profile.shown import NS, Profiles, Shown, Within, top, within
from sysbench.render.table import Cell, Column, Measure, Remark, Table, Word
from sysbench.trace.range_tree import part_of
from sysbench.trace.summary import KernelClass, OperatorStatistics, ProfileSummary, Rate

WAITING_SHARE: Final = 0.2
"""Of the time in which the device waits for the host: from here on the host sets the pace."""

SLOWER_SHARE: Final = 0.02
"""By how much the slowest rank must stand out to be marked."""


def operators(profiles: Profiles) -> list[Table]:
    """Operators of PyTorch: time on the host, and on the device for what they launched."""
    return _operators(profiles, "operators", shapes=False)


def operator_shapes(profiles: Profiles) -> list[Table]:
    """The same, apart by the shapes of their inputs."""
    return _operators(profiles, "operator-shapes", shapes=True)


def _operators(profiles: Profiles, name: str, shapes: bool) -> list[Table]:
    device = any(shown.summary.source == "device" for shown in profiles.each)
    columns = (
        *(
            (
                Column("self_device", "itself", "s", "device, per step"),
                Column("total_device", "with callees", "s", "device, per step", importance=1),
            )
            if device
            else ()
        ),
        Column("self_host", "itself", "s", "host, per step"),
        Column("total_host", "with callees", "s", "host, per step", importance=1),
        Column("calls", "calls", "count", "per step"),
        Column("operator", "operator", elastic=True),
        *((Column("shapes", "shapes", elastic=True),) if shapes else ()),
    )

    def rows(shown: Shown) -> Iterator[tuple[Cell, ...]]:
        chosen = [
            row for row in shown.summary.operators if (row.shapes is not None) == shapes and profiles.wanted(row.name)
        ]
        for row in chosen[: top(profiles.selection.top, len(chosen))]:
            yield _operator(shown, row, device, shapes)

    return profiles.table(name, "operators, per step", columns, rows, axes=0)


def _operator(shown: Shown, row: OperatorStatistics, device: bool, shapes: bool) -> tuple[Cell, ...]:
    return (
        *((shown.per_step(row.self_device_ns), shown.per_step(row.total_device_ns)) if device else ()),
        shown.per_step(row.self_host_ns),
        shown.per_step(row.total_host_ns),
        shown.calls_per_step(row.calls),
        row.name,
        *((row.shapes,) if shapes else ()),
    )


def copies(profiles: Profiles) -> list[Table]:
    """Memory that the driver copied and set."""
    columns = (
        Column("copy", "copy", elastic=True),
        Column("total", "time", "s", "per step"),
        Column("calls", "calls", "count", "per step"),
        Column("bytes", "moved", "bytes", "per step"),
        Column("rate", "in a second", "bytes"),
    )

    def rows(shown: Shown) -> Iterator[tuple[Cell, ...]]:
        for row in shown.summary.copies:
            moved = Measure(row.bytes / shown.summary.steps) if row.bytes is not None else None
            rate = Measure(row.bytes / (row.total_ns * NS)) if row.bytes is not None and row.total_ns else None
            yield row.name, shown.per_step(row.total_ns), shown.calls_per_step(row.calls), moved, rate

    return profiles.table("copies", "memory copied and set", columns, rows)


def device(profiles: Profiles) -> list[Table]:
    """How busy the device was, what it waited for, and what launching cost."""
    columns = (
        Column("step", "step", "s", note="step: from its beginning until host and device are done, under the profiler"),
        Column("busy", "busy", "share", "device"),
        Column("idle", "idle", "share", "device"),
        Column(
            "waiting", "of it for the host", "share", "device",
            note="for the host: idle time that passed before the next kernel had even been launched",
        ),
        Column("overlap", "overlap", "ratio", "device", importance=2, note="overlap: kernel time over busy time"),
        Column("streams", "streams", importance=3),
        Column("launches", "per step", "count", "launches"),
        Column("launch", "each", "s", "launches", importance=1),
        Column("queue", "queued", "s", "launches", importance=1, note="queued: median time from launch to start"),
        Column("verdict", "pace set by"),
    )  # fmt: skip
    return profiles.table("device", "how busy the device was", columns, _device_rows, axes=0)


def _device_rows(shown: Shown) -> Iterator[tuple[Cell, ...]]:
    use = shown.summary.device
    if use is None or not use.window_ns:
        return
    yield (
        shown.per_step(shown.summary.window_ns),
        Measure(use.busy_ns / use.window_ns),
        Measure(1 - use.busy_ns / use.window_ns),
        Measure(use.waiting_ns / use.window_ns),
        Measure(use.work_ns / use.busy_ns) if use.busy_ns else None,
        use.streams,
        shown.calls_per_step(use.launches),
        Measure(use.launch_ns * NS / use.launches) if use.launches else None,
        Measure(use.queue_median_ns * NS) if use.queue_median_ns is not None else None,
        Word("host (launch-bound)", "bad") if launch_bound(shown.summary) else Word("device", "good"),
    )


def launch_bound(summary: ProfileSummary) -> bool:
    """Whether the device waits for the host for much of the step."""
    use = summary.device
    return use is not None and use.waiting_ns > WAITING_SHARE * use.window_ns


def precision(profiles: Profiles) -> list[Table]:
    """Matrix products by the number format that their kernels are named after."""
    columns = (
        Column("format", "format"),
        Column("share", "share", "share"),
        Column("total", "time", "s", "per step"),
    )

    def rows(shown: Shown) -> Iterator[tuple[Cell, ...]]:
        whole_ns = sum(shown.summary.precisions.values())
        for name, total_ns in sorted(shown.summary.precisions.items(), key=lambda item: -item[1]):
            yield name, Measure(total_ns / whole_ns if whole_ns else 0.0), shown.per_step(total_ns)

    if all(set(shown.summary.precisions) <= {"unknown"} for shown in profiles.each):
        return []
    notes = ("as the names of matmul and attention kernels have it; unknown: the name does not say",)
    return profiles.table("precision", "number formats of matrix products", columns, rows, notes=notes)


def checks(profiles: Profiles) -> list[Table]:
    """What is known of the model beforehand, beside what was seen."""
    columns = (
        Column("check", "check"),
        Column("expected", "expected", "count", "per step"),
        Column("found", "found", "count", "per step"),
        Column("verdict", "verdict"),
    )

    def rows(shown: Shown) -> Iterator[tuple[Cell, ...]]:
        for check in shown.summary.checks:
            right = check.found == check.expected
            verdict = Word("right", "good") if right else Word("wrong", "bad")
            yield check.name, shown.calls_per_step(check.expected), shown.calls_per_step(check.found), verdict

    return profiles.table("checks", "what must be", columns, rows)


# --- several files beside each other


def ranks(profiles: Profiles) -> list[Table]:
    """One column for every file: the step, the time of its kernels by class, idle time; the slowest is marked."""
    if len(profiles.each) < 2:
        return []
    names = [label(shown) for shown in profiles.each]
    slowest = slowest_of(profiles.each)
    columns = (
        Column("what", "per step"),
        *(
            Column(f"file_{number}", f"{name} (slowest)" if number == slowest else name, "s")
            for number, name in enumerate(names)
        ),
    )
    rows: list[tuple[Cell, ...]] = [("step", *(shown.per_step(shown.summary.window_ns) for shown in profiles.each))]
    rows.append(("busy", *(shown.per_step(shown.summary.busy_ns) for shown in profiles.each)))
    times = [_class_times(shown) for shown in profiles.each]
    for kind in get_args(KernelClass):
        if any(kind in each for each in times):
            cells = [shown.per_step(each.get(kind, 0)) for shown, each in zip(profiles.each, times, strict=True)]
            rows.append((kind, *_marked(cells)))
    return [Table("ranks", "files beside each other", columns, tuple(rows), 1)]


def label(shown: Shown) -> str:
    """`rank 3`, or the file's name where it does not say its rank."""
    return f"rank {shown.summary.rank}" if shown.summary.rank is not None else shown.summary.title


def slowest_of(profiles: Sequence[Shown]) -> int | None:
    """The position of the one whose steps take longest; None where they are as good as equal."""
    steps = [shown.summary.window_ns / shown.summary.steps for shown in profiles]
    longest = max(range(len(steps)), key=steps.__getitem__)
    others = [each for number, each in enumerate(steps) if number != longest]
    return longest if others and steps[longest] > (1 + SLOWER_SHARE) * max(others) else None


def _class_times(shown: Shown) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in shown.spent:
        kind = shown.class_of(each)
        found[kind] = found.get(kind, 0) + each.total_ns
    return found


def _marked(cells: Sequence[Measure]) -> list[Cell]:
    """The largest stands out, if it is any larger."""
    values = [cell.value for cell in cells]
    largest = max(values)
    stands_out = largest > (1 + SLOWER_SHARE) * min(values)
    return [Measure(value, tone="strong" if stands_out and value == largest else "plain") for value in values]


_LEAST: Final = "bytes: every operand and result moved once, which is the least there can be"


def attention(profiles: Profiles) -> list[Table]:
    """Scores, mask, softmax and output: time, work, rates."""
    return _table(profiles, "attention", "attention, part by part", "part")


def rates(profiles: Profiles) -> list[Table]:
    """Classes of kernels of which it is known what they compute."""
    return _table(profiles, "rates", "time against work, by class", "class")


def _table(profiles: Profiles, name: str, title: str, what: str) -> list[Table]:
    kind = "attention" if name == "attention" else "class"
    known = [rate for shown in profiles.each for rate in shown.summary.rates if rate.kind == kind]
    if kind == "class":
        known = [rate for rate in known if rate.flops is not None]
    has_work = any(rate.flops is not None for rate in known)
    has_bytes = any(rate.bytes is not None for rate in known)
    has_peak = any(bound(rate) is not None for rate in known)
    columns = (
        Column("part", what),
        Column("phase", "phase"),
        Column("time", "time", "s"),
        *((Column("work", "work", "flops"),) if has_work else ()),
        *((Column("bytes", "bytes", "bytes", importance=1, note=_LEAST),) if has_bytes else ()),
        *((Column("rate", "rate", "flops_per_s", importance=1),) if has_work else ()),
        *(
            (
                Column("peak", "of peak", "share", importance=2),
                Column("bandwidth", "of bandwidth", "share", importance=2),
                Column("bound", "bound by"),
            )
            if has_peak
            else ()
        ),
    )

    def rows(shown: Shown) -> Iterator[tuple[Cell, ...]]:
        for rate in shown.summary.rates:
            if rate.kind == kind and (kind == "attention" or rate.flops is not None):
                yield _row(shown, rate, has_work, has_bytes, has_peak)

    return profiles.table(name, f"{title}, per step", columns, rows, axes=2)


def _row(shown: Shown, rate: Rate, has_work: bool, has_bytes: bool, has_peak: bool) -> tuple[Cell, ...]:
    seconds = rate.total_ns * NS / shown.summary.steps
    achieved = _over(rate.flops, seconds)
    moved = _over(rate.bytes, seconds)
    peak, bandwidth = rate.peak_flops_per_s, rate.peak_bytes_per_s
    return (
        rate.part,
        rate.phase or "not known",
        Measure(seconds),
        *((_measure(rate.flops),) if has_work else ()),
        *((_measure(rate.bytes),) if has_bytes else ()),
        *((_measure(achieved),) if has_work else ()),
        *((_measure(_over(achieved, peak)), _measure(_over(moved, bandwidth)), bound(rate)) if has_peak else ()),
    )


def _measure(value: float | None) -> Cell:
    return Measure(value) if value is not None else None


def _over(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def bound(rate: Rate) -> Literal["compute", "memory"] | None:
    """Which of the two would take longer at the hardware's best; None where that is not known."""
    arithmetic, traffic = _over(rate.flops, rate.peak_flops_per_s), _over(rate.bytes, rate.peak_bytes_per_s)
    if arithmetic is None or traffic is None:
        return None
    return "compute" if arithmetic > traffic else "memory"


def findings(shown: Shown, asked: str | None) -> Iterator[Remark]:
    """Softmax against the two matrix products around it, in each phase; of those that all of a range is shown of."""
    here = within(shown, asked)
    parts = {(rate.part, rate.phase): rate for rate in shown.summary.rates if rate.kind == "attention"}
    for phase in ("forward", "backward"):
        softmax = parts.get(("softmax", phase))
        products = [parts[part, phase] for part in ("scores", "output") if (part, phase) in parts]
        if softmax is not None and len(products) == 2 and _has_all(here, shown, phase):
            yield Remark("finding", _sentence(shown, phase, softmax, products))


def _has_all(here: Within, shown: Shown, phase: str) -> bool:
    """Whether a range has the softmax of every layer in a phase."""
    return all(here.holds(each) for each in shown.spent if each.phase == phase and part_of(each.module) == "softmax")


def _sentence(shown: Shown, phase: str, softmax: Rate, products: list[Rate]) -> str:
    steps = shown.summary.steps
    product_ns = sum(rate.total_ns for rate in products)
    text = f"{phase}: softmax takes {units.seconds(softmax.total_ns * NS / steps)}"
    if product_ns:
        text += f", {units.ratio(softmax.total_ns / product_ns)} as long as the two matmuls of attention together"
    text += f" ({units.seconds(product_ns * NS / steps)})"
    flops = [rate.flops for rate in products if rate.flops is not None]
    if not softmax.flops or len(flops) < 2:
        return text
    fewer = sum(flops) / softmax.flops
    text += f", for {fewer:.0f}× fewer FLOPs ({units.flops(softmax.flops)}, not {units.flops(sum(flops))})"
    return text + _why(softmax, products, steps)


def _why(softmax: Rate, products: list[Rate], steps: int) -> str:
    """Because there is little to compute for what must be moved; and what that means for hardware that is known."""
    moved = sum(rate.bytes or 0 for rate in products)
    if not softmax.flops or not softmax.bytes or not moved:
        return ""
    intensity, denser = softmax.flops / softmax.bytes, sum(rate.flops or 0 for rate in products) / moved
    why = f": {intensity:.2g} FLOP for each byte that must be moved, where the matmuls have {denser:.2g}"
    if softmax.peak_flops_per_s is None or softmax.peak_bytes_per_s is None:
        return why
    ridge = softmax.peak_flops_per_s / softmax.peak_bytes_per_s
    reached = softmax.bytes / (softmax.total_ns * NS / steps) / softmax.peak_bytes_per_s if softmax.total_ns else 0.0
    return (
        f"{why}. Below {ridge:.2g} this GPU is bound by memory; softmax moves them at {units.share(reached)} of its "
        "bandwidth"
    )

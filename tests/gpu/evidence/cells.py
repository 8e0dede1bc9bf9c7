"""What the cells of sysbench's records say, as numbers and rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sysbench import units

Cell = dict[str, Any]

TIMED = ("size", "ctx", "batch", "precision", "attention", "execution")
"""The axes that tell cells of `time` apart here."""

TIME_COLUMNS = (
    *TIMED,
    "forward ms",
    "backward ms",
    "optimizer ms",
    "step ms",
    "TFLOP/s",
    "of peak",
    "peak GiB",
    "compile s",
)


def median_s(cell: Cell, phase: str = "step", clock: str = "wall") -> float | None:
    """The median of a phase by the host's clock (`wall`) or the device's (`device`); None where it was not measured."""
    samples = (cell.get("phases") or {}).get(phase, {}).get(clock)
    return None if samples is None else float(samples["median_s"])


def number(value: float | None, scale: float = 1.0, decimals: int = 2) -> str:
    """A number in another unit; nothing where it is not known."""
    return "" if value is None else f"{value * scale:.{decimals}f}"


def time_row(cell: Cell) -> list[str]:
    """One cell of `time`, under TIME_COLUMNS."""
    axes = [str(cell["axes"][axis]) for axis in TIMED]
    if cell["outcome"] != "ok":
        return [*axes, cell["outcome"], *[""] * (len(TIME_COLUMNS) - len(axes) - 1)]
    times = [number(median_s(cell, phase), 1e3) for phase in ("forward", "backward", "optimizer", "step")]
    rates = cell["rates"] or {}
    return [
        *axes,
        *times,
        number(rates.get("flops_per_s"), 1e-12, 1),
        "" if rates.get("peak_share") is None else f"{rates['peak_share']:.1%}",
        number(cell["memory"]["allocated_peak_bytes"], 2**-30),
        number(cell["compile_s"], 1, 1),
    ]


def time_summary(cell: Cell) -> dict[str, Any]:
    """One cell of `time`, as numbers."""
    names = (cell.get("phases") or {}).keys()
    return {
        **{axis: cell["axes"][axis] for axis in (*TIMED, "optimizer", "mode")},
        "outcome": cell["outcome"],
        "detail": cell["detail"],
        "wall_s": {name: median_s(cell, name) for name in names},
        "device_s": {name: median_s(cell, name, "device") for name in names},
        "rates": cell["rates"],
        "memory": cell["memory"],
        "compile_s": cell["compile_s"],
        "attention_kernel": cell["attention_kernel"],
        "cautions": [caution["code"] for caution in cell["cautions"]],
    }


def device_over_wall(cells: Iterable[Cell]) -> float | None:
    """The largest ratio of a device's time to the host's, sample by sample: no kernel takes longer than its window."""
    ratios = [device / wall for cell in cells for wall, device in _pairs(cell)]
    return max(ratios, default=None)


def _pairs(cell: Cell) -> Iterator[tuple[float, float]]:
    for phase in (cell.get("phases") or {}).values():
        if phase["wall"] is not None and phase["device"] is not None:
            yield from zip(phase["wall"]["samples_s"], phase["device"]["samples_s"], strict=True)


def ended_otherwise(cells: Iterable[Cell], *outcomes: str) -> float | None:
    """How many cells ended in none of these ways; None where there are no cells."""
    listed = list(cells)
    return float(sum(cell["outcome"] not in outcomes for cell in listed)) if listed else None


def endings(cells: Iterable[Cell]) -> str:
    """How many ended how, and why those that are neither measured nor out of memory did."""
    listed = list(cells)
    kinds = sorted({cell["outcome"] for cell in listed})
    counts = ", ".join(f"{sum(cell['outcome'] == kind for cell in listed)} {kind}" for kind in kinds)
    reasons = {f"{cell['outcome']}: {cell['detail']}" for cell in listed if cell["outcome"] not in ("ok", "oom")}
    return "; ".join([counts, *sorted(reasons)])[:1000]


def time_by_class(summary: dict[str, Any]) -> dict[str, int]:
    """Nanoseconds of a profile's kernels, by class."""
    spent = summary["spent"]
    found: dict[str, int] = {}
    for kernel, total_ns in zip(spent["kernel"], spent["total_ns"], strict=True):
        kind = summary["names"][kernel]["kernel_class"]
        found[kind] = found.get(kind, 0) + total_ns
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def unplaced_share(summary: dict[str, Any]) -> float:
    """Of the time of all kernels, that of kernels whose name no pattern knows."""
    spent = summary["spent"]
    placed = [name["placed"] for name in summary["names"]]
    whole = sum(spent["total_ns"])
    lost = sum(
        total_ns for kernel, total_ns in zip(spent["kernel"], spent["total_ns"], strict=True) if not placed[kernel]
    )
    return lost / whole if whole else float("nan")


def class_rows(label: Sequence[object], summary: dict[str, Any]) -> list[list[str]]:
    """Where the time of a step goes, by class of kernel, with the time in which none ran."""
    by_class, steps = time_by_class(summary), summary["steps"]
    window_ns = summary["window_ns"]
    parts = {**by_class, "no kernel at work": max(0, window_ns - summary["busy_ns"])}
    return [
        [*map(str, label), kind, units.seconds(total_ns / steps / 1e9), f"{total_ns / window_ns:.1%}"]
        for kind, total_ns in parts.items()
        if window_ns
    ]

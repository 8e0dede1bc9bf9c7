"""bf16 training with a batch that fills the card, compiled, with fused attention: MFU, and where the rest goes.

MFU = 3 · F / (t · P): F are the FLOPs of a forward pass as `sysbench.formulas` counts them, B · [L(8Td² + 4T²d +
6T·d·d_ff) + 2TdV], causality not exploited; backward counts twice that; t is the mean step with its optimizer, by the
host's clock; P is the data sheet's dense rate in bf16.
"""

from __future__ import annotations

from typing import Any

from tests.gpu.evidence import cells as read
from tests.gpu.evidence.cells import Cell
from tests.gpu.evidence.parts import fit
from tests.gpu.evidence.promises import at_least
from tests.gpu.evidence.work import TINY, Part, Work

PROMISED = 0.5
FORMULA = "3 · B·[L(8Td² + 4T²d + 6T·d·d_ff) + 2TdV] / (mean step · the data sheet's dense bf16 rate)"
GUESSED = {"2.7b": 16, "xl": 16}
"""Batches for where none was simulated; that of 2.7b is the largest that is simulated to fit an H200."""

FULL = 0.93
"""Of the card's memory: as much as a step may be expected to take. The rest is for the context and for pieces."""


def _step(work: Work, size: str, attention: str, batch: int) -> tuple[str, ...]:
    if work.rehearsal:
        return (*TINY, "--ctx=16", "--mode=forward-backward", "--bf16", work.device)
    return (
        *(f"--size={size}", f"--ctx={fit.CTX}", f"--batch={batch}", "--mode=train", "--bf16", "--compile"),
        *(f"--attention={attention}", "--optimizer=fused", "--force", work.device),
    )


def _measured(work: Work, size: str, attention: str, takes_s: float) -> tuple[int, list[Cell]]:
    """The step at the batch that was simulated to fit, at smaller ones while that is too much, and at a larger one.

    What is simulated runs eagerly; compiled it takes less, and how much less is known once it has run.
    """
    batch = fit.batch_for(work.directory, size) or GUESSED[size]
    for tried in dict.fromkeys([batch, batch * 7 // 8, batch * 3 // 4, batch // 2]):
        cells = _timed(work, size, attention, tried, takes_s)
        if not cells or cells[0]["outcome"] != "oom":
            break
    larger = _that_fills(cells[0], tried) if cells and not work.rehearsal else None
    if larger is None or not work.has(f"batch {larger}, which fills the card", takes_s):
        return tried, cells
    fuller = _timed(work, size, attention, larger, takes_s)
    both = [cell for cell in (*cells, *fuller) if cell["rates"] is not None]
    best = max(both, key=lambda cell: cell["rates"]["flops_per_s"], default=None)
    return (tried, cells) if best is None else (best["axes"]["batch"], [best])


def _timed(work: Work, size: str, attention: str, batch: int, takes_s: float) -> list[Cell]:
    words = _step(work, size, attention, max(1, batch))
    cells = work.cells("time", *words, "--warmup=3", "--steps=8", takes_s=takes_s)
    work.numbers.setdefault("cells", []).extend(map(read.time_summary, cells))
    work.table(f"{work.part.title}, batch {batch}", read.TIME_COLUMNS, [read.time_row(cell) for cell in cells])
    return cells


def _that_fills(cell: Cell, batch: int) -> int | None:
    """A batch that makes use of what a smaller one leaves of the card; None where that is little."""
    peak_bytes, device = cell["memory"]["allocated_peak_bytes"], cell["device"]
    if cell["outcome"] != "ok" or peak_bytes is None or not device or not device["memory_bytes"]:
        return None
    fixed_bytes = 16 * cell["model"]["parameters"]  # weights, gradients and two moments in fp32, whatever the batch
    room_bytes = FULL * device["memory_bytes"] - fixed_bytes
    larger = int(batch * room_bytes / max(1, peak_bytes - fixed_bytes))
    return larger if larger >= 1.15 * batch else None


def _part(
    name: str, size: str, attention: str, estimate_s: float, takes_s: tuple[float, float], by: str | None = None
) -> Part:
    mfu = f"MFU, {size}, ctx {fit.CTX}, bf16, compiled, {attention}"

    def run(work: Work) -> None:
        batch, cells = _measured(work, size, attention, takes_s[0])
        work.numbers |= {"batch": batch, "formula": FORMULA}
        rates = cells[0]["rates"] if cells else None
        if rates and rates["peak_share"] is not None:
            work.see(mfu, rates["peak_share"], f"batch {batch}; {FORMULA}; peak: {rates['peak_source']}")
        words = _step(work, size, attention, batch)
        with work.attempt("the profile"):
            profiles = work.cells("profile", *words, "--warmup=2", "--steps=0", takes_s=takes_s[1])
            for cell in profiles:
                if cell["summary"] is not None:
                    _rest(work, size, cell, rates)

    return Part(name, f"speed of {size}, {attention} attention", estimate_s, run, (at_least(mfu, PROMISED),),
                limit_s=2.2 * estimate_s,
                rehearsed_by=by)  # fmt: skip


def _rest(work: Work, size: str, cell: Cell, rates: dict[str, Any] | None) -> None:
    """Where the rest of the peak goes: products below their peak, and everything that is no product."""
    summary = cell["summary"]
    by_class, steps = read.time_by_class(summary), summary["steps"]
    work.numbers["kernels_ns_per_step"] = {kind: total_ns / steps for kind, total_ns in by_class.items()}
    work.numbers["step_ns"] = summary["window_ns"] / steps
    work.numbers["idle_ns"] = max(0, summary["window_ns"] - summary["busy_ns"]) / steps
    slowest = sorted(
        ((statistics["total_ns"], summary["names"][statistics["kernel"]]["short"], statistics["calls"])
         for statistics in summary["kernels"] if statistics["range"] == "step"),
        reverse=True,
    )  # fmt: skip
    work.numbers["slowest_kernels"] = [
        {"name": name, "ns_per_step": total_ns / steps, "calls": calls} for total_ns, name, calls in slowest[:25]
    ]
    rows = read.class_rows([size], summary)
    if rates and rates["peak_flops_per_s"] and summary["window_ns"]:
        least_s = rates["step_flops"] / rates["peak_flops_per_s"]
        rows.append([size, "all of the model's FLOPs at the peak", f"{least_s * 1e3:.1f} ms",
                     f"{least_s * 1e9 * steps / summary['window_ns']:.1%}"])  # fmt: skip
    work.table(f"Where a step of {size} goes", ("size", "class", "per step", "of the step"), rows)


LARGEST = _part("speed-2.7b", "2.7b", "flash", 170, (70, 40))
XL = _part("speed-xl", "xl", "flash", 210, (90, 50), "speed-2.7b")
CUDNN = _part("speed-2.7b-cudnn", "2.7b", "cudnn", 170, (70, 40), "speed-2.7b")

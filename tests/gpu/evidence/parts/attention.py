"""`sysbench attention`: every implementation on the same inputs."""

from __future__ import annotations

from tests.gpu.evidence import cells as read
from tests.gpu.evidence.cells import Cell
from tests.gpu.evidence.promises import at_least, at_most, none_of
from tests.gpu.evidence.work import Part, Work

EVERY = "--impl=naive,compiled,sdpa-math,sdpa-efficient,sdpa-flash,sdpa-cudnn,flex,flash-attn"
COLUMNS = (
    *("implementation", "kernel", "d", "N", "outcome", "forward ms", "backward ms", "of limit"),
    *("saved MiB", "peak GiB", "error"),
)
ALLOWED = ("ok", "oom", "invalid", "skipped")
"""A library that is not installed makes a cell `invalid`, with the reason."""


ERROR = "largest relative error against fp64"
OTHER = "cells that crashed or hung"
FELL = "cells that dynamo gave up"
COUNT = "implementations measured"


def _part(name: str, title: str, estimate_s: float, words: tuple[str, ...], by: str | None = None) -> Part:
    def run(work: Work) -> None:
        tiny = ("--impl=naive,sdpa-math,sdpa-flash", "--dim=16", "--seq=16,32", "--batch=1", "--repeats=2")
        given = (*tiny, "--warmup=1") if work.rehearsal else (EVERY, *words)
        cells = work.cells("attention", *given, work.device, takes_s=0.8 * estimate_s, may_be_invalid=True)
        work.numbers["cells"] = [_numbers(cell) for cell in cells]
        work.table(title, COLUMNS, [_row(cell) for cell in cells])
        work.see(OTHER, read.ended_otherwise(cells, *ALLOWED), read.endings(cells))
        errors = [each["relative"] for cell in cells for each in cell["errors"].values()]
        if errors:
            work.see(ERROR, max(errors), f"{len(errors)} outputs and gradients in bf16")
        if cells:
            work.see(FELL, sum(bool(cell["fell_back"]) for cell in cells))
            work.see(COUNT, len({cell["axes"]["implementation"] for cell in cells if cell["outcome"] == "ok"}))

    promises = (at_most(ERROR, 0.03), none_of(OTHER), none_of(FELL), at_least(COUNT, 7, "count"))
    return Part(name, title, estimate_s, run, promises, limit_s=2 * estimate_s, rehearsed_by=by)


def _numbers(cell: Cell) -> dict[str, object]:
    names = ("outcome", "detail", "kernel", "compile_s", "fell_back", "before_backward_bytes", "saved_bytes")
    more = ("peak_allocated_bytes", "peak_reserved_bytes", "naive_saved_bytes", "rates", "errors")
    axes = {axis: cell["axes"][axis] for axis in ("implementation", "dim", "seq", "batch", "precision", "causal")}
    medians = {phase: cell[phase] and cell[phase]["median_s"] for phase in ("forward", "backward")}
    return {**axes, **{name: cell[name] for name in (*names, *more)}, "median_s": medians}


def _row(cell: Cell) -> list[str]:
    axes = cell["axes"]
    medians = [cell[phase]["median_s"] if cell[phase] else None for phase in ("forward", "backward")]
    share = (cell["rates"].get("forward") or {}).get("limit_share")
    error = max((each["relative"] for each in cell["errors"].values()), default=None)
    return [
        *(axes["implementation"], cell["kernel"] or "", str(axes["dim"]), str(axes["seq"]), cell["outcome"]),
        *(read.number(seconds, 1e3, 3) for seconds in medians),
        "" if share is None else f"{share:.1%}",
        read.number(cell["saved_bytes"], 2**-20, 1),
        read.number(cell["peak_allocated_bytes"], 2**-30, 2),
        "" if error is None else f"{error:.1e}",
    ]


SHORT = ("--bf16", "--repeats=20", "--warmup=3", "--max-time=5s")
PART = _part(
    "attention",
    "every implementation of attention, batch 8, d 64",
    75,
    ("--dim=64", "--seq=1024,4096,16384", *SHORT),
)
SWEEP = _part(
    "attention-sweep",
    "the sweep of every implementation of attention, batch 8",
    280,
    ("--dim=16,64,128", "--seq=256,1024,4096,8192,16384,65536", *SHORT),
    "attention",
)

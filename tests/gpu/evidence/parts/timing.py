"""`sysbench time`: sizes, contexts, precisions, eager and compiled, written-out and fused attention."""

from __future__ import annotations

from collections.abc import Sequence

from tests.gpu.evidence import cells as read
from tests.gpu.evidence.cells import Cell
from tests.gpu.evidence.promises import at_most, none_of
from tests.gpu.evidence.work import TINY, Part, Work

FEW = ("--warmup=2", "--steps=5")
SMALLER = "--size=small,medium,large"
ALL = "--size=small,medium,large,xl,2.7b"

Grid = tuple[tuple[str, ...], float]
"""Options of `time`, and the seconds that they take on an H200."""


def timed(work: Work, grids: Sequence[Grid]) -> list[Cell]:
    """Measure grids one after the other, and write down their cells."""
    cells: list[Cell] = []
    for words, takes_s in grids:
        with work.attempt(" ".join(words)):
            cells += work.cells("time", *words, work.device, takes_s=takes_s)
    work.numbers["cells"] = [read.time_summary(cell) for cell in cells]
    work.table(work.part.title, read.TIME_COLUMNS, [read.time_row(cell) for cell in cells])
    return cells


OTHER = "cells that are neither measured nor out of memory"
# Events have a resolution of 0.5 µs, and the two clocks drift apart by some 100 ppm.
BEYOND = "the device's time as a share of the host's, at the most"


def _part(
    name: str, title: str, estimate_s: float, grids: Sequence[Grid], rehearsed: str, by: str | None = None
) -> Part:

    def run(work: Work) -> None:
        tiny = [((*TINY, "--ctx=16", "--warmup=1", "--steps=2", *rehearsed.split()), 0.0)]
        cells = timed(work, tiny if work.rehearsal else grids)
        work.see(OTHER, read.ended_otherwise(cells, "ok", "oom"), read.endings(cells))
        work.see(BEYOND, read.device_over_wall(cells))

    return Part(
        name, title, estimate_s, run, (none_of(OTHER), at_most(BEYOND, 1.001)), limit_s=2 * estimate_s, rehearsed_by=by
    )


PRECISIONS = _part(
    "time-precisions",
    "time in fp32, tf32 and bf16, eager, and compiled",
    140,
    [
        ((SMALLER, "--ctx=128-1024*2", "--precision=fp32,tf32,bf16", *FEW), 50),
        (("--size=xl,2.7b", "--ctx=512", "--precision=fp32,tf32,bf16", *FEW), 40),
        (("--size=small", "--ctx=512", "--bf16", "--attention=naive,flash", "--compile", *FEW), 45),
    ],
    "--precision=fp32,bf16",
)
FLASH = _part(
    "time-flash",
    "time in bf16, eager, flash attention",
    45,
    [((ALL, "--ctx=256,1024", "--bf16", "--attention=flash", *FEW), 40)],
    "",
    "time-precisions",
)
COMPILED = _part(
    "time-compiled",
    "time in bf16, compiled, naive and flash attention",
    130,
    [
        (("--size=small", "--ctx=256,1024", "--bf16", "--attention=naive,flash", "--compile", *FEW), 90),
        (("--size=medium", "--ctx=512", "--bf16", "--attention=flash", "--compile", *FEW), 45),
    ],
    "--compile --mode=inference",
)
WHOLE = _part(
    "time-whole",
    "time over the whole grid, eager",
    330,
    [
        ((ALL, "--ctx=128-1024*2", "--precision=bf16", "--attention=naive,flash", *FEW), 90),
        ((ALL, "--ctx=128-1024*2", "--precision=tf32", "--attention=naive,efficient", *FEW), 100),
        ((ALL, "--ctx=128-1024*2", "--precision=fp32", "--attention=naive,efficient", *FEW), 160),
    ],
    "",
    "time-precisions",
)
WHOLE_COMPILED = _part(
    "time-whole-compiled",
    "time of every size compiled, bf16, naive and flash attention",
    480,
    [
        (("--size=small,medium", "--ctx=128-1024*2", "--bf16", "--attention=naive,flash", "--compile", *FEW), 280),
        (("--size=large,xl,2.7b", "--ctx=1024", "--bf16", "--attention=naive,flash", "--compile", *FEW), 300),
    ],
    "",
    "time-compiled",
)

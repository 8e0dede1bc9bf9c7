"""Running out of memory in a sweep: a result, which the next cell does not feel."""

from __future__ import annotations

from tests.gpu.evidence import cells as read
from tests.gpu.evidence.promises import Promise, at_most, none_of
from tests.gpu.evidence.work import TINY, Part, Work

ENDS = "cells of the sweep that end as anything but ok, oom or skipped"
SEEN = "cells that ran out of memory"
SEGMENT_BYTES = 2 * 2**20
"""A segment of the allocator: libraries may keep one more or less of them after an error."""
AFTER = "bytes by which the next cell's peak differs from a clean run's"


def _run(work: Work) -> None:
    model = (*TINY,) if work.rehearsal else ("--size=small",)
    step = (*model, "--mode=train", "--warmup=1", "--steps=3", "--force", work.device)
    after = work.cells("time", *step, "--ctx=32,16" if work.rehearsal else "--ctx=65536,128", takes_s=25)
    clean = work.cells("time", *step, "--ctx=16" if work.rehearsal else "--ctx=128", takes_s=15)
    if after and clean:
        peaks = [cells[-1]["memory"]["allocated_peak_bytes"] for cells in (after, clean)]
        work.numbers["peaks_after_oom_and_clean_bytes"] = peaks
        if None not in peaks:
            work.see(AFTER, abs(peaks[0] - peaks[1]), f"after: {after[0]['outcome']}")
    memory = work.cells("memory", *model, "--ctx=16" if work.rehearsal else "--ctx=128", "--mode=train", work.device)
    work.numbers["outside_the_allocator_bytes"] = [cell["context_bytes"] for cell in memory]
    sweep_words = ("--ctx=16", "--batch=1,2") if work.rehearsal else ("--size=2.7b", "--ctx=512", "--batch=2-128*4")
    sweep = work.cells(
        "time", *(TINY[:-1] if work.rehearsal else ()), *sweep_words, "--precision=bf16", "--warmup=1", "--steps=2",
        work.device, takes_s=45,
    )  # fmt: skip
    cells = [*after, *sweep]
    work.table("Sweeps out of memory", read.TIME_COLUMNS, [read.time_row(cell) for cell in cells])
    work.see(ENDS, read.ended_otherwise(cells, "ok", "oom", "skipped"), read.endings(cells))
    if after:
        work.see(SEEN, sum(cell["outcome"] == "oom" for cell in after))


PART = Part(
    "oom",
    "out of memory in a sweep",
    85,
    _run,
    (none_of(ENDS), Promise(SEEN, "count", 1, 1), at_most(AFTER, SEGMENT_BYTES, "bytes")),
    limit_s=150,
)

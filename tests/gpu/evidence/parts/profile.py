"""`sysbench profile`: all kernels seen, known, and in their modules; by both profilers where nsys is installed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from tests.gpu.evidence import cells as read
from tests.gpu.evidence.cells import Cell
from tests.gpu.evidence.promises import Promise, at_most, near_one, none_of
from tests.gpu.evidence.work import TINY, Part, Work

COVERAGE = "coverage of the measured step by kernels, at the least"
CHECKS = "matrix products missing or too many"
UNLINKED = "time of kernels whose launch is not known, as a share"
UNPLACED = "time of kernels whose class is not known, as a share"
AGREE = "nsys over torch.profiler, time of all kernels"
AGREE_MATMUL = "nsys over torch.profiler, time of matrix products"

LONG = ("--size=medium", "--ctx=512", "--precision=fp32")
"""Steps long enough that the device never waits for its host: all of their time is kernels."""
Case = tuple[tuple[str, ...], float]
"""Options of `profile`, and the seconds that they take on an H200."""

LONG_CASE: Case = ((*LONG, "--mode=forward,train", "--active=2", "--steps=10"), 40)
MORE_CASES: tuple[Case, ...] = (
    (("--size=large", "--ctx=1024", "--bf16", "--mode=train", "--steps=5"), 30),
    (("--size=small", "--ctx=512", "--bf16", "--mode=train", "--compile", "--attention=flash", "--steps=5"), 50),
)


def _profiled(work: Work, cases: Sequence[Case]) -> list[Cell]:
    found: list[Cell] = []
    for words, takes_s in [((*TINY, "--ctx=16", "--steps=2"), 0.0)] if work.rehearsal else cases:
        with work.attempt(" ".join(words)):
            found += work.cells("profile", *words, work.device, takes_s=takes_s)
    return [cell for cell in found if cell["summary"] is not None]


def _run(work: Work) -> None:
    measured = _profiled(work, [LONG_CASE])
    _tell(work, measured)
    _promises(work, measured)
    if shutil.which("nsys") and not work.rehearsal:
        with work.attempt("Nsight Systems"):
            by_nsys = work.cells(
                "profile", *LONG, "--mode=train", "--active=2", "--steps=0", "--with=nsys", work.device, takes_s=40
            )
            _agree(work, [cell for cell in measured if cell["axes"]["mode"] == "train"], by_nsys)


def _run_more(work: Work) -> None:
    _tell(work, _profiled(work, MORE_CASES))


def _tell(work: Work, cells: list[Cell]) -> None:
    work.numbers["profiles"] = [
        {
            "axes": cell["axes"],
            "coverage": cell["coverage"],
            "cost_share": cell["cost_share"],
            "kernels_ns": read.time_by_class(cell["summary"]),
            "checks": cell["summary"]["checks"],
            "remarks": cell["summary"]["remarks"],
            "unplaced": [name["name"] for name in cell["summary"]["names"] if not name["placed"]][:40],
        }
        for cell in cells
    ]
    label = ("size", "ctx", "precision", "execution", "mode")
    rows = [row for cell in cells for row in read.class_rows([cell["axes"][axis] for axis in label], cell["summary"])]
    work.table("Where a step goes, by class of kernel", (*label, "class", "per step", "of the step"), rows)


def _promises(work: Work, cells: list[Cell]) -> None:
    if not cells:
        return
    summaries = [cell["summary"] for cell in cells]
    checks = [check for summary in summaries for check in summary["checks"]]
    if checks:
        work.see(CHECKS, sum(abs(check["found"] - check["expected"]) for check in checks), f"{len(checks)} checks")
    coverages = [cell["coverage"] for cell in cells if cell["coverage"] is not None]
    if coverages:
        work.see(COVERAGE, min(coverages), " ".join(LONG))
    work.see(UNLINKED, max(summary["unlinked_ns"] / max(1, summary["busy_ns"]) for summary in summaries))
    work.see(UNPLACED, max(map(read.unplaced_share, summaries)))


def _agree(work: Work, by_torch: list[Cell], by_nsys: list[Cell]) -> None:
    here, there = (read.time_by_class(cells[0]["summary"]) for cells in (by_torch, by_nsys))
    work.numbers["by_nsys_ns"] = there
    work.see(AGREE, sum(there.values()) / sum(here.values()))
    work.see(AGREE_MATMUL, there["matmul"] / here["matmul"])


PART = Part(
    "profile",
    "profiles: coverage, self-checks, both profilers",
    50,
    _run,
    (
        Promise(COVERAGE, "share", 0.99, 1.1),
        none_of(CHECKS),
        at_most(UNLINKED, 0.0),
        at_most(UNPLACED, 0.02),
        near_one(AGREE, 0.05),
        near_one(AGREE_MATMUL, 0.05),
    ),
    limit_s=150,
)
MORE = Part(
    "profile-more",
    "profiles of a large model in bf16, and of a compiled one",
    80,
    _run_more,
    limit_s=150,
    rehearsed_by="profile",
)

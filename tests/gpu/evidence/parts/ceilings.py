"""What matrix products and copies reach on this GPU: the fastest call, and what it sustains."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sysbench.spec.steps import Precision
from tests.gpu.evidence.machine import find_card
from tests.gpu.evidence.promises import at_most
from tests.gpu.evidence.work import Part, Work

SIZES = (4096, 8192, 16384)
"""Of square products; the largest of fp32 takes 0.15 s each on an H200."""
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "tf32", "fp32")
COPIED_BYTES = 8 * 2**30
SUSTAINED_S = 1.0
PRODUCT = "products, as a share of the data sheet's rate, at the most"
COPY = "copies, as a share of the data sheet's bandwidth, at the most"


def _run(work: Work) -> None:
    import torch

    from sysbench.lab.precision import compute_dtype, matmul_precision

    device = torch.device("cpu" if work.rehearsal else "cuda:0")
    card = None if work.rehearsal else find_card()
    products = []
    for precision in PRECISIONS[::-2] if work.rehearsal else PRECISIONS:
        with work.attempt(f"products in {precision}"), matmul_precision(precision):
            for size in SIZES if not work.rehearsal else (128,):
                left, right = torch.randn((2, size, size), device=device).to(compute_dtype(precision))
                result = torch.empty_like(left)
                times_s = times(partial(torch.mm, left, right, out=result), device)
                found = {"precision": precision, "size": size, **rates(times_s, 2 * size**3, "flops_per_s")}
                products.append({**found, "peak_flops_per_s": card and card.peak_flops_per_s.get(precision)})
                work.numbers["products"] = products
                work.save()
                del left, right, result
    count = (COPIED_BYTES if not work.rehearsal else 2**20) // 4
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    copy = rates(times(partial(target.copy_, source), device), 2 * 4 * count, "bytes_per_s")
    copy["peak_bytes_per_s"] = card and card.memory_bandwidth_bytes_per_s
    work.numbers |= {"products": products, "copy": copy}
    _tell(work, products, copy)


def times(call: Callable[[], object], device: Any) -> list[float]:
    """Seconds of calls one after the other, by the device's events where it has them, after three to warm up."""
    import torch

    for _ in range(3):
        call()
    if device.type != "cuda":
        taken = []
        for _ in range(5):
            began_s = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began_s)
        return taken
    torch.cuda.synchronize(device)
    marks = [torch.cuda.Event(enable_timing=True)]
    marks[0].record()
    began_s = time.perf_counter()
    while len(marks) < 6 or time.perf_counter() - began_s < SUSTAINED_S:
        call()
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        if len(marks) % 8 == 0:
            marks[-1].synchronize()  # the host may not run ahead of the clock by more than a few calls
    torch.cuda.synchronize(device)
    return [first.elapsed_time(last) / 1e3 for first, last in itertools.pairwise(marks)]


def rates(times_s: list[float], work_of_one: float, unit: str) -> dict[str, Any]:
    """The rate of the fastest call, and of the middle one of the last half."""
    settled_s = statistics.median(times_s[len(times_s) // 2 :])
    return {
        f"best_{unit}": work_of_one / min(times_s),
        f"sustained_{unit}": work_of_one / settled_s,
        "calls": len(times_s),
    }


def _tell(work: Work, products: list[dict[str, Any]], copy: dict[str, Any]) -> None:
    rows = [
        [
            f"{each['precision']} ({each['size']}, {each['size']}) × ({each['size']}, {each['size']})",
            f"{each['best_flops_per_s'] / 1e12:.1f} TFLOP/s",
            f"{each['sustained_flops_per_s'] / 1e12:.1f} TFLOP/s",
            f"{each['best_flops_per_s'] / each['peak_flops_per_s']:.1%}" if each["peak_flops_per_s"] else "unknown",
        ]
        for each in products
    ]
    peak = copy["peak_bytes_per_s"]
    rows.append(
        [
            "copy, read and written",
            f"{copy['best_bytes_per_s'] / 1e12:.3f} TB/s",
            f"{copy['sustained_bytes_per_s'] / 1e12:.3f} TB/s",
            f"{copy['best_bytes_per_s'] / peak:.1%}" if peak else "unknown",
        ]
    )
    work.table("Ceilings", ("what", "fastest", "sustained", "of the data sheet"), rows)
    shares = [each["best_flops_per_s"] / each["peak_flops_per_s"] for each in products if each["peak_flops_per_s"]]
    if shares:
        work.see(PRODUCT, max(shares))
    if peak:
        work.see(COPY, copy["best_bytes_per_s"] / peak)


PART = Part("ceilings", "matrix products and copies", 30, _run, (at_most(PRODUCT, 1.0), at_most(COPY, 1.0)), limit_s=90)

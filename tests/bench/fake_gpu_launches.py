"""Predicted launches against those of the real dispatcher, phase by phase, and the host's time for each operator.

    python -m tests.bench.fake_gpu_launches

runs some forty configurations with the fake GPU of tests/fake_gpu, and prints the phases that
differ and how many agree. The host's times are this machine's, without the launch of a real kernel.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from sysbench.predict.rates import typical_host
from tests.fake_gpu.fake import FakeGpu
from tests.fake_gpu.launches import Axes, PhaseLaunches, compare

ROOT = Path(__file__).parents[2]
HALF_ONLY = ("flash", "cudnn")


def configurations() -> Iterator[Axes]:
    """Sizes, contexts, precisions, modes, attention kinds, optimizers and micro-batches."""
    tiny = {"size": "tiny", "batch": "2"}
    for attention, precision, ctx in product(
        ("naive", "sdpa", "flash", "efficient", "math", "cudnn"), ("fp32", "bf16"), ("64", "160")
    ):
        if precision == "bf16" or attention not in HALF_ONLY:
            yield {**tiny, "ctx": ctx, "precision": precision, "attention": attention, "mode": "train"}
    for mode, precision in product(("inference", "forward", "forward-backward"), ("fp32", "bf16")):
        yield {**tiny, "ctx": "96", "precision": precision, "mode": mode}
    for optimizer, precision in product(("for-loop", "fused"), ("bf16", "fp16")):
        yield {**tiny, "ctx": "64", "precision": precision, "mode": "train", "optimizer": optimizer}
    for precision in ("tf32", "fp16"):
        yield {**tiny, "ctx": "64", "precision": precision, "mode": "train"}
    yield {**tiny, "ctx": "64", "precision": "bf16", "mode": "train", "grad_accum": "3"}
    for precision in ("fp32", "bf16"):
        yield {"size": "small", "ctx": "128", "batch": "4", "precision": precision, "mode": "train"}


def host_ratio(phases: Sequence[PhaseLaunches], name: str) -> float:
    """Return the median ratio of what the dispatcher needed for a phase to what a typical host is said to need."""
    rates = typical_host().rates
    suffix = "_backward" if name == "backward" else ""
    operator_s, view_s, scalar_s = (rates[rate].value for rate in (f"operator{suffix}", f"view{suffix}", "scalar"))
    return statistics.median(
        phase.host_s / (phase.operators * operator_s + phase.views * view_s + phase.scalars * scalar_s)
        for phase in phases
        if phase.name == name
    )


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="fake-gpu-home-"))
    gpu = FakeGpu.built(ROOT / ".pytest_cache" / "fake_gpu", home)
    phases: list[PhaseLaunches] = []
    count = 0
    for axes, found in compare(gpu, configurations()):
        phases += found
        count += 1
        for phase in found:
            if not phase.agrees:
                print(
                    " ".join(axes.values()), f"{phase.name}: {phase.real} launched, {phase.traced} predicted; products",
                    phase.real_products, phase.traced_products,
                )  # fmt: skip
    agreeing = sum(phase.agrees for phase in phases)
    launched, predicted = (sum(getattr(phase, name) for phase in phases) for name in ("real", "traced"))
    print(f"{count} configurations: in {agreeing} of {len(phases)} phases, launches and products are as predicted")
    print(f"launches in all: {launched} by the dispatcher, {predicted} predicted")
    for name in ("forward", "backward", "optimizer"):
        print(f"host, {name}: {host_ratio(phases, name):.2f} times what a typical host needs, launches apart")


if __name__ == "__main__":
    main()

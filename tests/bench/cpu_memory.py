"""Simulated against real memory of steps with knobs, byte for byte, on the CPU; prints what differs.

    python -m tests.bench.cpu_memory [--only TEXT]

Both take two steps of the built-in model, with real tensors and without data, and count whole blocks: live bytes at the
end of each phase, and the peak within it. Step counters of optimizers that are not fused, which a GPU leaves on
the host, are subtracted. While tensors are counted, autograd adds gradients out of place, which a peak may show. The
exit code is 1 if live bytes differ anywhere.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from sysbench.lab.memory.accounting import BLOCK_BYTES, round_to_block
from sysbench.lab.step import TrainingStep
from sysbench.simulate.steps import phases_of, record
from sysbench.spec.model import ModelCell
from tests.simulate.simulated_cells import CPU, cell
from tests.simulate.tensor_accounting import TensorAccounting

_FUSED = {"optimizer": ("fused",)}
_CHECKPOINTED = ("none", "full", "every-2", "selective", "layers.*.feed_forward")
GROUPS: tuple[Mapping[str, tuple[Any, ...]], ...] = (
    {
        "precision": ("fp32", "bf16", "bf16-true"),
        "checkpoint": _CHECKPOINTED,
        "cross_entropy": ("full", "chunked-40"),
        **_FUSED,
    },
    {
        "precision": ("fp32", "bf16"),
        "attention": ("flash", "math"),
        "checkpoint": ("full", "selective"),
        "cross_entropy": ("chunked-40",),
        **_FUSED,
    },
    {
        "precision": ("fp32", "bf16"),
        "optimizer": ("sgd", "adafactor", "muon", "foreach"),
        "checkpoint": ("none", "full"),
    },
    {
        "precision": ("fp32", "bf16", "bf16-true"),
        "optimizer": ("fused", "sgd", "adafactor", "muon"),
        "optimizer_in_backward": ("on",),
        "checkpoint": ("none", "full"),
    },
    {
        "precision": ("bf16", "bf16-true"),
        "lora": (4,),
        "checkpoint": ("none", "full", "selective"),
        "cross_entropy": ("full", "chunked-40"),
        **_FUSED,
    },
    {
        "precision": ("fp32", "bf16"),
        "grad_accum": (3,),
        "checkpoint": ("none", "full"),
        "cross_entropy": ("full", "chunked-40"),
        **_FUSED,
    },
)
"""Combinations of knobs that the CPU has."""


class Moment(NamedTuple):
    """Bytes in whole blocks: live at the end of a phase, and the most within it (None where step counters appear)."""

    step: int
    phase: str
    live_bytes: int
    peak_bytes: int | None


def combinations() -> Iterator[dict[str, Any]]:
    for group in GROUPS:
        for values in itertools.product(*group.values()):
            yield dict(zip(group, values, strict=True))


def measured(which: ModelCell) -> list[Moment]:
    """Two training steps with real tensors."""
    if which.lora:
        import_module("peft")  # which makes tensors
    moments, counters, accounting = [], 0, TensorAccounting()
    with accounting:
        step = TrainingStep(which, torch.device("cpu"))
        for number, phase, run in phases_of(step, "train"):
            accounting.reset_peak()
            run()
            before, counters = counters, _counters(step) if which.optimizer != "fused" else 0
            peak_bytes = accounting.peak_bytes - BLOCK_BYTES * counters if counters == before else None
            moments.append(Moment(number, phase, accounting.live_bytes - BLOCK_BYTES * counters, peak_bytes))
    return moments


def _counters(step: TrainingStep) -> int:
    return sum(state.dim() == 0 for _, state in step.optimizer_state())


def simulated(which: ModelCell) -> list[Moment]:
    """The same two steps without data."""
    recording = record(which, "train", CPU)
    sizes = [round_to_block(allocation.size_bytes) for allocation in recording.allocations]
    live_bytes = [0, *recording.live_bytes(sizes)]
    return [
        Moment(span.step, span.name, live_bytes[span.end], max(live_bytes[span.first : span.end + 1]))
        for span in recording.spans
        if span.step >= 0
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="combinations with this text in their name")
    only = parser.parse_args().only
    count, differing = 0, 0
    off_peak: list[str] = []
    for fields in combinations():
        name = " ".join(str(value) for value in fields.values())
        if only not in name or ("lora" in fields and not find_spec("peft")):
            continue
        which = cell(**fields)
        count += 1
        for real, said in zip(measured(which), simulated(which), strict=True):
            if real[:3] != said[:3]:
                differing += 1
                print(
                    f"{name}: step {real.step} {real.phase}: {real.live_bytes} live bytes, simulated {said.live_bytes}"
                )
            elif real.peak_bytes not in (None, said.peak_bytes):
                off_peak.append(
                    f"{name}: step {real.step} {real.phase}: {real.peak_bytes}, simulated {said.peak_bytes}"
                )
    print(f"{count} combinations, {differing} phases with other live bytes, {len(off_peak)} with another peak")
    print("\n".join(off_peak))
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()

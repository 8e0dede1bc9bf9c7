"""The causes of the peak of the step as asked, in words."""

from __future__ import annotations

import re
import time
from collections import Counter

from sysbench.commands.fit.record import Cause, PeakExplained
from sysbench.commands.fit.search.trials import REFERENCE, allocated_bytes, unlimited_replay
from sysbench.commands.fit.spec import FitCell
from sysbench.log.events import Event
from sysbench.predict.simulated_step import SimulatedStep
from sysbench.spec.model import ModelCell, ModelShape


def explained(cell: FitCell) -> list[Event]:
    first = SimulatedStep(cell.step, cell.on[0], with_modules=True)
    return [*first.recording.model_events(cell.key), _explanation(cell)]


def _explanation(cell: FitCell) -> PeakExplained:
    replay = unlimited_replay(cell.step, cell.on[0], with_modules=True)
    peak = max(replay.peaks_of_last_step(), key=allocated_bytes)
    sizes: Counter[tuple[str, str]] = Counter()
    for number in replay.recording.live_at(peak.position):
        allocation = replay.recording.allocations[number]
        cause = _cause(cell.step, allocation.category, allocation.module, allocation.size_bytes)
        sizes[cause] += replay.sizes[number]
    causes = [
        Cause(name=name, size_bytes=size_bytes, shrinks_with=remedy)
        for (name, remedy), size_bytes in sizes.most_common()
    ]
    return PeakExplained(
        at_s=time.time(),
        cell=cell.key,
        phase=peak.span.name,
        allocated_peak_bytes=peak.allocated_bytes,
        causes=causes,
        reference=REFERENCE,
    )


MODULE_DEPTH = 3
"""Parts of a module's path that tell apart causes: `layers.*.attention`."""

_NUMBER = re.compile(r"\.\d+")

_OF_STATE = {
    "parameters": ("weights", "sharding over ranks"),
    "gradients": ("gradients", "sharding over ranks"),
    "optimizer state": ("optimizer state", "another optimizer, offloading, sharding over ranks"),
}


def _cause(cell: ModelCell, category: str, module: str, size_bytes: int) -> tuple[str, str]:
    if category in _OF_STATE:
        return _OF_STATE[category]
    if category == "workspace":
        return "workspaces of cuBLAS", "nothing"
    if category == "communication":
        return "buffers of collectives", "smaller buckets or blocks"
    shape = cell.shape
    if shape is not None and _is_multiple(size_bytes, cell.batch * shape.heads * cell.ctx**2):
        return "attention scores", "fused attention, micro-batches, checkpointing"
    if isinstance(shape, ModelShape) and _is_multiple(size_bytes, cell.tokens * shape.vocab):
        return "logits and their gradients", "chunked cross-entropy, micro-batches"
    path = ".".join(_NUMBER.sub(".*", module).split(".")[:MODULE_DEPTH])
    return f"activations of {path or 'the step'}", "checkpointing, micro-batches"


def _is_multiple(size_bytes: int, elements: int) -> bool:
    return any(size_bytes == elements * width for width in (1, 2, 4))

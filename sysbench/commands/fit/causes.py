"""The causes of the peak of the step as asked: by category, operator and module of its allocations."""

from __future__ import annotations

import re
import time
from collections import Counter

from sysbench.commands.fit.record import Cause, CauseKind, PeakExplained
from sysbench.commands.fit.search.trials import REFERENCE, allocated_bytes, unlimited_replay
from sysbench.commands.fit.spec import FitCell
from sysbench.log.events import Event
from sysbench.predict.simulated_step import SimulatedStep
from sysbench.simulate.origins import OUTSIDE
from sysbench.simulate.recording import Allocation


def explained(cell: FitCell) -> list[Event]:
    first = SimulatedStep(cell.step, cell.on[0], with_modules=True)
    return [*first.recording.model_events(cell.key), _explanation(cell)]


def _explanation(cell: FitCell) -> PeakExplained:
    replay = unlimited_replay(cell.step, cell.on[0], with_modules=True)
    peak = max(replay.peaks_of_last_step(), key=allocated_bytes)
    sizes: Counter[tuple[CauseKind, str]] = Counter()
    for number in replay.recording.live_at(peak.position):
        allocation = replay.recording.allocations[number]
        stack = replay.recording.stacks[allocation.stack]
        sizes[_cause(allocation, bool(stack) and stack[0].filename == "autograd")] += replay.sizes[number]
    return PeakExplained(
        at_s=time.time(),
        cell=cell.key,
        phase=peak.span.name,
        allocated_peak_bytes=peak.allocated_bytes,
        causes=[
            Cause(kind=kind, module=module, size_bytes=size_bytes) for (kind, module), size_bytes in sizes.most_common()
        ],
        reference=REFERENCE,
    )


MODULE_DEPTH = 3
"""Parts of a module's path that tell apart causes: `layers.*.attention`."""

_NUMBER = re.compile(r"\.\d+")

_BY_CATEGORY: dict[str, CauseKind] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer state": "optimizer state",
    "workspace": "workspace",
    "communication": "communication",
}
_FUSED_ATTENTION = "_scaled_dot_product"
"""Beginning of the names of operators that compute attention without storing its scores."""
_OUTPUT_LAYER = "lm_head"


def _cause(allocation: Allocation, is_backward: bool) -> tuple[CauseKind, str]:
    if (kind := _BY_CATEGORY.get(allocation.category)) is not None:
        return kind, ""
    path, operator = allocation.module.split("."), allocation.operator
    # Materialised attention is the module `attend`, whose parts have names (`named`). Its output has no scores, unlike
    # the backward of that part.
    if "attend" in path and not operator.startswith(_FUSED_ATTENTION) and (path[-1] != "output" or is_backward):
        return "attention scores", ""
    if path == [_OUTPUT_LAYER] and not is_backward:
        return "logits", ""
    if allocation.module == OUTSIDE and operator.startswith(("_log_softmax", "nll_loss", "_to_copy")):
        return "logits", ""
    place = ".".join(_NUMBER.sub(".*", allocation.module).split(".")[:MODULE_DEPTH])
    return "softmax" if "softmax" in operator else "activations", place

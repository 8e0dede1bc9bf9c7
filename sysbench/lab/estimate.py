"""How long a step will take on the CPU, estimated within a second from a much smaller step of the same kind."""

from __future__ import annotations

from time import thread_time  # by name: a model's code may replace time.thread_time

import torch

from sysbench import formulas
from sysbench.errors import SysbenchError
from sysbench.lab.step import TrainingStep
from sysbench.spec.model import ModelCell

SMALL_FLOPS = 5e10
"""Steps with fewer FLOPs take seconds on any current CPU: the first of them comes as soon as an estimate would."""

PROBE_CTX = 128
PROBE_VOCAB = 1000

ENOUGH_S = 6.0
"""A first small step that takes this long is not repeated, or the estimate would come too late. A shorter one may be
slow because of what it loads, and the estimate would multiply that by hundreds."""


def estimated_step_s(cell: ModelCell) -> float | None:
    """Return about how many seconds a step of `cell` takes; None for small steps, and where FLOPs are unknown.

    One layer of the model runs on one sequence of at most PROBE_CTX tokens, in the cell's precision. The step takes as
    much longer as it has more FLOPs, divided among the threads. The optimizer is left out: it takes a few percent of a
    long step, and torch imports its compiler for it, which takes seconds.

    What counts is the processor time of a single thread. Where other processes run, several threads wait for the
    slowest in every product: so small a step then takes up to twelve times as long, and one of full size twice.
    """
    shape, flops = cell.shape_with_formulas, formulas.step_flops_of(cell)
    if shape is None or flops is None or flops < SMALL_FLOPS or cell.is_compiled or cell.attention == "flex":
        return None
    small = cell.step_with(
        size="custom",
        model=shape.model_copy(update={"layers": 1, "vocab": min(shape.vocab, PROBE_VOCAB)}),
        ctx=min(cell.ctx, PROBE_CTX),
        batch=1,
        grad_accum=1,
        mode="forward-backward" if cell.mode == "train" else cell.mode,
    )
    small_flops = formulas.step_flops_of(small)
    if not small_flops:
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step = TrainingStep(small, torch.device("cpu"))
        first_s = _step_s(step)  # it also loads libraries
        return min(first_s, _step_s(step) if first_s < ENOUGH_S else first_s) * flops / small_flops / threads
    except (SysbenchError, RuntimeError, ValueError):
        return None  # the cell itself will say what is wrong
    finally:
        torch.set_num_threads(threads)


def _step_s(step: TrainingStep) -> float:
    step.forget()
    began_s = thread_time()
    for _, run in step.phases:
        run()
    return thread_time() - began_s

"""Events that report facts about models without formulas, the user's own and adapted ones, and their work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache

from sysbench.errors import SysbenchError, description_of
from sysbench.lab.step import TrainingStep
from sysbench.lab.workload.workload import adapted_facts_of, facts_of
from sysbench.log.events import AdaptedModelBuilt, AdaptedModelFacts, OwnModelBuilt, RecomputationCounted
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.steps import record
from sysbench.spec.model import ModelCell

_ANY_GPU = Gpu("any", 1 << 50)


def counted_work(
    cell: ModelCell, step: TrainingStep
) -> Iterator[OwnModelBuilt | AdaptedModelBuilt | RecomputationCounted]:
    """Yield the facts about a model without formulas with its FLOPs, and those that are computed again in backward.

    FLOPs are counted in a simulated step. Called before and after the first step, because the loss may be unknown
    before that step.
    """
    if cell.shape_with_formulas is not None and not cell.repeats_forward:
        return
    # FLOPs are those of one micro-batch, and of a model in one piece: this process may already belong to a group.
    recording, reason = _simulated(
        cell.step_with(execution="eager", grad_accum=1, no_sync=None, ranks=1, strategy=None)
    )
    if recording is not None:
        yield from recording.recomputation_events(cell.key)
    if cell.own is None:
        if cell.lora:
            adapted = None if recording is None else recording.adapted_model
            yield _adapted(cell.key, adapted or adapted_facts_of(step.work, None))
        return
    simulated = None if recording is None else recording.own_model
    if simulated is not None and simulated.assumed:  # what is assumed must not pass for measured
        reason = f"they depend on values: a simulation would assume that {' and '.join(simulated.assumed)}"
    facts = facts_of(step.work, simulated.flops if simulated and reason is None else None, reason)
    loss = facts.loss or (simulated.loss if simulated else None)
    yield OwnModelBuilt(at_s=time.time(), cell=cell.key, **facts.model_dump() | {"loss": loss})


def own_model_ran(cell: str, step: TrainingStep) -> Iterator[OwnModelBuilt | AdaptedModelBuilt]:
    """Yield the facts about a model without formulas, without FLOPs."""
    if step.work.own is not None:
        yield OwnModelBuilt(at_s=time.time(), cell=cell, **facts_of(step.work, None).model_dump())
    elif step.cell.lora:
        yield _adapted(cell, adapted_facts_of(step.work, None))


def _adapted(cell: str, facts: AdaptedModelFacts) -> AdaptedModelBuilt:
    return AdaptedModelBuilt(at_s=time.time(), cell=cell, **facts.model_dump())


@lru_cache(maxsize=1)
def _simulated(cell: ModelCell) -> tuple[StepRecording | None, str | None]:
    try:
        return record(cell, cell.mode, Platform.of(_ANY_GPU), origins=False), None
    except Exception as error:  # noqa: BLE001  FLOPs are optional: a model that fails without data may run with it.
        return None, str(error) if isinstance(error, SysbenchError) else description_of(error)

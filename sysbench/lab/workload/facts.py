"""What a step of a user's model does: its FLOPs, operator by operator, and the facts of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from sysbench.lab.workload.workload import Workload
from sysbench.log.events import OwnModelFacts


def flops(operator: Any, arguments: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> int:
    """FLOPs of one call: of matrix products, convolutions and fused attention, as torch's FlopCounterMode has them.

    It leaves out the products of experts, `_grouped_mm`: those of one matrix of rows, whatever expert each is for.
    """
    if operator is torch.ops.aten._grouped_mm.default:
        first, second = arguments[:2]
        groups = first.shape[0] if first.dim() == second.dim() == 3 else 1
        return 2 * groups * int(first.shape[-2] * first.shape[-1] * second.shape[-1])
    count = flop_registry.get(operator._overloadpacket)
    return 0 if count is None else int(count(*arguments, **options, out_val=result))


def facts_of(work: Workload, by_phase: Mapping[str, int] | None, uncounted: str | None = None) -> OwnModelFacts:
    """Return what is known of a user's model; without FLOPs `by_phase`, `uncounted` says why there are none."""
    own, parameters = work.own, list(work.model.parameters())  # torch yields shared ones once
    assert own is not None
    return OwnModelFacts(
        class_name=own.class_name,
        parameters=sum(each.numel() for each in parameters),
        trainable_parameters=sum(each.numel() for each in parameters if each.requires_grad),
        inputs=own.inputs,
        loss=own.loss(),
        tokens=work.tokens,
        flops=None if by_phase is None else dict(by_phase),
        uncounted=uncounted,
        files=list(own.files),
        import_s=own.import_s,
        printed=own.printed.text,
    )

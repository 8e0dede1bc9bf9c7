"""A model with its inputs, loss and optimizer; and the FLOPs of a user's model, counted by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sysbench.lab.attention import kernel_of
from sysbench.lab.knobs.optimizers import optimizer_for
from sysbench.lab.knobs.quantization import home_of, quantize
from sysbench.lab.precision import building, compute_dtype
from sysbench.lab.transformer import build
from sysbench.lab.workload.imports import Printed
from sysbench.lab.workload.inputs import random_tokens
from sysbench.lab.workload.losses import cross_entropy
from sysbench.log.events import AdaptedModelFacts, CodeFile, OwnModelFacts
from sysbench.spec.grid import ModelShape
from sysbench.spec.model import ModelCell


@dataclass(frozen=True)
class IgnoredConfig:
    """What a Hugging Face config says about its trained weights, where the model is not built so: dtype and method."""

    dtype: str | None = None
    quantization: str | None = None


@dataclass(frozen=True)
class OwnWorkload:
    """Additional facts about a user's model.

    class_name  class of the model before FSDP2 replaces it
    loss        returns a description of the loss, which is known after the first step
    ignored     of a Hugging Face config; None for code
    """

    class_name: str
    config_class: str | None
    files: tuple[CodeFile, ...]
    inputs: str
    loss: Callable[[], str | None]
    printed: Printed
    import_s: float
    ignored: IgnoredConfig | None = None


@dataclass(frozen=True)
class Batch:
    """One micro-batch: the arguments for a call of the model, and the loss of its output."""

    arguments: tuple[object, ...]
    keywords: Mapping[str, object]
    loss: Callable[[object], Tensor]

    @property
    def gradients(self) -> Iterator[Tensor]:
        """Yield the gradients of inputs that require one."""
        return (each.grad for each in self._tensors if each.grad is not None)

    def drop_gradients(self) -> None:
        """Free the gradients of inputs, as in a loop, where the next batch replaces this one."""
        for each in self._tensors:
            each.grad = None

    @cached_property
    def _tensors(self) -> list[Tensor]:
        leaves = tree_leaves((self.arguments, dict(self.keywords)))
        return [each for each in leaves if isinstance(each, Tensor) and each.requires_grad and each.is_leaf]


@dataclass(frozen=True)
class Workload:
    """The workload of a step.

    batches           micro-batches of one step
    tokens            number of tokens in one micro-batch; None if the inputs are not tokens
    attention_kernel  the operator that computes attention; None if the model decides
    """

    model: nn.Module
    batches: tuple[Batch, ...]
    optimizer: Callable[[], torch.optim.Optimizer]
    tokens: int | None
    attention_kernel: str | None = None
    attention_context: Callable[[], AbstractContextManager[object]] = nullcontext
    own: OwnWorkload | None = None


def built_in_workload(
    cell: ModelCell, shape: ModelShape, device: torch.device, trial: Callable[[], AbstractContextManager[None]]
) -> Workload:
    """Build the workload of the built-in Transformer; raises UnavailableError if the attention is unsupported."""
    with building(cell.precision):
        model = build(shape, cell.ctx, cell.attention, home_of(cell, device), cell.seed)
    quantize(model, cell, device)
    sequences = random_tokens(shape.vocab, cell, device)
    # With inputs of the shape and type that the model's own attention will receive.
    size, dtype = (3, cell.batch, shape.heads, cell.ctx, shape.d_head), compute_dtype(cell.compute_precision)
    with trial(), torch.enable_grad():
        q, k, v = torch.zeros(size, dtype=dtype, device=device)
        inputs = (each.requires_grad_(cell.mode != "inference") for each in (q, k, v))
        kernel = kernel_of(model.attend, *inputs)
    return Workload(
        model=model,
        batches=tuple(Batch((tokens,), {}, partial(cross_entropy, targets=targets)) for tokens, targets in sequences),
        optimizer=partial(optimizer_for, model, cell.optimizer),
        attention_kernel=kernel,
        tokens=cell.tokens,
    )


_RECURRENT: Mapping[object, int] = {torch.ops.aten._cudnn_rnn.default: 1, torch.ops.aten._cudnn_rnn_backward.default: 2}
"""Operators of cuDNN's recurrent layers, with the number of products for each weight matrix."""


_WITHOUT_FORMULA = (torch.ops.aten.convolution_backward.default, torch.ops.aten._grouped_mm.default, *_RECURRENT)
"""Operators that `flops` counts by itself, in place of FlopCounterMode."""


def has_flops(operator: Any) -> bool:
    """Return whether `flops` can be more than 0 for an operator."""
    return operator in _WITHOUT_FORMULA or operator._overloadpacket in flop_registry


def flops(operator: Any, arguments: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> int:
    """Return the FLOPs of one operator call by the formulas of torch's FlopCounterMode; 0 if there is no formula.

    A convolution's gradients each count like its forward. FlopCounterMode omits two: recurrent layers count by their
    weights, and `_grouped_mm` (the matrix products of experts) as one product over all rows, regardless of the expert
    to which each row belongs.
    """
    if operator is torch.ops.aten.convolution_backward.default:  # in which FlopCounterMode ignores groups
        gradient, source, weight, *_ = arguments
        dense = source if arguments[7] else gradient
        return int(2 * (dense.numel() // dense.shape[1]) * weight.numel() * sum(arguments[-1][:2]))
    if operator in _RECURRENT:  # every weight matrix is multiplied by each row of the input once, or twice in backward
        rows = arguments[0].numel() // arguments[0].shape[-1]
        return int(2 * _RECURRENT[operator] * rows * sum(each.numel() for each in arguments[1] if each.dim() == 2))
    if operator is torch.ops.aten._grouped_mm.default:
        first, second = arguments[:2]
        groups = first.shape[0] if first.dim() == second.dim() == 3 else 1
        return 2 * groups * int(first.shape[-2] * first.shape[-1] * second.shape[-1])
    count = flop_registry.get(operator._overloadpacket)
    return 0 if count is None else int(count(*arguments, **options, out_val=result))


def _count_by_dtype(parameters: Iterable[Tensor]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for parameter in parameters:
        counted[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return dict(counted.most_common())


def facts_of(
    work: Workload, by_phase: Mapping[str, int] | None, uncounted: str | None = None, assumed: Iterable[str] = ()
) -> OwnModelFacts:
    """Return the facts about a user's model; if `by_phase` (FLOPs) is None, `uncounted` gives the reason."""
    own = work.own
    assert own is not None
    counted = adapted_facts_of(work, by_phase)
    return OwnModelFacts(
        class_name=own.class_name,
        config_class=own.config_class,
        parameters=counted.parameters,
        trainable_parameters=counted.trainable_parameters,
        parameter_dtypes=_count_by_dtype(work.model.parameters()),
        ignored_dtype=own.ignored.dtype if own.ignored is not None else None,
        ignored_quantization=own.ignored.quantization if own.ignored is not None else None,
        inputs=own.inputs,
        loss=own.loss(),
        tokens=work.tokens,
        flops=counted.flops,
        uncounted=uncounted,
        assumed=list(assumed),
        files=list(own.files),
        import_s=own.import_s,
        printed=own.printed.text,
    )


def adapted_facts_of(work: Workload, by_phase: Mapping[str, int] | None) -> AdaptedModelFacts:
    """Return how many parameters a model has and trains, with its FLOPs by phase, if known."""
    parameters = list(work.model.parameters())  # torch yields shared ones once
    packed = {
        weight: layer.in_features * layer.out_features
        for layer in work.model.modules()
        if isinstance(layer, nn.Linear)
        # Not `layer.weight`, which a parametrization computes.
        for weight in layer.parameters(recurse=False)
        if weight.dtype == torch.uint8
    }
    return AdaptedModelFacts(
        parameters=sum(packed.get(parameter, parameter.numel()) for parameter in parameters),
        trainable_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        flops=None if by_phase is None else dict(by_phase),
    )

"""The loss of the user's model: computed by the user's function, by the model itself, or chosen to suit its output."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from torch import Tensor, nn

from sysbench.errors import UnavailableError
from sysbench.lab.workload.imports import LoadedCode, user_code
from sysbench.lab.workload.inputs import TARGETS, Inputs


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in fp32, for logits (batch, ctx, vocab) and target ids (batch, ctx)."""
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Loss:
    """Computes the loss from the output of the user's model; its `description` is known after the first call."""

    def __init__(self, inputs: Inputs, code: LoadedCode | None = None, model: nn.Module | None = None) -> None:
        self._keeps_loss = model if TARGETS & inputs.keywords.keys() else None
        self.description = None if code is None else code.file.target
        self._inputs = inputs
        self._chosen: tuple[str, Callable[[Tensor], Tensor]] | None = None
        self._code = code
        self._argument_count = 0 if code is None else _count_required(code.value)
        if code is not None and self._argument_count not in (1, 2):
            raise UnavailableError(f"--loss {self.description}: it must take (output) or (output, inputs)")

    def __call__(self, output: object) -> Tensor:
        """Return the loss, a tensor with one element that requires a gradient."""
        if self._code is None:
            named = dict(_named_tensors(output))
            if self._keeps_loss is not None and all(tensor.dim() for tensor in named.values()):
                named.update(_kept_losses(self._keeps_loss))
            if self._chosen is None or self._chosen[0] not in named:  # chosen once: choosing takes time in every step
                name, compute, self.description = choose_loss(output, named, self._inputs)
                self._chosen = name, compute
            name, compute = self._chosen
            value = compute(named[name])
        else:
            with user_code(f"--loss {self.description}"):
                value = self._code.value(*(output, self._inputs.as_returned)[: self._argument_count])
            if not isinstance(value, Tensor) or value.dim():
                shape = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UnavailableError(
                    f"--loss {self.description} returned {shape}; a loss must be a tensor with one element"
                )
        if not value.requires_grad:
            raise UnavailableError(
                f"the loss ({self.description}) depends on no parameter that requires a gradient, so there is no "
                "backward: is the output detached, or computed under no_grad?"
            )
        return value


def _count_required(function: Callable[..., object]) -> int:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(parameter.default is parameter.empty and parameter.kind in positional for parameter in parameters)


def choose_loss(
    output: object, named: Mapping[str, Tensor], inputs: Inputs
) -> tuple[str, Callable[[Tensor], Tensor], str]:
    """Choose a loss for `output`; return the name of the tensor it takes, the function, and a description.

    It is the model's own if the output contains one, else the cross-entropy of the logits, else the mean of the output.
    """
    scalar = next((name for name, tensor in named.items() if not tensor.dim()), None)
    if "loss" in named:
        scalar = "loss" if not named["loss"].dim() else None
    if scalar is not None:
        is_kept = not any(scalar == name for name, _ in _named_tensors(output))
        return scalar, _identity, f"the model's own, which it keeps as {scalar}" if is_kept else "the model's own"
    candidates = {"logits": named["logits"]} if "logits" in named else named
    floating = {name: tensor for name, tensor in candidates.items() if tensor.is_floating_point()}
    if not floating:
        dtypes = ", ".join(str(candidate.dtype).removeprefix("torch.") for candidate in candidates.values())
        what = f"only tensors of {dtypes}" if dtypes else f"{type(output).__name__}, which holds no tensor"
        raise UnavailableError(
            f"the model returned {what}: a loss needs floating-point numbers. Add --loss module:function"
        )
    tokens, next_tokens = inputs.tokens, inputs.next_tokens
    for name, tensor in floating.items():
        if tokens is None or next_tokens is None or tensor.dim() != 3 or tensor.shape[:2] != tokens.shape:
            continue
        if tensor.shape[-1] >= inputs.vocabulary > 0:
            return name, partial(cross_entropy, targets=next_tokens), "cross entropy of the logits"
    return next(iter(floating)), _mean, "mean of the output"


def _kept_losses(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the loss that a model has computed into an attribute, such as `last_loss`; auxiliary ones are not it."""
    for name in ("loss", "last_loss"):
        value = getattr(model, name, None)
        if isinstance(value, Tensor) and not value.dim() and value.requires_grad:
            yield name, value
            return


def _identity(value: Tensor) -> Tensor:
    return value


def _mean(value: Tensor) -> Tensor:
    return value.float().mean()


def _named_tensors(output: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        yield name, output
    elif isinstance(output, Mapping):
        for key, each in output.items():
            yield from _named_tensors(each, str(key))
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from _named_tensors(getattr(output, field.name), field.name)
    elif isinstance(output, tuple | list):
        for position, each in enumerate(output):
            yield from _named_tensors(each, f"{name}{position}")

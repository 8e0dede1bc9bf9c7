"""Cross-entropy without the logits as a whole: the output layer and the loss run over chunks of tokens.

Logits are the largest tensor of many steps: tokens × vocabulary, in fp32 for the loss, and their gradients. Here the
output layer hands on its input in place of logits, and the cross-entropy applies the layer to one chunk of tokens at a
time, in forward and, by checkpointing, again in backward. Wijmans et al., "Cut Your Losses in Large-Vocabulary Language
Models", 2024, go further with kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from sysbench.errors import UnavailableError
from sysbench.lab.knobs.layers import output_layer
from sysbench.spec.knobs import tokens_per_chunk

_RESHAPES = frozenset({"view", "reshape", "flatten", "__getitem__", "contiguous"})
"""Methods that change the shape of logits, or choose tokens, but apply no arithmetic."""

_OF_EACH = frozenset({"mul", "multiply", "div", "divide", "true_divide", "tanh", "__mul__", "__rmul__", "__truediv__"})
"""Arithmetic that models apply to each logit by itself: a scale, or a soft cap."""

_FACTS = frozenset({"__get__", "dim", "ndimension", "is_floating_point", "register_hook", "__bool__"})
"""What may be asked of logits that are not there."""


class DeferredLogits(TorchFunctionMode):
    """Replaces the output layer of a model, and computes the cross-entropy of its logits in another way.

    The logits that the model handles until its loss are the output layer's input, shown with the shape of logits. They
    can be reshaped, converted, scaled, capped, and sliced by tokens. Anything else raises UnavailableError: it would
    need all logits.
    """

    def __init__(self, model: nn.Module, vocabulary: int | None, choice: str, tokens: int) -> None:
        """Replace the forward of the output layer. Call this before the model is distributed or compiled."""
        super().__init__()
        self._choice, self._chunk = choice, tokens_per_chunk(choice)
        if choice == "linear" and not hasattr(functional, "linear_cross_entropy"):
            raise UnavailableError(
                f"--cross-entropy linear needs a torch with torch.nn.functional.linear_cross_entropy, such as 2.15; "
                f"this is {torch.__version__}. Nearest: chunked"
            )
        if choice not in ("chunked", "linear") and (self._chunk or 0) > tokens:
            raise UnavailableError(
                f"--cross-entropy {choice}: a micro-batch has only {tokens} tokens. Nearest: chunked-{tokens}"
            )
        layer = output_layer(model, vocabulary)
        if layer is None:
            raise UnavailableError(
                f"--cross-entropy {choice}: found no linear layer in {type(model).__name__} whose outputs are the "
                f"{'' if vocabulary is None else f'{vocabulary:,} '}logits of a token"
            )
        if choice == "linear" and hasattr(layer, "base_layer"):
            raise UnavailableError(
                "--cross-entropy linear takes only the weights of the output layer, which has an adapter. Nearest: "
                "chunked"
            )
        self._model, self._layer = model, layer
        self._apply: Callable[[Tensor], Tensor] = layer.forward
        self._vocabulary = int(layer.weight.shape[0])  # type: ignore[index]
        self._deferred: dict[int, _Deferred] = {}
        self._is_active = False
        replaced: Any = layer
        replaced.forward = self._begin

    @torch._disable_dynamo  # type: ignore[attr-defined]  # the compiler cannot follow into a mode
    def _begin(self, hidden: Tensor) -> Tensor:
        if not self._is_active:
            self._is_active = True
            self.__enter__()  # type: ignore[no-untyped-call]
        return self._defer(hidden, hidden.dtype)

    @contextmanager
    def until_loss(self, *, is_loss: bool) -> Iterator[None]:
        """Context manager for a phase: afterwards, calls of torch are seen only if the loss is still to come."""
        try:
            yield
        except BaseException:
            self._deferred.clear()
            raise
        finally:
            if self._is_active and (is_loss or not self._deferred):
                self._deferred.clear()
                self._is_active = False
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """Carry out what can be done without the logits; other tensors are left alone."""
        options = dict(kwargs or {})
        deferred = next((known for each in (*args, *options.values()) if (known := self._deferred.get(id(each)))), None)
        if deferred is None:
            return func(*args, **options)
        if func is functional.cross_entropy:
            self._deferred.clear()
            return self._cross_entropy(deferred, *args[1:], **{k: v for k, v in options.items() if k != "input"})
        name, (hidden, dtype, arithmetic) = getattr(func, "__name__", str(func)), deferred
        if func == _SHAPE or name == "size":
            sizes = torch.Size((*hidden.shape[:-1], self._vocabulary))
            return sizes[args[1]] if name == "size" and len(args) > 1 else sizes
        if func == _DTYPE:
            return dtype
        if name in ("float", "to"):
            named = (each for each in (*args[1:], *options.values()) if isinstance(each, torch.dtype))
            wanted = torch.float32 if name == "float" else next(named, None)
            converted = () if wanted is None else (partial(_converted, wanted),)
            return self._defer(hidden, wanted or dtype, (*arithmetic, *converted))
        if name in _RESHAPES:
            return self._defer(func(hidden, *self._sizes(name, hidden, args[1:]), **options), dtype, arithmetic)
        if name in _OF_EACH and all(isinstance(each, int | float) for each in args[1:]) and not options:
            return self._defer(hidden, dtype, (*arithmetic, partial(_applied, func, args[1:])))
        if name not in _FACTS:
            self._refuse(f"applies {name} to its logits")
        return func(*args, **options)

    def _defer(self, hidden: Tensor, dtype: torch.dtype, arithmetic: _Arithmetic = ()) -> Tensor:
        if hidden.shape[-1] != self._layer.weight.shape[-1]:  # type: ignore[index]
            self._refuse("takes single logits")
        hidden = hidden.view_as(hidden)  # tensors are told apart by identity
        self._deferred[id(hidden)] = _Deferred(hidden, dtype, arithmetic)
        return hidden

    def _sizes(self, name: str, hidden: Tensor, arguments: tuple[object, ...]) -> tuple[object, ...]:
        """Return the arguments of a method that changes the shape, for the output layer's input instead of logits."""
        if name in ("view", "reshape"):
            sizes = arguments[0] if isinstance(arguments[0], tuple | list) else arguments
            if sizes[-1] not in (self._vocabulary, -1):
                self._refuse(f"gives its logits the shape {tuple(sizes)}")
            return (*sizes[:-1], hidden.shape[-1])
        if name == "__getitem__":
            index = arguments[0] if isinstance(arguments[0], tuple) else (arguments[0],)
            if (len(index) == hidden.dim() or Ellipsis in index[:-1]) and index[-1] != slice(None):
                self._refuse("takes single logits")
        return arguments

    def _cross_entropy(
        self,
        logits: _Deferred,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        hidden, _, arithmetic = logits
        if weight is not None or label_smoothing or reduction not in ("mean", "sum") or hidden.dim() != 2:
            self._refuse("weights, smooths or keeps single losses")
        if hasattr(self._layer.weight, "placements"):  # trainers have the loss in forward, before FSDP2 shards again
            sharded: Any = self._model
            sharded.unshard()
        if self._chunk is None:
            if any(step.func is not _converted for step in arithmetic):
                self._refuse("scales or caps its logits")
            torch_functional: Any = functional
            loss: Tensor = torch_functional.linear_cross_entropy(
                hidden,
                self._layer.weight,
                target,
                linear_bias=getattr(self._layer, "bias", None),
                reduction=reduction,
                ignore_index=ignore_index,
                options=torch.nn.LinearCrossEntropyOptions(),
            )
            return loss
        part = partial(self._chunk_loss, arithmetic=arithmetic, ignore_index=ignore_index)
        chunks = zip(hidden.split(self._chunk), target.split(self._chunk), strict=True)
        losses = [checkpoint(part, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        total = torch.stack(losses).sum()
        return total if reduction == "sum" else total / (target != ignore_index).sum()

    def _chunk_loss(self, hidden: Tensor, target: Tensor, *, arithmetic: _Arithmetic, ignore_index: int) -> Tensor:
        logits = self._apply(hidden)
        for step in arithmetic:
            logits = step(logits)
        return functional.cross_entropy(logits, target, ignore_index=ignore_index, reduction="sum")

    def _refuse(self, what: str) -> NoReturn:
        raise UnavailableError(f"--cross-entropy {self._choice}: the model {what}, which needs all logits at once")


_Arithmetic = tuple[partial[Tensor], ...]
"""What is applied to logits, one after another; each logit by itself."""


def _converted(dtype: torch.dtype, logits: Tensor) -> Tensor:
    return logits.to(dtype)


def _applied(func: Callable[..., Tensor], numbers: tuple[float, ...], logits: Tensor) -> Tensor:
    return func(logits, *numbers)


class _Deferred(NamedTuple):
    """The input of the output layer, the dtype that its logits have by now, and what is applied to them."""

    hidden: Tensor
    dtype: torch.dtype
    arithmetic: _Arithmetic


_SHAPE: object = Tensor.shape.__get__  # type: ignore[attr-defined]
_DTYPE: object = Tensor.dtype.__get__  # type: ignore[attr-defined]

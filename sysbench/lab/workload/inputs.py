"""Inputs of the user's model: created by the user's function, described by options, or inferred from the model."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from sysbench.errors import UnavailableError
from sysbench.lab.devices import named_by_user_code
from sysbench.lab.strategies import data_parallel_index
from sysbench.lab.workload.imports import LoadedCode, arguments_for, load_code, user_code
from sysbench.log.events import CodeFile
from sysbench.spec.model import ModelCell
from sysbench.spec.own_model import DescribedInput, OwnModel

GET_INPUTS = "get_inputs"

TARGETS = frozenset({"targets", "target", "labels", "y"})
"""Names of the optional argument with which a language model computes its own loss."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call of the model.

    tokens       token ids (batch, ctx) among the inputs; None if there are none
    next_tokens  the id that follows each token, the target of the loss
    """

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    description: str
    tokens: Tensor | None = None
    next_tokens: Tensor | None = None
    vocabulary: int = 0
    files: tuple[CodeFile, ...] = ()

    @property
    def as_returned(self) -> Any:
        """The inputs as the user's function returns them: a tensor, a tuple, or a dict."""
        if self.keywords:
            return dict(self.keywords)
        return self.arguments[0] if len(self.arguments) == 1 else self.arguments


def create_inputs(
    cell: ModelCell, own: OwnModel, model: nn.Module, code: LoadedCode | None, device: torch.device
) -> tuple[Inputs, ...]:
    """Create the inputs for `model` on `device`: one `Inputs` per micro-batch of a step."""
    vocabulary = vocabulary_size(model)
    if own.inputs is not None:
        function = load_code(own.inputs, own.directory, "--input")
        create = partial(_inputs_from_function, function.value, f"{own.inputs}", cell, device, (function.file,))
    elif own.described:
        create = partial(_inputs_from_options, own.described, cell, vocabulary, device, _generator(cell))
    elif code is not None and callable(get_inputs := getattr(code.module, GET_INPUTS, None)):
        create = partial(_inputs_from_function, get_inputs, f"{GET_INPUTS} beside the model", cell, device, ())
    else:
        return tuple(_inferred_inputs(model, cell, device))
    batches = (create() for _ in range(cell.grad_accum))
    return tuple(
        batch
        if batch.tokens is None or vocabulary is None
        else replace(batch, next_tokens=batch.tokens.roll(-1, 1).long(), vocabulary=vocabulary)
        for batch in batches
    )


def _inputs_from_function(
    function: Callable[..., object],
    description: str,
    cell: ModelCell,
    device: torch.device,
    files: tuple[CodeFile, ...],
) -> Inputs:
    named = named_by_user_code(device)
    fallbacks = {"batch": cell.batch, "ctx": cell.ctx, "batch_size": cell.batch, "device": named}
    given = arguments_for(function, {}, fallbacks, {}, description)
    with user_code(description), device:
        value = function(**given)
    moved: Any = tree_map_only(Tensor, partial(_moved, device=device), value)
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(moved)):
        raise UnavailableError(
            f"{description} returned {type(value).__name__}; it must return a tensor, a tuple or a dict of tensors"
        )
    keywords = moved if isinstance(moved, dict) else {}
    arguments = () if keywords else tuple(moved) if isinstance(moved, tuple | list) else (moved,)
    return Inputs(arguments, keywords, description, _tokens_in(moved, cell), files=files)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`, itself a leaf: a copy must not lead gradients back to the original."""
    return tensor if tensor.device == device else tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def _tokens_in(value: Any, cell: ModelCell) -> Tensor | None:
    integers, shape = (torch.int64, torch.int32), (cell.batch, cell.ctx)
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    return next((tensor for tensor in tensors if tensor.dtype in integers and tensor.shape == shape), None)


def _inputs_from_options(
    inputs: tuple[DescribedInput, ...],
    cell: ModelCell,
    vocabulary: int | None,
    device: torch.device,
    generator: torch.Generator,
) -> Inputs:
    arguments, keywords = [], {}
    for each in inputs:
        symbols = {"B": cell.batch, "T": cell.ctx}
        sizes = [size if isinstance(size, int) else symbols[size] for size in each.sizes]
        dtype = getattr(torch, each.dtype)
        limit = vocabulary if each.below == "vocab" else each.below
        if limit is None and each.below is not None:
            raise UnavailableError(
                "--input: <vocab means the size of the first embedding, but the model has no embedding"
            )
        if dtype.is_floating_point:
            value = torch.randn(sizes, generator=generator).to(dtype)
        else:
            value = torch.randint(int(limit or 2), sizes, generator=generator).to(dtype)
        if each.name is None:
            arguments.append(value.to(device))
        else:
            keywords[each.name] = value.to(device)
    return Inputs(tuple(arguments), keywords, "--input", _tokens_in((arguments, keywords), cell))


def original_of(model: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` has wrapped, or `model` itself."""
    original: nn.Module = getattr(model, "_orig_mod", model)
    return original


def _inferred_inputs(model: nn.Module, cell: ModelCell, device: torch.device) -> Iterator[Inputs]:
    """Yield random token ids for each micro-batch, if the model has an embedding and requires at most one argument.

    Required targets (`TARGETS`) do not count: they are the ids that follow.
    """
    name, vocabulary = type(original_of(model)).__name__, vocabulary_size(model)
    try:
        parameters = list(inspect.signature(original_of(model).forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    single = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    further = single[1:] if not single or single[0].kind is not single[0].KEYWORD_ONLY else single * (len(single) > 1)
    own_loss = next((each for each in further if each.name in TARGETS), None)
    required = [each for each in single if each.default is each.empty and each is not own_loss]
    remedy = f"add {GET_INPUTS}(batch, ctx) beside the model, or --input module:function or tokens=int64[B,T]<1000"
    if described := describe_inputs(model, [parameter.name for parameter in parameters]):
        raise UnavailableError(f"{name} takes more than token ids: add --input {shlex.quote(described)}")
    if vocabulary is None:
        raise UnavailableError(f"{name} has no embedding, so the inputs of its forward cannot be inferred: {remedy}")
    of_tokens = next(iter([*required, *(each for each in single if each is not own_loss)]), None)
    is_any_keyword = of_tokens is None and any(each.kind is each.VAR_KEYWORD for each in parameters)
    if len(required) > 1 or is_any_keyword:
        takes = ", ".join(str(each) if is_any_keyword else each.name for each in (required or parameters))
        raise UnavailableError(f"{name}.forward takes {takes}, and these inputs cannot be inferred: {remedy}")
    for tokens, next_tokens in random_tokens(vocabulary, cell, device):
        given = Inputs((tokens,), {}, f"token ids below {vocabulary}", tokens, next_tokens, vocabulary)
        if of_tokens is not None and of_tokens.kind is of_tokens.KEYWORD_ONLY:
            given = replace(given, arguments=(), keywords={of_tokens.name: tokens})
        if own_loss is not None and ("loss" in cell.phases or own_loss.default is own_loss.empty):
            given = replace(given, keywords={**given.keywords, own_loss.name: next_tokens})
        yield given


def describe_inputs(model: nn.Module, takes: Collection[str]) -> str | None:
    """Return the inputs of a model from transformers, as `--input` takes them; None if token ids are enough.

    `takes` are the names of its forward's arguments. Models that only may take pictures are given token ids.
    """
    config, main = getattr(model, "config", None), getattr(model, "main_input_name", "input_ids")
    if config is None or not hasattr(config, "model_type"):
        return None
    vision = getattr(config, "vision_config", config)
    compares = isinstance(getattr(model, "logit_scale", None), Tensor)  # pictures with texts, as CLIP does
    ids = f"int64[B,T]<{getattr(getattr(config, 'text_config', config), 'vocab_size', 1000)}"
    found = {}
    if "pixel_values" in takes and (main == "pixel_values" or compares):
        size, channels = getattr(vision, "image_size", 224), getattr(vision, "num_channels", 3)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        found["pixel_values"] = f"float32[B,{channels},{height},{width}]"
    elif main == "input_features":
        mels, frames = getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500)
        found["input_features"] = f"float32[B,{mels},{frames}]"
    elif main == "input_values":
        found["input_values"] = "float32[B,16000]"
    if main == "input_ids" or compares:
        found = {"input_ids": ids, **found}
    kind = re.search(r"For(\w+)$", type(model).__name__)
    classes = f"<{getattr(config, 'num_labels', 2)}"
    labels = {
        "SequenceClassification": f"int64[B]{classes}", "ImageClassification": f"int64[B]{classes}",
        "TokenClassification": f"int64[B,T]{classes}", "ConditionalGeneration": ids,
    }  # fmt: skip
    if kind and "labels" in takes and kind[1] in labels:
        found["labels"] = labels[kind[1]]
    if found in ({"input_ids": ids}, {"input_ids": ids, "labels": ids}):
        return None
    return ",".join(f"{name}={each}" for name, each in found.items())


def random_tokens(vocabulary: int, cell: ModelCell, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """For each micro-batch, return random token ids and the ids that follow them, both of shape (batch, ctx)."""
    generator = _generator(cell)
    sequences = [
        torch.randint(vocabulary, (cell.batch, cell.ctx + 1), generator=generator) for _ in range(cell.grad_accum)
    ]
    return [
        (sequence[:, :-1].contiguous().to(device), sequence[:, 1:].contiguous().to(device)) for sequence in sequences
    ]


def _generator(cell: ModelCell) -> torch.Generator:
    return torch.Generator().manual_seed(cell.seed + data_parallel_index(cell.strategy))


def vocabulary_size(model: nn.Module) -> int | None:
    """Return the number of rows of the embedding of tokens, or None.

    Models of transformers say which it is; of others it is the first.
    """
    named_by_model = getattr(model, "get_input_embeddings", None)
    embeddings = []
    if callable(named_by_model):
        with suppress(NotImplementedError, AttributeError):  # of models without tokens
            embeddings.append(named_by_model())
    for module in (*filter(None, embeddings), *model.modules()):
        weight = getattr(module, "weight", None)
        named = isinstance(module, nn.Embedding) or "embedding" in type(module).__name__.lower()
        if named and isinstance(weight, Tensor) and weight.dim() == 2:
            return int(weight.shape[0])
    return None

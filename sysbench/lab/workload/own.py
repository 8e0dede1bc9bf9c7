"""The workload of the user's model: their own code, or a config file for the `transformers` package.

Models from transformers are built offline, and without trained weights.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench import extras
from sysbench.errors import UnavailableError, nearest
from sysbench.lab.attention import BACKENDS, KINDS
from sysbench.lab.devices import named_by_user_code
from sysbench.lab.knobs.optimizers import optimizer_for
from sysbench.lab.knobs.quantization import home_of, quantize
from sysbench.lab.precision import building, parameter_dtype
from sysbench.lab.workload.imports import LoadedCode, Printed, arguments_for, code_file, import_s, load_code, user_code
from sysbench.lab.workload.inputs import create_inputs, original_of
from sysbench.lab.workload.losses import Loss
from sysbench.lab.workload.workload import Batch, IgnoredConfig, OwnWorkload, Workload
from sysbench.spec.grid import BUILT_IN_ATTENTION, ModelShape
from sysbench.spec.model import ModelCell
from sysbench.spec.options import flag_of
from sysbench.spec.own_model import OwnModel
from sysbench.spec.steps import TRUE_PRECISIONS, Attention

_DIMENSION_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "vocab": ("vocab", "vocab_size", "n_vocab", "num_embeddings"),
    "d_model": ("d_model", "hidden_size", "n_embd", "dim", "embed_dim"),
    "layers": ("layers", "num_layers", "n_layers", "n_layer", "num_hidden_layers", "depth"),
    "heads": ("heads", "num_heads", "n_heads", "n_head", "num_attention_heads", "nhead"),
    "d_ff": ("d_ff", "ffn_dim", "intermediate_size", "dim_feedforward", "hidden_dim"),
}
"""Constructor argument names for the dimensions of `--size`."""

_CONTEXT_ARGUMENTS = ("ctx", "context_length", "max_seq_len", "block_size", "max_position_embeddings")
"""Constructor argument names for the longest context, which is set to the cell's context."""

HOOK = "scaled_dot_product_attention"
"""A function with this name in the model's module can be replaced by another implementation of causal attention."""

_ORIGINAL_HOOKS: WeakKeyDictionary[ModuleType, object] = WeakKeyDictionary()
"""The original `HOOK` function of each module; None for a module without one."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def own_workload(cell: ModelCell, own: OwnModel, device: torch.device) -> Workload:
    """Import and build the user's model on `device`, with inputs, a loss and an optimizer."""
    torch.manual_seed(cell.seed)
    printed = Printed()
    with printed.redirected():
        code = None if own.is_hugging_face else load_code(own.target, own.directory)
        with home_of(cell, device), building(cell.precision):
            model, config_class = (
                (_config_model(cell, own), None) if code is None else _construct_model(cell, own, code)
            )
        _prepare_model(model, cell, device)
        inputs = create_inputs(cell, own, model, code, device)
        losses = load_code(own.loss, own.directory, "--loss") if own.loss is not None else None
        optimizers = load_code(cell.optimizer, own.directory, "--optimizer") if ":" in cell.optimizer else None
    config = code_file(own.target, own.config) if code is None else code.file
    files = (config, *inputs[0].files, *(code.file for code in (losses, optimizers) if code is not None))
    batches = tuple(Batch(given.arguments, given.keywords, Loss(given, losses, model)) for given in inputs)
    first: Any = batches[0].loss
    backends = [BACKENDS[cell.attention]] if cell.attention in BACKENDS else []
    if own.is_hugging_face and cell.attention == "flash":
        backends.append(SDPBackend.EFFICIENT_ATTENTION)  # of windows, which flash has only in the package flash-attn
    return Workload(
        model=model,
        batches=batches,
        optimizer=partial(optimizer_for, model, cell.optimizer)
        if optimizers is None
        else partial(_own_optimizer, optimizers, model),
        tokens=cell.tokens if inputs[0].tokens is not None else None,
        attention_context=partial(sdpa_kernel, backends) if backends else nullcontext,
        own=OwnWorkload(
            class_name=type(original_of(model)).__qualname__,
            config_class=config_class,
            files=files,
            inputs=inputs[0].description,
            loss=lambda: first.description,
            printed=printed,
            import_s=import_s(files),
            ignored=None if code is not None else _ignored(own, cell),
        ),
    )


def _construct_model(cell: ModelCell, own: OwnModel, code: LoadedCode) -> tuple[nn.Module, str | None]:
    """Build the model with the user's class or function; the second item names the class of its config, if any."""
    if isinstance(code.value, nn.Module):
        raise UnavailableError(f"--model {own.target} is already a model: name its class, or a function that builds it")
    dimensions = {argument: own.dimensions[name] for name, names in _DIMENSION_ARGUMENTS.items() for argument in names}
    context = dict.fromkeys(_CONTEXT_ARGUMENTS, cell.ctx)
    shape = ModelShape(**own.dimensions)
    device = named_by_user_code(torch.get_default_device())
    fallbacks: dict[str, Any] = {"shape": shape, "device": device, "seed": cell.seed, **dimensions}
    fallbacks["attention"] = BUILT_IN_ATTENTION[0]
    attention = {} if cell.attention == "own" else {"attention": cell.attention}
    requested = tuple(own.dimensions) if own.sized else own.single_dimensions
    requested_arguments = {argument for name in requested for argument in _DIMENSION_ARGUMENTS[name]}
    preferred = {**context, **attention, **{name: dimensions[name] for name in requested_arguments}}
    what = f"--model {own.target}"
    config = _find_config(code, {*fallbacks, *preferred, *own.arguments})
    constructor, name = (
        (code.value, what) if config is None else (config.kind, f"{config.kind.__name__}, the config of {what}")
    )
    remedy = ". Add --model-arg NAME=VALUE, or name a function that builds the model"
    given = arguments_for(constructor, own.arguments, fallbacks, preferred, name, remedy)
    if requested and not given.keys() & {*requested_arguments, "shape"}:
        raise UnavailableError(
            f"{what} takes none of the dimensions of --size, such as {', '.join(_DIMENSION_ARGUMENTS)}"
            if own.sized
            else f"{what} has no argument for {' and '.join(map(flag_of, requested))}: use --model-arg NAME=VALUE"
        )
    if "attention" not in given:
        _replace_attention(cell, code, what)
    with user_code(f"building {own.title}"):
        model = code.value(**(given if config is None else {config.argument: config.kind(**given)}))
    if not isinstance(model, nn.Module):
        raise UnavailableError(f"{what} returned {type(model).__name__}, which is not a torch.nn.Module")
    return model, None if config is None else config.kind.__name__


class _Config(NamedTuple):
    argument: str
    kind: type[Any]


def _find_config(code: LoadedCode, known: Collection[str]) -> _Config | None:
    """Return the config that the user's class or function takes, or None if it takes none.

    A config is the only required argument, and its name is not in `known`: `config` in nanoGPT's `GPT(config)`. Its
    class is the annotation or, if there is none, the only dataclass in the module.
    """
    try:
        parameters = inspect.signature(code.value).parameters.values()
    except (TypeError, ValueError):  # a function implemented in C
        return None
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in _VARIADIC
    ]
    if len(required) != 1 or required[0].name in known:
        return None
    name, kind, here = required[0].name, required[0].annotation, vars(code.module)
    if isinstance(kind, str):  # from __future__ import annotations
        kind = here.get(kind)
    elif kind is inspect.Parameter.empty:
        dataclasses = {each for each in here.values() if inspect.isclass(each) and is_dataclass(each)}
        kind = dataclasses.pop() if len(dataclasses) == 1 else None
    if not inspect.isclass(kind) or kind.__module__.partition(".")[0] in ("builtins", "torch"):
        return None
    return _Config(name, kind)


def _config_model(cell: ModelCell, own: OwnModel) -> nn.Module:
    if own.sized or own.single_dimensions:
        raise UnavailableError(
            f"--model {own.target} takes its dimensions from its config: change them with --model-arg"
        )
    fields = dict(own.arguments)
    dtype = TRUE_PRECISIONS.get(cell.precision)
    if dtype is not None and fields.setdefault(DTYPE, dtype) != dtype:
        given = f"--model-arg dtype={fields[DTYPE]}"
        raise UnavailableError(f"{given} contradicts --precision {cell.precision}: drop one of them")
    return build_from_config(own.config, fields, cell.attention)


def _prepare_model(model: nn.Module, cell: ModelCell, device: torch.device) -> None:
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.device.type == "meta" for tensor in tensors):
        raise UnavailableError(
            f"{type(model).__name__} has parameters on the meta device, which have no values: build it with values"
        )
    quantize(model, cell, device)
    if any(tensor.device != device for tensor in [*model.parameters(), *model.buffers()]):
        model.to(device)
    if cell.precision in TRUE_PRECISIONS:
        for parameter in model.parameters():
            if parameter.dtype == torch.float32:  # created with a dtype of its own
                parameter.data = parameter.data.to(parameter_dtype(cell.precision))
    model.train(cell.mode != "inference")
    if "backward" in cell.phases and not any(parameter.requires_grad for parameter in model.parameters()):
        raise UnavailableError(
            f"no parameter of {type(model).__name__} requires a gradient, so there is no backward: use --mode inference"
        )


def _replace_attention(cell: ModelCell, code: LoadedCode, what: str) -> None:
    """Replace the model's attention function (`HOOK`) with the cell's implementation, or restore the original."""
    original = _ORIGINAL_HOOKS.setdefault(code.module, getattr(code.module, HOOK, None))
    if cell.attention == "own":
        if original is not None:
            setattr(code.module, HOOK, original)
        return
    if not callable(original):
        raise UnavailableError(
            f"--attention {cell.attention}: {what} takes no argument `attention`, and its module has no function "
            f"{HOOK} to replace"
        )
    attend = KINDS[cell.attention](cell.ctx)

    def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, *rest: object, **options: object) -> Tensor:
        attended: Tensor = attend(q, k, v)
        return attended

    setattr(code.module, HOOK, scaled_dot_product_attention)


def _own_optimizer(factory: LoadedCode, model: nn.Module) -> torch.optim.Optimizer:
    """Call the factory with the trainable parameters if its first argument is named `param…`, else with the model."""
    try:
        first = next(iter(inspect.signature(factory.value).parameters), "params")
    except (TypeError, ValueError):
        first = "params"
    name, trainable = factory.file.target, [parameter for parameter in model.parameters() if parameter.requires_grad]
    with user_code(f"--optimizer {name}"):
        optimizer = factory.value(trainable if first.startswith("param") else model)
    if isinstance(optimizer, tuple | list | dict):
        raise UnavailableError(
            f"--optimizer {name} returned a {type(optimizer).__name__} of {len(optimizer)}, but a step has one "
            "optimizer. For your own loop with several optimizers, use sysbench.measure"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UnavailableError(
            f"--optimizer {name} returned {type(optimizer).__name__}, which is not a torch.optim.Optimizer"
        )
    step = inspect.signature(optimizer.step).parameters.values()
    if needed := [each.name for each in step if each.default is each.empty and each.kind not in _VARIADIC]:
        raise UnavailableError(
            f"--optimizer {name}: {type(optimizer).__name__}.step needs a {needed[0]}, which computes the loss again, "
            "but a step here has none. For your own loop, use sysbench.measure"
        )
    return optimizer


_IMPLEMENTATIONS: Mapping[Attention, str] = {"naive": "eager", "flex": "flex_attention"}
"""Names of attention implementations in transformers; all others are kernels of its `sdpa`."""

DTYPE = "dtype"


_COUNT = re.compile(r"(.*_)?(layers|heads|experts|blocks|depths?)|n_layer|n_head")


def _counts(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield how many layers, heads and experts a config has, by field. torch builds none where a count is negative."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _counts(value, f"{prefix}{name}.")
        elif _COUNT.fullmatch(str(name)):
            counts = value if isinstance(value, list | tuple) else [value]
            yield from ((f"{prefix}{name}", count) for count in counts if isinstance(count, int))


def _ignored(own: OwnModel, cell: ModelCell) -> IgnoredConfig:
    """Return what a Hugging Face config says about its trained weights, where the model is not built so."""
    config = json.loads(own.config.read_text())
    named = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    built = TRUE_PRECISIONS.get(cell.precision, "float32")
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return IgnoredConfig(
        dtype=None if DTYPE in own.arguments or named == built else named,
        quantization=str(method or "unnamed") if quantization and cell.quantize is None else None,
    )


def layers_are_alike(own: OwnModel) -> bool:
    """Return whether the config of a Hugging Face model lists no property by which its layers differ."""
    config = _config_in(own.config)
    layers = getattr(config, "num_hidden_layers", None)
    by_layer = [each for each in vars(config).values() if isinstance(each, list | tuple) and len(each) == layers]
    return all(each.count(each[0]) == layers for each in by_layer)


def _config_in(path: Path) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if complaint := extras.missing(*extras.TRANSFORMERS):
        raise UnavailableError(complaint)
    import transformers

    with user_code(f"reading {path}"):
        return transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def build_from_config(path: Path, fields: Mapping[str, object], attention: Attention) -> nn.Module:
    """Build the model that a config describes, on torch's default device; `fields` override fields of the config."""
    config = _config_in(path)
    import transformers

    for name, value in fields.items():
        if name == DTYPE:
            continue
        if not hasattr(config, name):
            suggestion = nearest(name, config.to_dict())
            hint = f" Did you mean {suggestion}?" if suggestion else ""
            raise UnavailableError(f"--model-arg {name}: the config has no such field.{hint}")
        setattr(config, name, value)
    for name, count in _counts(config.to_dict()):
        if count < 0:
            raise UnavailableError(f"{path.name}: {name} is {count}; a model has 0 or more")
    config.use_cache = fields.get("use_cache", False)
    dtype = getattr(torch, str(fields.get(DTYPE, "float32")), None)
    if not isinstance(dtype, torch.dtype):
        raise UnavailableError(f"--model-arg dtype={fields[DTYPE]}; use float32, bfloat16 or float16")
    options: dict[str, Any] = {DTYPE: dtype}
    if attention != "own":
        options["attn_implementation"] = _IMPLEMENTATIONS.get(attention, "sdpa")
    architecture = (config.architectures or [None])[0]
    with user_code(f"building {architecture or config.model_type}"):
        if architecture is not None and hasattr(transformers, architecture):
            model: nn.Module = getattr(transformers, architecture)._from_config(config, **options)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config, **options)
    return model

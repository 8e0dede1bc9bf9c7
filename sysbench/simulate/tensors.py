"""Tensors without data: a device that computes shapes, dtypes and storages, but no values.

`SimulatedDevice` represents a GPU. Tensors on `DEVICE` belong to the GPU, and are internally tensors on torch's `meta`
device. Every other tensor is real, and represents a tensor in host memory. Both kinds use torch's own autograd.

torch's shape functions run only once for each operator and kind of arguments; a cache serves all later calls. The
layers of a Transformer repeat the same calls, and torch's shape functions, which are written in Python, would take
longer than everything else together.

There are no values, so torch's own code reads 0 as the value of any tensor (`item()`, `if tensor:`, a copy to the
host). User code may depend on values. The values of small tensors that follow from constants and inputs alone, such as
positions, masks and token ids, are therefore computed (`KnownValues`), and so are those that follow from the choices of
a router, which are assumed to be balanced. User code that reads any other value cannot be simulated.

User code names the device `cuda`, and sees that name as the device of its tensors (`_DeviceNames`). Tensors on the
device and on the host do not mix, as on a GPU.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import IntEnum
from functools import cache
from itertools import takewhile
from types import FrameType
from typing import Any, ClassVar, NamedTuple, Self
from unittest import mock

import torch
from torch import Tensor
from torch._C import _DisableTorchDispatch as _below_python
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_map_only

from sysbench.errors import UnavailableError
from sysbench.extras import installed_torch
from sysbench.frames import owner_here
from sysbench.lab.dispatch import Arguments, DispatchMode, Handler, Operator, Options
from sysbench.lab.memory.accounting import StorageWatch, tensors_in
from sysbench.simulate.compiler.generated import GeneratedKernel

DEVICE = torch.device("cpu", 0)
"""Device of simulated tensors. torch distinguishes it from the host's `cpu`, which has no index, but otherwise treats
it as a CPU: unlike `meta`, it has generators, gradient scalers and autocast."""

CUDA = torch.device("cuda", 0)
"""The name of `DEVICE` in user code."""

_META = torch.device("meta")
_aten = torch.ops.aten

_MAY_READ_VALUES = (
    ("torch", "optim"),
    ("torch", "amp"),
    ("torch", "autograd", "graph.py"),
    ("torch", "nn", "utils", "parametrizations.py"),
    ("sysbench", "lab"),
)
"""Code whose memory does not depend on the values it reads; `graph.py` moves saved tensors to the host and back."""

_KNOW_DEVICE = frozenset({"torch", "sysbench", "torchao", "bitsandbytes", "peft", "triton"})
"""Packages whose code sees `DEVICE` as the device of simulated tensors; all others see `CUDA`."""

_ASK_FOR_GPU = frozenset({"torch.nn.attention.flex_attention"})
"""Modules of these packages that refuse tensors which are not on a GPU."""


def is_asked_by_user_code(frame: FrameType) -> bool:
    """Return whether the code of this frame must find a GPU where sysbench and PyTorch know the simulated device."""
    module = str(frame.f_globals.get("__name__"))
    return module.partition(".")[0] not in _KNOW_DEVICE or module in _ASK_FOR_GPU


class SimulatedTensor(Tensor):
    """A tensor without data on `DEVICE`."""

    # The dispatcher calls SimulatedDevice anyway; an earlier call would only take time.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    inferring_shapes: ClassVar[bool] = False
    """Whether torch's shape functions are running; tensors must then report the `meta` device."""

    serving_user_code: ClassVar[bool] = False
    """Whether user code runs, which finds its tensors on `CUDA`."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return `DEVICE`, which user code sees as `CUDA`, or `meta` while torch's shape functions run."""
        if SimulatedTensor.inferring_shapes:
            return _META
        return CUDA if SimulatedTensor.serving_user_code and is_asked_by_user_code(sys._getframe(1)) else DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Return whether the tensor is on a GPU, which user code is told."""
        return SimulatedTensor.serving_user_code and is_asked_by_user_code(sys._getframe(1))

    def get_device(self) -> int:
        """Return the index of the GPU."""
        return 0

    def __repr__(self) -> str:  # type: ignore[override]
        return f"SimulatedTensor({list(self.shape)}, dtype={self.dtype})"

    def tolist(self) -> list[Any]:
        """Return the values as a list. Raises UnavailableError if user code reads unknown values."""
        return self.cpu().tolist()

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_with_index_tensors(index))

    def __setitem__(self, index: Any, value: Tensor | float) -> None:
        super().__setitem__(_with_index_tensors(index), value)

    def new_tensor(self, data: object, **options: Any) -> Tensor:  # type: ignore[override]
        """Return `data` as a tensor of this dtype on `DEVICE`, unless `options` has others."""
        return torch.tensor(data, **{"dtype": self.dtype, "device": DEVICE, **options})

    def __coerce_same_metadata_as_tangent__(self, expected: object, kind: object = None) -> Self:
        """Return this tensor, as which compiled code takes the gradient that it expects to be a plain tensor."""
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: object, types: object, args: object = (), kwargs: object = None
    ) -> object:
        """Raise RuntimeError: torch calls this method only if no SimulatedDevice is active."""
        raise RuntimeError(f"{func} was called outside the SimulatedDevice of its arguments")


class HostTensor(SimulatedTensor):
    """A tensor without data in memory of the host, such as an offloaded shard."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return the host's `cpu`, or `meta` while torch's shape functions run."""
        return _META if SimulatedTensor.inferring_shapes else _HOST

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Return False."""
        return False

    def get_device(self) -> int:
        """Return the index that torch gives tensors without a device index."""
        return -1


class _NewTensor(NamedTuple):
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class _NewTensors(NamedTuple):
    parts: tuple[object, ...]
    kind: type


class _Argument(NamedTuple):
    position: int


class _Uncached:
    """No cached result: the result shares storage with an argument or another result; recomputed on every call."""


_CachedResult = _NewTensor | _NewTensors | _Argument | _Uncached

_RESULTS: dict[tuple[object, ...], _CachedResult] = {}
"""Shapes of the results of all operator calls so far, by the operator, torch's default dtype and the arguments; they do
not depend on the device."""


class DeviceObserver:
    """Callbacks for the operators, allocations and frees on a device; this class observes nothing."""

    def begins(self, func: Operator, arguments: Arguments) -> None:
        """Called before an operator runs."""

    def allocated(self, size_bytes: int, arguments: Arguments) -> int:
        """Called for each new storage of an operator's results; return a number that identifies the storage."""
        return 0

    def observes(self, func: Operator) -> bool:
        """Return whether a simulated device must call `ends` for this operator; called once per operator."""
        return False

    def ends(self, func: Operator, arguments: Arguments, options: Options, result: object) -> None:
        """Called after an operator has run, unless `observes` returned False for it."""

    def freed(self, number: int) -> None:
        """Called when the storage with this number is freed."""


_PLAIN = frozenset({Tensor, Parameter, SimulatedTensor, HostTensor})
"""Types of almost all tensors, which wrap no others."""


class ObservedDevice(DispatchMode):
    """A dispatch mode that reports to an observer which storages operators allocate, and when each storage is freed."""

    wrappers: Any = None
    """Handles tensors that are sharded over ranks, if there are several: the `Shards` of `simulate.ranks`."""

    def __init__(self, observer: DeviceObserver) -> None:
        super().__init__()
        self._observer = observer
        self._arguments: Arguments = ()
        self._watch = StorageWatch(lambda size_bytes: observer.allocated(size_bytes, self._arguments), observer.freed)

    def __torch_dispatch__(
        self, func: Operator, types: Iterable[type], args: Arguments = (), kwargs: Options | None = None
    ) -> object:
        """Run an operator, through `wrappers` if there are any. Raises the same errors as `run`."""
        if self.wrappers is not None:
            return self.wrappers.run(self, func, types, args, kwargs or {})
        if not _PLAIN.issuperset(types) and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the wrapper runs operators on what it wraps
        return self.run(func, args, kwargs or {})

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Run an operator on tensors of the device, and report the storages that it allocates."""
        raise NotImplementedError

    def number_of(self, tensor: Tensor) -> int | None:
        """Return the observer's number for the tensor's storage; None for empty tensors and tensors on other devices.

        For a tensor that is sharded over ranks, the number is that of this rank's shard.
        """
        return self._watch.number_of(getattr(tensor, "_local_tensor", tensor))

    def watching_resizes(self) -> AbstractContextManager[None]:
        """Return a context manager in which resized storages are also observed (`StorageWatch.watching_resizes`)."""
        return self._watch.watching_resizes()

    def stop(self) -> None:
        """Stop reporting freed storages: what is freed after the end of a run is not part of the run."""
        self._watch.forget_all()


_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default)
"""Operators whose second argument is a list of indices."""

_LITERALS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor})
"""Functions that make tensors of Python's numbers."""

_NAME_DEVICES = frozenset({Tensor.cuda, Tensor.to, *_device_constructors(), *_LITERALS})
"""Functions whose device is to be looked at also where no argument is named."""


def _named_device(value: object) -> object:
    """Return `DEVICE` for what names a GPU: `"cuda"`, `torch.device("cuda")`, or a number; all else unchanged.

    Raises RuntimeError for any GPU but the first.
    """
    if isinstance(value, str | int) and not isinstance(value, bool):
        if isinstance(value, str) and not value.startswith("cuda"):
            return value
        value = torch.device("cuda", value) if isinstance(value, int) else torch.device(value)
    if not isinstance(value, torch.device) or value.type != CUDA.type:
        return value
    if value.index:
        raise RuntimeError(f"invalid device ordinal: the simulated GPU is cuda:0, not {value}")
    return DEVICE


class _DeviceNames(TorchFunctionMode):
    """A mode in which "cuda" names `DEVICE`, and literals on `DEVICE` are simulated tensors.

    torch looks for a driver before any dispatch mode sees the call. It also fills a literal before that, and real
    tensors have no device index: without this, a literal on the GPU could not be told from one on the host.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Arguments = (), kwargs: Options | None = None
    ) -> object:
        """Call `func` with the device that its arguments name."""
        if not kwargs and func not in _NAME_DEVICES:
            return func(*args)
        options = dict(kwargs or {})
        if func is Tensor.cuda:
            func, args = Tensor.to, (args[0], *(args[1:] or (options.pop("device", None) or CUDA,)))
        if func in _device_constructors() and options.get("device") is None:
            options["device"] = torch.get_default_device()
        if "device" in options:
            options["device"] = _named_device(options["device"])
        if func is Tensor.to:
            args = (args[0], *map(_named_device, args[1:2]), *args[2:])
            if type(args[0]) is SimulatedTensor and args[1:] == (DEVICE,) and not options.keys() - {"non_blocking"}:
                return args[0]
        made = func(*args, **options)
        if func in _LITERALS and options.get("device") == DEVICE and not _is_on_device(made):
            return made.detach().to(DEVICE).requires_grad_(made.requires_grad)
        return made


@contextmanager
def _naming_devices() -> Iterator[None]:
    """Context manager in which "cuda" names `DEVICE`, in backward too.

    A mode is off while it handles a call, and the whole of backward is one call. Code that runs in backward, such as
    blocks that are computed again, names devices as it does in forward.
    """
    run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def run_with_names(*args: Any, **options: Any) -> Any:
        with _DeviceNames():
            return run(*args, **options)

    with _DeviceNames(), mock.patch.object(torch.autograd, "_engine_run_backward", run_with_names):
        yield


@contextmanager
def _only_modes_below(kind: type[TorchFunctionMode]) -> Iterator[None]:
    """Context manager in which modes that were entered after the one of this kind are off, so that it can be left."""
    entered_later = list(
        takewhile(lambda mode: not isinstance(mode, kind), reversed(_get_current_function_mode_stack()))
    )
    for _ in entered_later:
        _pop_mode()
    try:
        yield
    finally:
        for mode in reversed(entered_later):
            _push_mode(mode)


class SimulatedDevice(ObservedDevice):
    """A dispatch mode in which `DEVICE` is a GPU whose kernels do nothing."""

    def __init__(self, observer: DeviceObserver) -> None:
        super().__init__(observer)
        self._handlers: dict[Operator, tuple[Handler, bool]] = {}
        self.call_key: object = None
        """Key of the last operator call: one object for all equivalent calls of all devices, which lives as long as the
        process; None if unknown."""
        self.values: KnownValues | None = None
        """Known values of tensors; only needed for user code."""
        self.offloads = False
        """Whether copies to the host are tensors without data there; else they are real."""
        self.names_gpu = True
        """Whether "cuda" names the device in user code, which finds its tensors there."""
        self.runs_generated_code = False
        """Whether code that a compiler has generated runs, which calls operators without the usual work of the host."""
        self._names = ExitStack()
        # For the first tensors without data in a process, torch imports its shape functions, and leaves a reference
        # cycle that keeps these tensors alive. They must not be part of a recording.
        torch.empty(1, device=_META) / 1
        _references_of_engine()

    def __enter__(self) -> Self:
        """Begin to handle operators, and the names of devices in user code."""
        super().__enter__()  # type: ignore[no-untyped-call]
        if self.values is not None and self.names_gpu:
            SimulatedTensor.serving_user_code = True
            self._names.enter_context(_naming_devices())
        return self

    def __exit__(self, *error: object) -> None:
        self._names.close()
        SimulatedTensor.serving_user_code = False
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def stop_naming_gpu(self) -> None:
        """No longer let "cuda" name the device, which takes a mode that compiled code must not find.

        Nor do tensors then say that they are on a GPU, so that code between compiled parts can make others beside them.
        """
        self.names_gpu = SimulatedTensor.serving_user_code = False
        with _only_modes_below(_DeviceNames):
            self._names.close()

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> Any:
        """Return the results of `func` without computing values."""
        if "out" in kwargs and (product := _INTO_OUT.get(func)) is not None:
            return self._multiply_into(product, args, **kwargs)
        if func is _ADD and _is_accumulated_in_place(args, kwargs):
            func = _ADD_IN_PLACE
        found = self._handlers.get(func)
        if found is None:
            found = self._handlers[func] = self._handler_for(func), self._observer.observes(func)
        handle, is_observed = found
        self._observer.begins(func, args)
        self.call_key = None
        try:
            result = handle(func, args, kwargs)
        finally:
            self._arguments = ()  # a longer-lived reference would keep the tensors alive
        if is_observed:
            self._observer.ends(func, args, kwargs, result)
        if self.values is not None:
            self.values.propagate(func, args, kwargs, result)
        return result

    def _multiply_into(self, func: Operator, args: Arguments, *, out: Tensor, **kwargs: Any) -> Tensor:
        """Report a product that is written into a tensor, as compiled code calls it, as the product that it is."""
        self._observer.begins(func, args)
        self.call_key = None
        if self._observer.observes(func):
            self._observer.ends(func, args, kwargs, out)
        return out

    def launch(self, kernel: GeneratedKernel, arguments: Sequence[object]) -> None:
        """Launch a kernel that a compiler has generated, which does nothing without data."""

    def repeats(self) -> bool:
        """Return whether the last two micro-batches had the same effect on the device, apart from storages."""
        return True

    def repeat(self, times: int) -> None:
        """Update the state as if the latest micro-batch had run `times` more times."""

    def repeats_step(self) -> bool:
        """Return whether the first micro-batch of this step and of the one before had the same effect on the device."""
        return True

    def repeat_step(self, times: int) -> None:
        """Update the state as if `times` more micro-batches had run, those of the step before."""

    def _handler_for(self, func: Operator) -> Handler:
        by_name: dict[Operator, Handler] = {
            _aten._local_scalar_dense.default: self._read,
            _aten._to_copy.default: self._convert,
            _aten.copy_.default: self._copy,
            _aten._grouped_mm.default: self._multiply_groups,
            _aten.nonzero.default: self._find,
            _aten.masked_select.default: self._select,
            _aten._scaled_dot_product_efficient_attention.default: self._attend,
            _aten._scaled_dot_product_cudnn_attention.default: self._attend_by_cudnn,
            _aten.native_dropout.default: self._drop,
            _aten._fused_rms_norm.default: self._normalize,
            _aten._fused_rms_norm_backward.default: self._normalize_backward,
            _aten._cudnn_rnn.default: self._recur,
            _aten._cudnn_rnn_backward.default: self._recur_backward,
            **dict.fromkeys(_INDEXED, self._index),
        }
        if func in by_name:
            return by_name[func]
        if func.namespace == "c10d" and self.wrappers is not None:
            communicate: Handler = self.wrappers.communicate
            return communicate
        if func.is_view and not func._can_decompose():  # such as `contiguous`, which may copy
            return self._view
        if torch.Tag.dynamic_output_shape in func.tags:
            return self._compute_by_values
        if func in _COMPARISONS:
            return self._compare
        if not func._schema.returns:
            return self._change
        return self._compute_each if func._schema.name.startswith("aten::_foreach_") else self._compute

    def _view(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        kind = type(args[0])
        if kind not in (SimulatedTensor, HostTensor):
            return func(*args, **kwargs)
        with _below_python():  # skips shape functions in Python: those of views are in C++
            return _as_simulated(func(*args, **kwargs), kind)

    def _compute(self, func: Operator, args: Arguments, kwargs: Options) -> Any:
        """Handle an operator whose results are new tensors, or arguments modified in place."""
        key_parts: list[object] = [func, torch.get_default_dtype()]
        is_on_device = extend_call_key(args, key_parts)
        if kwargs:
            device = kwargs.get("device")
            if device == DEVICE:
                kwargs = {**kwargs, "device": _META}
            key_parts.extend(kwargs)
            is_on_device |= extend_call_key(kwargs.values(), key_parts) or device in (DEVICE, _META)
        if not is_on_device:
            return func(*args, **kwargs)
        self._arguments = args
        if self.offloads and _is_on_host([*args, *kwargs.values()]):
            return _as_simulated(_infer_shapes(func, args, kwargs), HostTensor)
        key = tuple(key_parts)
        self.call_key = cached = _RESULTS.get(key)
        if cached is not None and type(cached) is not _Uncached:
            return self._from_cache(cached, args)
        _refuse_mixed_devices(func, args, kwargs)
        result = _infer_shapes(func, args, kwargs)
        if cached is None:
            self.call_key = _RESULTS[key] = _cacheable(result, args, kwargs)
        return self._new(args, result)

    def _compute_by_values(self, func: Operator, args: Arguments, kwargs: Options) -> Any:
        """Handle an operator whose result's shape depends on values, if these are known."""
        given = self.values.evaluated(func, args, kwargs) if self.values is not None else None
        if self.values is None or given is None:
            return self._compute(func, args, kwargs)
        self.values.note_reading(tensors_in([*args, *kwargs.values()]))
        shaped = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=_META) for t in tensors_in([given])]
        return self._new(args, shaped[0] if isinstance(given, Tensor) else tuple(shaped))

    def _compare(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle an operator that reads its arguments, and returns whether they are alike."""
        on_host = [
            self._value(each, each.dtype) if _is_on_device(each) else each for each in args if isinstance(each, Tensor)
        ]
        unknown = [each for each in tensors_in(args) if _is_on_device(each) and not self._knows(each)]
        return False if unknown else func(*on_host, *args[len(on_host) :], **kwargs)

    def _knows(self, tensor: Tensor) -> bool:
        return self.values is not None and self.values.of(tensor) is not None

    def _compute_each(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        length = len(args[0])

        def element(value: object, index: int) -> object:
            return [value[index]] if isinstance(value, list | tuple) and len(value) == length else value

        results = [
            self._compute(
                func,
                tuple(element(value, index) for value in args),
                {name: element(value, index) for name, value in kwargs.items()},
            )[0]
            for index in range(length)
        ]
        self.call_key = None  # the key of the last element does not identify this call
        return results

    def _change(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle an operator without results: it would only change values, which simulated tensors do not have."""
        return None if extend_call_key([*args, *kwargs.values()], []) else func(*args, **kwargs)

    def _read(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        if not _is_on_device(args[0]):
            return func(*args, **kwargs)
        return self._value(args[0], args[0].dtype).item()

    def _value(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a copy of the tensor on the host: its known values, or zeros if torch's own code reads it."""
        known = self.values.read(tensor) if self.values is not None else None
        if known is not None:
            return known.to(dtype, copy=True)
        _refuse_user_reads()
        return torch.zeros(tensor.shape, dtype=dtype)

    def _convert(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        source, device, dtype = args[0], kwargs.get("device"), kwargs.get("dtype")
        if not _is_on_device(source) or device is None or device == _META:
            return self._compute(func, args, kwargs)
        if device != DEVICE and not self.offloads:
            return self._value(source, dtype or source.dtype)
        if device != DEVICE or type(source) is HostTensor:
            return self._move(source, dtype or source.dtype, HostTensor if device != DEVICE else SimulatedTensor)
        if dtype is None or dtype == source.dtype:
            # torch sees a simulated tensor on `meta`, and therefore does not recognise `DEVICE` as its device.
            return _as_simulated(_infer_shapes(_aten.alias.default, (source,), {}))
        return self._compute(func, args, {**kwargs, "device": _META})

    def _move(self, source: Tensor, dtype: torch.dtype, kind: type[SimulatedTensor]) -> object:
        copied = torch.empty(source.shape, dtype=dtype, device=_META)
        return _as_simulated(copied, kind) if kind is HostTensor else self._new((source,), copied)

    def _copy(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle `copy_`: a simulated target stays unchanged, and the host reads the values of a simulated source."""
        if _is_on_device(args[0]):
            return args[0]
        target, source, *rest = args
        return func(target, self._value(source, target.dtype) if _is_on_device(source) else source, *rest, **kwargs)

    def _multiply_groups(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle grouped matrix products: torch's shape function supports only bf16, but its kernels support more."""
        a, b, *rest = args
        ends = rest[0] if rest else kwargs.get("offs")
        if not _is_on_device(a) or a.dtype is torch.bfloat16:
            return self._compute(func, args, kwargs)
        groups = [ends.shape[0]] if ends is not None and a.dim() == b.dim() == 2 else []
        groups = [a.shape[0]] if a.dim() == b.dim() == 3 else groups
        return self._new(args, torch.empty(*groups, a.shape[-2], b.shape[-1], dtype=a.dtype, device=_META))

    def _attend(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle efficient attention, which allocates the state of the random generator first, or has it on the host.

        It is on the host before PyTorch 2.14, and where there is dropout.
        """
        dropout = args[5] if len(args) > 5 else kwargs.get("dropout_p", 0.0)
        is_on_host = dropout > 0.0 or installed_torch() < (2, 14)
        output, logsumexp, *state = _infer_shapes(func, args, kwargs)
        if is_on_host:
            state = [torch.empty(each.shape, dtype=each.dtype) for each in state]
        state, results = (self._new(args, each) for each in (state, [output, logsumexp]))
        return (*results, *state)

    def _attend_by_cudnn(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle cuDNN's attention, which allocates the state of the random generator first."""
        results = _infer_shapes(func, args, kwargs)
        state, first, last = (self._new(args, each) for each in (results[6:8], results[:6], results[8:]))
        return (*first, *state, *last)

    def _drop(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        mask = self._compute(_aten.empty_like.default, args[:1], {"dtype": torch.bool})
        output = self._compute(_aten.empty_like.default, args[:1], {})
        self.call_key = None
        return output, mask

    def _normalize(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle RMSNorm, for which PyTorch has a kernel on a GPU but no shape function."""
        source, shape = args[:2]
        kept = source.shape[: source.dim() - len(shape)]
        scale = torch.empty((*kept, *(1 for _ in shape)), dtype=torch.float32, device=_META)
        return self._new(args, (_empty_like(source), scale))

    def _normalize_backward(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        _, source, _, _, weight, wanted = args
        asked = zip((source, weight), wanted, strict=True)
        return self._new(args, tuple(_empty_like(each) if is_asked else None for each, is_asked in asked))

    def _recur(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle cuDNN's recurrent layers, which keep a reserve for backward; torch's shape function leaves it empty.

        The reserve's size is an estimate: the gates, the states and the outputs of every layer and time step.
        """
        *results, reserve, weights = self._compute(func, args, kwargs)
        source, (gates, *_), train = args[0], args[1], args[12]
        kept = gates.shape[0] * (1 + (3 if args[5] is None else 2) / 4) * len(args[1]) // args[2]
        size_bytes = math.ceil(source.numel() // source.shape[-1] * kept * source.dtype.itemsize) if train else 0
        reserve = self._new(args, torch.empty(size_bytes, dtype=torch.uint8, device=_META))
        return (*results, reserve, weights)

    def _recur_backward(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        source, weights, (state, cell) = args[0], args[1], args[4:6]
        like = (source, state, cell, *weights)
        gradients = self._new(args, [None if each is None else _empty_like(each) for each in like])
        return (*gradients[:3], gradients[3:])

    def _find(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle `nonzero`, whose result has a row for each element of a mask that is known or assumed to be true."""
        if self.values is None or not _is_on_device(args[0]):
            return self._compute(func, args, kwargs)
        size = self.values.count(args[0]), args[0].dim()
        rows = torch.empty_strided(size, (1, max(1, size[0])), dtype=torch.int64, device=_META)  # as CUDA stores them
        found = self._new(args, rows)
        self.values.assume_positions(found, args[0])
        return found

    def _select(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle `masked_select`, which CUDA carries out as an index with a mask."""
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        expand = _aten.expand.default
        source, mask = (each if each.shape == shape else self.run(expand, (each, shape), {}) for each in args)
        return self._index(_aten.index.Tensor, (source, [mask]), {})

    def _index(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Handle an index, in which CUDA replaces each mask by the positions of its true elements (expandTensors)."""
        source, indices, *values = args
        if self.values is None or not _is_on_device(source) or (values and _fills(values[0])):
            return self._compute(func, args, kwargs)
        positions: list[object] = []
        for each in indices:
            if each is None or each.dtype not in (torch.bool, torch.uint8):
                positions.append(each)
                continue
            tensor = self.run(_aten.nonzero.default, (each,), {})
            positions += self.run(_aten.unbind.int, (tensor, 1), {}) if type(tensor) is SimulatedTensor else [each]
        return self._compute(func, (source, positions, *values), kwargs)

    def _from_cache(self, cached: _CachedResult, args: Arguments) -> object:
        if type(cached) is _NewTensor:
            tensor = torch.empty_strided(cached.size, cached.stride, dtype=cached.dtype, device=_META)
            tensor = Tensor._make_subclass(SimulatedTensor, tensor)
            self._watch.track(tensor)
            return tensor
        if isinstance(cached, _Argument):
            return args[cached.position]
        assert isinstance(cached, _NewTensors)
        return cached.kind(self._from_cache(part, args) if type(part) is _NewTensor else part for part in cached.parts)

    def _new(self, args: Arguments, result: object) -> Any:
        """Return the result of an operator with these arguments on the device, and report its new storages."""
        self._arguments = args
        simulated = _as_simulated(result)
        for tensor in tensors_in([simulated]):
            if _is_on_device(tensor):
                self._watch.track(tensor)
        return simulated


def _refuse_user_reads() -> None:
    """Raise UnavailableError if user code reads a value, because the code may behave differently for the real value."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = owner_here(frame.f_code.co_filename)
        if any(owner.is_in(*place) for place in _MAY_READ_VALUES):
            return
        if owner.package not in ("torch", "sysbench"):
            break
        frame = frame.f_back
    raise UnavailableError("the code reads a tensor value, which a simulation does not have: measure it on a device")


_COMPARISONS = (_aten.equal.default, _aten.allclose.default)
"""Operators that return whether their arguments, two tensors, are alike."""

_BETWEEN_DEVICES = frozenset({_aten._pack_padded_sequence.default, _aten._foreach_copy_.default, *_INDEXED})
"""Operators whose arguments may be on several devices; indices may be on the host."""


def _refuse_mixed_devices(func: Operator, args: Arguments, kwargs: Options) -> None:
    """Raise RuntimeError, as on a GPU, if an operator mixes tensors on the device with others on the host.

    Tensors on the host without dimensions count as numbers. torch's own fake tensors have the same rule
    (_find_common_device in torch/_subclasses/fake_tensor.py).
    """
    given = list(tensors_in([*args, *kwargs.values()]))
    if func in _INDEXED:
        given = [given[0], *(each for each in tensors_in(args[2:3]))]
    elif func in _BETWEEN_DEVICES:
        return
    on_host = [each for each in given if each.dim() and (type(each) is HostTensor or not _is_on_device(each))]
    if on_host and len(on_host) < sum(each.dim() > 0 or _is_on_device(each) for each in given):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (argument "
            f"of size {list(on_host[0].shape)} for {func._schema.name.replace('::', '.')})"
        )


_INTO_OUT: dict[Operator, Operator] = {
    packet.out: packet.default
    for packet in (
        _aten.mm,
        _aten.bmm,
        _aten.addmm,
        _aten.baddbmm,
        _aten.mv,
        _aten.addmv,
        _aten.dot,
        _aten._scaled_mm,
    )
}
"""Matrix products by their variants that write into a given tensor."""

_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor


def _reference_counts(tensor: Tensor) -> tuple[int, int]:
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class _ReferenceCounter(ObservedDevice):
    """A device that counts the references to the first argument of the last addition, and to its storage."""

    counted = (0, 0)

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        if func is _ADD:
            self.counted = _reference_counts(args[0])
        result: Any = _as_simulated(_infer_shapes(func, args, kwargs))
        self._watch.track(result)
        return result


@cache
def _references_of_engine() -> tuple[int, int]:
    """Return the references to a gradient, and to its storage, that autograd's engine adds and nobody else refers to.

    They are those of the engine, of the call into Python and of the Python objects, and differ between versions of
    PyTorch. So they are counted once, in a backward pass with one such addition.
    """
    source = torch.empty(1, device=_META).as_subclass(SimulatedTensor).requires_grad_()
    counter = _ReferenceCounter(DeviceObserver())
    with torch.enable_grad(), counter:
        shared = source * 1
        (shared.exp() * shared.sin()).backward()
    return counter.counted


def _is_accumulated_in_place(args: Arguments, kwargs: Options) -> bool:
    """Return whether this addition is that of two gradients which autograd's engine adds into the memory of the first.

    It does so if nothing else refers to the first (can_accumulate_inplace in torch/csrc/autograd/input_buffer.cpp), but
    not if Python sees the addition, as here.
    """
    if torch.is_grad_enabled() or kwargs or torch._C._current_autograd_node() is None:
        return False
    first, second = args
    if not type(first) is type(second) is SimulatedTensor or (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    is_whole = first.untyped_storage().nbytes() == first.numel() * first.dtype.itemsize
    return is_whole and _reference_counts(first) == _references_of_engine()


def _with_index_tensors(index: object) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_with_index_tensors, index))
    is_list = isinstance(index, list) and all(isinstance(each, int) for each in index)
    return torch.tensor(index, device=DEVICE) if is_list and index else index


def _fills(value: Tensor) -> bool:
    """Return whether an assignment fills what its mask selects with one number: CUDA then needs no positions."""
    return value.numel() == 1 and not _is_on_device(value)


def _is_on_host(values: Iterable[object]) -> bool:
    kinds = {type(tensor) for tensor in tensors_in(values)}
    return HostTensor in kinds and SimulatedTensor not in kinds


def _is_on_device(value: object) -> bool:
    return type(value) is SimulatedTensor or (isinstance(value, Tensor) and value.is_meta)


def extend_call_key(values: Iterable[Any], key_parts: list[object]) -> bool:
    """Append to `key_parts` everything that determines result shapes; return whether any value is simulated."""
    is_on_device = False
    for value in values:
        kind = type(value)
        if kind is SimulatedTensor:
            key_parts += (kind, value.dtype, value.shape, value.stride())
            is_on_device = True
        elif kind is list or kind is tuple:
            key_parts.append(len(value))
            is_on_device |= extend_call_key(value, key_parts)
        elif isinstance(value, Tensor):
            key_parts += (kind, value.dtype, value.shape, value.stride())
            is_on_device |= value.is_meta
        else:
            key_parts += (kind, value)  # with the type, because 1, 1.0 and True are equal as dictionary keys
    return is_on_device


def _infer_shapes(func: Operator, args: Arguments, kwargs: Options) -> Any:
    SimulatedTensor.inferring_shapes = True
    try:
        with _below_python():
            return func(*args, **kwargs)
    except NotImplementedError as missing:
        if torch.Tag.dynamic_output_shape in func.tags:
            raise UnavailableError(f"{func} cannot be simulated: its shapes depend on values") from missing
        return _shapes_on_zeros(func, args, kwargs, missing)
    finally:
        SimulatedTensor.inferring_shapes = False


MAX_ZEROS = 1 << 24
"""Maximum number of elements of the arguments with which an operator runs to find the shapes of its results."""


def _shapes_on_zeros(func: Operator, args: Arguments, kwargs: Options, missing: NotImplementedError) -> object:
    """Return what `func`, which has no shape function, returns for zeros in place of what has no data.

    torch's fake tensors do the same (run_fallback_kernel in torch/_subclasses/fake_tensor.py).
    """
    given = list(_simulated([*args, *kwargs.values()]))
    if sum(tensor.numel() for tensor in given) > MAX_ZEROS:
        raise UnavailableError(f"{func} cannot be simulated: it has no shape function") from missing

    def zeros(tensor: Tensor) -> Tensor:
        return torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor

    def without_data(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)

    with _below_python():
        values, options = tree_map_only(Tensor, zeros, (args, dict(kwargs)))
        found: object = tree_map_only(Tensor, without_data, func(*values, **options))
        return found


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=_META)


def _as_simulated(result: object, kind: type[SimulatedTensor] = SimulatedTensor) -> object:
    if isinstance(result, Tensor):
        return Tensor._make_subclass(kind, result) if type(result) is Tensor and result.is_meta else result
    return type(result)(_as_simulated(each, kind) for each in result) if isinstance(result, list | tuple) else result


def _cacheable(result: object, args: Arguments, kwargs: Options) -> _CachedResult:
    given = {tensor.untyped_storage()._cdata for tensor in tensors_in([*args, *kwargs.values()])}
    if isinstance(result, Tensor):
        position = next((position for position, value in enumerate(args) if value is result), None)
        return _Argument(position) if position is not None else _cacheable_tensor(result, given)
    if not isinstance(result, list | tuple):
        return _Uncached()
    parts = tuple(_cacheable_tensor(part, given) if isinstance(part, Tensor) else part for part in result)
    own = {tensor.untyped_storage()._cdata for tensor in tensors_in(result)}
    if any(isinstance(part, _Uncached) for part in parts) or len(own) < len(list(tensors_in(result))):
        return _Uncached()
    return _NewTensors(parts, type(result))


def _cacheable_tensor(tensor: Tensor, given: set[int]) -> _NewTensor | _Uncached:
    storage = tensor.untyped_storage()
    new = _NewTensor(tensor.shape, tensor.stride(), tensor.dtype)
    if not tensor.is_meta or storage._cdata in given or storage.nbytes() != _size_bytes(new):
        return _Uncached()
    return new


def _size_bytes(new: _NewTensor) -> int:
    if 0 in new.size:
        return 0
    last = sum((length - 1) * step for length, step in zip(new.size, new.stride, strict=True))
    return (last + 1) * new.dtype.itemsize


MAX_ELEMENTS = 1 << 20
"""Maximum number of elements of a tensor whose values are kept."""

MAX_CHOSEN = 1 << 24
"""Maximum number of elements of a tensor with values that follow from choices, such as the experts of all tokens."""

_HOST = torch.device("cpu")
_VALUES_ATTRIBUTE = "_values_beside"
_ASSUMPTION_ATTRIBUTE = "_assumption_beside"

ALL_SELECTED = "a mask selects every element"
BALANCED = "routing is balanced: every expert gets an equal share of the tokens"
"""Assumptions about how many elements a mask selects, where its values are unknown."""


_CHOOSING = frozenset({"topk", "sort", "argsort", "argmax", "max", "multinomial"})
"""Operators whose integer results are positions in one dimension of their first argument."""

_COUNTING = frozenset(
    {
        *("bincount", "histc", "count_nonzero", "sum", "mean", "cumsum", "any", "all", "scatter_add", "scatter_add_"),
        *("index_add", "index_add_", "unique_dim", "unique_consecutive", "_unique", "_unique2", "searchsorted"),
    }
)
"""Operators whose results say how often something was chosen, no longer what."""


class _Assumption(IntEnum):
    """What the values of a tensor are assumed to be: choices, or how often each alternative was chosen."""

    COUNTS = 1
    CHOICES = 2


class KnownValues:
    """The values of simulated tensors, as far as they follow from known values, or from choices assumed to be balanced.

    A choice, such as the experts of each token, is assumed to go through all alternatives in turn.
    """

    def __init__(self) -> None:
        self._lost: dict[int, torch.UntypedStorage] = {}
        """Storages whose known values were overwritten with unknown ones; kept, so that their addresses are unique."""
        self._concerned: dict[Operator, bool] = {}
        self.assumed: dict[str, None] = {}
        """Assumptions so far on which shapes depend, or what user code has read, in order."""

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a simulated tensor, known or assumed; None if they are unknown."""
        values: Tensor | None = vars(tensor).get(_VALUES_ATTRIBUTE)
        return None if values is None or values.untyped_storage()._cdata in self._lost else values

    def read(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor that is being read; None if they are unknown, or one of the assumed choices."""
        if tensor.numel() == 1 and _assumption([tensor]) is _Assumption.CHOICES:
            return None
        self.note_reading([tensor])
        return self.of(tensor)

    def note_reading(self, tensors: Iterable[Tensor]) -> None:
        """Note that something depends on the values of these tensors, if they are assumed."""
        if _assumption(_simulated(tensors)) is not None:
            self.assumed[BALANCED] = None

    def propagate(self, func: Operator, args: Arguments, kwargs: Options, result: object) -> None:
        """Compute the values of an operator's `result` if the values of all simulated arguments are known."""
        arguments = list(_simulated([*args, *kwargs.values()] if kwargs else args))
        if not self._concerns(func) and any(_VALUES_ATTRIBUTE not in vars(each) for each in arguments):
            return
        if not arguments and next(_simulated([result]), None) is None:
            return
        assumption = _assumption(arguments)
        largest = MAX_CHOSEN if assumption is not None else MAX_ELEMENTS
        too_large = any(tensor.numel() > largest for tensor in _simulated([result]))
        values = None if too_large else self.evaluated(func, args, kwargs)
        if values is None:
            self._forget(func, args, kwargs)
            self._assume_choices(func, args, result)
            return
        if assumption is not None and func._schema.name.partition("::")[2] in _COUNTING:
            assumption = _Assumption.COUNTS
        for simulated, real in zip(tensors_in([result]), tensors_in([values]), strict=True):
            setattr(simulated, _VALUES_ATTRIBUTE, real)
            setattr(simulated, _ASSUMPTION_ATTRIBUTE, assumption)

    def _concerns(self, func: Operator) -> bool:
        """Return whether an operator changes, or chooses, values also where those of its arguments are unknown."""
        found = self._concerned.get(func)
        if found is None:
            chooses = func._schema.name.partition("::")[2] in _CHOOSING
            found = self._concerned[func] = chooses or func._schema.is_mutable
        return found

    def evaluated(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Return the values of an operator's results; None if they are unknown."""
        arguments = _simulated([*args, *kwargs.values()])
        random = torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name
        if random or any(self.of(argument) is None for argument in arguments):
            return None
        values, options = self._with_values(args), {name: self._with_value(each) for name, each in kwargs.items()}
        try:
            found: object = func(*values, **options)
        except NotImplementedError:  # of integers, on a CPU
            whole = values[0]
            values = [each.double() if isinstance(each, Tensor) else each for each in values]
            found = func(*values, **options).to(whole.dtype)  # type: ignore[attr-defined]
        return found

    def count(self, mask: Tensor) -> int:
        """Return the number of true elements of a mask; if its values are unknown, an assumption is noted."""
        known = self.of(mask)
        if known is not None:
            self.note_reading([mask])
            return int(known.count_nonzero())
        self.assumed[ALL_SELECTED] = None
        return mask.numel()

    def assume_positions(self, found: Tensor, mask: Tensor) -> None:
        """Note the positions that `nonzero` finds in an unknown mask of which every element is assumed to be true."""
        if self.of(mask) is None and found.shape[0] == mask.numel() and found.numel() <= MAX_ELEMENTS:
            setattr(found, _VALUES_ATTRIBUTE, torch.ones(mask.shape, dtype=torch.bool).nonzero())

    def _assume_choices(self, func: Operator, args: Arguments, result: object) -> None:
        """Assume values for positions that an operator chooses from one dimension of its first argument."""
        if func._schema.name.partition("::")[2] not in _CHOOSING or not args[0].dim():
            return
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
        dimension = -1 if named.get("dim") is None else named["dim"]
        for tensor in _simulated([result]):
            if tensor.is_floating_point() or tensor.numel() > MAX_CHOSEN:
                continue
            keeps = tensor.dim() == args[0].dim()
            size = list(tensor.shape)
            if keeps:
                size.append(size.pop(dimension))
            turns = torch.arange(tensor.numel()).remainder_(args[0].shape[dimension]).view(size)
            setattr(tensor, _VALUES_ATTRIBUTE, turns.movedim(-1, dimension) if keeps else turns)
            setattr(tensor, _ASSUMPTION_ATTRIBUTE, _Assumption.CHOICES)

    def _forget(self, func: Operator, args: Arguments, kwargs: Options) -> None:
        if not func._schema.is_mutable:
            return
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _simulated([named.get(argument.name)]):
                    if (values := self.of(tensor)) is not None:
                        storage = values.untyped_storage()
                        self._lost[storage._cdata] = storage

    def _with_values(self, values: Iterable[object]) -> list[object]:
        return [self._with_value(value) for value in values]

    def _with_value(self, value: object) -> object:
        if isinstance(value, Tensor):
            return self.of(value) if value.is_meta else value
        if isinstance(value, list | tuple):
            return type(value)(self._with_values(value))
        return _HOST if isinstance(value, torch.device) else value


def _simulated(values: Iterable[object]) -> Iterator[Tensor]:
    return (tensor for tensor in tensors_in(values) if tensor.is_meta)


def _assumption(tensors: Iterable[Tensor]) -> _Assumption | None:
    """Return what the values of these tensors are assumed to be together; None if nothing is assumed."""
    found = (vars(tensor).get(_ASSUMPTION_ATTRIBUTE) for tensor in tensors)
    return max((each for each in found if each is not None), default=None)

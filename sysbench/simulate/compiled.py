"""Compiled code on the simulated device: torch's own compiler decides, and what it generates runs without data.

Dynamo and AOTAutograd trace the model on `meta`, with CUDA's autocast and composites, as the eager simulation does.
From then on the graph is on a GPU: the passes, the partitioner, the scheduler and the wrapper code are Inductor's, for
a GPU that is not there. Of the generated code, the kernels are left out. Its allocations, its frees and its calls of
library kernels run on the simulated device, in their order.

What a GPU does besides in the first step, to choose among kernels by measuring them, is left out.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C import _DisableTorchDispatch as _below_python
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves, tree_map_only

from sysbench.errors import UnavailableError
from sysbench.frames import owner_here
from sysbench.lab.compilation import fresh_compiler
from sysbench.lab.dispatch import Arguments, DispatchMode, Operator, Options
from sysbench.simulate.gpu import UNKNOWN_MULTIPROCESSORS, Multiprocessors
from sysbench.simulate.platform import Platform
from sysbench.simulate.tensors import CUDA, DEVICE, SimulatedDevice, SimulatedTensor

_META = torch.device("meta")
_THREADS = 2048
"""Threads of a multiprocessor of a GPU that is not known."""

_GRAPH_PASSES = "_recursive_joint_graph_passes"
"""The function of Inductor that first sees a graph, before it is divided into forward and backward."""


@contextmanager
def compiling_on(device: SimulatedDevice, platform: Platform) -> Iterator[Collection[str]]:
    """Context manager in which `torch.compile` compiles for the simulated device, which must be active.

    Yields the places where the compiler divided the code, which grow: `gpt.py:31`.

    On exit, all changes to torch are undone, and what was compiled is forgotten. Raises UnavailableError for code that
    the compiler refuses, with its reason.
    """
    import torch._dynamo as dynamo
    from torch._dynamo.convert_frame import CatchErrorsWrapper
    from torch._dynamo.types import ConvertFrameReturn
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.exc import InductorError
    from torch._inductor.fx_passes import joint_graph

    breaks: dict[str, None] = {}
    compile_model, convert = torch.compile, CatchErrorsWrapper.__call__
    folder = joint_graph.UniformValueConstantFolder
    fold = folder._deduce_value

    def compile_here(model: Any = None, **options: Any) -> Any:
        if model is None:
            return partial(compile_here, **options)
        # The device would make guards on tensors fail. The shapes of a cell's tensors do not change.
        unguarded: dict[str, Any] = {
            "guard_filter_fn": lambda found: [each.guard_type != "TENSOR_MATCH" for each in found]
        }
        device.stop_naming_gpu()
        is_whole = bool(options.get("fullgraph"))
        return compile_model(model, backend=backend, fullgraph=is_whole, dynamic=False, options=unguarded)

    def backend(graph: GraphModule, inputs: Sequence[Any], **_: object) -> Any:
        reason = getattr(graph, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break and reason.user_stack:
            place = reason.user_stack[-1]
            breaks[f"{Path(place.filename).name}:{place.lineno}"] = None
        with _as_gpu(platform):
            return _compiled(graph, inputs)

    def convert_frame(self: Any, *frame: Any) -> Any:
        if _top_mode() is not device or owner_here(frame[0].f_code.co_filename).is_in("sysbench", "simulate"):
            return ConvertFrameReturn()  # the simulation's own code
        with _as_plain_tensors(device), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler about itself
            try:
                return convert(self, *frame)
            except (dynamo.exc.TorchDynamoException, InductorError) as error:
                raise UnavailableError(f"torch.compile refuses this step: {_reason(error)}") from error

    def fold_on_host(self: Any, node: torch.fx.Node) -> object:
        with _ConstantsOnHost():
            return fold(self, node)

    with fresh_compiler(), ExitStack() as stack, TemporaryDirectory() as directory:
        stand_ins: list[tuple[Any, str, Any]] = [
            (torch, "compile", compile_here),
            (CatchErrorsWrapper, "__call__", convert_frame),
            (folder, "_deduce_value", fold_on_host),
            *((AsyncCompile, name, _no_kernel) for name in ("triton", "cpp_pybinding")),
            (AsyncCompile, "wait", lambda self, scope: None),
            (torch._C._dynamo.guards, "_empty_strided_cuda", _empty),
            (torch._C._dynamo.guards, "_reinterpret_tensor", _reinterpreted),
            (torch.cuda, "_DeviceGuard", _DeviceGuard),
            (torch.cuda, "set_device", lambda number: None),
            (torch._C, "_cuda_getCurrentRawStream", lambda number: 0),
        ]
        for owner, name, stand_in in stand_ins:
            stack.enter_context(mock.patch.object(owner, name, stand_in, create=True))
        stack.enter_context(mock.patch.dict("os.environ", TORCHINDUCTOR_CACHE_DIR=directory))
        stack.enter_context(inductor.patch(force_disable_caches=True, compile_threads=1))
        stack.enter_context(dynamo.config.patch(traceable_tensor_subclasses={SimulatedTensor}))
        # At once, and without a mode before which simulated tensors do not reach the device.
        wanted = {"force_non_lazy_backward_lowering": True, "check_custom_op_aliasing": False}
        stack.enter_context(functorch.patch({name: wanted[name] for name in wanted if hasattr(functorch, name)}))
        yield breaks


def _top_mode() -> object:
    depth = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(depth - 1) if depth else None


def _reason(error: BaseException) -> str:
    """Return the first line of what the compiler says, without what it says about the backend."""
    error = getattr(error, "inner_exception", error)
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _without_tensor_guards(guards: Sequence[Any]) -> list[bool]:
    """Return which guards to check: not those on tensors, which the device makes fail; their shapes do not change."""
    return [guard.guard_type != "TENSOR_MATCH" for guard in guards]


class _Kernel:
    """A kernel that was not compiled: its buffers are there already, and have no data."""

    def run(self, *arguments: object, **options: object) -> None:
        """Do nothing."""

    __call__ = run


def _no_kernel(self: object, *arguments: object, **options: object) -> _Kernel:
    return _Kernel()


class _DeviceGuard:
    def __init__(self, number: int) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def _empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=DEVICE)


def _reinterpreted(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Tensor:
    with _below_python():
        view = torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
        return Tensor._make_subclass(SimulatedTensor, view)


class _ConstantsOnHost(DispatchMode):
    """A mode in which the numbers that Inductor computes on the GPU, to fold constants, are computed on the host."""

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> Any:
        is_on_gpu = kwargs.get("device") == CUDA
        return func(*args, **{**kwargs, "device": torch.device("cpu")} if is_on_gpu else kwargs)


@contextmanager
def _as_plain_tensors(device: SimulatedDevice) -> Iterator[None]:
    """Context manager in which simulated tensors are plain ones on `meta` for the compiler, and no device is active."""
    dispatch = SimulatedTensor.__dict__["__torch_dispatch__"]
    device.__exit__(None, None, None)
    del SimulatedTensor.__torch_dispatch__  # Dynamo traces only classes without one
    SimulatedTensor.inferring_shapes = True
    try:
        yield
    finally:
        SimulatedTensor.inferring_shapes = False
        SimulatedTensor.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
        device.__enter__()


def _compiled(graph: GraphModule, inputs: Sequence[Any]) -> Any:
    """Compile a graph that was traced on `meta` for the GPU."""
    from torch._inductor import compile_fx

    passes = getattr(compile_fx, _GRAPH_PASSES)

    def passes_on_gpu(traced: GraphModule, *args: Any, **options: Any) -> Any:
        _move(traced, ())
        return passes(traced, *args, **options)

    def compile_on_gpu(divided: GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        _move(divided, inputs)
        return compile_fx.compile_fx_inner(divided, inputs, **options)

    with mock.patch.object(compile_fx, _GRAPH_PASSES, passes_on_gpu):
        compiled: Any = compile_fx.compile_fx(graph, inputs, inner_compile=compile_on_gpu)
        return compiled


def _move(graph: GraphModule, inputs: Sequence[Any]) -> None:
    """Move what a graph and its inputs have on `meta` to the GPU."""
    from torch._subclasses.fake_tensor import FakeTensor

    def moved(device: torch.device) -> torch.device:
        return CUDA if device == _META else device

    nodes = [node for part in graph.modules() if isinstance(part, GraphModule) for node in part.graph.nodes]
    for node in nodes:
        node.args, node.kwargs = (tree_map_only(torch.device, moved, each) for each in (node.args, dict(node.kwargs)))
    for value in tree_leaves([*inputs, *(node.meta.get("val") for node in nodes)]):
        if isinstance(value, FakeTensor):
            value.fake_device = moved(value.fake_device)


def _without_triton(load: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Load generated code, which imports Triton for its kernels, where there is no Triton."""
    language = ModuleType("triton.language")
    with mock.patch.dict(sys.modules, {"triton": ModuleType("triton"), "triton.language": language}):
        sys.modules["triton"].language = language  # type: ignore[attr-defined]
        return load(*args, **options)


_WITHOUT_CUDA: dict[str, Callable[..., Tensor]] = {
    "__invert__": lambda mask: torch.ops.aten.bitwise_not.default(mask),
    "copy_": lambda target, source, non_blocking=False: torch.ops.aten.copy_.default(target, source, non_blocking),
    "contiguous": lambda tensor, **options: torch.ops.aten.contiguous.default(tensor, **options),
}
"""Methods that make the device of their tensor the current one, which fails if this PyTorch was built without CUDA."""


@contextmanager
def _as_gpu(platform: Platform) -> Iterator[None]:
    """Context manager in which Inductor finds the platform's GPU, with Triton."""
    import torch.utils._triton
    from torch._dynamo import device_interface
    from torch._inductor import scheduler
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.hints import DeviceProperties

    major, minor = platform.capability
    multiprocessors = platform.multiprocessors or Multiprocessors(UNKNOWN_MULTIPROCESSORS, _THREADS)
    properties = SimpleNamespace(
        name="NVIDIA GPU",
        gcnArchName="",
        major=major,
        minor=minor,
        multi_processor_count=multiprocessors.count,
        max_threads_per_multi_processor=multiprocessors.threads,
        max_threads_per_block=1024,
        regs_per_multiprocessor=1 << 16,
        warp_size=32,
        total_memory=1 << 40,
        L2_cache_size=50 << 20,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
    )
    answers: dict[str, Callable[..., object]] = {
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (major, minor),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or major >= 8,
    }
    of_interface: dict[str, Callable[..., object]] = {
        "is_available": lambda: True,
        "get_compute_capability": lambda device=None: 10 * major + minor,
        "get_multi_processor_count": lambda device=None: multiprocessors.count,
        "is_triton_capable": lambda device=None: major >= 7,
        "raise_if_triton_unavailable": lambda device=None: None,
    }
    members = {name: staticmethod(answer) for name, answer in {**answers, **of_interface}.items()}
    interface: Any = type("_SimulatedInterface", (device_interface.CudaInterface,), {**members})
    interface.Worker = SimpleNamespace(**answers)
    device_interface.get_interface_for_device("cuda")  # registers all others
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        interfaces = dict.fromkeys(("cuda", "cuda:0"), interface)
        stack.enter_context(mock.patch.dict(device_interface.device_interfaces, interfaces))
        for module, name, found in (
            (torch.utils._triton, "triton_hash_with_backend", ""),
            (scheduler, "has_triton", True),
            (pad_mm, "has_triton", False),  # it would measure whether padded products are faster
        ):
            stack.enter_context(mock.patch.object(module, name, lambda *_, found=found: found))
        for name, method in _WITHOUT_CUDA.items() if torch.version.cuda is None else ():
            stack.enter_context(mock.patch.object(Tensor, name, method))
        if not find_spec("triton"):
            load = PyCodeCache.load_by_key_path
            stack.enter_context(mock.patch.object(PyCodeCache, "load_by_key_path", partial(_without_triton, load)))
        DeviceProperties.create.cache_clear()  # of a GPU that is there, and of this one
        stack.callback(DeviceProperties.create.cache_clear)
        yield

"""Compiled code on the simulated device: torch's own compiler decides, and what it generates runs without data.

Dynamo and AOTAutograd trace the model on `meta`, with CUDA's autocast and composites, as the eager simulation does.
From then on the graphs are on a GPU (`_on_gpu`): Inductor's passes, partitioner, scheduler and wrapper code see one
that is not there. Of the generated code, the kernels are left out; its allocations, its frees and its calls of library
kernels run on the simulated device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C import _DisableTorchDispatch as _below_python

from sysbench.simulate.tensors import CUDA, DEVICE, SimulatedDevice, SimulatedTensor

_META = torch.device("meta")


@contextmanager
def compiling_on(device: SimulatedDevice, capability: tuple[int, int], multiprocessors: int) -> Iterator[None]:
    """Context manager in which `torch.compile` compiles for the simulated device.

    On exit, all changes to torch are undone, and what was compiled is forgotten.
    """
    import torch._dynamo as dynamo
    from torch._dynamo.convert_frame import CatchErrorsWrapper
    from torch._inductor import config as inductor
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.fx_passes import joint_graph

    guards: Any = torch._C._dynamo.guards
    compile_model = torch.compile
    convert = CatchErrorsWrapper.__call__
    deduce = joint_graph.UniformValueConstantFolder._deduce_value

    def compile_for_device(model: Any = None, **options: Any) -> Any:
        # Guards on tensors would fail where the device is active; a cell's tensors never change their shapes.
        guards = {"guard_filter_fn": lambda found: [each.guard_type != "TENSOR_MATCH" for each in found]}
        return compile_model(model, backend=backend, fullgraph=options.get("fullgraph", False), options=guards)

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **_: object) -> Callable[..., Any]:
        with _as_gpu(capability, multiprocessors):
            return _backend(graph, inputs)

    def convert_frame(self: object, *frame: Any) -> Any:
        if not torch._C._len_torch_dispatch_stack() or SimulatedTensor.inferring_shapes:
            return dynamo.convert_frame.ConvertFrameReturn()
        with _as_plain_tensors(device):
            return convert(self, *frame)

    def deduce_on_host(self: object, node: torch.fx.Node) -> object:
        with _constants_on_host():
            return deduce(self, node)

    def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=DEVICE)

    def reinterpret(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Tensor:
        with _below_python():
            view = torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
            return Tensor._make_subclass(SimulatedTensor, view)

    from torch._dynamo import config as dynamo_config
    from torch._functorch import config as functorch

    dynamo.reset()
    try:
        with ExitStack() as stack:
            for owner, name, stand_in in (
                (torch, "compile", compile_for_device),
                (CatchErrorsWrapper, "__call__", convert_frame),
                (joint_graph.UniformValueConstantFolder, "_deduce_value", deduce_on_host),
                (AsyncCompile, "triton", lambda self, name, source, **options: _Kernel(name)),
                (AsyncCompile, "wait", lambda self, scope: None),
                (guards, "_empty_strided_cuda", empty),
                (guards, "_reinterpret_tensor", reinterpret),
                (torch.cuda, "_DeviceGuard", _NoGuard),
                (torch.cuda, "set_device", lambda number: None),
            ):
                stack.enter_context(mock.patch.object(owner, name, stand_in))
            stack.enter_context(
                mock.patch.object(torch._C, "_cuda_getCurrentRawStream", lambda number: 0, create=True)
            )
            stack.enter_context(inductor.patch(force_disable_caches=True, compile_threads=1))
            stack.enter_context(
                dynamo_config.patch(traceable_tensor_subclasses={SimulatedTensor}, suppress_errors=False)
            )
            if hasattr(functorch, "check_custom_op_aliasing"):  # a mode, before which simulated tensors do not reach the device
                stack.enter_context(functorch.patch(check_custom_op_aliasing=False))
            stack.enter_context(functorch.patch(force_non_lazy_backward_lowering=True))
            yield
    finally:
        dynamo.reset()


class _Kernel:
    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *arguments: object, **options: object) -> None:
        """Do nothing: the kernel's buffers are there already."""


class _NoGuard:
    def __init__(self, number: int) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


@contextmanager
def _as_plain_tensors(device: SimulatedDevice) -> Iterator[None]:
    """Context manager in which simulated tensors are plain ones on `meta` for the compiler, and no device is active."""
    dispatch = SimulatedTensor.__dict__["__torch_dispatch__"]
    device.__exit__(None, None, None)
    del SimulatedTensor.__torch_dispatch__
    SimulatedTensor.inferring_shapes = True
    try:
        yield
    finally:
        SimulatedTensor.inferring_shapes = False
        SimulatedTensor.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
        device.__enter__()


def _backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    from torch._inductor import compile_fx

    passes = compile_fx._recursive_joint_graph_passes

    def passes_on_gpu(joint: torch.fx.GraphModule, *args: Any, **options: Any) -> Any:
        _on_gpu(joint)
        return passes(joint, *args, **options)

    def compile_inner(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        _on_gpu(graph)
        for each in inputs:
            _move(each)
        return compile_fx.compile_fx_inner(graph, inputs, **options)

    with mock.patch.object(compile_fx, "_recursive_joint_graph_passes", passes_on_gpu):
        return compile_fx.compile_fx(graph, inputs, inner_compile=compile_inner)


def _move(value: object) -> object:
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(value, FakeTensor) and value.fake_device == _META:
        value.fake_device = CUDA
    return CUDA if value == _META else value


def _on_gpu(graph: torch.fx.GraphModule) -> None:
    """Move what is on `meta` in a graph to the GPU."""
    from torch.utils._pytree import tree_leaves, tree_map_only

    to_gpu = partial(tree_map_only, torch.device, lambda each: CUDA if each == _META else each)
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.args, node.kwargs = to_gpu(node.args), to_gpu(dict(node.kwargs))
            for value in tree_leaves(node.meta.get("val")):
                _move(value)


@contextmanager
def _constants_on_host() -> Iterator[None]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class OnHost(TorchDispatchMode):
        @classmethod
        def is_infra_mode(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            if options.get("device") == CUDA:
                options["device"] = torch.device("cpu")
            return func(*args, **options)

    with OnHost():
        yield


@contextmanager
def _as_gpu(capability: tuple[int, int], multiprocessors: int) -> Iterator[None]:
    """Context manager in which the compiler finds a GPU of this kind."""
    import torch.utils._triton as triton
    from torch._dynamo import device_interface
    from torch._inductor.runtime.hints import DeviceProperties

    major, minor = capability
    properties = SimpleNamespace(
        name="NVIDIA GPU",
        major=major,
        minor=minor,
        multi_processor_count=multiprocessors,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        warp_size=32,
        total_memory=1 << 40,
        L2_cache_size=50 << 20,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
    )
    answers: dict[str, Callable[..., object]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: capability,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or major >= 8,
    }
    interface: Any = type(
        "SimulatedInterface",
        (device_interface.CudaInterface,),
        {
            **{name: staticmethod(answer) for name, answer in answers.items()},
            "get_compute_capability": staticmethod(lambda device=None: 10 * major + minor),
            "get_multi_processor_count": staticmethod(lambda device=None: multiprocessors),
            "is_triton_capable": staticmethod(lambda device=None: major >= 7),
            "raise_if_triton_unavailable": staticmethod(lambda device=None: None),
            "Worker": SimpleNamespace(
                current_device=lambda: 0,
                set_device=lambda device: None,
                get_device_properties=lambda device=None: properties,
            ),
        },
    )
    device_interface.get_interface_for_device("cuda")  # registers all others
    random: dict[str, Callable[..., object]] = {
        "get_rng_state": lambda device=None: torch.zeros(1),
        "set_rng_state": lambda state, device=None: None,
    }
    with ExitStack() as stack:
        for name, answer in {**answers, **random}.items():
            if name == "is_available": continue
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.object(triton, "triton_hash_with_backend", lambda: ""))
        stack.enter_context(
            mock.patch.dict(device_interface.device_interfaces, {"cuda": interface, "cuda:0": interface})
        )
        DeviceProperties.create.cache_clear()
        stack.callback(DeviceProperties.create.cache_clear)
        yield

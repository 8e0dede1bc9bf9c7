"""Compiled code on the simulated device: torch's own compiler decides, and what it generates runs without data.

Dynamo and AOTAutograd trace the model on `meta`, with CUDA's autocast and composites, as the eager simulation does;
what the code makes on `cuda` is on `meta` too, and tensors say that they are on `cuda`.
From then on the graph is on a GPU: the passes, the partitioner, the scheduler and the wrapper code are Inductor's, for
a GPU that is not there. Of the generated code, the kernels are left out. Its allocations, its frees and its calls of
library kernels run on the simulated device, in their order.

What a GPU does besides in the first step, to choose among kernels by measuring them, is left out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, partialmethod
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any
from unittest import mock

import einops
import torch
from torch import Tensor
from torch._C import _DisableTorchDispatch as _below_python
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import TensorWeakRef

from sysbench.errors import UnavailableError
from sysbench.frames import owner_here
from sysbench.lab.compilation import fresh_compiler
from sysbench.lab.dispatch import Arguments, DispatchMode, Operator, Options
from sysbench.simulate.compiler.absent_gpu import inductor_finds
from sysbench.simulate.compiler.generated import GeneratedKernel
from sysbench.simulate.origins import GENERATED
from sysbench.simulate.platform import Platform
from sysbench.simulate.tensors import CUDA, DEVICE, SimulatedDevice, SimulatedTensor
from sysbench.spec.model import ModelCell

_META, _HOST = torch.device("meta"), torch.device("cpu")
_RAISED = re.compile(r"""got (\w+)\(["'](.*)["']\)$""", re.MULTILINE)
"""What the compiler says of an error in the code that it traces."""

_EINOPS = (einops.einsum, einops.rearrange, einops.reduce, einops.repeat, einops.pack, einops.unpack)

_MOST_KEPT = 4
_kept: dict[Hashable, Any] = {}
"""Compiled graphs with their backward, the latest last."""

_GRAPH_PASSES = "_recursive_joint_graph_passes"
"""The function of Inductor that first sees a graph, before it is divided into forward and backward."""


@contextmanager
def compiling_on(
    device: SimulatedDevice, platform: Platform, cell: ModelCell | None = None, *, has_backward: bool = True
) -> Iterator[Collection[str]]:
    """Context manager in which `torch.compile` compiles for the simulated device, which must be active.

    Without `has_backward`, no backward is to run, and its code is not generated.
    What is compiled for the step of `cell` is used again by the next ones that differ in nothing but their phases.
    Yields the places where the compiler divided the code, which grow: `gpt.py:31`. On exit, all changes to torch are
    undone. Raises UnavailableError for code that the compiler refuses, with its reason.
    """
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor
    from torch._dynamo.convert_frame import CatchErrorsWrapper
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables import TensorVariable
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codegen.triton import TritonKernel
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
    from torch._inductor.output_code import CompiledFxGraph

    compiler = _Compiler(device, platform, cell, has_backward=has_backward)
    convert, fold = CatchErrorsWrapper.__call__, UniformValueConstantFolder._deduce_value
    stand_ins: list[tuple[Any, str, Any]] = [
        (torch, "compile", compiler.compile),
        (CatchErrorsWrapper, "__call__", lambda *frame: compiler.convert(convert, *frame)),
        (GuardBuilder, "TENSOR_MATCH", _match_tensor),
        (TensorVariable, "method_attr_device", partialmethod(_found_on_gpu, TensorVariable.method_attr_device, CUDA)),
        (TensorVariable, "method_attr_is_cuda", partialmethod(_found_on_gpu, TensorVariable.method_attr_is_cuda, True)),
        (FakeTensor, "__new__", staticmethod(partial(compiler.fake_tensor, FakeTensor.__new__))),
        (UniformValueConstantFolder, "_deduce_value", partialmethod(_fold_on_host, fold)),
        (AsyncCompile, "triton", lambda self, name, source, *_, **_o: _Kernel(GeneratedKernel(name, source))),
        (AsyncCompile, "cpp_pybinding", lambda *_, **options: _Kernel(None)),
        (_Kernel, "device", device),
        (TritonKernel, "codegen_kernel", partialmethod(_with_moved_bytes, TritonKernel.codegen_kernel)),
        (CompiledFxGraph, "__call__", partialmethod(_run_by, device, CompiledFxGraph.__call__)),
        (AsyncCompile, "wait", lambda self, scope: None),
        (torch._C._dynamo.guards, "_empty_strided_cuda", _empty),
        (torch._C._dynamo.guards, "_reinterpret_tensor", _reinterpreted),
        (torch.cuda, "_DeviceGuard", lambda number: nullcontext()),
        (torch.cuda, "set_device", lambda number: None),
        (torch._C, "_cuda_getCurrentRawStream", lambda number: 0),
    ]
    # At once, and without a mode before which simulated tensors do not reach the device.
    wanted = {"force_non_lazy_backward_lowering": True, "check_custom_op_aliasing": False}
    with (
        fresh_compiler(),
        _without_meta_kernels_of_composites(),
        _einops_untraced(),
        TemporaryDirectory(prefix=GENERATED) as directory,
        ExitStack() as stack,
    ):
        for owner, name, stand_in in stand_ins:
            stack.enter_context(mock.patch.object(owner, name, stand_in, create=True))
        stack.enter_context(mock.patch.dict("os.environ", TORCHINDUCTOR_CACHE_DIR=directory))
        # Without checks of strides: a library's convolution may have others here than on the GPU, of the same size.
        stack.enter_context(inductor.patch(force_disable_caches=True, compile_threads=1, size_asserts=False))
        stack.enter_context(dynamo.patch(traceable_tensor_subclasses={SimulatedTensor}))
        stack.enter_context(functorch.patch({name: wanted[name] for name in wanted if hasattr(functorch, name)}))
        yield compiler.breaks


@contextmanager
def _einops_untraced() -> Iterator[None]:
    """Context manager in which Dynamo takes a function of einops as one operator, as einops has it do before torch 2.8.

    Its Python code would take more than half of Dynamo's time, for the same operators in the end.
    """
    from torch._dynamo.trace_rules import _allowed_callable_ids as allowed

    added = {id(function) for function in _EINOPS} - allowed()
    allowed().update(added)
    try:
        yield
    finally:
        allowed().difference_update(added)


@contextmanager
def _without_meta_kernels_of_composites() -> Iterator[None]:
    """Context manager in which an operator that is made of others is traced on `meta` as on a GPU: as these others.

    For some of them, such as `nll_loss`, torch has a kernel in Python for `meta`. While code is traced, it hides the
    composition, which has the gradients.
    """
    from torch._C import DispatchKey, _dispatch_has_kernel_for_dispatch_key
    from torch._decomp import global_decomposition_table
    from torch._ops import OpOverload

    found = {
        operator: operator.py_kernels.pop(DispatchKey.Meta)
        for operator in {each for table in global_decomposition_table.values() for each in table}
        if isinstance(operator, OpOverload)
        and DispatchKey.Meta in operator.py_kernels
        and _dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
    }
    for operator in found:
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernel in found.items():
            operator.py_kernels[DispatchKey.Meta] = kernel
            operator._dispatch_cache.clear()


class _Compiler:
    """What stands in for parts of the compiler while a device is simulated."""

    def __init__(
        self, device: SimulatedDevice, platform: Platform, cell: ModelCell | None, *, has_backward: bool
    ) -> None:
        self.breaks: dict[str, None] = {}
        """Places where the code was divided, in order."""
        self._device = device
        self._platform = platform
        self._has_backward = has_backward
        self._step = None if cell is None else cell.model_copy(update={"mode": "train"})
        self._compile: Any = torch.compile
        self._is_on_meta = False
        """Whether code or a graph is being traced, with all tensors of the GPU on `meta`."""

    def compile(self, model: Any = None, **options: Any) -> Any:
        """Do what `torch.compile` does, in its default mode, for the simulated device."""
        if model is None:
            return partial(self.compile, **options)
        self._device.stop_naming_gpu()
        return self._compile(
            model,
            backend=self._graph_compiled,
            fullgraph=bool(options.get("fullgraph")),
            dynamic=False,
        )

    def convert(self, convert: Callable[..., Any], wrapper: Any, frame: FrameType, *state: Any) -> Any:
        """Have Dynamo convert a frame, unless it is one of the simulation itself."""
        from torch._dynamo.exc import TorchDynamoException
        from torch._dynamo.types import ConvertFrameReturn
        from torch._inductor.exc import InductorError

        if _top_mode() is not self._device or owner_here(frame.f_code.co_filename).is_in("sysbench", "simulate"):
            return ConvertFrameReturn()
        with _as_plain_tensors(self._device), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler about itself
            self._trace_on_meta(True)
            try:
                return convert(wrapper, frame, *state)
            except (TorchDynamoException, InductorError) as error:
                raise UnavailableError(f"torch.compile refuses this step: {_reason(error)}") from error
            finally:
                self._trace_on_meta(False)

    def _graph_compiled(self, graph: GraphModule, inputs: Sequence[Any], **_: object) -> Any:
        reason = getattr(graph, "compile_subgraph_reason", None)
        place = reason.user_stack[-1] if reason is not None and reason.graph_break and reason.user_stack else None
        if place is not None and place.lineno:  # which divisions by DDP's buckets have not
            self.breaks[f"{Path(place.filename).name}:{place.lineno}"] = None
        for each in tree_leaves(inputs):  # of which some come from another part of the code, which is compiled already
            if isinstance(each, FakeTensor):
                each.fake_device = _META
        key = self._key(graph, inputs)
        with inductor_finds(self._platform):
            kept = _kept.pop(key, None) or self._compiled(graph, inputs)
            compiled, backwards = kept
            self._trace_on_meta(False)
            for backward in backwards if self._has_backward else ():
                backward.generate()
        self._trace_on_meta(True)
        if key is not None:
            _kept[key] = kept
            for oldest in list(_kept)[:-_MOST_KEPT]:
                del _kept[oldest]
        return compiled

    def _key(self, graph: GraphModule, inputs: Sequence[Any]) -> Hashable:
        """Return what is equal for graphs that compile to the same code; None if it is not known."""
        if self._step is None or self._step.strategy is not None or [*graph.parameters(), *graph.buffers()]:
            return None  # tensors in the graph are those of this step
        code = graph.print_readable(print_output=False, include_stride=True, include_device=True)
        of_gpu = self._platform.capability, self._platform.multiprocessors
        kinds = tuple(_kind(each) for each in tree_leaves(inputs) if isinstance(each, Tensor))
        return self._step, of_gpu, torch.is_grad_enabled(), code, kinds

    def _compiled(self, graph: GraphModule, inputs: Sequence[Any]) -> tuple[Any, list[_Backward]]:
        """Compile a graph that was traced on `meta` for the GPU; also return its backward, for which no code is yet."""
        from torch._inductor import compile_fx

        passes = getattr(compile_fx, _GRAPH_PASSES)
        backwards: list[_Backward] = []

        def passes_on_gpu(traced: GraphModule, *args: Any, **options: Any) -> Any:
            self._trace_on_meta(False)
            _move(traced, ())
            return passes(traced, *args, **options)

        def compile_on_gpu(divided: GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            def generate() -> Any:
                _move(divided, inputs)
                return compile_fx.compile_fx_inner(divided, inputs, **options)

            if not options.get("is_backward"):
                return generate()
            backwards.append(_Backward(generate))
            return backwards[-1]

        with mock.patch.object(compile_fx, _GRAPH_PASSES, passes_on_gpu):
            compiled: Any = compile_fx.compile_fx(graph, inputs, inner_compile=compile_on_gpu)
        return compiled, backwards

    def _trace_on_meta(self, on_meta: bool) -> None:
        self._is_on_meta = on_meta
        FakeTensorMode.cache_clear()  # results of operators with a device as an argument

    def fake_tensor(self, new: Callable[..., FakeTensor], *args: Any, **options: Any) -> FakeTensor:
        """Create a tensor for tracing; what the code makes on the GPU is on `meta` until its graph is whole."""
        if self._is_on_meta:
            args = tuple(_instead_of_gpu(each, _META) for each in args)
            options = {name: _instead_of_gpu(each, _META) for name, each in options.items()}
        return new(*args, **options)


def _top_mode() -> object:
    depth = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(depth - 1) if depth else None


def _reason(error: BaseException) -> str:
    """Return the first line of what the compiler says, without what it says about the backend.

    Where it tried an operator, that is what the operator raised.
    """
    error = getattr(error, "inner_exception", error)
    if (raised := _RAISED.search(str(error))) is not None:
        return f"{raised[1]}: {raised[2].partition(chr(92) + 'n')[0]}"
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class _Backward:
    """Backward of compiled code. Its own code is generated only for steps that have a backward."""

    def __init__(self, generate: Callable[[], Any]) -> None:
        self._generate = generate
        self._context = TracingContext.get()
        self._code: Any = None
        self._boxed_call = True  # for torch: the arguments are one list

    def generate(self) -> None:
        """Generate the code if it is not there."""
        if self._code is None:
            with tracing(self._context):
                self._code = self._generate()

    def __call__(self, inputs: list[Any]) -> Any:
        return self._code(inputs)


class _Kernel:
    """A kernel that was not compiled: its buffers are there already, and have no data."""

    device: SimulatedDevice
    """The one that is simulated at the time."""

    def __init__(self, kernel: GeneratedKernel | None) -> None:
        self._kernel = kernel
        """None if it runs on the host."""

    def run(self, *arguments: object, **options: object) -> None:
        """Tell the device about the launch, and do nothing else."""
        if self._kernel is not None:
            self.device.launch(self._kernel, arguments)

    __call__ = run


def _with_moved_bytes(kernel: Any, generate: Callable[..., str], *args: Any, **options: Any) -> str:
    return GeneratedKernel.with_moved_bytes(generate(kernel, *args, **options), kernel.estimate_kernel_num_bytes())


def _fold_on_host(folder: Any, fold: Callable[..., object], node: torch.fx.Node) -> object:
    with _ConstantsOnHost():
        return fold(folder, node)


def _run_by(graph: Any, device: SimulatedDevice, run: Callable[..., object], inputs: Sequence[Any]) -> object:
    device.runs_generated_code = True
    try:
        return run(graph, inputs)
    finally:
        device.runs_generated_code = False


def _match_tensor(builder: Any, guard: Any, value: Any = None) -> None:
    """Have Dynamo run compiled code on tensors like this one only.

    Its own guard compares dispatch keys besides, which the simulated device changes.
    """
    value = value() if isinstance(value, TensorWeakRef) else value
    expected = _kind(builder.get(guard) if value is None else value)
    manager = builder.get_guard_manager(guard)
    manager.add_lambda_guard(lambda tensor: _kind(tensor) == expected, [str(expected)], guard.user_stack)


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def _empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=DEVICE)


def _reinterpreted(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Tensor:
    with _below_python():
        view = torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
        return Tensor._make_subclass(SimulatedTensor, view)


class _ConstantsOnHost(DispatchMode):
    """A mode in which the numbers that Inductor computes on the GPU, to fold constants, are computed on the host."""

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> Any:
        args, kwargs = tree_map_only(torch.device, partial(_instead_of_gpu, instead=_HOST), (args, kwargs))
        return func(*args, **kwargs)


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


def _instead_of_gpu(value: Any, instead: torch.device) -> Any:
    return instead if isinstance(value, torch.device) and value.type == CUDA.type else value


def _found_on_gpu(variable: Any, ask: Callable[..., Any], answer: object, tx: Any) -> Any:
    """Have code that is traced find its tensors on the GPU: `answer` takes the place of what `ask` says of `meta`."""
    from torch._dynamo.variables.base import VariableTracker

    return VariableTracker.build(tx, answer) if variable.device == _META else ask(variable, tx)


def _move(graph: GraphModule, inputs: Sequence[Any]) -> None:
    """Move what a graph and its inputs have on `meta` to the GPU."""

    def moved(device: torch.device) -> torch.device:
        return CUDA if device == _META else device

    nodes = [node for part in graph.modules() if isinstance(part, GraphModule) for node in part.graph.nodes]
    for node in nodes:
        node.args, node.kwargs = (tree_map_only(torch.device, moved, each) for each in (node.args, dict(node.kwargs)))
    for value in tree_leaves([*inputs, *(node.meta.get("val") for node in nodes)]):
        if isinstance(value, FakeTensor):
            value.fake_device = moved(value.fake_device)

"""Conversion of a predicted step to a recording: operators and launches on the host, kernels on the device.

The recording has the format of a profiler's recording, and is marked as predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sysbench.predict.kernels import Floats
from sysbench.predict.step import StepPrediction
from sysbench.predict.trace import Kernel, Kind, PhaseTrace, Trace
from sysbench.trace.recording import KERNEL, NONE, Integers, Recording, Table
from sysbench.trace.summary import STEP, ancestry

STREAM = 7
"""CUPTI's number for torch's default stream."""

_FORMATS: Mapping[str, str] = {"fp32": "f32", "other": "other"}

_FUNCTORS: Mapping[str, str] = {
    **dict.fromkeys(("copy_", "clone", "_to_copy"), "direct_copy_kernel"),
    **dict.fromkeys(("cat", "stack"), "CatArrayBatchedCopy"),
    "amax": "MaxNanFunctor", "amin": "MinNanFunctor",
    **dict.fromkeys(("zeros", "zeros_like", "zero_", "new_zeros", "ones_like", "full_like", "fill_"), "FillFunctor"),
}  # fmt: skip
"""Functors of PyTorch whose names differ from their operators."""

_ZERO_FILLED = ("embedding_dense_backward", "nll_loss_backward")
"""Operators that first fill their result with zeros."""

_GENERATED = "triton_"
"""How the names of kernels begin that Inductor generates; the operators that are fused follow."""

_TEMPLATES: Mapping[Kind, str] = {
    "map": "vectorized_elementwise_kernel",
    "indexed": "elementwise_kernel",
    "transpose": "elementwise_kernel",
    "reduce": "reduce_kernel",
    "foreach": "multi_tensor_apply_kernel",
    "optimizer": "multi_tensor_apply_kernel",
}
"""PyTorch's own kernels whose template argument is the operator."""


def kernel_name(kernel: Kernel) -> str:
    """Return a name for the kernel in the style of cuBLAS and PyTorch, with the dimensions of a matrix product.

    Kernels that Inductor generates have its names.

    Examples: `gemm_bf16_tn 4096x768x768`, `flash_attention_forward_causal_bf16_in`,
    `vectorized_elementwise_kernel<mul>`.
    """
    format_ = _FORMATS.get(kernel.dtype, kernel.dtype)
    if kernel.kind == "gemm":
        batch, *sides = kernel.dims
        product = "sgemm" if kernel.dtype == "fp32" else f"gemm_{format_}"
        many = f"{batch}x " if batch > 1 else ""
        return f"{product}_{kernel.layout.lower()} {many}{'x'.join(map(str, sides))}"
    if kernel.kind == "attention":
        implementation, *words = kernel.layout.split()
        return "_".join((implementation, "attention", *words, f"{format_}_in"))
    if kernel.kind == "copy":
        return "Memcpy DtoH (Device -> Pinned)" if kernel.name == "device_to_host" else "Memcpy HtoD (Pinned -> Device)"
    if kernel.name.startswith(_GENERATED):
        return kernel.name
    if kernel.kind == "unknown":
        return f"unknown_{kernel.name.strip('_')}_kernel"
    functor = _FUNCTORS.get(kernel.name, kernel.name.removeprefix("_").removesuffix("_"))
    if kernel.kind == "map" and kernel.name in _ZERO_FILLED:
        functor = _FUNCTORS["zero_"]
    template = _TEMPLATES.get(kernel.kind)
    return f"{template}<{functor}>" if template else f"{functor}_kernel"


def recording(prediction: StepPrediction, title: str) -> Recording:
    """Convert a predicted step to a recording. Times are ns since the start of the step; kernels do not overlap."""
    return _Writer(prediction).recording(title)


class _Writer:
    def __init__(self, prediction: StepPrediction) -> None:
        self._prediction = prediction
        self._trace: Trace = prediction.trace
        self._names: dict[str, int] = {}
        timeline = prediction.timeline()
        self._issued_ns = _to_ns(timeline.issued_s)
        self._ended_ns = _to_ns(timeline.ended_s)
        self._kernel_ns = _to_ns(np.array(prediction.kernel_s))
        self._launch_ns = int(prediction.host.rates["launch"].value * 1e9)
        last_ns = max(int(times_ns[-1]) if len(times_ns) else 0 for times_ns in (self._issued_ns, self._ended_ns))
        self._end_ns = last_ns + int(prediction.host.rates["synchronize"].value * 1e9)

    def recording(self, title: str) -> Recording:
        known = self._prediction.gpu.hardware
        operators, launches, work, ranges = self._operators(), self._launches(), self._work(), self._ranges()
        return Recording(
            title=title,
            names=tuple(self._names),
            operators=operators,
            launches=launches,
            work=work,
            ranges=ranges,
            launch_shapes=np.zeros((0, 6), np.int64),
            origin_ns=0,
            devices=(known.names[0] if known.names else known.title,),
            predicted=True,
        )

    def _name_numbers(self, names: Sequence[str]) -> Integers:
        return np.array([self._names.setdefault(name, len(self._names)) for name in names], np.int64)

    @property
    def _began_ns(self) -> Integers:
        return np.concatenate([np.zeros(1, np.int64), self._issued_ns])[:-1]

    def _operators(self) -> Table:
        names = self._name_numbers(self._trace.operators)[self._concatenated("operators")]
        nothing = np.full(len(names), NONE, np.int64)
        thread = np.zeros(len(names), np.int64)
        return Table.of([self._began_ns, self._issued_ns - self._began_ns, names, thread, nothing, nothing, nothing])

    def _launches(self) -> Table:
        """Return the launch calls, back to back at the end of each operator, and the final wait for the device."""
        launches = self._concatenated("launches")
        issuer = np.repeat(np.arange(len(launches)), launches)
        remaining = np.repeat(np.cumsum(launches), launches) - np.arange(len(issuer))
        room_ns = (self._issued_ns - self._began_ns)[issuer] // np.maximum(launches[issuer], 1)
        duration_ns = np.minimum(self._launch_ns, room_ns)
        start_ns = self._issued_ns[issuer] - remaining * duration_ns
        waiting_ns = int(self._issued_ns[-1]) if len(self._issued_ns) else 0
        launch, wait = self._name_numbers(["cudaLaunchKernel", "cudaDeviceSynchronize"]).tolist()
        return Table.of(
            [
                np.append(start_ns, waiting_ns),
                np.append(duration_ns, self._end_ns - waiting_ns),
                np.append(np.full(len(issuer), launch), wait),
                np.zeros(len(issuer) + 1, np.int64),
                np.append(np.arange(1, len(issuer) + 1), NONE),
            ]
        )

    def _work(self) -> Table:
        kernels = self._concatenated("kernels")
        count = len(kernels)
        duration_ns = self._kernel_ns[kernels]
        nothing = np.full(count, NONE, np.int64)
        return Table.of(
            [
                self._ended_ns - duration_ns,
                duration_ns,
                self._name_numbers([kernel_name(kernel) for kernel in self._trace.kernels])[kernels],
                np.full(count, KERNEL),
                np.zeros(count, np.int64),
                np.full(count, STREAM),
                np.arange(1, count + 1),
                nothing,
                nothing,
            ]
        )

    def _ranges(self) -> Table:
        rows = [(0, self._end_ns, STEP), *self._phases()]
        start_ns, end_ns = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
        names = self._name_numbers([name for *_, name in rows])
        return Table.of([start_ns, end_ns - start_ns, names, np.zeros(len(rows), np.int64)])

    def _phases(self) -> Iterator[tuple[int, int, str]]:
        """Yield (start, end, name) of each phase, followed by those of its modules, outer modules before inner ones."""
        first = 0
        for phase in self._trace.phases:
            end = first + len(phase.host)
            if end > first:
                yield int(self._began_ns[first]), int(self._issued_ns[end - 1]), phase.name
                yield from self._modules(phase, self._began_ns[first:end], self._issued_ns[first:end])
            first = end

    def _modules(self, phase: PhaseTrace, began_ns: Integers, issued_ns: Integers) -> Iterator[tuple[int, int, str]]:
        paths = [_callers(path) for path in self._trace.modules]
        ranges: list[tuple[int, int, str]] = []
        open_: list[int] = []
        for position, module in enumerate(phase.modules.tolist()):
            callers = paths[module]
            shared = sum(1 for row, path in zip(open_, callers, strict=False) if ranges[row][2] == path)
            new = [(int(began_ns[position]), 0, path) for path in callers[shared:]]
            open_ = [*open_[:shared], *range(len(ranges), len(ranges) + len(new))]
            ranges += new  # an outer one before the inner ones that begin with it
            for row in open_:
                ranges[row] = (ranges[row][0], int(issued_ns[position]), ranges[row][2])
        yield from ranges

    def _concatenated(self, column: str) -> Integers:
        columns = [getattr(phase, column) for phase in self._trace.phases]
        return np.concatenate([np.zeros(0, np.int64), *columns]).astype(np.int64)


def _callers(path: str) -> list[str]:
    """Return the paths of a module and its callers, outermost first, except lists of layers, which are never called."""
    paths = ancestry(path)
    return [each for each, inner in zip(paths, [*paths[1:], ""], strict=False) if not inner[len(each) + 1 :].isdigit()]


def _to_ns(times_s: Floats) -> Integers:
    return np.rint(times_s * 1e9).astype(np.int64)

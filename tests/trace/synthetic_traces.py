"""Traces made by hand, and one of a training step as a GPU runs it: launched ahead, backward in a thread of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from hypothesis import strategies as st

from sysbench.trace.columns import distinct_rows
from sysbench.trace.recording import (
    COPY,
    KERNEL,
    NONE,
    DeviceWork,
    Integers,
    Launches,
    Operators,
    Ranges,
    Recording,
    RecordingMetadata,
    Table,
    Trace,
)

MAIN, AUTOGRAD = 0, 1

GEMM = "ampere_sgemm_128x64_tn"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*, float const*)"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<3>, at::native::(anonymous namespace)::PointwiseOpListAlphaFunctor<float> >(x)"
)


def column(values: list[int]) -> Integers:
    return np.array(values, np.int64)


@dataclass
class Builder:
    """Collects events, one method for each kind; times are nanoseconds."""

    names: dict[str, int] = field(default_factory=dict)
    work: list[tuple[int, ...]] = field(default_factory=list)
    launches: list[tuple[int, ...]] = field(default_factory=list)
    operators: list[tuple[int, ...]] = field(default_factory=list)
    ranges: list[tuple[int, ...]] = field(default_factory=list)

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def kernel(
        self,
        name: str,
        start: int,
        duration: int,
        correlation: int = NONE,
        *,
        stream: int = 7,
        device: int = 0,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (128, 1, 1),
    ) -> None:
        self.work.append(
            (start, duration, self.name(name), KERNEL, device, stream, correlation, *grid, *block, NONE)
        )  # fmt: skip

    def copy(self, name: str, start: int, duration: int, correlation: int, size: int) -> None:
        self.work.append(
            (start, duration, self.name(name), COPY, 0, 7, correlation, *[NONE] * 6, size)
        )  # fmt: skip

    def launch(self, start: int, correlation: int, thread: int = MAIN, duration: int = 4) -> None:
        self.launches.append((start, duration, self.name("cudaLaunchKernel"), thread, correlation))

    def operator(
        self,
        name: str,
        start: int,
        duration: int,
        thread: int = MAIN,
        sequence: int = NONE,
        forward_thread: int = NONE,
        shapes: str | None = None,
    ) -> None:
        shape = NONE if shapes is None else self.name(shapes)
        self.operators.append((start, duration, self.name(name), thread, sequence, forward_thread, shape))

    def range(self, name: str, start: int, duration: int, thread: int = MAIN) -> None:
        self.ranges.append((start, duration, self.name(name), thread))

    def trace(self, title: str = "made.json", devices: tuple[str, ...] = (), rank: int | None = None) -> Trace:
        work = np.array(self.work, np.int64).reshape(-1, 14).T
        launches = np.array(self.launches, np.int64).reshape(-1, 5).T
        operators = np.array(self.operators, np.int64).reshape(-1, 7).T
        ranges = np.array(self.ranges, np.int64).reshape(-1, 4).T
        shapes, shape = distinct_rows([*work[7:13]])
        return Trace(
            title=title,
            names=tuple(self.names),
            work=DeviceWork(*work[:7], launch_shape=shape, bytes=work[13]),
            launches=Launches(*launches),
            operators=Operators(*operators),
            ranges=Ranges(*ranges),
            launch_shapes=shapes,
            origin_ns=0,
            devices=devices,
            rank=rank,
        )


def recording(trace: Trace) -> Recording:
    """The same, packed."""
    parts = {name: getattr(trace, name) for name in ("work", "launches", "operators", "ranges")}
    tables = {name: Table.of([*vars(part).values()]) for name, part in parts.items()}
    return Recording(**{each.name: getattr(trace, each.name) for each in fields(RecordingMetadata)}, **tables)


@dataclass
class _Device:
    """A stream: what is launched runs in order, never before the one before it is done."""

    built: Builder
    free_at: int = 0
    launched: int = 0

    def run(self, name: str, at: int, duration: int, thread: int) -> None:
        self.launched += 1
        start = max(at + 10, self.free_at)
        self.built.launch(at, self.launched, thread)
        self.built.kernel(name, start, duration, self.launched, grid=(duration, 1, 1))
        self.free_at = start + duration


def training(
    steps: int = 2, layers: int = 3, *, operators: bool = True, gemm: str = GEMM, kernel_ns: int = 100
) -> Builder:
    """Steps of a naive Transformer: nine matmuls in each layer and one at the end, twice as many in backward.

    Kernels take `kernel_ns` and are launched every 20 ns, so that they run long after their ranges were left.
    Without `operators` it is what nsys records: nothing tells which module backward's kernels belong to.
    """
    built, time, sequence = Builder(), 0, 0
    device = _Device(built)
    for _ in range(steps):
        step_start = time
        forward_start, made = time, []
        for module, name in _forward(layers):
            for path in module:
                built.range(path, time, 20)
            if operators:
                built.operator("aten::op", time, 18, MAIN, sequence)
            made.append((sequence, name))
            sequence += 1
            device.run(name, time + 5, kernel_ns, MAIN)
            time += 20
        built.range("forward", forward_start, time - forward_start)
        backward_start = time
        for number, name in reversed(made):
            if operators:
                engine = "autograd::engine::evaluate_function: OpBackward0"
                built.operator(engine, time, 38, AUTOGRAD, number, MAIN)
                built.operator("OpBackward0", time + 1, 36, AUTOGRAD, number, MAIN)
            for place in range(2 if name in (gemm, GEMM) else 1):
                device.run(name, time + 5 + 15 * place, kernel_ns, AUTOGRAD)
            time += 40
        built.range("backward", backward_start, time - backward_start)
        built.range("optimizer", time, 20)
        device.run(ADAM, time + 5, kernel_ns, MAIN)
        time = max(time + 20, device.free_at + 10)
        built.range("step", step_start, time - step_start)
        time += 50
    if gemm != GEMM:
        built.names = {gemm if name == GEMM else name: number for name, number in built.names.items()}
    return built


def _forward(layers: int) -> list[tuple[list[str], str]]:
    """The ranges around each kernel of a forward pass, and the kernel."""
    found: list[tuple[list[str], str]] = []
    for layer in range(layers):
        path = f"layers.{layer}"
        attend = f"{path}.attention.attend"
        for name in ("q", "k", "v"):
            found.append(([path, f"{path}.attention", f"{path}.attention.{name}"], GEMM))
        for part, kernel in (("scores", GEMM), ("softmax", SOFTMAX), ("output", GEMM)):
            found.append(([path, f"{path}.attention", attend, f"{attend}.{part}"], kernel))
        found.append(([path, f"{path}.attention", f"{path}.attention.output"], GEMM))
        for name in ("w1", "w3", "w2"):
            found.append(([path, f"{path}.feed_forward", f"{path}.feed_forward.{name}"], GEMM))
        found.append(([path], ADD))
    found.append((["lm_head"], GEMM))
    return found


RANGE_NAMES = ("step", "forward", "backward", "optimizer", "layers.0", "layers.0.attention", "layers.1", "part (a.b)")
OPERATOR_NAMES = ("aten::mm", "aten::add", "autograd::engine::evaluate_function: MmBackward0", "MmBackward0")

TIMES = st.integers(0, 30)
LENGTHS = st.integers(0, 20)
THREADS = st.integers(0, 1)


@st.composite
def any_traces(draw: st.DrawFn) -> Trace:
    """Any few events on two threads, nested or not."""
    built = Builder()
    for _ in range(draw(st.integers(0, 8))):
        built.range(draw(st.sampled_from(RANGE_NAMES)), draw(TIMES), draw(LENGTHS), draw(THREADS))
    for _ in range(draw(st.integers(0, 8))):
        built.operator(
            draw(st.sampled_from(OPERATOR_NAMES)),
            draw(TIMES),
            draw(LENGTHS),
            draw(THREADS),
            draw(st.integers(-1, 2)),
            draw(st.integers(-1, 1)),
        )
    for number in range(draw(st.integers(0, 5))):
        built.launch(draw(TIMES), number, draw(THREADS), draw(st.integers(0, 3)))
    for _ in range(draw(st.integers(0, 6))):
        built.kernel(GEMM, draw(TIMES), draw(LENGTHS), draw(st.integers(-1, 5)))
    return built.trace()

"""Measure attention: times of forward and backward, memory, the operator that runs, and errors relative to fp64."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sysbench import formulas as attention_costs
from sysbench import units
from sysbench.commands.attention.measure_memory import count_memory
from sysbench.commands.attention.record import (
    AttentionAccounted,
    AttentionChecked,
    AttentionError,
    AttentionImported,
    AttentionKernels,
    AttentionMemory,
    AttentionPeaks,
    AttentionTimed,
    RepeatsReduced,
)
from sysbench.commands.attention.simulate import SimulatedAttention, predicted, simulate
from sysbench.engine.sensors.memory_limits import host_available_bytes
from sysbench.errors import BeyondMemoryError, DoesNotFitError, OverBudgetError, UnavailableError
from sysbench.formulas import bytes_moved
from sysbench.interpreter import gc_paused
from sysbench.lab.attention import operator_of, unsupported_as_unavailable
from sysbench.lab.attention_functions import (
    Attention,
    AttentionCall,
    Inputs,
    function_for,
    gradient_for,
    inputs_for,
    naive,
    user_code,
)
from sysbench.lab.clocks import Clock, clock_for, until_hidden
from sysbench.lab.compilation import compiled_event, fresh_compiler, reset_counters, stage_entered
from sysbench.lab.devices import synchronize, torch_device
from sysbench.lab.memory import allocator
from sysbench.lab.precision import matmul_precision
from sysbench.log.events import DeviceInfo, Event, PhaseSample, Source
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.spec import hardware
from sysbench.spec.attention import IMPLEMENTATIONS, AttentionCell
from sysbench.spec.quantities import time_limit_word

MAX_CHECKED_LENGTH = 2048
"""Longest sequence that is compared with fp64 completely, because the reference needs quadratic memory."""

UNCHECKED_FACTOR = 8
"""Upper bound on the memory of implementations whose tensors can be counted, as a multiple of two N × N tensors plus
inputs and outputs."""

WITH_FORWARD = 4 / 3
"""Time of a timed forward, a timed backward and the untimed forward before it, relative to forward and backward."""

INPUT_COPIES = 3
"""Number of copies of the input between which calls on a GPU alternate."""

COLD_BYTES = 256 * 2**20
"""Size of the buffer that --cold overwrites before every call; several times larger than any current cache."""


def run(
    cell: AttentionCell, device: DeviceInfo, artifact: Path | None = None, *, clock: Clock | None = None
) -> Iterator[Event]:
    """Measure the cell, or simulate it; all memory is freed at the end.

    Raises UnavailableError for an implementation that is not available or does not compute attention, DoesNotFitError
    if memory runs out, BeyondMemoryError or OverBudgetError for a cell that is skipped, and any error of the
    implementation.
    """
    if cell.implementation not in IMPLEMENTATIONS:
        yield AttentionImported(at_s=time.time(), cell=cell.key, file=user_code(cell.implementation).file)
    if cell.simulate is not None:
        yield from _simulated(cell, hardware.by_name(cell.simulate))
        return
    began_s, target = time.perf_counter(), torch_device(device)
    if target.type == "cpu":
        yield from _refuse_thrashing(cell)
    _refuse_over_budget(cell, _SECONDS_PER_FLOP.get(_kind(cell, target), 0.0) * _flops(cell))
    try:
        with ExitStack() as settings:
            settings.enter_context(matmul_precision(cell.precision))
            if cell.implementation in ("compiled", "flex"):
                settings.enter_context(fresh_compiler())
            stopwatch = clock or clock_for(target, without_launches=True)
            yield from _measured(cell, device, target, stopwatch, began_s)
    finally:
        allocator.release(target)


_SECONDS_PER_FLOP: dict[tuple[str, ...], float] = {}
"""Speed of each implementation on earlier inputs of this process, of forward and backward together."""


def _kind(cell: AttentionCell, device: torch.device) -> tuple[str, ...]:
    return (cell.implementation, cell.precision, str(cell.causal), str(cell.dim), str(device), str(cell.threads))


def _flops(cell: AttentionCell) -> int:
    return attention_costs.flops(cell, "forward") + attention_costs.flops(cell, "backward")


def _refuse_over_budget(cell: AttentionCell, pair_s: float) -> None:
    """Raise OverBudgetError if a single forward and backward of a cell would exceed its time limit."""
    if cell.limit_s is not None and pair_s > cell.limit_s:
        limit = time_limit_word(cell.limit_s)
        raise OverBudgetError(f"one call takes about {units.duration(pair_s)}, longer than --max-time {limit}", pair_s)


# --- without a device


def _simulated(cell: AttentionCell, known: hardware.Hardware) -> Iterator[Event]:
    gpu, settings = Gpu.of(known), AllocatorSettings.of("default")
    yield gpu.simulation_event(cell.key, settings)
    yield stage_entered(cell.key, "compiling" if cell.implementation == "compiled" else "simulating")
    result = simulate(cell, gpu, settings)
    if not result.verdict.fits:
        yield _memory_account(result, cell)
        raise DoesNotFitError(
            f"needs {units.size(result.peak_reserved_bytes)}, and {units.size(result.available_bytes)} are available"
        )
    yield _memory(cell, "simulated", result._asdict())
    with suppress(UnavailableError):  # times are unknown for GPUs without rates
        yield predicted(cell, known, result.trace)


def _memory(cell: AttentionCell, source: Source, found: Mapping[str, object]) -> AttentionMemory:
    peaks = {name: value for name, value in found.items() if name in AttentionPeaks.model_fields}
    return AttentionMemory(at_s=time.time(), cell=cell.key, source=source, **peaks)


def _memory_account(result: SimulatedAttention, cell: AttentionCell) -> AttentionAccounted:
    return AttentionAccounted(
        at_s=time.time(),
        cell=cell.key,
        tensors=result.at_peak,
        available_bytes=result.available_bytes,
        reserved_bytes=result.peak_reserved_bytes,
    )


def _refuse_thrashing(cell: AttentionCell) -> Iterator[Event]:
    available = host_available_bytes()
    # Counting is slow, and most cells are far below the limit.
    if (
        UNCHECKED_FACTOR * attention_costs.naive_saved_bytes(cell) + bytes_moved(cell, "backward") * UNCHECKED_FACTOR
        < available
    ):
        return
    needs = count_memory(
        cell.model_copy(update={"implementation": "naive"}) if cell.implementation == "compiled" else cell
    )
    if needs is not None and needs.peak_allocated_bytes > 0.9 * available:
        yield AttentionAccounted(at_s=time.time(), cell=cell.key, tensors=needs.at_peak, available_bytes=available)
        needed = units.size(needs.peak_allocated_bytes)
        raise BeyondMemoryError(f"needs {needed}, but this process has only {units.size(available)} of memory")


# --- measured


def _measured(
    cell: AttentionCell, device_info: DeviceInfo, device: torch.device, clock: Clock, began_s: float
) -> Iterator[Event]:
    yield stage_entered(cell.key, "building")
    base = _Baseline.of(device)
    inputs = inputs_for(cell, device)
    function = function_for(cell, device)
    held_bytes = torch.cuda.memory_allocated(device) - base.allocated_bytes if base else 0
    calls = _Calls(cell, function, inputs, gradient_for(inputs[0]), clock)
    try:
        yield from _first_call(cell, calls)
        # The first call may include compilation, so the second one is timed.
        pair_s = calls.pair_s()
        _SECONDS_PER_FLOP[_kind(cell, device)] = pair_s / _flops(cell)
        _refuse_over_budget(cell, pair_s)
        yield from _memory_of(cell, calls, device, base, held_bytes)
        yield from _time_calls(cell, calls, _affordable(cell, pair_s, time.perf_counter() - began_s))
    except (RuntimeError, MemoryError) as error:
        if not allocator.is_out_of_memory(error):
            raise
    else:
        yield _check(cell, calls)
        return
    # This is outside the except block because the traceback would keep tensors alive.
    calls.forget()
    if device_info.type == "cuda" and device_info.memory_bytes is not None:
        # Simulate how much memory the cell would have needed on this GPU; these details are optional.
        with suppress(UnavailableError):
            yield _memory_account(
                simulate(cell, Gpu.like(device_info, device_info.memory_bytes), AllocatorSettings.of("default")), cell
            )
    raise DoesNotFitError("memory ran out")


class _Baseline(NamedTuple):
    """Bytes in CUDA's allocator before a cell allocates anything."""

    allocated_bytes: int
    reserved_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> _Baseline | None:
        """Return the current state, without cuBLAS's workspaces, so that every cell allocates them anew."""
        if device.type != "cuda":
            return None
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        return cls(torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device))


class _Calls(AttentionCall):
    """Repeated calls on one input. Forward, which builds the graph, is outside the timed region of backward."""

    def __init__(
        self, cell: AttentionCell, function: Attention, inputs: Inputs, gradient: Tensor, clock: Clock
    ) -> None:
        super().__init__(function, inputs, gradient)
        self._clock = clock
        self._is_cold = cell.cold
        self._cold: Tensor | None = None
        self._rotation = cycle([inputs])

    def prepare(self, sets: int) -> None:
        """Make calls alternate between `sets` copies of the input, so that the next input is not in a cache."""
        copies = [_copies(self.inputs) for _ in range(1, sets)]
        self._rotation = cycle([self.inputs, *copies])
        if self._is_cold:
            self._cold = torch.empty(COLD_BYTES, dtype=torch.uint8, device=self.gradient.device)

    def pair_s(self) -> float:
        """Run forward and backward once, and return the seconds that both take together."""
        self.forget()
        started_s = time.perf_counter()
        self.attend()
        self.differentiate()
        synchronize(self.gradient.device)
        taken_s = time.perf_counter() - started_s
        self.forget()
        return taken_s

    def time(self, phase: Literal["forward", "backward"]) -> PhaseSample:
        return until_hidden(lambda: self._time_once(phase))

    def _time_once(self, phase: Literal["forward", "backward"]) -> PhaseSample:
        self.forget()
        self.inputs = next(self._rotation)
        if phase == "backward":
            self.attend()
        if self._cold is not None:
            self._cold.zero_()
        call = self.attend if phase == "forward" else self.differentiate
        return self._clock.measure([(phase, call)], "phase").phases[phase]


def _copies(inputs: Inputs) -> Inputs:
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in inputs)
    return q, k, v


def _first_call(cell: AttentionCell, calls: _Calls) -> Iterator[Event]:
    """Run forward and backward once, compiling them if necessary; check the results and yield the operator."""
    compiles = cell.implementation in ("compiled", "flex")
    if compiles:
        yield stage_entered(cell.key, "compiling")
        reset_counters()
    started_s = time.perf_counter()
    with unsupported_as_unavailable(f"{cell.implementation}: "):
        calls.attend()
    _refuse_invalid_output(cell, calls)
    calls.differentiate()
    synchronize(calls.gradient.device)
    if any(tensor.grad is None for tensor in calls.inputs):
        raise UnavailableError(
            f"{cell.implementation} computes no gradient of q, k and v: its result does not depend on them"
        )
    if compiles:
        made = compiled_event(cell.key, time.perf_counter() - started_s)
        yield made
        if made.fell_back:
            raise UnavailableError(f"dynamo fell back to eager execution{f': {made.detail}' if made.detail else ''}")
    calls.forget()
    kernel = {"compiled": "compiled by inductor", "flex": "flex_attention"}.get(cell.implementation)
    if kernel is None:
        kernel = operator_of(calls.attend)
    yield AttentionKernels(at_s=time.time(), cell=cell.key, forward=kernel)
    calls.forget()


def _refuse_invalid_output(cell: AttentionCell, calls: _Calls) -> None:
    """Raise UnavailableError unless the output is a finite tensor that requires grad and has the shape of q."""
    output, q = calls.output, calls.inputs[0]
    if not isinstance(output, Tensor) or output.shape != q.shape:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UnavailableError(f"{cell.implementation} returned {shape} instead of {tuple(q.shape)}")
    if not output.requires_grad:
        raise UnavailableError(
            f"{cell.implementation} returned a result that does not require grad, so there is no backward to time"
        )
    if not torch.isfinite(output).all():
        raise UnavailableError(f"{cell.implementation} returned non-finite values")


def _memory_of(
    cell: AttentionCell, calls: _Calls, device: torch.device, base: _Baseline | None, held_bytes: int
) -> Iterator[Event]:
    if base is None:
        needs = count_memory(cell, real=calls.inputs)
        if needs is not None:
            yield _memory(cell, "measured", needs._asdict())
        calls.forget()
        return
    calls.forget()
    synchronize(device)
    before = torch.cuda.memory_allocated(device)
    allocator.reset_peaks(device)
    calls.attend()
    synchronize(device)
    new_bytes = torch.cuda.memory_allocated(device) - before
    assert calls.output is not None
    saved = new_bytes - calls.output.untyped_storage().nbytes()
    calls.differentiate()
    synchronize(device)
    peaks = allocator.peaks(device)
    yield AttentionMemory(
        at_s=time.time(),
        cell=cell.key,
        source="measured",
        before_backward_bytes=held_bytes + new_bytes,
        saved_bytes=max(saved, 0),
        peak_allocated_bytes=(peaks.allocated_bytes or 0) - base.allocated_bytes,
        peak_reserved_bytes=(peaks.reserved_bytes or 0) - base.reserved_bytes,
    )
    calls.forget()


def _affordable(cell: AttentionCell, pair_s: float, spent_s: float) -> tuple[int, int]:
    """Return the numbers of warm-up calls and of measured calls of each phase that fit into the time that is left.

    Both shrink alike; at least one call is measured.
    """
    wanted = cell.warmup + cell.repeats
    left_s = math.inf if cell.limit_s is None else max(0.0, cell.limit_s - spent_s)
    share = min(1.0, left_s / (wanted * WITH_FORWARD * pair_s))
    return int(cell.warmup * share), max(1, int(cell.repeats * share))


def _time_calls(cell: AttentionCell, calls: _Calls, counts: tuple[int, int]) -> Iterator[Event]:
    if counts != (cell.warmup, cell.repeats):
        warmup, repeats = counts
        limit_s = cell.limit_s or 0.0
        yield RepeatsReduced(at_s=time.time(), cell=cell.key, max_time_s=limit_s, warmup=warmup, repeats=repeats)
    phases: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    # Large inputs fit in no cache and need no copies.
    small = sum(tensor.untyped_storage().nbytes() for tensor in calls.inputs) < COLD_BYTES
    calls.prepare(INPUT_COPIES if small and calls.inputs[0].device.type == "cuda" else 1)
    with gc_paused():
        for warmup, count in zip((True, False), counts, strict=True):
            if count:
                yield stage_entered(cell.key, "warming-up" if warmup else "measuring")
            for phase in phases:
                for index in range(count):
                    sample = calls.time(phase)
                    yield AttentionTimed(
                        at_s=time.time(), cell=cell.key, index=index, warmup=warmup, phase=phase, sample=sample
                    )


def _check(cell: AttentionCell, calls: _Calls) -> AttentionChecked:
    """Compare with fp64 if there is memory for it; a cell that has been timed does not fail for lack of a check."""
    try:
        return _compare_with_fp64(cell, calls)
    except (RuntimeError, MemoryError) as error:
        if not allocator.is_out_of_memory(error):
            raise
    calls.forget()
    return AttentionChecked(at_s=time.time(), cell=cell.key, errors={}, sample="nothing, because memory ran out")


def _exact(tensor: Tensor) -> Tensor:
    """Return the tensor in fp64; on the CPU, if its device has no fp64, as Apple's GPUs have none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def _compare_with_fp64(cell: AttentionCell, calls: _Calls) -> AttentionChecked:
    """Compare the first sequence with fp64; if it is long, only its last queries, without gradients of k and v."""
    calls.forget()
    calls.attend()
    calls.differentiate()
    assert calls.output is not None
    first = (0,) * (calls.output.dim() - 2)
    n = cell.seq
    is_complete = n <= MAX_CHECKED_LENGTH
    rows = slice(None) if is_complete else slice(n - MAX_CHECKED_LENGTH // 8, n)
    q, k, v = (_exact(tensor.detach()[first]).requires_grad_() for tensor in calls.inputs)
    reference = naive(causal=cell.causal) if is_complete else _last_queries(cell, n)
    output = reference(q if is_complete else q[rows], k, v)
    output.backward(_exact(calls.gradient[first][rows]))
    q_gradient, k_gradient, v_gradient = (_grad_of(tensor)[first] for tensor in calls.inputs)
    pairs = {"output": (calls.output[first][rows], output), "q": (q_gradient[rows], _grad_of(q)[rows])}
    if is_complete:
        pairs |= {"k": (k_gradient, _grad_of(k)), "v": (v_gradient, _grad_of(v))}
    errors = {name: _error(_exact(found.detach()), exact.detach()) for name, (found, exact) in pairs.items()}
    calls.forget()
    sample = "the first sequence" if is_complete else f"{MAX_CHECKED_LENGTH // 8} queries of the first sequence"
    return AttentionChecked(at_s=time.time(), cell=cell.key, errors=errors, sample=sample)


def _last_queries(cell: AttentionCell, n: int) -> Attention:
    """Return a reference for the last queries only; with a causal mask, each query sees keys up to its own position."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if cell.causal:
            positions = torch.arange(n, device=q.device)
            is_masked = positions > positions[-q.shape[-2] :, None]
            scores = scores.masked_fill(is_masked, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v

    return attend


def _grad_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def _error(found: Tensor, exact: Tensor) -> AttentionError:
    difference = found - exact
    return AttentionError(
        max_abs=float(difference.abs().max()), relative=float(difference.norm() / exact.norm().clamp_min(1e-300))
    )

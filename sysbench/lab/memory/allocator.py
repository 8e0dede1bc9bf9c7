"""Memory of this process: peaks, freeing, out-of-memory errors, and the allocation history.

The history comes from CUDA's caching allocator, and has a category for each allocation, such as gradients.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sysbench.errors import UnavailableError
from sysbench.extras import installed_torch
from sysbench.lab.dispatch import Arguments, DispatchMode, Operator, Options
from sysbench.lab.memory.accounting import tensors_in
from sysbench.lab.memory.modules import ModuleMetadata
from sysbench.log.outcomes import BUILD
from sysbench.trace.workspaces import are_kept_workspaces, are_momentary, workspace_bytes

_OUT_OF_MEMORY_PHRASES = (
    "out of memory",  # CUDA's caching allocator, the CUDA driver, "MPS backend out of memory"
    "can't allocate memory",  # c10/core/impl/alloc_cpu.cpp
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


@dataclass(frozen=True)
class Peaks:
    """Peak memory in bytes; None where the device does not report it."""

    allocated_bytes: int | None
    """Peak of live tensors."""
    reserved_bytes: int | None
    """Peak of the memory that the allocator has reserved from the device."""
    host_rss_bytes: int
    """Peak resident set size of this process since the last `release`; since its start where that cannot reset it."""


def reset_peaks(device: torch.device) -> None:
    """Reset the peak counters to the memory that is live now; only CUDA has such counters."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peaks(device: torch.device) -> Peaks:
    """Return the peaks since the last `reset_peaks`."""
    if device.type == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        return Peaks(allocated, reserved, _host_rss_peak_bytes())
    # MPS reports no peak of live tensors; its driver memory only grows until the cache is emptied.
    reserved_bytes = torch.mps.driver_allocated_memory() if device.type == "mps" else None
    return Peaks(None, reserved_bytes, _host_rss_peak_bytes())


def release(device: torch.device) -> None:
    """Free unreferenced memory on device and host, and on Linux reset the host's peak, so that cells are independent.

    Otherwise, glibc keeps freed blocks of up to 32 MiB: after a large model, gigabytes that would count for the next
    cell.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    if sys.platform == "linux":
        with suppress(AttributeError):  # a C library other than glibc
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):  # a container may forbid it
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc_pid_clear_refs(5)


@contextmanager
def using_options(options: str, device: torch.device) -> Iterator[None]:
    """Give CUDA's caching allocator these options inside this context, in place of those of the environment.

    All cached memory is released before and after, because segments keep the options with which they were made.
    """
    if device.type != "cuda":
        yield
        return
    refuse_expandable_segments_without_nvml(options)
    before = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    _set_options(options, device)
    try:
        yield
    finally:
        _set_options(before, device)


def _set_options(options: str, device: torch.device) -> None:
    torch._C._cuda_clearCublasWorkspaces()
    release(device)
    torch._C._accelerator_setAllocatorSettings(options)


def refuse_expandable_segments_without_nvml(options: str) -> None:
    """Raise UnavailableError where `expandable_segments` needs NVIDIA's management library, and it is missing.

    PyTorch would end the process at its first allocation.
    """
    if "expandable_segments:true" in options.replace(" ", "").lower():
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            raise UnavailableError(
                "expandable_segments needs NVIDIA's management library (libnvidia-ml.so.1), which is not installed: "
                "unset it, or give a container NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            ) from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` reports that memory ran out, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _OUT_OF_MEMORY_PHRASES)


def _host_rss_peak_bytes() -> int:
    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return maximum if sys.platform == "darwin" else maximum * 1024  # getrusage(2): bytes on macOS, KiB on Linux


_BOUNDARY_PAUSE_S = 0.0005
"""Pause before and after a phase boundary: no allocation may have the timestamp of the boundary, in whole microseconds.
"""


_Step = Any
"""A `sysbench.lab.step.TrainingStep`, whose module imports this one."""


@dataclass
class _Boundary:
    time_us: int
    category_by_address: dict[int, str]
    default_since_us: int
    default_category: str | None
    """Category of all other live blocks allocated since `default_since_us`; None leaves them uncategorized."""
    phase: str = ""
    """The phase that ends here; `BUILD` before the first step; empty within a phase."""
    module_by_address: dict[int, str] = field(default_factory=dict)
    """Module of parameters, buffers, gradients and optimizer state by address, for allocations without one."""


@dataclass
class History:
    """Records the allocations on one device while `recording` is active.

    Parameters and gradients are identified by their addresses at the end of a phase, and communication buffers by
    theirs during a collective. All other blocks are inputs if they exist before the first step, activations if they
    remain after the forward or loss phase, and optimizer state if they remain after the optimizer phase.
    """

    device: torch.device
    _boundaries: list[_Boundary] = field(default_factory=list)
    _annotations: list[dict[str, object]] = field(default_factory=list)
    _step: int = -1
    _step_since_us: int = 0
    _modules: ModuleMetadata | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record allocations with Python stacks only: C++ stacks take a hundred times as long to write.

        In PyTorch 2.11, taking the stack of a free loses the exception that caused the free; recomputation in backward
        ends with one.
        """
        context = "all" if installed_torch() > (2, 11) else "alloc"
        torch.cuda.memory._record_memory_history("all", context=context, stacks="python", device=self.device)
        try:
            with _Collectives(self._on_collective) if dist.is_initialized() else nullcontext():
                yield
        finally:
            torch.cuda.memory._record_memory_history(enabled=None, device=self.device)

    def categorize_initial_blocks(self, step: _Step) -> None:
        """Categorize the blocks that exist before the first step as parameters or inputs."""
        category_by_address = dict.fromkeys(_addresses(step.model.buffers()), "inputs")
        category_by_address |= dict.fromkeys(_addresses(step.model.parameters()), "parameters")
        self._add_boundary(category_by_address, 0, "inputs", BUILD)
        self._boundaries[-1].module_by_address = _module_by_address(step)

    @contextmanager
    def phase(self, number: int, name: str, step: _Step) -> Iterator[None]:
        """Record the start and end of phase `name` of step `number`; categorize the blocks that remain at the end."""
        start_us = _now_us()
        if number != self._step:
            self._step, self._step_since_us = number, start_us
        self._annotate(name, "START", start_us)
        if name == "backward" and self._modules is not None and step.latest_loss is not None:
            self._modules.annotate_backward(step.latest_loss)
        yield
        category_by_address: dict[int, str] = {}
        default_category, default_since_us = None, start_us
        if name in ("forward", "loss"):
            default_category, default_since_us = "activations", self._step_since_us
        elif name == "backward":
            category_by_address = dict.fromkeys(_addresses(step.gradients()), "gradients")
            # Apart from whole gradients, only the loss scale of fp16 remains.
            default_category = "gradients" if step.keeps_whole_gradients else "optimizer state"
        elif name == "optimizer":
            default_category = "optimizer state"
        ends_us = self._add_boundary(category_by_address, default_since_us, default_category, name)
        if name in ("backward", "optimizer"):
            self._boundaries[-1].module_by_address = _module_by_address(step)
        self._annotate(name, "END", ends_us)

    @contextmanager
    def annotating_modules(self, model: nn.Module) -> Iterator[None]:
        """Annotate allocations in this context with the module whose forward or backward runs.

        Not for a compiled model, which would be compiled with the hooks of its modules, and break at each of them.
        """
        self._modules = ModuleMetadata(model)
        with self._modules.annotating():
            yield

    def _on_collective(self, tensors: Iterable[Tensor]) -> None:
        self._add_boundary(dict.fromkeys(_addresses(tensors), "communication"), 0, None)

    def snapshot(self, device_name: str, protocol: str, cell: dict[str, Any]) -> dict[str, Any]:
        """Return the history in the format of `torch.cuda.memory._snapshot()`, with categories and phases added."""
        content: dict[str, Any] = torch.cuda.memory._snapshot(self.device)
        major, _ = torch.cuda.get_device_capability(self.device)
        size_bytes = workspace_bytes(major, installed_torch(), os.environ)
        assign_categories(content, self.device.index or 0, self._boundaries, size_bytes)
        content["external_annotations"] = [*content.get("external_annotations", []), *self._annotations]
        content["sysbench"] = {
            "source": "measured",
            "allocator": "cuda",
            "device_name": device_name,
            "protocol": protocol,
            "cell": cell,
        }
        return content

    def _add_boundary(
        self, category_by_address: dict[int, str], default_since_us: int, default_category: str | None, phase: str = ""
    ) -> int:
        time.sleep(_BOUNDARY_PAUSE_S)
        now_us = _now_us()
        self._boundaries.append(_Boundary(now_us, category_by_address, default_since_us, default_category, phase))
        time.sleep(_BOUNDARY_PAUSE_S)
        return now_us

    def _annotate(self, name: str, stage: str, time_us: int) -> None:
        index = self.device.index or 0
        self._annotations.append({"name": name, "stage": stage, "time_us": time_us, "device": index})


class _Collectives(DispatchMode):
    """Reports the tensors of every collective, and of FSDP2's copies to and from communication buffers."""

    def __init__(self, report: Callable[[Iterable[Tensor]], None]) -> None:
        super().__init__()
        self._report = report

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        result = func(*args, **kwargs)
        if func.namespace in ("c10d", "fsdp"):
            self._report(tensors_in([*args, *kwargs.values()]))
        return result


def assign_categories(
    content: dict[str, Any], device: int, boundaries: Sequence[_Boundary], workspace_bytes: int
) -> None:
    """Assign a category to every allocation in the trace of `device`, and to every block."""
    traces = content["device_traces"]
    trace = traces[device] if device < len(traces) else []
    for entry in _workspaces(trace, boundaries, workspace_bytes):
        entry["category"] = "workspace"
    live: dict[int, dict[str, Any]] = {}
    remaining = iter(boundaries)
    boundary = next(remaining, None)
    for entry in trace:
        while boundary is not None and entry["time_us"] >= boundary.time_us:
            _apply_boundary(live, boundary)
            boundary = next(remaining, None)
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry
        elif entry["action"] in ("free_requested", "free_completed"):
            live.pop(entry["addr"], None)
    while boundary is not None:
        _apply_boundary(live, boundary)
        boundary = next(remaining, None)
    for entry in trace:
        if entry["action"] == "alloc":
            entry.setdefault("category", "temporaries")
    _assign_block_categories(content, live)


def _workspaces(
    trace: list[dict[str, Any]], boundaries: Sequence[_Boundary], workspace_bytes: int
) -> Iterator[dict[str, Any]]:
    """Return the allocations of cuBLAS workspaces, kept or momentary; see `sysbench.trace.workspaces`.

    Each thread keeps one: backward runs on autograd's, and so does a part of the trial of attention in the build.
    """
    born: list[int] = []
    died: dict[int, int] = {}
    live: dict[int, int] = {}
    for position, entry in enumerate(trace):
        if entry["action"] == "alloc":
            live[entry["addr"]] = position
            if entry["size"] == workspace_bytes:
                born.append(position)
        elif entry["action"] in ("free_requested", "free_completed") and entry["addr"] in live:
            died[live.pop(entry["addr"])] = position
    entries = [trace[position] for position in born]
    ends = np.array([died.get(position, len(trace) + 1) for position in born], np.int64)
    last_named_us: dict[int, int] = {}
    for boundary in boundaries:
        last_named_us |= dict.fromkeys(boundary.category_by_address, boundary.time_us)
    phases = [_phase_at(entry["time_us"], boundaries) for entry in entries]
    is_candidate = [
        # An optimizer allocates its state; products come before it.
        position not in died and phase != "optimizer" and last_named_us.get(entry["addr"], -1) < entry["time_us"]
        for position, entry, phase in zip(born, entries, phases, strict=True)
    ]
    threads = [2 * e.get("stream", 0) + (p == "backward") for e, p in zip(entries, phases, strict=True)]
    in_build = [n for n, phase in enumerate(phases) if is_candidate[n] and phase == BUILD]
    for number in in_build[1:]:
        threads[number] += 1
    kept = are_kept_workspaces(np.array(is_candidate, np.bool_), np.array(threads, np.int64), most=1)
    is_workspace = kept | are_momentary(np.array(born, np.int64), ends)
    return (entry for entry, found in zip(entries, is_workspace, strict=True) if found)


def _phase_at(time_us: int, boundaries: Iterable[_Boundary]) -> str:
    return next((boundary.phase for boundary in boundaries if boundary.phase and time_us < boundary.time_us), "")


def _assign_block_categories(content: dict[str, Any], live: dict[int, dict[str, Any]]) -> None:
    for segment in content["segments"]:
        for block in segment["blocks"]:
            owner = live.get(block["address"])
            if owner is not None:
                block["category"] = owner["category"]
                block["user_metadata"] = owner.get("user_metadata", "")


def _apply_boundary(live: dict[int, dict[str, Any]], boundary: _Boundary) -> None:
    for address, entry in live.items():
        category, recorded = boundary.category_by_address.get(address), entry.get("category")
        is_communication = category == "communication" and recorded not in ("parameters", "gradients")
        if is_communication or (category is not None and recorded in (None, "communication")):
            entry["category"] = category
        elif boundary.default_category is not None and entry["time_us"] >= boundary.default_since_us:
            entry.setdefault("category", boundary.default_category)
        if address in boundary.module_by_address and not entry.get("user_metadata"):
            entry["user_metadata"] = boundary.module_by_address[address]


def _module_by_address(step: _Step) -> dict[int, str]:
    model: nn.Module = step.work.model
    named = [*model.named_buffers(), *model.named_parameters()]
    module_of = {tensor: name.rpartition(".")[0] for name, tensor in named}
    tensors = [*module_of.items(), *((tensor.grad, module) for tensor, module in module_of.items())]
    tensors += [(state, module_of.get(parameter, "")) for parameter, state in step.optimizer_state()]
    return {address: module for tensor, module in tensors for address in _addresses([tensor])}


def _addresses(tensors: Iterable[Tensor | None]) -> Iterator[int]:
    for tensor in tensors:
        if tensor is not None:
            local: Tensor = getattr(tensor, "to_local", tensor.detach)()  # this rank's part of a sharded one
            yield local.untyped_storage().data_ptr()


def _now_us() -> int:
    return time.time_ns() // 1000

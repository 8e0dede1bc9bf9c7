"""Memory as the measured process sees it: peaks, freeing, out-of-memory errors, and the history of CUDA's caching
allocator with notes on what each allocation was for.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

_OUT_OF_MEMORY_PHRASES = (
    "out of memory",  # CUDA's caching allocator, the CUDA driver, "MPS backend out of memory"
    "can't allocate memory",  # c10/core/impl/alloc_cpu.cpp
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


@dataclass(frozen=True)
class Peaks:
    """High-water marks in bytes; None where the device does not tell."""

    allocated_bytes: int | None
    """Of live tensors."""
    reserved_bytes: int | None
    """Of what the allocator took from the device."""
    host_rss_bytes: int
    """Of this process's resident memory, since it began: it cannot be reset."""


def reset_peaks(device: torch.device) -> None:
    """Forget earlier peaks: the next ones are of what is live now and what comes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peaks(device: torch.device) -> Peaks:
    """Peaks since `reset_peaks`."""
    if device.type == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        return Peaks(allocated, reserved, _host_rss_peak_bytes())
    # MPS keeps no peak of live tensors; what its driver holds only grows until the cache is emptied.
    reserved_bytes = torch.mps.driver_allocated_memory() if device.type == "mps" else None
    return Peaks(None, reserved_bytes, _host_rss_peak_bytes())


def release(device: torch.device) -> None:
    """Give back everything that nothing refers to any more: Python's garbage first, then the allocator's cache."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on any device.

    Only CUDA has a type for it; the others raise RuntimeError and are told apart by their words.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _OUT_OF_MEMORY_PHRASES)


def _host_rss_peak_bytes() -> int:
    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return maximum if sys.platform == "darwin" else maximum * 1024  # getrusage(2): bytes on macOS, KiB on Linux


WORKSPACE_BYTES = (8_519_680, 32 * 1024 * 1024)
"""What cuBLAS asks for: by default, and on Hopper and later (getChosenWorkspaceSize, CublasHandlePool.cpp)."""

_BOUNDARY_S = 0.0005
"""Pause at phase boundaries, so that no allocation shares its microsecond with one."""


class _Step(Protocol):
    """As much of a training step as tells categories apart."""

    model: Any
    tokens: Tensor
    targets: Tensor


@dataclass
class _Boundary:
    """The end of a phase: what is known then about addresses."""

    time_us: int
    named: dict[int, str]
    """Categories by address."""
    rest_since_us: int
    rest: str | None
    """The category of everything else that was made since, and is still there."""


@dataclass
class History:
    """Records allocations on one device from when `recording` is entered.

    Categories follow the rule of `sysbench.simulate.recording`: parameters, inputs and gradients are known by their
    addresses at the end of a phase, and what forward or optimizer leave behind is activations or state.
    """

    device: torch.device
    _boundaries: list[_Boundary] = field(default_factory=list)
    _annotations: list[dict[str, Any]] = field(default_factory=list)
    _step: int = -1
    _step_since_us: int = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record, with Python stacks only: C++ ones take a hundred times as long to write."""
        torch.cuda.memory._record_memory_history("all", context="all", stacks="python", device=self.device)
        try:
            yield
        finally:
            torch.cuda.memory._record_memory_history(enabled=None, device=self.device)

    def built(self, step: _Step) -> None:
        """Note what there is before the first step."""
        named = dict.fromkeys(_addresses(step.model.parameters()), "parameters")
        self._end(named, 0, "inputs")

    @contextmanager
    def phase(self, number: int, name: str, step: _Step) -> Iterator[None]:
        """Note when a phase begins and ends, and what it leaves."""
        began_us = _now_us()
        if number != self._step:
            self._step, self._step_since_us = number, began_us
        self._mark(name, "START", began_us)
        yield
        named: dict[int, str] = {}
        rest, since_us = None, began_us
        if name in ("forward", "loss"):
            rest, since_us = "activations", self._step_since_us
        elif name == "backward":
            named = dict.fromkeys(_addresses(each.grad for each in step.model.parameters()), "gradients")
            rest = "optimizer state"  # the scale of fp16's loss
        elif name == "optimizer":
            rest = "optimizer state"
        self._mark(name, "END", self._end(named, since_us, rest))

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Have the allocator write down which module is being called."""
        if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
            yield  # an older torch: modules stay unknown
            return
        paths: list[str] = [""]
        names = {module: name for name, module in model.named_modules()}

        def enter(module: nn.Module, arguments: object) -> None:
            paths.append(names.get(module, paths[-1]))
            torch.cuda.memory._set_memory_metadata(paths[-1])

        def leave(module: nn.Module, arguments: object, result: object) -> None:
            paths.pop()
            torch.cuda.memory._set_memory_metadata(paths[-1])

        hooks = [module.register_forward_pre_hook(enter) for module in model.modules()]
        hooks += [module.register_forward_hook(leave, always_call=True) for module in model.modules()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            torch.cuda.memory._set_memory_metadata("")

    def snapshot(self, device_name: str, protocol: str, cell: dict[str, Any]) -> dict[str, Any]:
        """Everything so far, as `torch.cuda.memory._snapshot()` has it, with categories and phases."""
        content: dict[str, Any] = torch.cuda.memory._snapshot(self.device)
        label(content, self.device.index or 0, self._boundaries)
        content["external_annotations"] = [*content.get("external_annotations", []), *self._annotations]
        content["sysbench"] = {
            "source": "measured",
            "allocator": "cuda",
            "device_name": device_name,
            "protocol": protocol,
            "cell": cell,
        }
        return content

    def _end(self, named: dict[int, str], since_us: int, rest: str | None) -> int:
        time.sleep(_BOUNDARY_S)
        now_us = _now_us()
        self._boundaries.append(_Boundary(now_us, named, since_us, rest))
        time.sleep(_BOUNDARY_S)
        return now_us

    def _mark(self, name: str, stage: str, time_us: int) -> None:
        index = self.device.index or 0
        self._annotations.append({"name": name, "stage": stage, "time_us": time_us, "device": index})


def label(content: dict[str, Any], device: int, boundaries: Iterable[_Boundary]) -> None:
    """Give every allocation in the trace of a device, and every block, its category."""
    traces = content["device_traces"]
    trace = traces[device] if device < len(traces) else []
    live: dict[int, dict[str, Any]] = {}
    remaining = iter(boundaries)
    boundary = next(remaining, None)
    for entry in trace:
        while boundary is not None and entry["time_us"] >= boundary.time_us:
            _settle(live, boundary)
            boundary = next(remaining, None)
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry
        elif entry["action"] in ("free_requested", "free_completed"):
            live.pop(entry["addr"], None)
    while boundary is not None:
        _settle(live, boundary)
        boundary = next(remaining, None)
    for entry in trace:
        if entry["action"] == "alloc":
            entry.setdefault("category", "temporaries")
    _label_blocks(content, live)


def _label_blocks(content: dict[str, Any], live: dict[int, dict[str, Any]]) -> None:
    """Blocks are what the allocations are that they were left by."""
    for segment in content["segments"]:
        for block in segment["blocks"]:
            owner = live.get(block["address"])
            if owner is not None:
                block["category"] = owner["category"]
                block["user_metadata"] = owner.get("user_metadata", "")


def _settle(live: dict[int, dict[str, Any]], boundary: _Boundary) -> None:
    for address, entry in live.items():
        if address in boundary.named:
            entry.setdefault("category", boundary.named[address])
        elif entry["size"] in WORKSPACE_BYTES and boundary.rest == "activations":
            entry.setdefault("category", "workspace")
        elif boundary.rest is not None and entry["time_us"] >= boundary.rest_since_us:
            entry.setdefault("category", boundary.rest)


def _addresses(tensors: Iterable[Tensor | None]) -> Iterator[int]:
    for tensor in tensors:
        if tensor is not None:
            yield tensor.untyped_storage().data_ptr()


def _now_us() -> int:
    return time.time_ns() // 1000

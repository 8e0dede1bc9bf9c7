"""The GPU that Inductor finds while it compiles for one that is not there, with a Triton that need not be there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from sysbench.simulate.gpu import UNKNOWN_MULTIPROCESSORS, Multiprocessors
from sysbench.simulate.platform import Platform

_THREADS = 2048
"""Threads of a multiprocessor of a GPU that is not known."""


@contextmanager
def inductor_finds(platform: Platform) -> Iterator[None]:
    """Context manager in which Inductor finds the platform's GPU, with Triton."""
    import torch.utils._triton
    from torch._dynamo import device_interface
    from torch._inductor import scheduler
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.hints import DeviceProperties

    answers, of_interface = _answers(platform)
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


_Answers = dict[str, Callable[..., object]]


def _answers(platform: Platform) -> tuple[_Answers, _Answers]:
    """Return what `torch.cuda` and the compiler's interface to devices say, and what only the latter says."""
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
    answers: _Answers = {
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (major, minor),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or major >= 8,
    }
    of_interface: _Answers = {
        "is_available": lambda: True,
        "get_compute_capability": lambda device=None: 10 * major + minor,
        "get_multi_processor_count": lambda device=None: multiprocessors.count,
        "is_triton_capable": lambda device=None: major >= 7,
        "raise_if_triton_unavailable": lambda device=None: None,
    }
    return answers, of_interface


_WITHOUT_CUDA: dict[str, Callable[..., Tensor]] = {
    "__invert__": lambda mask: torch.ops.aten.bitwise_not.default(mask),
    "copy_": lambda target, source, non_blocking=False: torch.ops.aten.copy_.default(target, source, non_blocking),
    "contiguous": lambda tensor, **options: torch.ops.aten.contiguous.default(tensor, **options),
}
"""Methods that make the device of their tensor the current one, which fails if this PyTorch was built without CUDA."""


def _without_triton(load: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Load generated code, which imports Triton for its kernels, where there is no Triton."""
    language = ModuleType("triton.language")
    with mock.patch.dict(sys.modules, {"triton": ModuleType("triton"), "triton.language": language}):
        sys.modules["triton"].language = language  # type: ignore[attr-defined]
        return load(*args, **options)

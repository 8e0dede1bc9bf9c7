"""What user code is told when it asks torch for a GPU: that there is one, the simulated one.

`torch.cuda` and `torch.accelerator` answer user code as on a machine with one GPU. Code of torch itself, and of the
packages that know the simulated device, gets the answers of this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch

from sysbench.errors import UnavailableError
from sysbench.simulate.tensors import CUDA, DEVICE, SimulatedTensor, is_asked_by_user_code

GPU_NAME = "NVIDIA GPU (simulated)"
"""Name of the GPU in user code. A recording serves several GPUs, so it has none of their names."""

_Answer = Callable[..., Any]


def _answers(capability: tuple[int, int]) -> Mapping[ModuleType, Mapping[str, _Answer]]:
    major, minor = capability
    properties = SimpleNamespace(name=GPU_NAME, major=major, minor=minor)
    nothing: _Answer = lambda *_, **__: None  # noqa: E731
    return {
        torch.cuda: {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_capability": lambda device=None: capability,
            "get_device_name": lambda device=None: GPU_NAME,
            "get_device_properties": lambda device=None: properties,
            "is_bf16_supported": lambda including_emulation=True: True if including_emulation else major >= 8,
            **dict.fromkeys(("init", "set_device", "synchronize", "empty_cache", "ipc_collect"), nothing),
        },
        torch.accelerator: {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_accelerator": lambda check_available=False: torch.device(CUDA.type),
            "current_device_index": lambda: 0,
            **dict.fromkeys(("set_device_index", "synchronize"), nothing),
        },
        torch: {
            "get_default_device": lambda: CUDA if torch.get_default_device() == DEVICE else torch.get_default_device()
        },
    }


@contextmanager
def answering_as_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Context manager in which torch tells user code of one GPU with this compute capability.

    What torch.cuda cannot answer without a driver raises UnavailableError.
    """
    with ExitStack() as restored:
        for module, answers in _answers(capability).items():
            for name, answer in answers.items():
                original: Any = getattr(module, name)
                restored.callback(setattr, module, name, original)
                setattr(module, name, _for_user_code(answer, original))
        without_driver: dict[str, _Answer] = {
            "_lazy_init": _refuse,
            "_exchange_device": _stay,
            "_maybe_exchange_device": partial(_stay),  # another function than the one above, for the compiler
        }
        for name, answer in without_driver.items() if not torch.cuda.is_available() else ():
            restored.callback(setattr, torch.cuda, name, getattr(torch.cuda, name))
            setattr(torch.cuda, name, answer)
        restored.callback(setattr, torch, "Generator", torch.Generator)
        torch.Generator = _Generator  # type: ignore[misc]
        yield


def _for_user_code(answer: _Answer, original: _Answer) -> _Answer:
    @wraps(original)
    def answered(*args: object, **options: object) -> object:
        asking = sys._getframe(1)
        is_traced = asking.f_code.co_name == "invoke_and_store_as_constant"
        return (answer if is_traced or is_asked_by_user_code(asking) else original)(*args, **options)

    answered._dynamo_marked_constant = True  # type: ignore[attr-defined]  # Dynamo asks once, by the function above
    return answered


def _stay(device: int) -> int:
    """Return the device that was the current one before, in place of torch.cuda.device's call of the driver."""
    return 0


def _refuse() -> None:
    if SimulatedTensor.inferring_shapes:  # as where the compiler traces a copy to the GPU
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_asked_by_user_code(frame.f_back):
        frame = frame.f_back
    name = frame.f_code.co_name
    raise UnavailableError(f"the code calls torch.cuda.{name}, which needs a GPU: measure it on a device")


class _Generator(torch._C.Generator):
    """A generator of random numbers, also for the simulated device."""

    def __new__(cls, device: object = "cpu") -> Self:
        """Create it on the host, for there are no random numbers on the simulated device."""
        return super().__new__(cls, device="cpu")  # type: ignore[call-arg]

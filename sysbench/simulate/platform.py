"""Properties of a device that determine what a program requests from its allocator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sysbench.lab.dispatch import Operator
from sysbench.simulate.cuda.autocast import CUDA_RULES, AutocastRules
from sysbench.simulate.cuda.composites import Composites, composites_on
from sysbench.simulate.cuda.kernels import COPIES, SCRATCH
from sysbench.simulate.cuda.reductions import Scratch
from sysbench.simulate.gpu import UNKNOWN_CAPABILITY, Gpu, Multiprocessors, Workspaces


@dataclass(frozen=True)
class Platform:
    """Properties of a device that determine a program's memory requests, by operator.

    workspaces       those of cuBLAS; None if the device has no cuBLAS
    copies           copies that operators make of their arguments before they allocate results
    capability       compute capability that user code is told
    multiprocessors  those of the device; None if a recording is for any number of them (`Recording.with_scratch`)
    """

    composites: Composites
    autocast: AutocastRules
    scratch: Mapping[Operator, Callable[..., Scratch]]
    workspaces: Workspaces | None
    copies: Mapping[Operator, Callable[..., Sequence[int]]] = field(default_factory=dict)
    capability: tuple[int, int] = UNKNOWN_CAPABILITY
    multiprocessors: Multiprocessors | None = None

    @classmethod
    def of(cls, gpu: Gpu) -> Platform:
        """Create the platform of a CUDA GPU."""
        return replace(cls.of_generation(gpu), multiprocessors=gpu.multiprocessors)

    @classmethod
    def of_generation(cls, gpu: Gpu) -> Platform:
        """Create the platform of all GPUs with the kernels of `gpu`."""
        return cls(composites_on(gpu), CUDA_RULES, SCRATCH, gpu.workspaces, COPIES, gpu.attention_generation)


REAL_PLATFORM: Final = Platform({}, AutocastRules(frozenset(), frozenset(), frozenset()), {}, None)
"""The platform of a real device, for which nothing is replaced."""

"""Training loops of strangers, recorded from the middle of training: simulated, so that every byte is known.

Loops differ in what is there when the recording begins and in what is released when: gradients that `zero_grad`
releases before forward or after the optimizer, gradients that stay, frozen weights, optimizers with little state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from sysbench.interpreter import gc_paused
from sysbench.lab.step import TrainingStep
from sysbench.simulate.compiler.without_compiler import without_compiler
from sysbench.simulate.cuda.autocast import cuda_autocast
from sysbench.simulate.cuda.composites import using_composites
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate_recording
from sysbench.simulate.origins import Origins
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.step_recorder import StepRecorder
from sysbench.simulate.tensors import DEVICE, SimulatedDevice
from sysbench.snapshot import snapshot
from sysbench.snapshot.categories import from_snapshot
from sysbench.spec import hardware
from sysbench.spec.grid import ModelShape
from sysbench.spec.model import ModelCell
from tests.simulate.simulated_cells import cell
from tests.snapshot.strangers import Known

BEFORE, RECORDED = 2, 2
"""Steps before the recording, and in it."""

EVEN: Final = ModelShape(d_model=256, d_ff=640, layers=4, heads=8, vocab=1000)


@dataclass(frozen=True)
class Loop:
    """A training loop.

    order    its phases, in order
    stays    `zero_grad(set_to_none=False)`: gradients are kept and zeroed
    frozen   how many of the model's parameters, in its own order, are not trained
    """

    name: str
    order: tuple[str, ...]
    stays: bool = False
    frozen: int = 0
    optimizer: Literal["adamw", "fused", "sgd", "momentum", "by hand", "without torch's class"] = "adamw"
    changes: dict[str, Any] = field(default_factory=dict)
    in_suite: bool = True
    """Whether the suite runs this loop; `tests.bench.categories` runs all."""


_FIRST = ("zero_grad", "forward", "loss", "backward", "optimizer")
_LAST = ("forward", "loss", "backward", "optimizer", "zero_grad")
_BEFORE_BACKWARD = ("forward", "loss", "zero_grad", "backward", "optimizer")
_NAIVE = {"attention": "naive", "precision": "fp32"}
_BF16 = {"attention": "sdpa", "precision": "bf16"}

LOOPS: Final[tuple[Loop, ...]] = (
    Loop("zero_grad at the step's start", _FIRST, changes=_NAIVE),
    Loop("zero_grad after the step", _LAST, changes=_NAIVE),
    Loop("zero_grad before backward", _BEFORE_BACKWARD, changes=_NAIVE, in_suite=False),
    Loop("fused, zero_grad at the start", _FIRST, optimizer="fused", changes=_NAIVE, in_suite=False),
    Loop("fused, zero_grad after the step", _LAST, optimizer="fused", changes=_NAIVE),
    Loop("SGD without state, after the step", _LAST, optimizer="sgd", changes=_NAIVE),
    Loop("SGD without state, at the start", _FIRST, optimizer="sgd", changes=_BF16, in_suite=False),
    Loop("momentum, after the step", _LAST, optimizer="momentum", changes=_NAIVE, in_suite=False),
    Loop("by hand, zero_grad after the step", _LAST, optimizer="by hand", changes=_NAIVE),
    Loop("by hand, zero_grad at the start", _FIRST, optimizer="by hand", changes=_BF16, in_suite=False),
    Loop("without torch's class, zero_grad after the step", _LAST, optimizer="without torch's class", changes=_BF16),
    Loop("without torch's class, at the start", _FIRST, optimizer="without torch's class", changes=_NAIVE),
    Loop("gradients stay, AdamW", _FIRST, stays=True, changes=_NAIVE),
    Loop("gradients stay, momentum", _LAST, stays=True, optimizer="momentum", changes=_BF16),
    Loop("gradients stay, SGD", _FIRST, stays=True, optimizer="sgd", changes=_NAIVE, in_suite=False),
    Loop("autocast, zero_grad at the start", _FIRST, changes=_BF16, in_suite=False),
    Loop("autocast, zero_grad after the step", _LAST, changes=_BF16),
    Loop("autocast, fused, after the step", _LAST, optimizer="fused", changes=_BF16, in_suite=False),
    Loop("half of the layers frozen", _LAST, frozen=19, changes=_NAIVE, in_suite=False),
    Loop("half of the layers frozen, fused", _FIRST, frozen=19, optimizer="fused", changes=_BF16),
    Loop("all but the head frozen", _FIRST, frozen=38, changes=_NAIVE, in_suite=False),
    # Activations have the size of a parameter: 256 tokens, and a width of 256.
    Loop("as many tokens as channels", _LAST, changes={**_NAIVE, "ctx": 128}, in_suite=False),
    Loop("as many tokens as channels, gradients stay", _FIRST, stays=True, changes={**_NAIVE, "ctx": 128}),
    Loop("no optimizer, gradients cleared at the start", _FIRST[:4], changes=_NAIVE, in_suite=False),
    Loop("no optimizer, gradients cleared after backward", (*_LAST[:3], "zero_grad"), changes=_BF16),
)


class ByHand(torch.optim.Optimizer):
    """AdamW as students write it: state is not changed in place, but replaced."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                _update(parameter, parameter.grad, self.state[parameter])


class WithoutTorchsClass:
    """The same without torch's base class."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.state: dict[torch.nn.Parameter, dict[str, torch.Tensor]] = {each: {} for each in self.parameters}
        self.param_groups = [{"params": self.parameters}]

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                _update(parameter, parameter.grad, self.state[parameter])

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def _update(parameter: torch.nn.Parameter, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
    if not state:
        state.update(m=torch.zeros_like(parameter), v=torch.zeros_like(parameter))
    state["m"] = 0.9 * state["m"] + 0.1 * gradient
    state["v"] = 0.99 * state["v"] + 0.01 * gradient**2
    parameter.data -= 0.01 * state["m"] / (state["v"].sqrt() + 1e-8)


def recorded(loop: Loop, gpu: str = "a100-80gb") -> tuple[Known, tuple[int, ...]]:
    """The run of a loop, and the entries of its trace at which the recorded steps begin."""
    of = cell(**{"model": EVEN, "ctx": 100, "batch": 2, **loop.changes}, mode="train")
    device = Gpu.of(hardware.by_name(gpu))
    result = simulate_recording(_run(loop, of, Platform.of(device)), device)
    raw = result.snapshot()
    marks = [mark for mark in raw["external_annotations"] if mark["stage"] == "START" and mark["name"] == loop.order[0]]
    starts = tuple(int(mark["time_us"]) for mark in marks[-RECORDED:])
    return Known(loop.name, raw, from_snapshot(snapshot.of(raw)), "train"), starts


def _run(loop: Loop, of: ModelCell, platform: Platform) -> StepRecording:
    with without_compiler(), using_composites(platform.composites), cuda_autocast(platform.autocast):
        recorder = StepRecorder(platform, SimulatedDevice, Origins(_run.__code__, parts=False), of)
        with recorder.device, gc_paused():
            with recorder.span(-1, "build"):
                step = TrainingStep(of, DEVICE)
                _prepare(step, loop)
            recorder.built(step)
            with recorder.tracking_modules(step):
                for number, phase, run in _phases(step, loop):
                    with recorder.span(number, phase):
                        run()
                    recorder.ended(phase, step)
            recorder.device.stop()
    return recorder.step_recording(of, "train")


def _prepare(step: TrainingStep, loop: Loop) -> None:
    """Freeze parameters and choose the optimizer, which has only the others."""
    parameters = list(step.model.parameters())
    for parameter in parameters[: loop.frozen]:
        parameter.requires_grad_(False)
    trained = parameters[loop.frozen :]
    step._optimizer = {
        "adamw": lambda: torch.optim.AdamW(trained, foreach=True),
        "fused": lambda: torch.optim.AdamW(trained, fused=True),
        "sgd": lambda: torch.optim.SGD(trained, foreach=True),
        "momentum": lambda: torch.optim.SGD(trained, momentum=0.9, foreach=True),
        "by hand": lambda: ByHand(trained),
        "without torch's class": lambda: WithoutTorchsClass(trained),
    }[loop.optimizer]()


def _phases(step: TrainingStep, loop: Loop) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Phases in the loop's order; as in a loop without functions, results live until the next ones replace them."""
    optimizer = step._optimizer
    assert optimizer is not None
    run: dict[str, Callable[[], None]] = {
        **dict(step.phases),
        "zero_grad": lambda: optimizer.zero_grad(set_to_none=not loop.stays),
    }
    for number in range(BEFORE + RECORDED):
        for phase in loop.order:
            yield number, phase, run[phase]

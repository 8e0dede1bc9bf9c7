"""The optimizers that a step can have besides the user's own: those of torch, and of `low_bit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sysbench.errors import UnavailableError
from sysbench.lab.knobs.low_bit import FORMATS, low_bit_optimizer
from sysbench.lab.knobs.offload import offloaded_adamw
from sysbench.lab.strategies import blocks

LEARNING_RATE = 1e-4
"""Small enough for a thousand stable steps on one batch, and large enough to change every parameter."""

_ADAMW: Mapping[str, Mapping[str, Any]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""Options of AdamW for each implementation; without them, torch.optim would choose by device."""


def optimizer_for(model: nn.Module, choice: str) -> torch.optim.Optimizer:
    """Return an optimizer for all parameters: AdamW by this implementation, or another one.

    sgd        without momentum, and so without state
    adafactor  second moments as one row and one column for each matrix: Shazeer and Stern, 2018
    muon       for the matrices of blocks, with one moment; all other parameters have AdamW: Jordan et al., 2024
    """
    parameters = list(model.parameters())
    if choice != "muon":
        return _optimizer(parameters, choice)
    matrices = _matrices_of_blocks(model)
    return Optimizers(
        _optimizer([parameter for parameter in parameters if parameter in matrices], "muon"),
        _optimizer([parameter for parameter in parameters if parameter not in matrices], "foreach"),
    )


def _optimizer(parameters: Iterable[Tensor], choice: str) -> torch.optim.Optimizer:
    # One group for each type of tensor: foreach and fused accept no mixture of sharded and unsharded parameters.
    kinds: dict[type[Tensor], list[Tensor]] = {}
    for parameter in parameters:
        kinds.setdefault(type(parameter.data), []).append(parameter)
    groups = [{"params": members} for members in kinds.values()]
    if choice in FORMATS:
        return low_bit_optimizer(groups, choice, LEARNING_RATE)
    create, options = _CLASSES.get(choice) or (torch.optim.AdamW, _ADAMW[choice])
    return create(groups, lr=LEARNING_RATE, **options)


_CLASSES: Mapping[str, tuple[Callable[..., torch.optim.Optimizer], Mapping[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"foreach": True}),
    "adafactor": (torch.optim.Adafactor, {"foreach": True}),
    "muon": (getattr(torch.optim, "Muon", torch.optim.AdamW), {}),
}


def _matrices_of_blocks(model: nn.Module) -> set[Tensor]:
    if not hasattr(torch.optim, "Muon"):
        raise UnavailableError(f"--optimizer muon needs torch 2.9 or newer; this is {torch.__version__}")
    tensors: set[Tensor] = {
        parameter for block in blocks(model) for parameter in block.parameters() if parameter.dim() == 2
    }
    if not tensors:
        raise UnavailableError(f"--optimizer muon is for the matrices of blocks, and {type(model).__name__} has none")
    return tensors


def offloaded(model: nn.Module, choice: str) -> torch.optim.Optimizer:
    """Return this implementation of AdamW on the host; raises UnavailableError if torchao is not installed."""
    return offloaded_adamw(model, {"lr": LEARNING_RATE, "fused": False, **_ADAMW[choice]})


class Optimizers(torch.optim.Optimizer):
    """Several optimizers, each for its own parameters, as one."""

    def __init__(self, *members: torch.optim.Optimizer) -> None:
        super().__init__([{"params": group["params"]} for member in members for group in member.param_groups], {})
        self.members = members

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Let each optimizer take its step."""
        for member in self.members:
            member.step()
            self.state.update(member.state)


class InBackward(Optimizers):
    """An optimizer for each parameter, which takes its step in backward, as soon as the gradient is complete.

    The gradient is freed at once, so that gradients never exist all together. torch's tutorial "How to save memory by
    fusing the optimizer step into the backward pass" describes this.
    """

    def __init__(self, model: nn.Module, choice: str) -> None:
        matrices = _matrices_of_blocks(model) if choice == "muon" else set()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        kinds = ["foreach" if choice == "muon" and parameter not in matrices else choice for parameter in trained]
        super().__init__(*(_optimizer([parameter], kind) for parameter, kind in zip(trained, kinds, strict=True)))
        for parameter, member in zip(trained, self.members, strict=True):
            parameter.register_post_accumulate_grad_hook(partial(self._update, member))

    def _update(self, member: torch.optim.Optimizer, parameter: Tensor) -> None:
        member.step()
        parameter.grad = None
        self.state.update(member.state)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Do nothing: every parameter is updated already."""

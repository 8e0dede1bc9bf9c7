"""A training step, divided into the phases that are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from sysbench.lab.knobs.checkpointing import checkpoint_blocks
from sysbench.lab.knobs.cross_entropy import DeferredLogits
from sysbench.lab.knobs.float8 import use_float8
from sysbench.lab.knobs.lora import add_adapters
from sysbench.lab.knobs.optimizers import InBackward, offloaded
from sysbench.lab.precision import AUTOCAST_DTYPES, set_precision
from sysbench.lab.ranges import named
from sysbench.lab.strategies import distributed, gradient_sync
from sysbench.lab.workload.inputs import vocabulary_size
from sysbench.lab.workload.own import own_workload
from sysbench.lab.workload.workload import Workload, built_in_workload
from sysbench.lab.zero import ZeroOptimizer
from sysbench.spec.knobs import FP8, NONE
from sysbench.spec.model import ModelCell
from sysbench.spec.ranks import ZERO, layout
from sysbench.spec.steps import COMPILE_MODES, PHASES_OF, Phase

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class TrainingStep:
    """The training step of a cell, run repeatedly: a model, a batch, an optimizer, and the phases of the mode.

    Autocast covers forward and loss. Under fp16, scaling the loss is part of `backward`; unscaling and checking the
    gradients, and updating the scale, are part of `optimizer`. With `grad_accum`, each loss is divided by the number of
    micro-batches, so that gradients are those of the mean. The output of the last micro-batch stays alive until
    `forget`, which is called between steps, outside any timed window; those of earlier ones until their backward. The
    last output of a Hugging Face model is freed after its backward, too, as in the Trainer.
    """

    def __init__(
        self,
        cell: ModelCell,
        device: torch.device,
        mesh: DeviceMesh | None = None,
        trial: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.cell = cell
        self.work = self._workload(trial, device)
        self.model = self.work.model
        self.precision_overridden = set_precision(cell.precision) if self.work.own else []
        """Kinds of fp32 kernels whose precision the user's code had changed; they have that of the cell again."""
        if cell.lora:
            add_adapters(self.model, cell, device)
        if cell.precision in FP8:
            use_float8(self.model, cell.precision, device)
        self._until_loss: Callable[..., AbstractContextManager[None]] = (
            _nothing
            if cell.cross_entropy == "full"
            else DeferredLogits(self.model, vocabulary_size(self.model), cell.cross_entropy, cell.tokens).until_loss
        )
        if cell.checkpoint != NONE:
            checkpoint_blocks(self.model, cell.checkpoint)
        self._is_among_ranks = mesh is not None and cell.strategy is not None
        if mesh is not None and cell.strategy is not None:
            self.model = distributed(self.model, cell, mesh)
        self._run_model: Callable[..., object] = self.model
        if cell.is_compiled:
            self._run_model = torch.compile(self.model, mode=COMPILE_MODES[cell.execution])
        self._gradients = torch.no_grad() if cell.mode == "inference" else torch.enable_grad()
        self._autocast = _autocast(cell, device)
        own = self.work.own
        self._user_code: Callable[[str], AbstractContextManager[None]] = (
            _nothing if own is None else own.printed.running
        )
        self._scaler = _Scaler(device.type, enabled=cell.precision == "fp16" and "loss" in cell.phases)
        self._frees_last_output = cell.own is not None and cell.own.is_hugging_face
        self._in_backward = cell.optimizer_in_backward == "on"
        self._optimizer: torch.optim.Optimizer | None = None
        if "optimizer" in cell.phases:
            if self._in_backward:
                self._optimizer = InBackward(self.model, cell.optimizer)
            elif cell.offload == "optimizer":
                self._optimizer = offloaded(self.model, cell.optimizer)
            else:
                self._optimizer = self.work.optimizer()
        if mesh is not None and cell.strategy in ZERO:
            assert self._optimizer is not None
            bucket_bytes = None if cell.bucket_mb is None else cell.bucket_mb << 20
            self._optimizer = ZeroOptimizer(self._optimizer, int(cell.strategy[-1]), mesh.get_group(), bucket_bytes)
        self.output: Any = None
        """Output of the last micro-batch, logits (batch, ctx, vocab) for the built-in model; None without a step."""
        self._losses: list[Tensor] = []

    def _workload(self, trial: Callable[[], AbstractContextManager[None]], device: torch.device) -> Workload:
        if self.cell.own is not None:
            return own_workload(self.cell, self.cell.own, device)
        assert self.cell.shape is not None
        return built_in_workload(self.cell, self.cell.shape, device, trial)

    @property
    def phases(self) -> tuple[tuple[Phase, Callable[[], None]], ...]:
        """The phases of the cell's mode in execution order; phases of a micro-batch occur once for each micro-batch."""
        found: list[tuple[Phase, Callable[[], None]]] = []
        for number in range(self.cell.grad_accum):
            implementations: dict[Phase, Callable[[], None]] = {
                "zero_grad": self._zero_grad,
                "forward": partial(self._forward, number),
                "loss": partial(self._compute_loss, number),
                "backward": partial(self._backward, number),
                "optimizer": self._update,
            }
            once = {"zero_grad": number == 0, "optimizer": self._is_last(number)}
            found += [(each, implementations[each]) for each in PHASES_OF[self.cell.mode] if once.get(each, True)]
        return tuple(found)

    def _is_last(self, number: int) -> bool:
        return number == self.cell.grad_accum - 1

    def forget(self) -> None:
        """Release the output and the loss of the last step, with them the autograd graph, and gradients of inputs."""
        self.output = None
        self._losses.clear()
        self.work.batches[-1].drop_gradients()

    @property
    def loss(self) -> float | None:
        """Loss of the last step, averaged over its micro-batches."""
        return sum(loss.item() for loss in self._losses) if self._losses else None

    @property
    def latest_loss(self) -> Tensor | None:
        """Loss of the latest micro-batch, with its graph until backward; None before."""
        return self._losses[-1] if self._losses else None

    @property
    def _zero(self) -> ZeroOptimizer | None:
        return self._optimizer if isinstance(self._optimizer, ZeroOptimizer) else None

    def optimizer_state(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each tensor of the optimizer's state, after its parameter; of a state in blocks, each of its parts."""
        if self._zero is not None:
            yield from self._zero.state_tensors()
        for parameter, states in self._optimizer.state.items() if self._optimizer is not None else ():
            for state in (state for state in states.values() if isinstance(state, Tensor)):
                # The names of the parts, as torchao's subclasses of Tensor declare them.
                parts = getattr(state, "tensor_attrs", None)
                yield from [(parameter, getattr(state, name)) for name in parts] if parts else [(parameter, state)]

    def gradients(self) -> Iterator[Tensor]:
        """Yield the gradients of the parameters, and of inputs that require one."""
        yield from (each.grad for each in self.model.parameters() if each.grad is not None)
        if self._zero is not None:
            yield from self._zero.gradients()
        for batch in self.work.batches:
            yield from batch.gradients

    @property
    def keeps_whole_gradients(self) -> bool:
        """Whether backward leaves unsharded gradients, because of `no_sync`."""
        return self.cell.no_sync == "on" and self._is_among_ranks and layout(self.cell.strategy, self.cell.ranks)[1] > 1

    @property
    def loss_scale(self) -> tuple[Tensor, ...]:
        """Under fp16, the loss scale and the number of steps since it last changed; empty before the first backward."""
        state = (self._scaler._scale, self._scaler._growth_tracker) if self._scaler.is_enabled() else ()
        return tuple(tensor for tensor in state if tensor is not None)

    @property
    def gradients_present(self) -> bool | None:
        """Whether every trainable parameter has a gradient; None without backward, or where it frees gradients."""
        if "backward" not in self.cell.phases or self._in_backward or self._zero is not None:
            return None
        return all(parameter.grad is not None for parameter in self.model.parameters() if parameter.requires_grad)

    @torch.no_grad()
    def fingerprint(self) -> Tensor | None:
        """Copy up to 64 values of each parameter to the host, to detect changes; None without an optimizer."""
        if self._optimizer is None:
            return None
        local = [getattr(parameter, "to_local", parameter.detach)() for parameter in self.model.parameters()]
        return torch.cat([each.flatten()[:64] for each in local]).cpu()

    def _zero_grad(self) -> None:
        with named("zero_grad"):
            # Through the optimizer, as in a training loop: it has a list of parameters; a model must walk its modules.
            (self._optimizer or self.model).zero_grad(set_to_none=True)

    def _forward(self, number: int) -> None:
        batch = self.work.batches[number]
        if self.cell.uses_cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the graphs may overwrite what the last step has returned
        with (
            named("forward"),
            self._gradients,
            self._autocast,
            self.work.attention_context(),
            self._gradient_sync(number),
            self._user_code("forward"),
            self._until_loss(is_loss=False),
        ):
            self.output = self._run_model(*batch.arguments, **batch.keywords)

    def _compute_loss(self, number: int) -> None:
        with named("loss"), self._autocast, self._until_loss(is_loss=True):
            loss = self.work.batches[number].loss(self.output)
            self._losses[number:] = [loss / self.cell.grad_accum if self.cell.grad_accum > 1 else loss]

    def _backward(self, number: int) -> None:
        with (
            named("backward"),
            self.work.attention_context(),  # checkpointed blocks run again
            self._user_code("backward"),
            self._gradient_sync(number),
        ):
            if not self._losses:
                raise RuntimeError("a phase ran before loss, on which it depends")
            self._scaler.scale(self._losses[-1]).backward()
            if not self._is_last(number) or self._frees_last_output:
                self.output = None
            if not self._is_last(number):
                self._losses[-1] = self._losses[-1].detach()
                self.work.batches[number].drop_gradients()

    def _gradient_sync(self, number: int) -> AbstractContextManager[None]:
        """Return the context for micro-batch `number`; with `no_sync`, gradients are exchanged only in the last one."""
        if self._zero is not None:
            return self._zero.micro_batch(is_last=self._is_last(number))
        if self.cell.no_sync != "on" or not self._is_among_ranks:
            return nullcontext()
        return gradient_sync(self.model, self._is_last(number))

    def _update(self) -> None:
        with named("optimizer"):
            assert self._optimizer is not None
            self._scaler.step(self._optimizer)
            self._scaler.update()


class _Scaler(GradScaler):
    """A gradient scaler that unscales sharded and whole gradients separately.

    torch's own scaler unscales all gradients at once, and fails if only some are sharded, as in tensor parallelism.
    """

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        kinds: dict[type, list[Tensor]] = {}
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            kinds.setdefault(type(parameter.grad), []).append(parameter)
        found: dict[torch.device, Tensor] = {}
        for alike in kinds.values():
            one: Any = SimpleNamespace(param_groups=[{"params": alike}])
            found = super()._unscale_grads_(one, inv_scale, found_inf, allow_fp16) or found
            # The operator sets this flag to 1 if it finds an infinity, and never resets it: all kinds share the flag.
            found_inf = next(iter(found.values()), found_inf)
        return found


def _nothing(*_: object, **__: object) -> AbstractContextManager[None]:
    return nullcontext()


def _autocast(cell: ModelCell, device: torch.device) -> AbstractContextManager[object]:
    dtype = AUTOCAST_DTYPES.get(cell.precision)
    return torch.autocast(device.type, dtype) if dtype else nullcontext()

"""A recorder of training steps: categories of allocations, FLOPs, and micro-batches that repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

from sysbench.lab.dispatch import Arguments, Operator, Options
from sysbench.lab.memory.accounting import tensors_in
from sysbench.lab.step import TrainingStep
from sysbench.lab.workload.workload import Workload, adapted_facts_of, facts_of, flops, has_flops
from sysbench.simulate.cuda.reductions import SplitReduction
from sysbench.simulate.origins import Origin, Origins
from sysbench.simulate.platform import Platform
from sysbench.simulate.recorder import Device, Recorder
from sysbench.simulate.recording import Span, StepRecording
from sysbench.simulate.tensors import DeviceObserver, SimulatedDevice
from sysbench.snapshot import Category
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import PROCEDURES, Phase, Protocol

MICRO_BATCH_PHASES: tuple[Phase, ...] = ("forward", "loss", "backward")
"""Phases that run once for each micro-batch."""

RECOMPUTED = "recomputed"
"""Stands for the phase of the FLOPs that activation checkpointing computes again in backward."""

_COMMUNICATION_NAMESPACES = ("c10d", "fsdp")
"""Namespaces of communication operators."""

_Request = tuple[int, int, Origin, Category | None, SplitReduction | None]
_MicroBatch = tuple[list[int], list[_Request]]
"""Events, numbered from the first allocation of the micro-batch, and (size, stream, origin, category, reduction) of
each allocation."""


class StepRecorder(Recorder):
    """A recorder that categorizes the allocations of training steps, and counts the FLOPs that have no formula."""

    def __init__(
        self, platform: Platform, device: Callable[[DeviceObserver], Device], origins: Origins | None, cell: ModelCell
    ) -> None:
        super().__init__(platform, device, origins)
        self._runs_every_micro_batch = cell.own is not None and not cell.own.is_hugging_face
        self._is_among_ranks = cell.strategy is not None
        self._counts_flops = cell.shape_with_formulas is None or cell.repeats_forward
        self._work: Workload | None = None
        self._flops: Counter[tuple[int, str]] = Counter()
        self._known_flops: dict[int, int] = {}
        """By the identity of a `call_key`."""
        self._repeated_losses: dict[int, list[int]] = {}
        """By the loss of a micro-batch: losses of its repetitions, which were recorded but not run, latest first."""

    def observes(self, func: Operator) -> bool:
        """Return whether the operator may need scratch memory, communicates, or has FLOPs to be counted."""
        counts = self._counts_flops and has_flops(func)
        return super().observes(func) or func.namespace in _COMMUNICATION_NAMESPACES or counts

    def ends(self, func: Operator, arguments: Arguments, options: Options, result: object) -> None:
        """Record scratch memory, mark what the operator communicates, and count its FLOPs."""
        super().ends(func, arguments, options, result)
        if func.namespace in _COMMUNICATION_NAMESPACES:
            # An operator of FSDP2 writes parameters from a collective's buffer.
            for tensor in tensors_in([*arguments, *options.values()]):
                number = self.device.number_of(tensor)
                if number is not None and self._categories.get(number) not in ("parameters", "gradients"):
                    self._categories[number] = "communication"
        if self._work is not None and self._counts_flops and not self.occurrence:
            # Gradients are computed without a graph: operators in backward that record one repeat a part of forward.
            repeats = self.phase == "backward" and torch.is_grad_enabled()
            phase = RECOMPUTED if repeats else self.phase
            self._flops[self.step, phase] += self._flops_of(func, arguments, options, result)

    def _flops_of(self, func: Operator, arguments: Arguments, options: Options, result: object) -> int:
        """Return the FLOPs of an operator call; cached, because layers repeat the same calls."""
        key = self.device.call_key if isinstance(self.device, SimulatedDevice) else None
        if key is None:
            return flops(func, arguments, options, result)
        if id(key) not in self._known_flops:
            self._known_flops[id(key)] = flops(func, arguments, options, result)
        return self._known_flops[id(key)]

    def freed(self, number: int) -> None:
        """Record a free. Before the loss of a repeated micro-batch is freed, free the losses of its repetitions."""
        for loss in self._repeated_losses.pop(number, ()):
            super().freed(loss)
        super().freed(number)

    def repeat_micro_batches(self, left: int, *, is_last_step: bool) -> int:
        """Record micro-batches that would do the same as earlier ones without running them; return their number.

        `left` are still to come in this step, after the latest one, which has just run. What a micro-batch does follows
        from what is allocated before it, so two rules hold:

        - One after the first of a step leaves nothing allocated but its loss: those after it do the same. Among ranks,
          whose first exchanges are different, it must also have done the same as the one before. The last one of a step
          runs, because it may exchange gradients, and its output is kept.
        - The first one of the last step did the same as that of the step before: so do all that follow, to the last.

        None is left out on a real device, whose memory is to be measured, nor with code of the user, which may count
        its calls.
        """
        if not left or self._runs_every_micro_batch or not isinstance(self.device, SimulatedDevice):
            return 0
        if is_last_step and not self.occurrence and not self._is_among_ranks:
            return self._repeat_step(self.device, left)
        if left > 1 and self.occurrence >= 1 + self._is_among_ranks:
            return self._repeat_latest(self.device, left - 1)
        return 0

    def _repeat_step(self, device: SimulatedDevice, left: int) -> int:
        """Record the rest of the step like that of the step before, if both began alike; return `left`, else 0."""
        (first, *rest), (latest,) = self._bounds(self.step - 1), self._bounds(self.step)
        if len(rest) != left or self._micro_batch(*first) != self._micro_batch(*latest) or not device.repeats_step():
            return 0
        start, end = rest[0][0], rest[-1][1]
        events = self._events[start:end]
        if not {~event for event in events if event < 0} <= {event for event in events if event >= 0}:
            return 0
        offset = len(self._events) - start
        before = [span for span in self._spans if start <= span.first and span.end <= end]
        self._spans += [
            span._replace(step=self.step, first=span.first + offset, end=span.end + offset) for span in before
        ]
        self._append(self._micro_batch(start, end))
        device.repeat_step(left)
        return left

    def _repeat_latest(self, device: SimulatedDevice, times: int) -> int:
        """Record the latest micro-batch `times` more times, if it left only its loss allocated; return `times`, else 0.

        Among ranks it must also have done the same as the one before it.
        """
        *_, previous, latest = self._bounds(self.step)
        repeated = self._micro_batch(*latest)
        if self._is_among_ranks and (self._micro_batch(*previous) != repeated or not device.repeats()):
            return 0
        events = self._events[slice(*latest)]
        allocated, freed = {event for event in events if event >= 0}, {~event for event in events if event < 0}
        spans = self._spans[-len(MICRO_BATCH_PHASES) :]
        loss_events = self._events[spans[1].first : spans[1].end]
        if not freed < allocated or len(allocated - freed) != 1 or not allocated - freed <= set(loss_events):
            return 0
        (loss,) = allocated - freed
        self._repeated_losses[loss] = [loss + occurrence * len(allocated) for occurrence in range(times, 0, -1)]
        for occurrence in range(1, times + 1):
            offset = occurrence * len(events)
            self._spans += [span._replace(first=span.first + offset, end=span.end + offset) for span in spans]
            self._append(repeated)
        device.repeat(times)
        return times

    def _bounds(self, step: int) -> list[tuple[int, int]]:
        """Return the positions of the first event and after the last one of each micro-batch of a step.

        A micro-batch begins where the one before ends; the first one where forward begins.
        """
        ends = [span.end for span in self._spans if (span.step, span.name) == (step, "backward")]
        first = next(span.first for span in self._spans if (span.step, span.name) == (step, "forward"))
        return list(pairwise([first, *ends]))

    def _micro_batch(self, first: int, end: int) -> _MicroBatch:
        events = self._events[first:end]
        numbers = [event for event in events if event >= 0]
        sizes, streams, origins = self._sizes, self._streams, self._allocation_origins
        requests = [
            (sizes[n], streams[n], origins[n], self._categories.get(n), self._reductions.get(n)) for n in numbers
        ]
        return [event - numbers[0] if event >= 0 else event + numbers[0] for event in events], requests

    def _append(self, repeated: _MicroBatch) -> None:
        start, (events, requests) = len(self._sizes), repeated
        self._events += [event + start if event >= 0 else event - start for event in events]
        for number, (size_bytes, stream, origin, category, reduction) in enumerate(requests, start):
            self._sizes.append(size_bytes)
            self._streams.append(stream)
            self._allocation_origins.append(origin)
            if category is not None:
                self._categories[number] = category
            if reduction is not None:
                self._reductions[number] = reduction

    @contextmanager
    def tracking_modules(self, step: TrainingStep) -> Iterator[None]:
        """Context manager in which allocations belong to the modules whose code runs."""
        if self._origins is None or step.cell.is_compiled:  # the compiler would compile the hooks of modules, too
            yield
            return
        with self._origins.tracking(step.work.model):
            yield

    def built(self, step: TrainingStep) -> None:
        """Categorize the parameters, the buffers, and the rest of what the build has left allocated."""
        self._work = step.work
        for name, parameter in step.work.model.named_parameters():
            self._assign("parameters", [parameter], name.rpartition(".")[0])
        for name, buffer in step.work.model.named_buffers():
            self._assign("inputs", [buffer], name.rpartition(".")[0])
        self._assign("optimizer state", (state for _, state in step.optimizer_state()))
        self._assign_rest("inputs", self._spans)

    def ended(self, phase: str, step: TrainingStep) -> None:
        """Categorize what a phase has left allocated."""
        spans = [span for span in self._spans if span.step == self._spans[-1].step]
        if phase in ("forward", "loss"):
            self._assign_rest("activations", spans)
        elif phase == "backward":
            self._assign("gradients", step.gradients())
            self._assign("optimizer state", step.loss_scale)
            self._assign_rest("gradients" if step.keeps_whole_gradients else "optimizer state", spans[-1:])
        elif phase == "optimizer":
            self._assign_rest("optimizer state", spans[-1:])

    def step_recording(self, cell: ModelCell, protocol: Protocol) -> StepRecording:
        """Return the recording so far, with the facts about the model and the FLOPs of the current step."""
        recording = self.recording()
        own = adapted = None
        flops: dict[str, int] = {phase: self._flops[self.step, phase] for phase in PROCEDURES[protocol].phases}
        if self._work is not None and self._work.own is None and cell.lora:
            adapted = adapted_facts_of(self._work, flops)
        if self._work is not None and self._work.own is not None:
            values = self.device.values if isinstance(self.device, SimulatedDevice) else None
            own = facts_of(self._work, flops, assumed=values.assumed if values is not None else ())
        return StepRecording(
            **vars(recording),
            cell=cell,
            protocol=protocol,
            own_model=own,
            adapted_model=adapted,
            recomputed_flops=self._flops[self.step, RECOMPUTED],
        )

    def _assign(self, category: Category, tensors: Iterable[Tensor], module: str | None = None) -> None:
        for tensor in tensors:
            number = self.device.number_of(tensor)
            if number is None:
                continue
            self._categories[number] = category
            if module is not None:
                self._allocation_origins[number] = self._allocation_origins[number]._replace(module=module)

    def _assign_rest(self, category: Category, spans: Iterable[Span]) -> None:
        live: dict[int, None] = {}
        for span in spans:
            for event in self._events[span.first : span.end]:
                if event >= 0:
                    live[event] = None
                else:
                    live.pop(~event, None)
        for number in live:
            self._categories.setdefault(number, category)
